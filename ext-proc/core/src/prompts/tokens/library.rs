//! The library that splits and merges: everything that depends on which one it is.

use serde_json::Value;
use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

/// A tokenizer of the library.
pub(super) struct Library {
    inner: PipelineTokenizer,
}

impl Library {
    /// Reads a `tokenizer.json` of any version, which is brought into its newest form.
    pub(super) fn new(file: &mut Value) -> Result<Self, String> {
        tokenizers::canonicalize_value(file).map_err(|error| error.to_string())?;
        let inner = tokenizers::from_json(&file.to_string()).map_err(|error| error.to_string())?;
        Ok(Self { inner })
    }

    /// Appends the ids of `text`. `add_special_tokens` is whether the post-processor may add any around it;
    /// `special_as_text` is whether special tokens that stand in it are text like any other.
    pub(super) fn encode_into(
        &self,
        text: &str,
        add_special_tokens: bool,
        special_as_text: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        // vLLM cuts and pads by its own rules, whatever the file says.
        let options = EncodeOptions {
            add_special_tokens,
            encode_special_tokens: special_as_text,
            padding: Override::Off,
            truncation: Override::Off,
        };
        let mut tokens = Vec::with_capacity(text.len() / 3);
        self.inner.encode_into(text, &options, &mut tokens).map_err(|error| error.to_string())?;
        ids.extend(tokens.into_iter().map(u32::from));
        Ok(())
    }

    /// Text of `ids`, special tokens included; ids that are not in the vocabulary are left out.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, false).unwrap_or_default()
    }
}
