//! How a request ended: one value that gives the metric's labels, the log's fields and the evidence header.

use crate::prompts::PromptError;

/// What a pick was based on, best first.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Tier {
    /// Only this replica can answer: it keeps the response that the request names.
    Pinned,
    /// What the engines say they hold.
    Precise,
    /// What this server sent where.
    Approximate,
    /// How busy the replicas are.
    Load,
    /// Nothing: Envoy balances by itself.
    NoOpinion,
    /// It goes nowhere: the client is told so.
    Refused,
}

impl Tier {
    /// Label in metrics, logs and the evidence header.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Precise => "precise",
            Self::Approximate => "approximate",
            Self::Load => "load",
            Self::NoOpinion => "no_opinion",
            Self::Refused => "refused",
        }
    }
}

/// Why a request is not sent anywhere. The protocol has an answer for each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// No replica may serve it.
    NoEndpoint,
    /// It gives way to others while all replicas are saturated.
    Saturated,
}

impl Refusal {
    /// The HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::NoEndpoint => 503,
            Self::Saturated => 429,
        }
    }

    /// Value of [`crate::reply::DROPPED_REASON`], by llm-d's words.
    #[must_use]
    pub const fn dropped_reason(self) -> &'static str {
        match self {
            Self::NoEndpoint => "rejected-no-endpoints",
            Self::Saturated => "rejected-saturated",
        }
    }

    /// For the client.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::NoEndpoint => "no replica may serve this request now",
            Self::Saturated => "all replicas are saturated, and this request's objective gives way",
        }
    }

    /// Seconds after which it may be tried again, where that can help.
    #[must_use]
    pub const fn retry_after_s(self) -> Option<u32> {
        match self {
            Self::NoEndpoint => None,
            Self::Saturated => Some(1),
        }
    }

    /// The reason as the outcome has it.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::NoEndpoint => Reason::NO_ENDPOINT,
            Self::Saturated => Reason::SATURATED,
        }
    }
}

/// Why the tier was not a better one. A bounded set: labels are constants of this crate.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Reason(&'static str);

impl From<&PromptError> for Reason {
    fn from(error: &PromptError) -> Self {
        match error {
            PromptError::Stateful => Self::STATEFUL_UNPINNED,
            other => Self(other.label()),
        }
    }
}

impl Reason {
    /// Nothing stood in the way.
    pub const OK: Self = Self("ok");
    /// Not a path whose prompts are known; nothing is wrong.
    pub const OTHER_PATH: Self = Self("other_path");
    /// The request has no body, so no prompt.
    pub const NO_BODY: Self = Self("no_body");
    /// Envoy does not send the body before it must know the replica; set `request_body_mode` to `BUFFERED` or
    /// `FULL_DUPLEX_STREAMED`.
    pub const BODY_NOT_SENT: Self = Self("body_not_sent");
    /// Envoy sent only a part of the body (`BUFFERED_PARTIAL`).
    pub const BODY_CUT: Self = Self("body_cut");
    /// The body is larger than this server looks at.
    pub const BODY_TOO_LARGE: Self = Self("body_too_large");
    /// No replica serves the model; one of them will say so to the client.
    pub const UNKNOWN_MODEL: Self = Self("unknown_model");
    /// The request names an earlier response (`previous_response_id`, or in its path), which one replica keeps, and which
    /// one is not known here, or it is out or has restarted.
    pub const STATEFUL_UNPINNED: Self = Self("stateful_unpinned");
    /// Some replica serves the model, but there is no tokenizer for it here.
    pub const NO_TOKENIZER: Self = Self("no_tokenizer");
    /// Rendering, tokenizing and hashing took longer than the request can gain.
    pub const OVER_BUDGET: Self = Self("over_budget");
    /// As many prompts as allowed were being worked on already.
    pub const OVERLOADED: Self = Self("overloaded");
    /// A bug: the worker that made the prompt's tokens died.
    pub const WORKER_DIED: Self = Self("worker_died");
    /// Asked for the prompt, an engine's own routes refuse the request; its replica will say so to the client.
    pub const ENGINE_REFUSES: Self = Self("engine_refuses");
    /// The remote source did not answer in time.
    pub const REMOTE_TIMEOUT: Self = Self("remote_timeout");
    /// The remote source can't be reached, or failed so often that it is left alone for a while.
    pub const REMOTE_DOWN: Self = Self("remote_down");
    /// As many requests as allowed were being rendered there already.
    pub const REMOTE_OVERLOADED: Self = Self("remote_overloaded");
    /// What the remote source answered is not understood.
    pub const REMOTE_BAD_ANSWER: Self = Self("remote_bad_answer");
    /// The remote source wants another key.
    pub const REMOTE_DENIED: Self = Self("remote_denied");
    /// The remote source serves no model of that name.
    pub const REMOTE_UNKNOWN_MODEL: Self = Self("remote_unknown_model");
    /// The remote source has no route for the API.
    pub const REMOTE_NO_ROUTE: Self = Self("remote_no_route");
    /// What the remote source would say of this request may differ from what an engine makes of it.
    pub const REMOTE_INEXACT: Self = Self("remote_inexact");
    /// No agent has ever spoken of a replica that serves the model.
    pub const NO_AGENT: Self = Self("no_agent");
    /// The agents that spoke of them have been silent for too long.
    pub const AGENT_SILENT: Self = Self("agent_silent");
    /// The prompt is known up to its first medium, and blocks were looked for up to there.
    pub const MEDIA_PREFIX: Self = Self("media_prefix");
    /// The picked replica's agent is silent, for a moment yet; what it said counts half.
    pub const STALE: Self = Self("stale");
    /// Agents have described the replicas, their blocks are still on the way.
    pub const AWAITING_COPY: Self = Self("awaiting_copy");
    /// The engines' events are switched off or can't be had.
    pub const NO_EVENTS: Self = Self("no_events");
    /// The engines' way to name blocks is not known (yet).
    pub const NO_DOMAIN: Self = Self("no_domain");
    /// Almost none of the blocks came that such prompts should have left at the replicas they went to, so what the engines
    /// say can't be looked up by them; see [`crate::parity`].
    pub const PARITY_LOST: Self = Self("parity_lost");
    /// Replicas name blocks in more ways than are tried for one request.
    pub const TOO_MANY_DOMAINS: Self = Self("too_many_domains");
    /// The route takes no word on the data-parallel rank, so that the engine's own balancer chooses it.
    pub const RANK_NOT_HONOURED: Self = Self("rank_not_honoured");
    /// No replica is known.
    pub const NO_REPLICA: Self = Self("no_replica");
    /// The gateway's list of replicas leaves none.
    pub const NO_ENDPOINT: Self = Self("no_endpoint");
    /// The request's objective gives way while all replicas are saturated.
    pub const SATURATED: Self = Self("saturated");
    /// The body is compressed in a way that can't be read here, or in several.
    pub const ENCODING_UNKNOWN: Self = Self("encoding_unknown");
    /// The body is not what its `content-encoding` says.
    pub const ENCODING_BROKEN: Self = Self("encoding_broken");

    /// A reason of another module's error; its label must be a constant.
    #[must_use]
    pub const fn of(label: &'static str) -> Self {
        Self(label)
    }

    /// Label in metrics, logs and the evidence header.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.0
    }
}
