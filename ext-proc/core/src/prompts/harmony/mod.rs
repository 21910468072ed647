//! Prompts of gpt-oss: OpenAI's Harmony format, which vLLM writes itself in place of a chat template.
//!
//! A conversation is a list of messages, each a header and parts of text between control tokens. Every piece is
//! encoded on its own and as ordinary text: what a user types that looks like a control token is none. The rules are
//! those of vLLM 0.32 with the renderer that it uses, oss-harmony 0.0.11.

mod chat;
mod message;
mod numbers;
mod preamble;
mod responses;
mod typescript;

use super::{
    LoadError, PromptError, Prompter, Settings, anthropic,
    build::{ready_ids, text_of},
    tokens::Tokenizer,
    truncation::Limit,
};
use crate::request::{
    Api, Request,
    json::{self, Json, Object},
};
use message::Writer;

/// Control tokens of the format; a vocabulary that has all of them is of a gpt-oss model.
const CONTROL: [&str; 5] = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"];

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
}

impl Prompter {
    /// A gpt-oss model's prompt; `None` for other models and for APIs without a conversation. Media leave nothing in
    /// it, and no length is cut but that of `/v1/responses`.
    pub(super) fn harmony_prompt(&self, request: &Request) -> Result<Option<Vec<u32>>, PromptError> {
        let Some(harmony) = &self.harmony else { return Ok(None) };
        let (body, settings) = (request.body(), &self.settings);
        // Ids that a client had made before stand for the text, but not for media beside it.
        let chat = |body: &Object| match ready_ids(body)? {
            Some(ids) if !request.has_media => Ok(ids),
            _ => harmony.writer.prompt(&self.tokenizer, chat::conversation(body, settings)?),
        };
        let ids = match request.api {
            Api::ChatCompletions => chat(body)?,
            Api::Messages => {
                // Thinking cannot be switched off in this format; vLLM then asks for a low effort.
                let traits = anthropic::Traits { effort_of_disabled: "low", ..self.traits };
                chat(&anthropic::to_chat(body, traits)?)?
            }
            Api::Responses => {
                let messages = responses::conversation(body, settings)?;
                let limit = Limit::of(request, settings.max_model_len)?;
                limit.cut_ids(harmony.writer.prompt(&self.tokenizer, messages)?)
            }
            Api::Completions | Api::Embeddings | Api::Pooling => return Ok(None),
        };
        Ok(Some(ids))
    }
}

fn bad(field: impl Into<String>, problem: &'static str) -> PromptError {
    PromptError::Field { field: field.into(), problem }
}

#[cfg(test)]
mod tests;
