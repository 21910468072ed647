//! The feed's messages as plain values, for both cores. Field meanings and rules are those of `feed.proto`.

use std::{net::SocketAddr, time::Duration};

use crate::naming::{BlockKey, Domain};

/// Version of the protocol that this build speaks.
pub const PROTOCOL: u32 = 1;

/// Both sides say something at least this often.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// A stream on which nothing was heard for this long is closed.
pub const SILENCE: Duration = Duration::from_secs(3);

/// Most keys in one message: with its framing just below 64 KiB, so that no copy delays another replica's changes.
pub const KEYS_PER_MESSAGE: usize = 8_000;

/// Where clients reach a replica: its serving address as Envoy knows it, and its data-parallel rank.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ReplicaName {
    /// Serving address.
    pub address: SocketAddr,
    /// Data-parallel rank behind that address; 0 where there is one.
    pub rank: u32,
}

impl std::fmt::Display for ReplicaName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rank {
            0 => write!(f, "{}", self.address),
            rank => write!(f, "{}#{rank}", self.address),
        }
    }
}

/// Short name of a replica on one stream.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Handle(pub u32);

/// What an agent says.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the message of that name in feed.proto")]
pub enum AgentMessage {
    Hello(Hello),
    Describe(Handle, Box<Description>),
    Gone(Handle),
    Change(Handle, Change),
    Copy(Handle, CopyChunk),
    Load(Handle, Load),
    Others(Handle, InFlight),
    Heartbeat,
}

/// What a server says.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "each variant is the message of that name in feed.proto")]
pub enum ServerMessage {
    Welcome(Welcome),
    Accepted(Handle),
    Refused(Handle, String),
    CopyRequest(Handle),
    InFlight(Handle, InFlight),
    Heartbeat,
}

/// First message of a stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// See [`PROTOCOL`].
    pub protocol: u32,
    /// The agent's node.
    pub node: String,
    /// Larger on every new stream of a node.
    pub epoch: u64,
    /// The agent's version, for people.
    pub version: String,
    /// Node-bound token, or empty.
    pub token: String,
}

/// First answer of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Welcome {
    /// See [`PROTOCOL`].
    pub protocol: u32,
    /// Name of this run of the server; two addresses that welcome by one name are one server.
    pub server: String,
}

/// All that is true of a replica apart from its blocks and load.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Where it is.
    pub name: ReplicaName,
    /// Which engine process this is; a change empties what is known.
    pub incarnation: String,
    /// Whether its events are heard.
    pub events: Events,
    /// Model names served, adapters apart.
    pub models: Vec<String>,
    /// Adapters served.
    pub adapters: Vec<Adapter>,
    /// How its blocks are named; `None` while unknown.
    pub domain: Option<Domain>,
    /// How sure that is, per kind of key.
    pub key_kinds: Vec<KeyKindStatus>,
    /// How much of what it holds is known.
    pub completeness: Completeness,
    /// Physical blocks; 0 when unknown.
    pub num_gpu_blocks: u64,
    /// KV cache groups; empty while unknown.
    pub groups: Vec<Group>,
    /// In tokens; 0 when unknown.
    pub max_model_len: u32,
    /// Blocks by which a hit is short because of speculative decoding.
    pub hit_blocks_dropped: u32,
    /// Whether the engine serves.
    pub status: EngineStatus,
    /// Why not, if not.
    pub status_reason: String,
    /// For people.
    pub engine_version: String,
    /// Whether this rank is reached by the `X-data-parallel-rank` header.
    pub rank_by_header: bool,
    /// What a hit in each tier is worth; a tier not named counts as 0.
    pub tier_weights: Vec<(Tier, f32)>,
}

impl Description {
    /// Whether the agent names its blocks itself.
    #[must_use]
    pub fn is_translated(&self) -> bool {
        let plain = self.key_kinds.iter().find(|it| it.kind == KeyKind::Plain);
        plain.is_some_and(|it| it.state == KeyState::Translated)
    }

    /// Whether what was held under the description before goes by other names from this one on. Then a server forgets
    /// it, and the agent sends a full copy.
    #[must_use]
    pub fn renames(&self, before: &Self) -> bool {
        let (is, was) = (self.is_translated(), before.is_translated());
        is != was || (is && self.domain != before.domain)
    }
}

/// Whether an engine's events are heard.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "named by themselves")]
pub enum Events {
    /// Switched off in the agent's configuration.
    Off,
    /// Subscribed, nothing heard yet.
    Awaited,
    Live,
    Unavailable {
        reason: String,
        remedy: String,
    },
}

/// A LoRA adapter.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "named by themselves")]
pub struct Adapter {
    pub name: String,
    pub path: String,
}

/// How sure an agent is of the naming of one kind of key.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "named by themselves")]
pub struct KeyKindStatus {
    pub kind: KeyKind,
    pub state: KeyState,
}

/// Which keys.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "named by themselves")]
pub enum KeyKind {
    Plain,
    Adapter,
    Salt,
    Media,
    Embeds,
}

/// What is known of how they are made.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "named by themselves")]
pub enum KeyState {
    /// A published hash was recomputed.
    Verified,
    /// Nothing was recomputed yet.
    Assumed { evidence: String },
    /// The agent names blocks itself, in the canonical domain.
    Translated,
    /// Can't be reproduced.
    Unverified { reason: String, remedy: String },
}

/// How much of what an engine holds is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Completeness {
    /// All of it.
    Complete,
    /// What was stored since then.
    PartialSince {
        /// Unix time in milliseconds.
        unix_ms: u64,
    },
}

/// A KV cache group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Group {
    /// vLLM's number for it.
    pub index: u32,
    /// vLLM's name of the attention kind; empty when unknown.
    pub kind: String,
    /// In tokens; 0 when unknown.
    pub block_size: u32,
    /// In tokens; 0 for none.
    pub sliding_window: u32,
}

/// Whether an engine serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "named by themselves")]
pub enum EngineStatus {
    Up,
    Asleep,
    Down,
    /// Not one that speaks vLLM's protocols.
    Foreign,
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "named by themselves")]
pub enum Tier {
    Gpu,
    Cpu,
    Storage,
}

/// What changed in a replica's blocks.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Change {
    /// In order, parents before children.
    pub steps: Vec<Step>,
    /// Last engine batch accounted for.
    pub applied: Option<u64>,
}

/// A part of a full copy.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CopyChunk {
    /// Whether a copy begins here.
    pub first: bool,
    /// Whether it ends here; what it did not name is then dropped.
    pub last: bool,
    /// [`Step::Gained`] only.
    pub steps: Vec<Step>,
    /// On the last: last engine batch accounted for.
    pub applied: Option<u64>,
}

/// One change of a replica's blocks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// These are held now.
    Gained {
        /// Where.
        place: Place,
        /// Block before the first, where the keys are a chain and it is known.
        parent: Option<BlockKey>,
        /// Which; in chain order where they are a chain.
        keys: Vec<BlockKey>,
    },
    /// These are held no more.
    Lost {
        /// Where.
        place: Place,
        /// Which.
        keys: Vec<BlockKey>,
    },
    /// Nothing is held any more, in whatever group and tier.
    Cleared,
}

/// A part of an engine's cache.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Place {
    /// KV cache group.
    pub group: u32,
    /// Medium.
    pub tier: Tier,
}

impl Place {
    /// The only place of an engine with one group and no offloading.
    pub const GPU: Self = Self { group: 0, tier: Tier::Gpu };
}

/// How busy a replica is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Of the sample, when sent.
    pub age: Duration,
    /// Requests in the running batch.
    pub running: u32,
    /// Requests queued.
    pub waiting: u32,
    /// Share of blocks in use by running requests, 0 to 1.
    pub cache_use: f32,
    /// Tokens looked up in the prefix cache since the engine's start.
    pub prefix_queries: u64,
    /// Of those, found.
    pub prefix_hits: u64,
    /// Sum of times to first token since the engine's start, in seconds.
    pub ttft_sum_s: f64,
    /// Number of those times.
    pub ttft_count: u64,
    /// Adapters in the running batch.
    pub running_adapters: Vec<String>,
    /// Adapters that requests wait for.
    pub waiting_adapters: Vec<String>,
}

/// What is on its way to a replica, or running there, and has not ended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InFlight {
    /// Requests.
    pub requests: u32,
    /// Their prompt tokens that were not expected to be cached, as long as the first token is not out.
    pub uncached_prefill_tokens: u64,
}
