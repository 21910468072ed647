//! The JSON of answers: whole ones and the chunks of streams.

use kvpick_core::request::Api;
use serde_json::{Value, json};

use crate::engine::request::{FinishReason, Produced};

/// The routes that generate text here. An engine of today has more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Served {
    Chat,
    Completions,
}

impl Served {
    /// How requests to this route are read.
    pub(super) const fn api(self) -> Api {
        match self {
            Self::Chat => Api::ChatCompletions,
            Self::Completions => Api::Completions,
        }
    }
}

/// What all parts of one answer have in common.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) api: Served,
    pub(super) id: String,
    /// Unix time, in seconds.
    pub(super) created: u64,
    pub(super) model: String,
}

/// What an answer cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
    pub(super) cached_tokens: usize,
}

impl Usage {
    /// Counts a token. `first_sample` where it belongs to the first of a prompt's answers: a prompt counts once,
    /// however many answers it gets.
    pub(super) fn count(&mut self, produced: &Produced, first_sample: bool) {
        self.completion_tokens += 1;
        if first_sample && produced.time_to_first.is_some() {
            self.cached_tokens += produced.cached_tokens;
        }
    }

    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }
}

impl Shape {
    /// A whole answer; text and reason of each choice, in order.
    pub(super) fn whole(&self, choices: &[(String, FinishReason)], usage: Usage) -> Value {
        let choice = |(index, (text, reason)): (usize, &(String, FinishReason))| {
            let reason = reason.as_str();
            match self.api {
                Served::Chat => json!({
                    "index": index, "message": {"role": "assistant", "content": text}, "logprobs": null,
                    "finish_reason": reason, "stop_reason": null,
                }),
                Served::Completions => json!({
                    "index": index, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": null,
                }),
            }
        };
        let object = match self.api {
            Served::Chat => "chat.completion",
            Served::Completions => "text_completion",
        };
        let mut whole = self.head(object, choices.iter().enumerate().map(choice).collect());
        whole["usage"] = usage.json();
        whole
    }

    /// The chunk that opens a choice of a chat; completions have none.
    pub(super) fn opening(&self, index: usize) -> Option<Value> {
        match self.api {
            Served::Chat => Some(self.chat_chunk(index, json!({"role": "assistant", "content": ""}), None)),
            Served::Completions => None,
        }
    }

    /// The chunk with the next piece of text.
    pub(super) fn piece(&self, index: usize, text: &str) -> Value {
        match self.api {
            Served::Chat => self.chat_chunk(index, json!({"content": text}), None),
            Served::Completions => self.completion_chunk(index, text, None),
        }
    }

    /// The chunk that says why a choice ended.
    pub(super) fn closing(&self, index: usize, reason: FinishReason) -> Value {
        match self.api {
            Served::Chat => self.chat_chunk(index, json!({}), Some(reason)),
            Served::Completions => self.completion_chunk(index, "", Some(reason)),
        }
    }

    /// The chunk that says what the answer cost.
    pub(super) fn cost(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk(Vec::new());
        chunk["usage"] = usage.json();
        chunk
    }

    fn chat_chunk(&self, index: usize, delta: Value, reason: Option<FinishReason>) -> Value {
        let reason = reason.map(FinishReason::as_str);
        self.chunk(vec![json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason})])
    }

    fn completion_chunk(&self, index: usize, text: &str, reason: Option<FinishReason>) -> Value {
        let reason = reason.map(FinishReason::as_str);
        self.chunk(vec![json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason})])
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        self.head(
            match self.api {
                Served::Chat => "chat.completion.chunk",
                Served::Completions => "text_completion",
            },
            choices,
        )
    }

    fn head(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }
}
