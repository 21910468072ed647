//! Text to token ids, by the model's own tokenizer.

use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

use super::{LoadError, PromptError};

/// A model's tokenizer, as its `tokenizer.json` describes it.
pub(super) struct Tokenizer {
    inner: PipelineTokenizer,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` of any version.
    pub(super) fn new(json: &[u8]) -> Result<Self, LoadError> {
        let failed = |error: &dyn std::fmt::Display| LoadError::Tokenizer(error.to_string());
        let text = std::str::from_utf8(json).map_err(|error| failed(&error))?;
        let canonical = tokenizers::canonicalize_str(text).map_err(|error| failed(&error))?;
        let inner = tokenizers::from_json(&canonical).map_err(|error| failed(&error))?;
        Ok(Self { inner })
    }

    /// Ids of `text`. Special tokens that stand in it as text become their ids; `add_special_tokens` is whether the
    /// post-processor may add any around it.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        // vLLM cuts and pads by its own rules, whatever the file says.
        let options = EncodeOptions {
            add_special_tokens,
            encode_special_tokens: false,
            padding: Override::Off,
            truncation: Override::Off,
        };
        let mut tokens = Vec::with_capacity(text.len() / 3);
        self.inner
            .encode_into(text, &options, &mut tokens)
            .map_err(|error| PromptError::Tokenizer(error.to_string()))?;
        Ok(tokens.into_iter().map(u32::from).collect())
    }

    /// Text of `ids`, special tokens included.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, false).unwrap_or_default()
    }
}
