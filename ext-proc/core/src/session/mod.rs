//! One exchange with Envoy: the messages of one HTTP request, in, and what is to be done about them, out.
//!
//! The rules, as they bind here:
//! * Where Envoy keeps the body (`BUFFERED`), every message is answered at once and in order, headers included; the
//!   destination rides on the answer to the body.
//! * Where the server sends the body back (`FULL_DUPLEX_STREAMED`), nothing is answered until the destination is
//!   known: then headers, then the body in pieces, the last one marked. With trailers, headers and body go as one.
//! * Elsewhere the destination must be known with the headers.
//!
//! Whatever comes is answered such that the request goes on. Where that can't be (a body whose headers did not come, or
//! headers twice) the exchange fails, and Envoy's `failure_mode_allow` decides.

mod answer;
mod body;
mod head;
mod request;

use answer::Progress;
use bytes::Bytes;

use crate::{
    outcome::Reason,
    reply::{CHUNK, Decision, Reply},
};

pub use answer::{Answer, End};
pub use body::Body;
pub use head::{Encoding, Head};

/// Envoy's `BodySendMode`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "Envoy's own names")]
pub enum BodyMode {
    #[default]
    None,
    Streamed,
    Buffered,
    BufferedPartial,
    FullDuplexStreamed,
}

/// What Envoy, or the shell, says.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// First message of a request.
    RequestHeaders {
        /// What they say.
        head: Head,
        /// How bodies are sent in this exchange.
        request_body: BodyMode,
        /// The same for the answer.
        response_body: BodyMode,
        /// Whether there is no body.
        end: bool,
    },
    /// A body, or a piece of one.
    RequestBody {
        /// Its bytes.
        bytes: Bytes,
        /// Whether no more follow. Envoy often sends an empty last piece.
        end: bool,
    },
    /// Trailers; they end a body that has not ended.
    RequestTrailers,
    /// The shell has decided what [`Action::Decide`] asked for.
    Decided(Decision),
    /// The upstream has answered.
    ResponseHeaders(Served),
    /// A piece of the answer.
    ResponseBody {
        /// Its bytes.
        bytes: Vec<u8>,
        /// Whether no more follow.
        end: bool,
    },
    /// The answer's trailers.
    ResponseTrailers,
}

/// Who answered and how, by Envoy's word.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Served {
    /// `ip:port` of whoever did, by `upstream.address` or by the load balancer's metadata; empty when not told.
    pub address: String,
    /// The same as far as the metadata tells it.
    pub named: Named,
    /// `upstream.request_attempt_count`; 0 when not told.
    pub attempts: u64,
    /// `response.flags`, Envoy's bit set.
    pub flags: u64,
    /// `:status`; 0 when not told.
    pub status: u32,
    /// `content-type`; empty when not told, and where a body is encoded, which is not undone here.
    pub content_type: String,
    /// Whether there is no body.
    pub end: bool,
}

/// What the metadata that load balancers write (`envoy.lb`) tells of who answered.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Named {
    /// There is none, or Envoy does not forward it.
    #[default]
    NoMetadata,
    /// It does not say: the cluster's balancer writes no `x-gateway-destination-endpoint-served`.
    NoEndpoint,
    /// `ip:port`.
    Endpoint(String),
}

impl Served {
    /// Whether it is an answer and no refusal or failure.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        200 <= self.status && self.status < 300
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Decide where this request goes, and say so by [`Input::Decided`].
    Decide(Box<Question>),
    /// Send this.
    Reply(Reply),
    /// The upstream has answered, for whoever watches replicas.
    Observe(Served),
    /// The answer is a response of that id, for whoever remembers who keeps it.
    Named(String),
    /// The answer's first event is here, for whoever has a clock.
    FirstEvent,
    /// End the stream with an error that says this.
    Fail(&'static str),
}

/// A request to be decided.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Question {
    /// What its headers say. Its `selection` is in `subset` where that is in force.
    pub head: Head,
    /// The body, or as much of it as is at hand.
    pub body: Body,
    /// Why that is not the whole body, where it is not.
    pub lack: Option<Reason>,
    /// Whether Envoy goes on by itself when the answer takes too long.
    pub envoy_has_a_clock: bool,
}

/// Of a body that is too large to look at, as much is looked at for the model's name.
const BEGINNING: usize = 1 << 20;

/// Of a response's body, as much is looked at for its id, which stands first in it.
const MOST_SOUGHT: usize = 2 << 10;

/// One exchange.
#[derive(Debug)]
pub struct Session {
    state: State,
    path: String,
    /// What the headers say; taken by the question.
    head: Head,
    /// Whether they tell the body's length.
    has_length: bool,
    /// Headers to remove beyond those that always are.
    stripped: Vec<String>,
    request_mode: BodyMode,
    response_mode: BodyMode,
    settings: Settings,
    evidence: Option<String>,
    /// The body so far, while the destination is not out.
    kept: Body,
    /// Whether trailers have come.
    trailers: bool,
    /// Messages that came while the shell thought, and are to be answered after the one that it thinks about.
    owed: Owed,
    /// The beginning of a response's body, while its id is sought there.
    sought: Option<Vec<u8>>,
    /// The answer, as far as it has come.
    progress: Progress,
}

/// What of a session is configured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Largest body, in bytes, that is looked at.
    pub most_body: usize,
    /// Most addresses in a destination.
    pub destinations: usize,
    /// Whether the answer's headers tell what the pick was based on.
    pub evidence_header: bool,
    /// Whether a conformance test may say who is picked, and is told.
    pub conformance: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Nothing has come.
    Start,
    /// Headers are in, the body is on its way.
    Body,
    /// The shell thinks; on this phase's answer the destination will ride.
    Deciding(Phase),
    /// The destination is out; what is left of the body passes.
    Passing,
    /// The request is out.
    Done,
    /// The client has its answer from here.
    Refused,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Headers,
    Body,
    /// Trailers, with no body before them.
    Trailers,
    /// Headers and body were kept back.
    Both {
        /// Whether the body has ended.
        ended: bool,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    bodies: usize,
    trailers: usize,
}

impl Session {
    /// A session that waits for its first message.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            state: State::Start,
            path: String::new(),
            head: Head::default(),
            has_length: false,
            stripped: Vec::new(),
            request_mode: BodyMode::None,
            response_mode: BodyMode::None,
            settings,
            evidence: None,
            kept: Body::default(),
            trailers: false,
            owed: Owed::default(),
            sought: None,
            progress: Progress::default(),
        }
    }

    /// Takes one input.
    #[must_use]
    pub fn on(&mut self, input: Input) -> Vec<Action> {
        match input {
            Input::RequestHeaders { head, request_body, response_body, end } => {
                if self.state != State::Start {
                    return vec![Action::Fail("request headers came twice")];
                }
                self.request_mode = request_body;
                self.response_mode = response_body;
                self.path.clone_from(&head.path);
                self.has_length = head.content_length.is_some();
                self.kept = Body::expecting(head.content_length);
                self.head = head;
                self.stripped = std::mem::take(&mut self.head.stripped);
                self.on_headers(end)
            }
            Input::RequestBody { .. } | Input::RequestTrailers if self.state == State::Start => {
                vec![Action::Fail("a body came without headers: request_header_mode must be SEND")]
            }
            Input::RequestBody { bytes, end } => self.on_body(bytes, end),
            Input::RequestTrailers => self.on_trailers(),
            Input::Decided(decision) => self.on_decided(&decision),
            Input::ResponseHeaders(served) => self.on_answer_headers(served),
            Input::ResponseBody { bytes, end } => self.on_answer_body(bytes, end),
            Input::ResponseTrailers => self.on_answer_trailers(),
        }
    }

    /// Whether the request is out, so that nothing is lost if the stream ends here.
    #[must_use]
    pub const fn request_is_out(&self) -> bool {
        matches!(self.state, State::Done | State::Refused)
    }

    /// Whether what is there of the body is more than is looked at, while it is thought about: no more needs to be read until
    /// it is on its way.
    #[must_use]
    pub const fn has_enough(&self) -> bool {
        matches!(self.state, State::Deciding(Phase::Both { ended: false }))
            && self.settings.most_body < self.kept.len()
    }

    /// Whether the answer's body passes through here.
    #[must_use]
    pub const fn carries_response_body(&self) -> bool {
        !matches!(self.response_mode, BodyMode::None)
    }
}

/// A body in pieces; one empty piece for an empty body, since the end mark needs one.
fn pieces(bytes: Vec<u8>, end: bool, piece: impl Fn(Vec<u8>, bool) -> Reply) -> Vec<Action> {
    if bytes.len() <= CHUNK {
        return vec![Action::Reply(piece(bytes, end))];
    }
    let n = bytes.len().div_ceil(CHUNK);
    let chunks = bytes.chunks(CHUNK).enumerate();
    chunks.map(|(i, chunk)| Action::Reply(piece(chunk.to_vec(), end && i + 1 == n))).collect()
}
