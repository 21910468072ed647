//! From a request to exactly the token ids that vLLM makes of it.
//!
//! A chat's messages and other inputs are brought into vLLM's own form, rendered by the model's chat template and
//! encoded by its tokenizer; a completion is encoded as it is, or is token ids already. What the engine would refuse
//! is not judged here: where ids can be made they are made.

mod chat;
mod messages;
mod python;
mod source;
mod template;
mod tokens;
mod truncation;

use std::{fmt, sync::Arc};

use crate::request::{
    Api, Request,
    json::{self, Json, Object},
};
use chat::Chat;
use template::{Template, Templates};
use tokens::Tokenizer;
use truncation::Limit;

/// A model's own files, as bytes: this crate reads no disk.
#[derive(Clone, Copy, Debug)]
pub struct ModelFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// `tokenizer_config.json`: chat template and the texts of special tokens.
    pub tokenizer_config_json: Option<&'a [u8]>,
    /// `chat_template.jinja`, or what the engine was given as `--chat-template`; goes before the one in the config.
    pub chat_template: Option<&'a str>,
}

/// How the engine that is imitated was set up.
#[derive(Clone, Default)]
pub struct Settings {
    /// `--trust-request-chat-template`: a request's own template is rendered.
    pub trust_request_chat_template: bool,
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
    /// The engine's local time, for templates that print the date. Without it such a template fails to render.
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

/// Why a model's files cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// `tokenizer.json` is broken or of a kind that is not supported.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
    /// `tokenizer_config.json` is not what it should be.
    #[error("tokenizer_config.json: {0}")]
    Config(String),
}

/// Why a request has no token ids here. The caller then takes another source of knowledge.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PromptError {
    /// A message carries a medium, whose tokens only the engine can count.
    #[error("{0}: carries media, whose tokens only the engine can count")]
    Media(String),
    /// The template does not compile or does not render.
    #[error("chat template: {0}")]
    Template(String),
    /// A chat for a model that has no chat template.
    #[error("the model has no chat template; put chat_template.jinja beside its tokenizer.json")]
    NoTemplate,
    /// The request brings its own template, which the engine would not trust.
    #[error("chat_template: the request brings its own, and trust_request_chat_template is off")]
    UntrustedTemplate,
    /// A field has a value of which no prompt can be made.
    #[error("{field}: {problem}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The prompt, or one of several, has no token at all.
    #[error("the prompt has no token; an engine refuses it")]
    Empty,
    /// The tokenizer failed on the text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl PromptError {
    /// Short fixed name for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Media(_) => "media",
            Self::Template(_) => "template",
            Self::NoTemplate => "no_template",
            Self::UntrustedTemplate => "untrusted_template",
            Self::Field { .. } => "bad_field",
            Self::Empty => "empty",
            Self::Tokenizer(_) => "tokenizer",
        }
    }
}

/// Makes prompts of one model. Cheap to share: put it in an `Arc`.
pub struct Prompter {
    tokenizer: Tokenizer,
    templates: Templates,
    /// Texts of special tokens by their names in templates, as `bos_token`; none where the model has none.
    special_tokens: Object,
    settings: Settings,
}

impl Prompter {
    /// Loads a model's files.
    ///
    /// # Errors
    ///
    /// Files that are broken, or of a tokenizer that is not supported. A template that does not compile is no error
    /// here: completions work without it, and each chat says so.
    pub fn new(files: ModelFiles<'_>, settings: Settings) -> Result<Self, LoadError> {
        let config = match files.tokenizer_config_json.map(json::parse) {
            None => Object::new(),
            Some(Ok(Json::Object(config))) => config,
            Some(Ok(other)) => return Err(LoadError::Config(format!("is {}, want an object", other.kind()))),
            Some(Err(error)) => return Err(LoadError::Config(error.to_string())),
        };
        let named = match files.chat_template {
            Some(text) => vec![(template::DEFAULT.to_owned(), text.to_owned())],
            None => named_templates(config.get("chat_template")),
        };
        Ok(Self {
            tokenizer: Tokenizer::new(files.tokenizer_json)?,
            templates: Templates::new(named, &settings),
            special_tokens: special_tokens(&config),
            settings,
        })
    }

    /// The token ids of `request`, one list per prompt: a chat has one, a completion one or more.
    ///
    /// # Errors
    ///
    /// Where no ids can be made here, see [`PromptError`].
    pub fn token_ids(&self, request: &Request) -> Result<Vec<Vec<u32>>, PromptError> {
        let limit = Limit::of(request.body(), self.settings.max_model_len)?;
        let prompts = match request.api {
            Api::ChatCompletions => vec![self.chat(request, limit)?],
            Api::Completions => self.completion(request, limit)?,
        };
        if prompts.iter().any(Vec::is_empty) { Err(PromptError::Empty) } else { Ok(prompts) }
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

    fn chat(&self, request: &Request, limit: Limit) -> Result<Vec<u32>, PromptError> {
        if request.has_media {
            return Err(PromptError::Media("messages".into()));
        }
        if let Some(ids) = ready_ids(request.body())? {
            return Ok(limit.cut_ids(ids));
        }
        let text = self.rendered(request.body())?;
        let add_special_tokens = flag(request.body(), "add_special_tokens", false)?;
        self.encode_within(&text, add_special_tokens, limit)
    }

    /// The text of a chat, as its template prints it.
    fn rendered(&self, body: &Object) -> Result<String, PromptError> {
        let chat = Chat::of(body, &self.settings)?;
        let template = self.template(body, chat.has_tools())?;
        let messages = body.get("messages").and_then(Json::as_array).unwrap_or_default();
        let keeps_developer = self.settings.keeps_developer_role || template.knows_developer();
        let messages = messages::normalise(messages, template.form(), keeps_developer)?;
        let mut variables = self.special_tokens.clone();
        variables.extend(chat.variables);
        self.templates.render(&template, messages, variables, chat.continues)
    }

    /// The request's own template if the engine would trust it, else the model's.
    fn template(&self, body: &Object, has_tools: bool) -> Result<Template, PromptError> {
        match body.get("chat_template") {
            None | Some(Json::Null) => self.templates.choose(has_tools),
            Some(_) if !self.settings.trust_request_chat_template => Err(PromptError::UntrustedTemplate),
            Some(Json::String(text)) if text.is_empty() => self.templates.choose(has_tools),
            Some(Json::String(text)) => Ok(self.templates.described(text)),
            Some(_) => Err(PromptError::Field { field: "chat_template".into(), problem: "want a string" }),
        }
    }

    fn completion(&self, request: &Request, limit: Limit) -> Result<Vec<Vec<u32>>, PromptError> {
        if request.has_media {
            return Err(PromptError::Media("prompt_embeds".into()));
        }
        let add_special_tokens = flag(request.body(), "add_special_tokens", true)?;
        match request.body().get("prompt") {
            Some(Json::String(text)) => Ok(vec![self.encode_within(text, add_special_tokens, limit)?]),
            Some(Json::Array(items)) if matches!(items.first(), Some(Json::Int(_))) => {
                Ok(vec![limit.cut_ids(ids("prompt", items)?)])
            }
            Some(Json::Array(prompts)) => prompts
                .iter()
                .map(|prompt| match prompt {
                    Json::String(text) => self.encode_within(text, add_special_tokens, limit),
                    Json::Array(items) => Ok(limit.cut_ids(ids("prompt", items)?)),
                    _ => {
                        Err(PromptError::Field { field: "prompt".into(), problem: "want texts or token ids" })
                    }
                })
                .collect(),
            _ => Err(PromptError::Field { field: "prompt".into(), problem: "want texts or token ids" }),
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

/// Token ids that a client had made before and sends with a chat, in place of rendering and encoding it.
fn ready_ids(body: &Object) -> Result<Option<Vec<u32>>, PromptError> {
    let given = body.get("kv_transfer_params").and_then(Json::as_object);
    let given = given.and_then(|params| params.get("prompt_token_ids"));
    let echoes = body.get("echo").is_some_and(Json::is_true);
    match given {
        None | Some(Json::Null) => Ok(None),
        Some(_) if echoes => Ok(None),
        Some(Json::Array(items)) if !items.is_empty() => {
            ids("kv_transfer_params.prompt_token_ids", items).map(Some)
        }
        Some(_) => Err(PromptError::Field {
            field: "kv_transfer_params.prompt_token_ids".into(),
            problem: "want a list of token ids that is not empty",
        }),
    }
}

fn ids(field: &str, items: &[Json]) -> Result<Vec<u32>, PromptError> {
    let ids = items.iter().map(|item| item.as_int().and_then(|id| u32::try_from(id).ok()));
    ids.collect::<Option<_>>().ok_or_else(|| PromptError::Field {
        field: field.to_owned(),
        problem: "want token ids, integers from 0 on",
    })
}

fn flag(body: &Object, name: &str, default: bool) -> Result<bool, PromptError> {
    match body.get(name) {
        None | Some(Json::Null) => Ok(default),
        Some(Json::Bool(flag)) => Ok(*flag),
        Some(_) => Err(PromptError::Field { field: name.to_owned(), problem: "want true or false" }),
    }
}

/// A config's `chat_template`: one text, or several with names, as a list or as an object.
fn named_templates(config: Option<&Json>) -> Vec<(String, String)> {
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    match config {
        Some(Json::String(text)) => vec![pair(template::DEFAULT, text)],
        Some(Json::Array(items)) => items
            .iter()
            .filter_map(|item| {
                let text = |key: &str| item.as_object()?.get(key)?.as_str();
                Some(pair(text("name")?, text("template")?))
            })
            .collect(),
        Some(Json::Object(entries)) => {
            entries.iter().filter_map(|(name, text)| Some(pair(name, text.as_str()?))).collect()
        }
        _ => Vec::new(),
    }
}

/// A config's special tokens: each a text, or an object with its text in `content`.
fn special_tokens(config: &Object) -> Object {
    let tokens = config.iter().filter(|(name, _)| name.ends_with("_token"));
    tokens
        .filter_map(|(name, token)| {
            let text = match token {
                Json::String(text) => text,
                Json::Object(token) => token.get("content")?.as_str()?,
                _ => return None,
            };
            Some((name.clone(), Json::String(text.to_owned())))
        })
        .collect()
}
