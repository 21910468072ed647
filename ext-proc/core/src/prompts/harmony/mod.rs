//! Prompts of gpt-oss: OpenAI's Harmony format, which vLLM writes itself in place of a chat template.
//!
//! A conversation is a list of messages, each a header and parts of text between control tokens. Every piece is
//! encoded on its own and as ordinary text: what a user types that looks like a control token is none. The rules are
//! those of vLLM 0.32 with the renderer that it uses, oss-harmony 0.0.11.

mod chat;
mod message;
mod preamble;
mod responses;
mod typescript;

use super::{LoadError, PromptError, Settings, build::text_of, tokens::Tokenizer};
use crate::request::{
    Api,
    json::{self, Json, Object},
};
use message::Writer;

/// Whether a gpt-oss model's prompts of that API are in this format.
pub(super) const fn is_for(api: Api) -> bool {
    matches!(api, Api::ChatCompletions | Api::Messages | Api::Responses)
}

/// Control tokens of the format; a vocabulary that has all of them is of a gpt-oss model.
const CONTROL: [&str; 5] = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"];

/// The effort that vLLM asks for where a request to `/v1/messages` switches thinking off, which the format cannot.
pub(super) const EFFORT_OF_DISABLED: &str = "low";

/// Writes a gpt-oss model's prompts.
pub(super) struct Harmony {
    writer: Writer,
}

impl Harmony {
    /// For a model with that `config.json`, if it is a gpt-oss model: the settings say so, or else the config's model
    /// type, or else the tokenizer's vocabulary.
    pub(super) fn of(
        config: Option<&[u8]>,
        tokenizer: &Tokenizer,
        settings: &Settings,
    ) -> Result<Option<Self>, LoadError> {
        let kind = match config.map(json::parse) {
            None => None,
            Some(Ok(Json::Object(config))) => text_of(&config, "model_type").map(str::to_owned),
            Some(Ok(other)) => {
                return Err(LoadError::ModelConfig(format!("is {}, want an object", other.kind())));
            }
            Some(Err(error)) => return Err(LoadError::ModelConfig(error.to_string())),
        };
        let wanted = settings.harmony.or_else(|| kind.map(|kind| kind == "gpt_oss"));
        if wanted == Some(false) {
            return Ok(None);
        }
        let found = Self::new(tokenizer).map_err(|error| LoadError::Tokenizer(error.to_string()))?;
        if wanted == Some(true) && found.is_none() { Err(LoadError::NoHarmonyTokens) } else { Ok(found) }
    }

    /// For a tokenizer that has the format's control tokens; else `None`.
    fn new(tokenizer: &Tokenizer) -> Result<Option<Self>, PromptError> {
        let mut control = [0; CONTROL.len()];
        for (id, text) in control.iter_mut().zip(CONTROL) {
            match tokenizer.encode(text, false)?[..] {
                [one] if tokenizer.encode_ordinary(text)? != [one] => *id = one,
                _ => return Ok(None),
            }
        }
        Ok(Some(Self { writer: Writer::new(tokenizer, control)? }))
    }

    /// Ids of a chat: `body` is one of `/v1/chat/completions`, or was made into one.
    pub(super) fn chat(
        &self,
        tokenizer: &Tokenizer,
        body: &Object,
        settings: &Settings,
    ) -> Result<Vec<u32>, PromptError> {
        self.writer.prompt(tokenizer, chat::conversation(body, settings)?)
    }

    /// Ids of a body of `/v1/responses` that brings all of its history along.
    pub(super) fn responses(
        &self,
        tokenizer: &Tokenizer,
        body: &Object,
        settings: &Settings,
    ) -> Result<Vec<u32>, PromptError> {
        self.writer.prompt(tokenizer, responses::conversation(body, settings)?)
    }
}

fn bad(field: impl Into<String>, problem: &'static str) -> PromptError {
    PromptError::Field { field: field.into(), problem }
}

#[cfg(test)]
mod tests;
