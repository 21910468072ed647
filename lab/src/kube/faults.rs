//! What can go wrong with an API server.

use serde_json::{Value, json};

/// What goes wrong, until it is set otherwise.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// All requests are refused.
    pub refuse: Option<Refusal>,
    /// Each event of a watch comes twice. ("Clients should be prepared to handle duplicate events.")
    pub twice: bool,
    /// Watches that are open, or begin, are told nothing, and are not ended: a connection that has died without a word.
    pub silent: bool,
    /// A watch's next event is cut in the middle of its line, and the connection with it; then this is over.
    pub cut_once: bool,
    /// A watch's next event is an error that says that its resource version is gone; then this is over. ("410 Gone" may come
    /// in the middle of a watch, as an event of type ERROR.)
    pub gone_once: bool,
    /// What a watch says comes in pieces of so many bytes, one each millisecond.
    pub trickle: Option<usize>,
    /// Watches begin with no bookmark in between.
    pub no_bookmarks: bool,
}

/// A request that is not served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// 403: the service account may not.
    Forbidden,
    /// 404: the CRD is not installed.
    NotFound,
    /// 429 with `Retry-After`: too many requests at a time (API priority and fairness).
    TooMany,
    /// 500.
    Internal,
    /// 504.
    Timeout,
}

impl Refusal {
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::TooMany => 429,
            Self::Internal => 500,
            Self::Timeout => 504,
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::TooMany => "TooManyRequests",
            Self::Internal => "InternalError",
            Self::Timeout => "Timeout",
        }
    }

    pub(super) fn status(self) -> Value {
        status(self.code(), self.reason(), "as the test wants it")
    }
}

/// An error as the API has it ("API conventions", response status kind).
pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    })
}

/// The resource version that was asked for is too old ("410 Gone", reason `Expired`).
pub(super) fn gone() -> Value {
    status(410, "Expired", "too old resource version")
}
