//! Prompts made by another server: an engine's routes that render (`/v1/chat/completions/render` and the like), or its
//! `/tokenize` where that gives the same ids. Pure: what to send, what the answer means, and when not to ask.
//!
//! Reading order: [`Ask`] (what is sent), [`Reading`] (what came back), [`Routes`] (which of its routes a server has),
//! [`Gate`] (how many may ask at a time, and the rest that a failing server is given).

mod answer;
mod ask;
mod gate;
mod routes;

pub use answer::{Reading, Verdict};
pub use ask::{Ask, Form, known};
pub use gate::{Breaker, Ending, Gate, Pass};
pub use routes::Routes;

use crate::outcome::Reason;

/// Most bytes of an answer that are read. A million token ids take 7 MB.
pub const MOST_ANSWER: usize = 32 << 20;

/// Why a remote source gave no prompt.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The request goes on from an answer that one replica keeps; no route renders that.
    #[error("previous_response_id: only the replica that keeps the answer knows the prompt")]
    Stateful,
    /// What the server would say could differ from what an engine makes of this request.
    #[error("not to be had exactly there: {0}")]
    Inexact(&'static str),
    /// The server has no route for this API.
    #[error("the server has no route that renders this API")]
    NoRoute,
    /// The server refuses the request, as the engine will.
    #[error("an engine refuses it (status {status}): {message}")]
    Refused {
        /// Of the answer.
        status: u16,
        /// The beginning of what it says.
        message: String,
    },
    /// The server does not serve the model under that name.
    #[error("the server does not know the model; give it the same --served-model-name as the replicas")]
    UnknownModel,
    /// The server wants another key, or any.
    #[error("status {0}; check remote.api_key_file")]
    Denied(u16),
    /// As many requests as allowed are there already, or the server says so itself.
    #[error("too many requests are there already")]
    Overloaded,
    /// It failed so often that it is not asked for a while.
    #[error("it failed too often and is left alone for a while")]
    Resting,
    /// There is no server to ask: no replica of the model is known to be well.
    #[error("no server to ask")]
    NoServer,
    /// No answer in time.
    #[error("no answer in time")]
    Timeout,
    /// It can't be reached, broke off, or failed.
    #[error("{0}")]
    Down(String),
    /// The answer is not understood.
    #[error("its answer is not understood: {0}")]
    BadAnswer(String),
}

impl Failure {
    /// Short fixed name for metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Stateful => "stateful",
            Self::Inexact(_) => "inexact",
            Self::NoRoute => "no_route",
            Self::Refused { .. } => "refused",
            Self::UnknownModel => "unknown_model",
            Self::Denied(_) => "denied",
            Self::Overloaded => "overloaded",
            Self::Resting => "resting",
            Self::NoServer => "no_server",
            Self::Timeout => "timeout",
            Self::Down(_) => "down",
            Self::BadAnswer(_) => "bad_answer",
        }
    }

    /// Whether it speaks against the server, and not against the request.
    #[must_use]
    pub const fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Denied(_) | Self::Overloaded | Self::Timeout | Self::Down(_) | Self::BadAnswer(_)
        )
    }

    /// Whether it was learnt without asking.
    #[must_use]
    pub const fn is_unasked(&self) -> bool {
        matches!(self, Self::Stateful | Self::Inexact(_) | Self::NoRoute)
    }
}

impl From<&Failure> for Reason {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Stateful => Self::STATEFUL_UNPINNED,
            Failure::Refused { .. } => Self::ENGINE_REFUSES,
            Failure::Inexact(_) => Self::REMOTE_INEXACT,
            Failure::NoRoute => Self::REMOTE_NO_ROUTE,
            Failure::UnknownModel => Self::REMOTE_UNKNOWN_MODEL,
            Failure::Denied(_) => Self::REMOTE_DENIED,
            Failure::Overloaded => Self::REMOTE_OVERLOADED,
            Failure::Timeout => Self::REMOTE_TIMEOUT,
            Failure::Resting | Failure::NoServer | Failure::Down(_) => Self::REMOTE_DOWN,
            Failure::BadAnswer(_) => Self::REMOTE_BAD_ANSWER,
        }
    }
}
