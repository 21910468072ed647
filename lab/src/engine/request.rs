//! What an engine is asked, and what it answers.

use std::{sync::Arc, time::Duration};

use super::announce::Adapter;

/// Names a request of one scheduler.
pub type RequestId = u64;

/// One prompt to continue.
#[derive(Clone, Debug)]
pub struct NewRequest {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Keeps its blocks apart from those of other salts.
    pub salt: Option<String>,
    /// Computes it; keeps its blocks apart from those of other adapters and of the plain model.
    pub adapter: Option<Arc<Adapter>>,
    /// Named in what is announced, where the engine's version does.
    pub session: Option<Arc<str>>,
    /// Whether the blocks of its hit are announced again (`kv_cache_report_mode=full`), where the engine's version can.
    pub reports_hit: bool,
    /// Which of several answers to the same prompt.
    pub sample: u32,
    /// Most tokens to generate; `None` ends by itself.
    pub max_tokens: Option<u32>,
    /// Whether blocks that are held may be used instead of computed.
    pub reads_cache: bool,
    /// How the answer begins, where it is known beforehand; the rest is chosen.
    pub answer: Vec<u32>,
}

impl NewRequest {
    /// A plain request that ends by itself.
    #[must_use]
    pub const fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            salt: None,
            adapter: None,
            session: None,
            reports_hit: false,
            sample: 0,
            max_tokens: None,
            reads_cache: true,
            answer: Vec::new(),
        }
    }
}

/// Why a request is not taken. Clients see the text.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the text says it")]
pub enum Refusal {
    #[error("The prompt is empty.")]
    EmptyPrompt,
    #[error("max_tokens must be at least 1, got 0.")]
    NoTokens,
    #[error(
        "This model's maximum context length is {max} tokens. However, you requested {output} output tokens and your \
         prompt contains {prompt} input tokens. Shorten the prompt or ask for fewer tokens."
    )]
    TooLong { max: usize, prompt: usize, output: usize },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FinishReason {
    /// It reached the length that was asked for, or the model's.
    Length,
    /// It was complete.
    Stop,
}

impl FinishReason {
    /// As the OpenAI API says it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Stop => "stop",
        }
    }
}

/// One generated token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Produced {
    /// Of which request.
    pub request: RequestId,
    /// The token.
    pub token: u32,
    /// From arrival to this token, on the first.
    pub time_to_first: Option<Duration>,
    /// On the last.
    pub finish: Option<FinishReason>,
    /// Prompt tokens that were not computed because they were held when the request was first admitted.
    pub cached_tokens: usize,
}
