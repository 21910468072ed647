//! A model's own files.

use std::sync::Arc;

use super::{Prompter, Settings, template::DEFAULT};
use crate::request::json::{self, Json, Object};

/// A model's own files, as bytes: this crate reads no disk.
#[derive(Clone, Copy, Debug)]
pub struct ModelFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// `tokenizer_config.json`: chat template and the texts of special tokens.
    pub tokenizer_config_json: Option<&'a [u8]>,
    /// `config.json`: the model's type.
    pub config_json: Option<&'a [u8]>,
    /// `chat_template.jinja`, or what the engine was given as `--chat-template`; goes before the one in the config.
    pub chat_template: Option<&'a str>,
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
    /// Chats are to be in the Harmony format, and the tokenizer lacks its control tokens.
    #[error("tokenizer.json: has no control tokens of Harmony, as <|start|>; is this a gpt-oss model?")]
    NoHarmonyTokens,
}

impl ModelFiles<'_> {
    /// The entries of `tokenizer_config.json`.
    pub(super) fn config(&self) -> Result<Object, LoadError> {
        match self.tokenizer_config_json.map(json::parse) {
            None => Ok(Object::new()),
            Some(Ok(Json::Object(config))) => Ok(config),
            Some(Ok(other)) => Err(LoadError::Config(format!("is {}, want an object", other.kind()))),
            Some(Err(error)) => Err(LoadError::Config(error.to_string())),
        }
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
        Self::of_files(Arc::clone(&other.tokenizer), &config, files, settings)
    }

    /// Whether both have one tokenizer in memory.
    #[must_use]
    pub fn shares_tokenizer_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tokenizer, &other.tokenizer)
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
