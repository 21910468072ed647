//! What Envoy is told, as plain values. The rules are those of the endpoint picker protocol (Gateway API Inference
//! Extension, proposal 004): the destination goes out as a header and as metadata, always equal.

use bytes::Bytes;
use kvpick_proto::words::ReplicaName;

use crate::{
    outcome::{Reason, Refusal, Tier},
    pick::Pick,
    request::json::Edit,
};

/// Request header, and key of the dynamic metadata, that names the destination.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Namespace of the dynamic metadata that Envoy's load balancers read.
pub const METADATA_NAMESPACE: &str = "envoy.lb";

/// Request header that names the data-parallel rank behind an address (vLLM 0.11.2 and later).
pub const RANK: &str = "x-data-parallel-rank";

/// Response header that tells what a pick was based on, where switched on.
pub const EVIDENCE: &str = "x-kvpick-evidence";

/// Response header that says why a request was refused (llm-d's name).
pub const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";

/// Request header by which the echo server of the conformance suite is asked to set a response header.
pub const ECHO: &str = "x-echo-set-header";

/// Response header by which the conformance suite learns who served a request.
pub const TEST_SERVED: &str = "x-conformance-test-served-endpoint";

/// Request headers that are removed from every request, each with the reason. Nothing that a client sends under these
/// names reaches an engine, or a filter behind.
pub const REMOVED: [(&str, &str); 7] = [
    (DESTINATION, "would choose the replica wherever a cluster reads it; set anew with the pick"),
    (
        "x-gateway-destination-endpoint-subset",
        "would narrow the choice; a gateway's own word comes as metadata",
    ),
    (
        "x-gateway-destination-endpoint-served",
        "would tell who served the request; Envoy tells it as metadata",
    ),
    // Of several values Envoy overwrites the first alone.
    (RANK, "would choose the rank behind the replica's address; set anew with the pick"),
    ("x-llm-d-model-name-rewrite", "is a word to the picker, which has read it: the body has the model now"),
    ("x-gateway-model-name-rewrite", "the same by its older name"),
    (
        "test-epp-endpoint-selection",
        "would choose the replica where conformance tests are switched on behind",
    ),
];

/// Headers whose names begin so are removed too, as far as they are seen: they are this picker's own words.
pub const REMOVED_PREFIX: &str = "x-kvpick-";

/// Request headers that are set, each with the reason.
pub const SET: [(&str, &str); 4] = [
    (DESTINATION, "the pick"),
    (RANK, "the pick's rank, where several share its address"),
    ("content-length", "of a body that Envoy holds and that was changed"),
    (ECHO, "the conformance suite's way to see the pick; only with `conformance: true`"),
];

/// Response headers that are set, those of refusals included, each with the reason.
pub const ANSWERED: [(&str, &str); 5] = [
    (EVIDENCE, "what the pick was based on, where switched on"),
    (TEST_SERVED, "who served, by the load balancer's word; only with `conformance: true`"),
    (DROPPED_REASON, "why the request was refused"),
    ("content-type", "of a refusal's body"),
    ("retry-after", "of a refusal that may be none in a moment"),
];

/// Largest piece in which a body is sent back. Envoy takes more; some look-alikes cap a message at 64 KiB.
pub const CHUNK: usize = 62_000;

/// One answer on a stream, each to the message of that phase.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// Go on, without what the client had no right to say.
    RequestHeaders {
        /// The way, if it is known by now.
        way: Option<Way>,
        /// Headers to remove beyond [`REMOVED`].
        stripped: Vec<String>,
    },
    /// Go on with headers and body at once: the last answer of the request. The trailers follow by themselves.
    ///
    /// For a body that was to be sent back and that trailers have ended. Sent back in pieces, it would reach the engine
    /// twice (Envoy 1.40): what the router has kept of them for a retry runs through the filters again when the
    /// trailers' answer lets the request go on.
    RequestWhole {
        /// The way.
        way: Way,
        /// Headers to remove beyond [`REMOVED`].
        stripped: Vec<String>,
        /// The body.
        bytes: Bytes,
    },
    /// Go on.
    RequestBody {
        /// The way, if it was not known before.
        way: Option<Way>,
        /// The body in place of the one that Envoy holds; `None` leaves it as it is.
        changed: Option<Changed>,
    },
    /// A piece of the body, in the mode in which this server must send it back.
    RequestBodyPiece {
        /// The piece.
        bytes: Bytes,
        /// Whether it is the last.
        end: bool,
    },
    /// Go on; with the destination if there was nothing before that it could ride on.
    RequestTrailers(Option<Destination>),
    /// Answer the client in the engine's place.
    Refuse(Refusal),
    /// Go on.
    ResponseHeaders(Shown),
    /// Go on with the body as it is.
    ResponseBody,
    /// A piece of the body, in the mode in which this server must send it back.
    ResponseBodyPiece {
        /// The piece.
        bytes: Vec<u8>,
        /// Whether it is the last.
        end: bool,
    },
    /// Go on.
    ResponseTrailers,
}

/// What is settled of a request's way, once it is decided. What the client said of it does not stand.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Way {
    /// Where it goes; `None` where Envoy is left to choose.
    pub destination: Option<Destination>,
    /// The data-parallel rank that it asks for there; `None` where the engine is left to choose.
    pub rank: Option<u32>,
    /// Whether the conformance suite's echo server is to tell of the destination.
    pub echo: bool,
}

/// Values of the headers that an answer is given.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Shown {
    /// Of [`EVIDENCE`], where it is to be shown.
    pub evidence: Option<String>,
    /// Of [`TEST_SERVED`], where a conformance test is to see it.
    pub served: Option<String>,
}

/// A body in place of the client's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Changed {
    /// Its bytes.
    pub bytes: Bytes,
    /// Whether the request tells a length, which is another one now.
    pub has_length: bool,
}

/// Where a request goes: addresses in the order in which they are to be tried.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Destination(String);

impl Destination {
    /// `None` for no address. `most` bounds the list: 1 where Envoy's cluster is `ORIGINAL_DST`, which takes no list.
    #[must_use]
    pub fn new(names: &[ReplicaName], most: usize) -> Option<Self> {
        let mut addresses: Vec<String> = Vec::new();
        for name in names {
            let address = name.address.to_string();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses.truncate(most.max(1));
        (!addresses.is_empty()).then(|| Self(addresses.join(",")))
    }

    /// `ip:port`, or several separated by commas without spaces.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first of them.
    #[must_use]
    pub fn first(&self) -> &str {
        self.0.split(',').next().unwrap_or_default()
    }
}

/// How a request was decided, as far as the rest of its exchange needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The pick's replicas by name, best first.
    pub names: Vec<ReplicaName>,
    /// See [`Pick::rank`].
    pub rank: Option<u32>,
    /// What it is based on.
    pub tier: Tier,
    /// Why on nothing better.
    pub reason: Reason,
    /// Tokens of all prompts; 0 when not known.
    pub prompt_tokens: u64,
    /// Prompt tokens that the replica's cache will save.
    pub predicted_tokens: u64,
    /// Tokens per block where blocks decided; 0 else.
    pub block_size: u32,
    /// Set where the request goes nowhere.
    pub refusal: Option<Refusal>,
    /// What is to be changed in the body.
    pub edits: Vec<Edit>,
}

impl Decision {
    /// A decision from a pick, its replicas named.
    #[must_use]
    pub fn new(pick: &Pick, names: Vec<ReplicaName>) -> Self {
        Self {
            names,
            rank: pick.rank,
            tier: pick.tier,
            reason: pick.reason,
            prompt_tokens: pick.prompt_tokens,
            predicted_tokens: pick.predicted_tokens,
            block_size: pick.block_size,
            refusal: pick.refusal,
            edits: Vec::new(),
        }
    }

    /// The evidence header's value: `key=value` pairs, separated by `; `.
    #[must_use]
    pub fn evidence(&self) -> String {
        format!(
            "tier={}; reason={}; replica={}; prompt_tokens={}; predicted_tokens={}; block_size={}",
            self.tier.label(),
            self.reason.label(),
            self.names.first().map_or_else(String::new, ToString::to_string),
            self.prompt_tokens,
            self.predicted_tokens,
            self.block_size,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(port: u16, rank: u32) -> ReplicaName {
        ReplicaName { address: ([127, 0, 0, 1], port).into(), rank }
    }

    #[test]
    fn destinations_are_a_plain_list() {
        let names = [name(1, 0), name(2, 0), name(3, 0)];
        let of = |names: &[ReplicaName], most| Destination::new(names, most).map(|it| it.as_str().to_owned());
        assert_eq!(of(&names, 2).unwrap(), "127.0.0.1:1,127.0.0.1:2");
        assert_eq!(of(&names, 1).unwrap(), "127.0.0.1:1");
        assert_eq!(of(&[], 2), None);
    }

    #[test]
    fn two_ranks_behind_one_address_are_one_destination() {
        let list = Destination::new(&[name(1, 0), name(1, 1), name(2, 0)], 2).unwrap();
        assert_eq!(list.as_str(), "127.0.0.1:1,127.0.0.1:2");
    }
}
