//! A model's own files.

use std::sync::Arc;

use super::{
    Prompter, Settings,
    family::{Family, Mode},
    template::{DEFAULT, PROCESSOR},
};
use crate::request::json::{self, Json, Object};

/// A model's own files, as bytes: this crate reads no disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// `tokenizer_config.json`: chat template and the texts of special tokens.
    pub tokenizer_config_json: Option<&'a [u8]>,
    /// `config.json`: the model's type.
    pub config_json: Option<&'a [u8]>,
    /// `chat_template.jinja`, or what the engine was given as `--chat-template`; goes before the one in the config.
    pub chat_template: Option<&'a str>,
    /// Names and texts of the templates in the folder `additional_chat_templates`, without `.jinja`. None where the engine
    /// was given one.
    pub additional_chat_templates: &'a [(String, String)],
    /// `chat_template.json`, in which older processors of media have a template; it goes before `chat_template.jinja`
    /// where a chat has no tools. None where the engine was given one.
    pub chat_template_json: Option<&'a [u8]>,
    /// `processor_config.json`, which may have a template as well. None where the engine was given one.
    pub processor_config_json: Option<&'a [u8]>,
    /// `special_tokens_map.json` of older tokenizers.
    pub special_tokens_map_json: Option<&'a [u8]>,
    /// `added_tokens.json` of older tokenizers.
    pub added_tokens_json: Option<&'a [u8]>,
    /// `sentence_bert_config.json`, or one like it, of models for embeddings.
    pub sentence_config_json: Option<&'a [u8]>,
    /// Names of all files in the folder, where they are known.
    pub names: &'a [String],
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
    /// `config.json` is not what it should be.
    #[error("config.json: {0}")]
    ModelConfig(String),
    /// Another file is not what it should be.
    #[error("{file}: {problem}")]
    File {
        /// Its name.
        file: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Chats are to be in the Harmony format, and the tokenizer lacks its control tokens.
    #[error("tokenizer.json: has no control tokens of Harmony, as <|start|>; is this a gpt-oss model?")]
    NoHarmonyTokens,
    /// The tokenizer is there in another form.
    #[error(
        "tokenizer.json: not there, but {found}; have the engine make the prompts (`source: remote`), or load the folder \
         with transformers' AutoTokenizer and write a tokenizer.json with its save_pretrained"
    )]
    OtherTokenizer {
        /// What there is.
        found: &'static str,
    },
    /// There is no tokenizer at all.
    #[error(
        "tokenizer.json: not there, nor another tokenizer; copy it from the model that the engine serves"
    )]
    NoTokenizer,
    /// The engine makes this model's prompts by code of its own.
    #[error(
        "tokenizer mode {mode}: the engine makes such prompts by code of its own; have it do so (`source: remote`)"
    )]
    OwnCode {
        /// vLLM's `--tokenizer-mode`, as it is set or found out.
        mode: String,
    },
    /// The tokenizer is Python code.
    #[error(
        "tokenizer_config.json: {class} is Python code, which tokenizer.json need not agree with; have the engine make the \
         prompts (`source: remote`), or say `tokenizer_mode: hf` if it runs without --trust-remote-code"
    )]
    PythonTokenizer {
        /// Its name.
        class: String,
    },
    /// The tokenizer cuts text in another way than `tokenizer.json` says.
    #[error(
        "tokenizer.json: cuts text in another way than a {class} of transformers 5, which takes no more of it than the \
         vocabulary; have the engine make the prompts (`source: remote`), or say `tokenizer_mode: hf` if it has an older one"
    )]
    OtherClass {
        /// Its name.
        class: &'static str,
    },
}

impl LoadError {
    /// For a folder with these files and no `tokenizer.json`.
    #[must_use]
    pub fn without_tokenizer_json(names: &[String]) -> Self {
        let has = |it: &dyn Fn(&str) -> bool| names.iter().any(|name| it(name));
        let is = |wanted: &'static str| has(&|name| name == wanted);
        if is("tekken.json") || has(&|name| name.starts_with("tokenizer.model.v")) {
            // Messages become tokens directly, so that a tokenizer.json would not do.
            return Self::OwnCode { mode: "mistral".to_owned() };
        }
        let found = if has(&|name| name.ends_with(".tiktoken") || name == "tiktoken.model") {
            "a tiktoken vocabulary (*.tiktoken)"
        } else if is("tokenizer.model") {
            "a SentencePiece or tiktoken model (tokenizer.model)"
        } else if has(&|name| name.ends_with(".spm") || name.ends_with(".model")) {
            "a SentencePiece model (*.model)"
        } else if is("vocab.json") && is("merges.txt") {
            "a vocabulary with merges (vocab.json, merges.txt)"
        } else if is("vocab.txt") {
            "a WordPiece vocabulary (vocab.txt)"
        } else {
            return Self::NoTokenizer;
        };
        Self::OtherTokenizer { found }
    }
}

impl ModelFiles<'_> {
    /// The entries of `tokenizer_config.json`, with those that older files hold.
    pub(super) fn config(&self) -> Result<Object, LoadError> {
        let mut config = match self.tokenizer_config_json.map(json::parse) {
            None => Object::new(),
            Some(Ok(Json::Object(config))) => config,
            Some(Ok(other)) => return Err(LoadError::Config(format!("is {}, want an object", other.kind()))),
            Some(Err(error)) => return Err(LoadError::Config(error.to_string())),
        };
        // Where the config numbers the added tokens itself, transformers looks at no other file.
        if !config.contains_key(NUMBERED) {
            add_special_tokens(&mut config, object("special_tokens_map.json", self.special_tokens_map_json)?);
            add_numbered(&mut config, &object("added_tokens.json", self.added_tokens_json)?);
        }
        Ok(config)
    }

    /// The model's chat templates as pairs of name and text. A later one goes before an earlier one of the same name.
    pub(super) fn templates(&self, config: &Object) -> Result<Vec<(String, String)>, LoadError> {
        let default = self.chat_template.map(|text| (DEFAULT.to_owned(), text.to_owned()));
        let mut all: Vec<_> =
            default.into_iter().chain(self.additional_chat_templates.iter().cloned()).collect();
        // Files go before all that the config has.
        if all.is_empty() {
            all = named_templates(config);
        }
        all.extend(self.processors_template()?.map(|text| (PROCESSOR.to_owned(), text)));
        Ok(all)
    }

    /// The template of the model's processor of media, where it is another one than the tokenizer's.
    fn processors_template(&self) -> Result<Option<String>, LoadError> {
        let file = "processor_config.json";
        match object(file, self.processor_config_json)?.get("chat_template") {
            None | Some(Json::Null) => {}
            Some(Json::String(text)) => return Ok(Some(text.clone())),
            Some(_) => {
                return Err(LoadError::File { file, problem: "chat_template: want a string".to_owned() });
            }
        }
        let file = "chat_template.json";
        match object(file, self.chat_template_json)?.get("chat_template") {
            // With both, the processor cannot be loaded.
            _ if self.chat_template_json.is_none() || !self.additional_chat_templates.is_empty() => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.clone())),
            _ => Err(LoadError::File { file, problem: "chat_template: want a string".to_owned() }),
        }
    }

    /// What the model is.
    ///
    /// # Errors
    ///
    /// Where no prompt of it can be made by these files.
    pub(super) fn family(&self, config: &Object, settings: &Settings) -> Result<Family, LoadError> {
        let family = Family::new(self.config_json, self.names)?;
        if let Mode::OwnTokenizer(mode) = family.mode(settings.tokenizer_mode.as_deref()) {
            return Err(LoadError::OwnCode { mode });
        }
        if settings.tokenizer_mode.as_deref() != Some("hf") {
            family.check(config, self.tokenizer_json)?;
        }
        self.check_case()?;
        Ok(family)
    }

    /// Fails where the engine makes all text lower case.
    fn check_case(&self) -> Result<(), LoadError> {
        let file = "sentence_bert_config.json";
        let config = object(file, self.sentence_config_json)?;
        // vLLM takes the file for another one where that is missing.
        if config.contains_key("max_seq_length") && config.get("do_lower_case").is_some_and(Json::is_true) {
            let problem =
                "do_lower_case: is not supported; have the engine make the prompts (`source: remote`)";
            return Err(LoadError::File { file, problem: problem.to_owned() });
        }
        Ok(())
    }
}

/// Key of the added tokens by number.
const NUMBERED: &str = "added_tokens_decoder";

/// The object in a file; an empty one if there is no file.
fn object(file: &'static str, bytes: Option<&[u8]>) -> Result<Object, LoadError> {
    let failed = |problem| Err(LoadError::File { file, problem });
    match bytes.map(json::parse) {
        None => Ok(Object::new()),
        Some(Ok(Json::Object(object))) => Ok(object),
        Some(Ok(other)) => failed(format!("is {}, want an object", other.kind())),
        Some(Err(error)) => failed(error.to_string()),
    }
}

/// Puts the special tokens of an older file over those of `config`.
fn add_special_tokens(config: &mut Object, map: Object) {
    for (name, value) in map {
        let value = match (name.as_str(), value) {
            // It comes too late for transformers 5, which has another name for this list.
            ("additional_special_tokens", _) => continue,
            ("extra_special_tokens", Json::Array(more)) => {
                let known = config.get(&name).and_then(Json::as_array).unwrap_or_default();
                let more: Vec<_> = more.into_iter().filter(|it| !known.contains(it)).collect();
                Json::Array([known, more.as_slice()].concat())
            }
            (_, value) => value,
        };
        config.insert(name, value);
    }
}

/// Adds the tokens of an older file, which are special where they have a role.
fn add_numbered(config: &mut Object, tokens: &Object) {
    let special = special_tokens(config);
    let listed = config.get("extra_special_tokens").and_then(Json::as_array).unwrap_or_default();
    let numbered = tokens.iter().filter_map(|(text, id)| {
        let is_special = special.values().chain(listed).any(|it| it.as_str() == Some(text));
        let mut token = Object::new();
        token.insert("content".into(), Json::String(text.clone()));
        token.insert("normalized".into(), Json::Bool(!is_special));
        token.insert("special".into(), Json::Bool(is_special));
        Some((id.as_int()?.to_string(), Json::Object(token)))
    });
    let numbered: Object = numbered.collect();
    if !numbered.is_empty() {
        config.insert(NUMBERED.into(), Json::Object(numbered));
    }
}

impl Prompter {
    /// As [`Prompter::new`], with the large tokenizer of `other` in place of one of its own. The files that a tokenizer
    /// is made of must have the same bytes as those of `other`: they are not read again.
    ///
    /// # Errors
    ///
    /// Files that are broken, but for those of the tokenizer.
    pub fn sharing(other: &Self, files: ModelFiles<'_>, settings: Settings) -> Result<Self, LoadError> {
        let config = files.config()?;
        let family = files.family(&config, &settings)?;
        Self::of_files(Arc::clone(&other.tokenizer), &config, family, files, settings)
    }

    /// Whether both have one tokenizer in memory.
    #[must_use]
    pub fn shares_tokenizer_with(&self, other: &Self) -> bool {
        self.tokenizer.is_same(&other.tokenizer)
    }
}

/// A config's chat templates as pairs of name and text: one text, or several with names, as a list or as an object.
pub(super) fn named_templates(config: &Object) -> Vec<(String, String)> {
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    match config.get("chat_template") {
        Some(Json::String(text)) => vec![pair(DEFAULT, text)],
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

/// A config's special tokens by name: each a text, or an object with its text in `content`.
pub(super) fn special_tokens(config: &Object) -> Object {
    let tokens = config.iter().filter(|(name, _)| name.ends_with("_token"));
    let extra = config.get("extra_special_tokens").and_then(Json::as_object);
    tokens
        .chain(extra.into_iter().flatten())
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
