//! The libraries that split and merge: everything that depends on which one it is.
//!
//! `fastokens` is the faster one and has the engine's Unicode, for the kinds of files that it was made for (`fast.rs`).
//! `tokenizers` 1.0 takes all others.

use serde_json::Value;
use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

use super::{doubts::Doubts, fast};

/// A tokenizer of a library.
pub(super) struct Library {
    inner: Inner,
    doubts: Doubts,
}

enum Inner {
    Fast(Box<fastokens::Tokenizer>),
    General(Box<PipelineTokenizer>),
}

impl Library {
    /// Reads a `tokenizer.json` of any version, which is brought into its newest form.
    pub(super) fn new(file: &mut Value) -> Result<Self, String> {
        let fast = if fast::is_exact(file) { fast::load(file) } else { None };
        tokenizers::canonicalize_value(file).map_err(|error| error.to_string())?;
        let doubts = Doubts::of(file, fast.is_some());
        let inner = match fast {
            Some(tokenizer) => Inner::Fast(Box::new(tokenizer)),
            None => {
                let tokenizer =
                    tokenizers::from_json(&file.to_string()).map_err(|error| error.to_string())?;
                Inner::General(Box::new(tokenizer))
            }
        };
        Ok(Self { inner, doubts })
    }

    /// Appends the ids of `text`. `add_special_tokens` is whether the post-processor may add any around it;
    /// `special_as_text` is whether special tokens that stand in it are text like any other. A text that the engine
    /// might read in another way is an error.
    pub(super) fn encode_into(
        &self,
        text: &str,
        add_special_tokens: bool,
        special_as_text: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        if let Some(problem) = self.doubts.about(text) {
            return Err(problem.to_owned());
        }
        match &self.inner {
            Inner::Fast(inner) => {
                let made = fast::encode(inner, text, add_special_tokens, special_as_text)?;
                if ids.is_empty() {
                    *ids = made;
                } else {
                    ids.extend(made);
                }
            }
            Inner::General(inner) => {
                // vLLM cuts and pads by its own rules, whatever the file says.
                let options = EncodeOptions {
                    add_special_tokens,
                    encode_special_tokens: special_as_text,
                    padding: Override::Off,
                    truncation: Override::Off,
                };
                let mut tokens = Vec::with_capacity(text.len() / 3);
                inner.encode_into(text, &options, &mut tokens).map_err(|error| error.to_string())?;
                ids.extend(tokens.into_iter().map(u32::from));
            }
        }
        Ok(())
    }

    /// Text of `ids`, special tokens included; ids that are not in the vocabulary are left out.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        match &self.inner {
            Inner::Fast(inner) => inner.decode(ids, false).unwrap_or_default(),
            Inner::General(inner) => inner.decode(ids, false).unwrap_or_default(),
        }
    }
}
