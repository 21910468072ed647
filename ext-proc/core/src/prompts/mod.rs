//! From a request to exactly the token ids that vLLM makes of it.
//!
//! A chat's messages and other inputs are brought into vLLM's own form, rendered by the model's chat template and
//! encoded by its tokenizer; a completion is encoded as it is, or is token ids already. The other APIs come down to
//! one of these two. What the engine would refuse is not judged here: where ids can be made they are made.

mod anthropic;
mod build;
mod chat;
mod classes;
mod error;
mod family;
mod files;
mod harmony;
mod media;
mod messages;
mod pooling;
mod prompt;
mod python;
mod render;
mod responses;
mod rewrite;
mod source;
mod template;
mod tokens;
mod truncation;

use std::{fmt, sync::Arc};

pub use error::PromptError;
pub use files::{LoadError, ModelFiles};
pub use prompt::{Medium, Prompt};

use crate::{
    memo::Memo,
    request::{
        Api, Request,
        json::{Json, Object},
    },
};
use build::{field, flag, ids, media_field, object, ready_ids, text};
use family::{Family, Mode};
use harmony::Harmony;
use messages::Media;
use render::Sheet;
use template::Templates;
use tokens::Tokenizer;
use truncation::Limit;

/// How the engine that is imitated was set up.
#[derive(Clone, Default)]
pub struct Settings {
    /// `--trust-request-chat-template`: a request's own template is rendered.
    pub trust_request_chat_template: bool,
    /// Whether the template is that of `--chat-template` and not the model's own, which gives way to one among a
    /// request's `chat_template_kwargs`.
    pub chat_template_is_servers: bool,
    /// `--exclude-tools-when-tool-choice-none`.
    pub exclude_tools_when_tool_choice_none: bool,
    /// `--default-chat-template-kwargs`.
    pub default_chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
    /// `--chat-template-content-format`.
    pub content_format: ContentFormat,
    /// True for an engine too old to turn developer messages into a system message where the template does not know
    /// that role (0.16 is): it hands them to the template as they are.
    pub keeps_developer_role: bool,
    /// `--max-model-len`, in tokens: what `truncate_prompt_tokens: -1` counts from. Where it is not known, such a
    /// prompt is taken to fit.
    pub max_model_len: Option<u32>,
    /// Whether chats are in the Harmony format. Where it is not said, `config.json`'s model type does (`gpt_oss`), or
    /// else the tokenizer's vocabulary.
    pub harmony: Option<bool>,
    /// `VLLM_SYSTEM_START_DATE`: the date in Harmony prompts, else the clock's.
    pub start_date: Option<String>,
    /// `VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS`: Harmony's instructions are in the system message.
    pub harmony_system_instructions: bool,
    /// `--tokenizer-mode`: `hf`, or the name of code of the engine's. Where it is not said, or `auto`, the model's
    /// architecture and files do. With `hf` it is taken that the engine's tokenizer is `tokenizer.json` as it is.
    pub tokenizer_mode: Option<String>,
    /// The engine's local time, for prompts that show the date. Without it such a template fails to render.
    pub clock: Option<Arc<dyn Fn() -> LocalTime + Send + Sync>>,
}

/// `--chat-template-content-format`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ContentFormat {
    /// Found out from the template: parts where it loops over a message's content, else one string.
    #[default]
    Auto,
    /// Always one string.
    String,
    /// Always a list of parts.
    OpenAi,
}

/// A date and time of day in the engine's own time zone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LocalTime {
    /// Year of the Gregorian calendar.
    pub year: i32,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 60.
    pub second: u8,
}

/// What distinguishes the chats of different APIs.
#[derive(Clone, Copy)]
struct Kind {
    /// Whether the server's `--default-chat-template-kwargs` hold.
    has_defaults: bool,
    /// Whether calls of tools reach the template with their keys in the order in which they were put together.
    calls_as_given: bool,
}

const CHAT: Kind = Kind { has_defaults: true, calls_as_given: false };

/// Makes prompts of one model. Cheap to share: put it in an `Arc`.
#[derive(Clone)]
pub struct Prompter {
    tokenizer: Arc<Tokenizer>,
    /// The model's own templates, by name.
    named: Arc<[(String, String)]>,
    templates: Arc<Templates>,
    /// Texts of special tokens by their names in templates, as `bos_token`; none where the model has none.
    special_tokens: Object,
    /// Writes chats in place of a template.
    harmony: Option<Arc<Harmony>>,
    settings: Settings,
    traits: anthropic::Traits,
    family: Arc<Family>,
    memo: Option<Arc<dyn Memo>>,
}

impl Prompter {
    /// Loads a model's files.
    ///
    /// # Errors
    ///
    /// Files that are broken, or of a tokenizer that is not supported. A template that does not compile is no error
    /// here: completions work without it, and each chat says so.
    pub fn new(files: ModelFiles<'_>, settings: Settings) -> Result<Self, LoadError> {
        let config = files.config()?;
        let family = files.family(&config, &settings)?;
        let tokenizer = Arc::new(Tokenizer::new(files.tokenizer_json, &config)?);
        Self::of_files(tokenizer, &config, family, files, settings)
    }

    fn of_files(
        tokenizer: Arc<Tokenizer>,
        config: &Object,
        family: Family,
        files: ModelFiles<'_>,
        settings: Settings,
    ) -> Result<Self, LoadError> {
        let harmony = Harmony::of(files.config_json, &tokenizer, &settings)?.map(Arc::new);
        let (named, special_tokens) = (files.templates(config)?.into(), files::special_tokens(config));
        Ok(Self::of_parts(tokenizer, harmony, named, special_tokens, family.into(), None, settings))
    }

    /// The same model set up in another way, its large tokenizer shared; a gpt-oss model stays one.
    #[must_use]
    pub fn set_up(&self, chat_template: Option<&str>, settings: Settings) -> Self {
        let (tokenizer, named) = (Arc::clone(&self.tokenizer), Arc::clone(&self.named));
        let harmony = self.harmony.clone();
        let family = Arc::clone(&self.family);
        let special_tokens = self.special_tokens.clone();
        let it = Self::of_parts(tokenizer, harmony, named, special_tokens, family, chat_template, settings);
        Self { memo: self.memo.clone(), ..it }
    }

    /// The same, which keeps pieces of texts and their ids in `memo`, where that is exact; see [`Self::memo_label`].
    #[must_use]
    pub fn with_memo(mut self, memo: Arc<dyn Memo>) -> Self {
        self.tokenizer = Arc::new(self.tokenizer.with_memo(Arc::clone(&memo)));
        self.memo = Some(memo);
        self
    }

    /// The memo that it was given, for what is made of its ids.
    pub fn memo(&self) -> Option<&dyn Memo> {
        self.memo.as_deref()
    }

    /// How texts are cut for a memo (`anywhere`, `added_tokens`, `whole`); where pieces of a text need not have the ids
    /// that they have in the whole, and a memo is of no use for texts, why.
    pub fn memo_label(&self) -> Result<&'static str, &'static str> {
        let label = self.tokenizer.cut_label();
        if self.tokenizer.can_remember() { Ok(label) } else { Err(label) }
    }

    fn of_parts(
        tokenizer: Arc<Tokenizer>,
        harmony: Option<Arc<Harmony>>,
        named: Arc<[(String, String)]>,
        special_tokens: Object,
        family: Arc<Family>,
        chat_template: Option<&str>,
        settings: Settings,
    ) -> Self {
        let templates = match chat_template {
            Some(text) => Templates::new(&[(template::DEFAULT.to_owned(), text.to_owned())], &settings),
            None => Templates::new(&named, &settings),
        };
        let traits = anthropic::Traits {
            merges_inline_system: templates.want_system_first(),
            effort_of_disabled: "none",
            made_up_id: anthropic::MADE_UP_IDS[0],
        };
        let mut prompter = Self {
            tokenizer,
            named,
            templates: templates.into(),
            special_tokens,
            harmony,
            settings,
            traits,
            family,
            memo: None,
        };
        prompter.traits.effort_of_disabled = prompter.effort_of_disabled();
        prompter
    }

    /// The effort that stands for thinking switched off: a low one where a template refuses `none`, or takes it for
    /// another one.
    fn effort_of_disabled(&self) -> &'static str {
        let render = |effort: &str| {
            let hi = Json::Object(object([("role", text("user")), ("content", text("Hi"))]));
            let body = [("messages", Json::Array(vec![hi])), ("reasoning_effort", text(effort))];
            self.rendered(&object(body), CHAT).ok()
        };
        let none = render("none");
        let is_another = ["low", "medium", "high", "xhigh", "max"].into_iter().any(|it| render(it) == none);
        if none.is_none() || is_another { "low" } else { "none" }
    }

    /// The prompts of `request`: a chat has one, other requests one or more. One with a medium ends before the first.
    ///
    /// # Errors
    ///
    /// Where no ids can be made here, see [`PromptError`].
    pub fn prompts(&self, request: &Request) -> Result<Vec<Prompt>, PromptError> {
        if request.has_media && self.harmony.is_none() {
            return self.cut_prompts(request);
        }
        Ok(self.token_ids(request)?.into_iter().map(Prompt::from).collect())
    }

    /// The token ids of `request`, one list per prompt: a chat has one, other requests one or more. Media are an error.
    ///
    /// # Errors
    ///
    /// Where no ids can be made here, see [`PromptError`].
    pub fn token_ids(&self, request: &Request) -> Result<Vec<Vec<u32>>, PromptError> {
        let body = request.body();
        if let Some(ids) = self.harmony_prompt(request)? {
            return Ok(vec![ids]);
        }
        if request.has_media {
            return Err(PromptError::Media(media_field(request).into()));
        }
        let limit = Limit::of(request, self.settings.max_model_len)?;
        let prompts = match request.api {
            Api::ChatCompletions => vec![self.chat(body, CHAT, limit)?],
            Api::Messages => vec![self.messages(body, |chat| self.chat(&chat, CHAT, limit))?],
            Api::Responses => {
                let kind = Kind { calls_as_given: true, ..CHAT };
                vec![self.chat(&responses::to_chat(body)?, kind, limit)?]
            }
            Api::Completions => {
                let prompt = body.get("prompt").unwrap_or(&Json::Null);
                self.texts_or_ids("prompt", prompt, body, limit)?
            }
            Api::Embeddings | Api::Pooling => match pooling::inputs(body)? {
                pooling::Inputs::Prompts(input) => self.texts_or_ids("input", input, body, limit)?,
                pooling::Inputs::Chats(chats) => {
                    let kind = Kind { has_defaults: false, ..CHAT };
                    chats.iter().map(|chat| self.chat(chat, kind, limit)).collect::<Result<_, _>>()?
                }
            },
        };
        if prompts.iter().any(Vec::is_empty) { Err(PromptError::Empty) } else { Ok(prompts) }
    }

    /// Why a chat template of the model does not compile, if one does not. Completions work without it.
    pub fn template_problem(&self) -> Option<&str> {
        self.templates.problem()
    }

    /// The token ids of a text; `add_special_tokens` is whether the tokenizer's own post-processor may add any.
    ///
    /// # Errors
    ///
    /// Where the tokenizer cannot take the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        self.tokenizer.encode(text, add_special_tokens)
    }

    /// The text of token ids, special tokens included; ids that are not in the vocabulary are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids)
    }

    /// What `prompt` makes of an Anthropic request as a chat.
    fn messages<T: PartialEq>(
        &self,
        body: &Object,
        prompt: impl Fn(Object) -> Result<T, PromptError>,
    ) -> Result<T, PromptError> {
        let of = |id| prompt(anthropic::to_chat(body, anthropic::Traits { made_up_id: id, ..self.traits })?);
        let made = of(anthropic::MADE_UP_IDS[0])?;
        if anthropic::lacks_id(body) && of(anthropic::MADE_UP_IDS[1])? != made {
            return Err(field("messages", "a call has no id, and the made-up one would be shown"));
        }
        Ok(made)
    }

    /// Fails where the engine makes such a prompt by code of its own.
    fn check_mode(&self, is_chat: bool) -> Result<(), PromptError> {
        match self.family.mode(self.settings.tokenizer_mode.as_deref()) {
            Mode::OwnChats(mode) if is_chat => Err(PromptError::OwnCode(mode)),
            Mode::OwnTokenizer(mode) => Err(PromptError::OwnCode(mode)),
            Mode::Files | Mode::OwnChats(_) => Ok(()),
        }
    }

    fn chat(&self, body: &Object, kind: Kind, limit: Limit) -> Result<Vec<u32>, PromptError> {
        if let Some(ids) = ready_ids(body)? {
            return Ok(ids);
        }
        let text = self.rendered(body, kind)?;
        if chat::is_encoded_by_renderer(body)? {
            return Ok(limit.cut_ids(self.tokenizer.encode(&text, false)?));
        }
        self.encode_within(&text, flag(body, "add_special_tokens", false)?, limit)
    }

    /// The text of a chat, as its template prints it.
    fn rendered(&self, body: &Object, kind: Kind) -> Result<String, PromptError> {
        let sheet = Sheet::new(self, body, kind)?;
        sheet.print(sheet.messages(Media::Refused)?)
    }

    /// A text or several, or the ids of one or several, from the field of that name.
    fn texts_or_ids(
        &self,
        name: &str,
        value: &Json,
        body: &Object,
        limit: Limit,
    ) -> Result<Vec<Vec<u32>>, PromptError> {
        self.check_mode(false)?;
        let add_special_tokens = flag(body, "add_special_tokens", true)?;
        let one = |prompt: &Json| match prompt {
            Json::String(text) => self.encode_within(text, add_special_tokens, limit),
            Json::Array(items) => Ok(limit.cut_ids(ids(name, items)?)),
            _ => Err(field(name, "want texts or token ids")),
        };
        match value {
            Json::Array(items) if items.iter().all(|it| matches!(it, Json::Array(_) | Json::String(_))) => {
                Tokenizer::check(items.iter().filter_map(Json::as_str))?;
                items.iter().map(one).collect()
            }
            one_prompt => Ok(vec![one(one_prompt)?]),
        }
    }

    fn encode_within(
        &self,
        text: &str,
        add_special_tokens: bool,
        limit: Limit,
    ) -> Result<Vec<u32>, PromptError> {
        let ids = self.tokenizer.encode(text, add_special_tokens)?;
        if limit.holds(&ids) {
            return Ok(ids);
        }
        // The tokenizer's own cut spares the special tokens that it adds.
        let bare = if add_special_tokens { self.tokenizer.encode(text, false)? } else { ids.clone() };
        limit.cut_text(ids, &bare)
    }
}

impl fmt::Debug for Prompter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prompter").field("special_tokens", &self.special_tokens).finish_non_exhaustive()
    }
}
