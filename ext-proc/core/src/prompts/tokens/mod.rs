//! Text to token ids, by the model's own tokenizer.

mod added;
mod boundary;
mod doubts;
mod fast;
mod library;
mod unicode;

use serde_json::Value;

use super::{LoadError, PromptError};
use crate::request::json::Object;
use boundary::Boundaries;
use library::Library;

/// A model's tokenizer, as its `tokenizer.json` describes it.
pub(super) struct Tokenizer {
    library: Library,
    /// Added tokens that are not special: they are cut out of any text.
    never_ordinary: Vec<String>,
    boundaries: Boundaries,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` of any version. Tokens that only `config`, the `tokenizer_config.json`, has are added, as
    /// transformers does.
    pub(super) fn new(json: &[u8], config: &Object) -> Result<Self, LoadError> {
        let failed = |error: &dyn std::fmt::Display| LoadError::Tokenizer(error.to_string());
        let mut file: Value = serde_json::from_slice(json).map_err(|error| failed(&error))?;
        added::add_tokens(&mut file, config);
        let library = Library::new(&mut file).map_err(|error| failed(&error))?;
        let added = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        let plain = added.iter().filter(|token| token["special"] != true);
        let plain = plain.filter_map(|token| token["content"].as_str().map(str::to_owned));
        let never_ordinary = plain.filter(|content| !content.is_empty()).collect();
        Ok(Self { library, never_ordinary, boundaries: Boundaries::new(&file) })
    }

    /// Ids of `text`. Special tokens that stand in it as text become their ids; `add_special_tokens` is whether the
    /// post-processor may add any around it.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        self.ids(text, add_special_tokens, false)
    }

    /// Ids of `text` as ordinary text: special tokens that stand in it are text like any other. An added token that is
    /// not special cannot be, and is an error.
    pub(super) fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        if self.never_ordinary.iter().any(|token| text.contains(token.as_str())) {
            return Err(PromptError::Tokenizer("the text has an added token that is not special".to_owned()));
        }
        self.ids(text, false, true)
    }

    fn ids(
        &self,
        text: &str,
        add_special_tokens: bool,
        encode_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let (library, special) = (&self.library, encode_special_tokens);
        library.encode_into(text, add_special_tokens, special, &mut ids).map_err(PromptError::Tokenizer)?;
        Ok(ids)
    }

    /// Text of `ids`, special tokens included.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.library.decode(ids)
    }
}
