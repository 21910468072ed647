//! The replicas that there are, and all that is known of each.

mod table;

use std::time::{Duration, Instant};

use kvpick_proto::{
    naming::{Algorithm, DEFAULT_ROOT, Domain, ExtraKeyShape},
    words::{Description, EngineStatus, Events, ReplicaName},
};

use crate::{
    busy::Busy,
    health::{Failure, Health},
    index::Holdings,
    outcome::Reason,
    parity::Watched,
    recent::Recent,
};

pub use table::{ReplicaId, Replicas};

/// What the operator, or the cluster, says of a replica.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReplicaSpec {
    /// Where it is.
    pub name: ReplicaName,
    /// Who it is, where an address may be used again by another: a pod's UID. Empty for replicas that are listed.
    pub uid: String,
    /// The node whose agent may describe it; `None`: no agent may.
    pub node: Option<String>,
    /// Models that it serves, as clients name them.
    pub models: Vec<String>,
    /// Whether it is known and not to be picked now: its pod is not ready, or about to go.
    pub is_away: bool,
}

impl ReplicaSpec {
    /// One that the operator lists.
    #[must_use]
    pub const fn listed(name: ReplicaName, node: Option<String>, models: Vec<String>) -> Self {
        Self { name, uid: String::new(), node, models, is_away: false }
    }
}

/// How long what a silent agent said still counts, at half weight.
pub const STALE_GRACE: Duration = Duration::from_secs(5);

/// How far a replica's holdings can be trusted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Knowledge {
    /// No agent has spoken of it.
    None,
    /// An agent has described it; its first copy is on the way.
    AwaitingCopy,
    /// In step with its agent.
    Live,
    /// Its agent fell silent, or was replaced by one whose copy is on the way.
    Stale {
        /// Since when.
        since: Instant,
    },
    /// It was stale for too long and nothing is known any more.
    Emptied,
}

impl Knowledge {
    /// Label for people.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::None => "unknown",
            Self::AwaitingCopy => "awaiting_copy",
            Self::Live => "live",
            Self::Stale { .. } => "stale",
            Self::Emptied => "emptied",
        }
    }
}

/// One replica.
#[derive(Debug)]
pub struct Replica {
    /// What the operator says.
    pub spec: ReplicaSpec,
    /// What its agent says, apart from blocks and load.
    pub description: Option<Description>,
    /// How far `holdings` can be trusted.
    pub knowledge: Knowledge,
    /// What it holds.
    pub holdings: Holdings,
    /// What was sent there in the last seconds and is not in `holdings` yet.
    pub expected: Recent,
    /// What was sent there in the last minutes: all there is where events are not to be had, or do not tell all.
    pub routed: Recent,
    /// Requests sent there whose blocks are awaited.
    pub watched: Watched,
    /// How busy it is.
    pub busy: Busy,
    /// Whether it may be picked.
    pub health: Health,
    /// Last engine event batch that is in `holdings`.
    pub applied: Option<u64>,
    /// Whether another replica has the same address.
    shares_address: bool,
}

/// How much and how long to remember what was sent where.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Memory {
    /// How long a sent block counts where events do not tell all.
    pub routed_expiry: Duration,
    /// How long a sent block counts until events speak of it.
    pub expected_expiry: Duration,
    /// Most blocks remembered per replica, for each of the two.
    pub bound: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            routed_expiry: Duration::from_secs(120),
            expected_expiry: Duration::from_secs(5),
            bound: 65_536,
        }
    }
}

impl Replica {
    /// A replica of which nothing is known yet.
    #[must_use]
    pub fn new(spec: ReplicaSpec, memory: &Memory) -> Self {
        Self {
            spec,
            description: None,
            knowledge: Knowledge::None,
            holdings: Holdings::default(),
            expected: Recent::new(memory.expected_expiry, memory.bound),
            routed: Recent::new(memory.routed_expiry, memory.bound),
            watched: Watched::default(),
            busy: Busy::default(),
            health: Health::default(),
            applied: None,
            shares_address: false,
        }
    }

    /// Whether a request reaches it, and no other rank behind its address, by naming its rank in a header.
    #[must_use]
    pub fn is_by_header(&self) -> bool {
        self.shares_address || self.description.as_ref().is_some_and(|it| it.rank_by_header)
    }

    /// Whether requests for this model, or adapter, may go there.
    #[must_use]
    pub fn serves(&self, model: &str) -> bool {
        let described = self.description.as_ref();
        self.spec.models.iter().any(|it| it == model)
            || described.is_some_and(|it| {
                it.models.iter().any(|it| it == model) || it.adapters.iter().any(|it| it.name == model)
            })
    }

    /// The names under which it serves its base model.
    pub fn base_models(&self) -> impl Iterator<Item = &str> {
        let described = self.description.iter().flat_map(|it| &it.models);
        self.spec.models.iter().chain(described).map(String::as_str)
    }

    /// Where the adapter of that name was loaded from; `None` if it is no adapter there.
    #[must_use]
    pub fn adapter_path(&self, name: &str) -> Option<&str> {
        let adapters = &self.description.as_ref()?.adapters;
        adapters.iter().find(|it| it.name == name).map(|it| it.path.as_str())
    }

    /// How its blocks are named, if its holdings can be looked up; else why not.
    ///
    /// # Errors
    /// The reason why the engine's own word is not to be had.
    pub fn facts(&self) -> Result<&Domain, Reason> {
        match self.knowledge {
            Knowledge::None => return Err(Reason::NO_AGENT),
            Knowledge::AwaitingCopy => return Err(Reason::AWAITING_COPY),
            Knowledge::Emptied => return Err(Reason::AGENT_SILENT),
            Knowledge::Live | Knowledge::Stale { .. } => (),
        }
        let description = self.description.as_ref().ok_or(Reason::NO_AGENT)?;
        if matches!(description.events, Events::Off | Events::Unavailable { .. }) {
            return Err(Reason::NO_EVENTS);
        }
        description.domain.as_ref().ok_or(Reason::NO_DOMAIN)
    }

    /// How prompts are chained for it: as it names blocks itself, else in the canonical domain, which serves what
    /// this server remembers by itself.
    #[must_use]
    pub fn chain_domain(&self) -> Domain {
        let own = self.description.as_ref().and_then(|it| it.domain.clone());
        own.unwrap_or_else(canonical_domain)
    }

    /// How much its holdings count: half where its agent is silent.
    #[must_use]
    pub const fn trust(&self) -> f64 {
        match self.knowledge {
            Knowledge::Live => 1.0,
            Knowledge::Stale { .. } => 0.5,
            Knowledge::None | Knowledge::AwaitingCopy | Knowledge::Emptied => 0.0,
        }
    }

    /// Share of its physical blocks that hold something, 0 to 1; 0 when unknown.
    #[must_use]
    pub fn fill(&self) -> f64 {
        match self.description.as_ref().map_or(0, |it| it.num_gpu_blocks) {
            0 => 0.0,
            blocks => (self.holdings.len() as f64 / blocks as f64).min(1.0),
        }
    }

    /// Forgets what is known of its blocks, the engine being another one or the knowledge too old. A copy that is under
    /// way goes on.
    pub fn forget_blocks(&mut self) {
        self.holdings.clear_blocks();
        self.expected.clear();
        self.watched.void();
        self.applied = None;
    }

    /// It was seen to fail. Returns whether that is news.
    pub fn on_failure(&mut self, why: Failure, now: Instant) -> bool {
        // What was on its way there has not arrived.
        self.expected.clear();
        self.health.on_failure(why, now)
    }

    /// A request lost its connection to it. Returns whether that puts it out, which is news.
    pub fn on_lost(&mut self, now: Instant) -> bool {
        let is_out = self.health.on_lost(now);
        if is_out {
            self.expected.clear();
        }
        is_out
    }

    /// Takes the agent's word on whether the engine serves. Returns whether it is out because of it, as news.
    pub fn on_status(&mut self, status: EngineStatus, now: Instant) -> bool {
        let before = self.description.as_ref().map(|it| it.status);
        match status {
            // Said again with something else that is new: it may have answered a probe since.
            EngineStatus::Down | EngineStatus::Asleep if before == Some(status) => false,
            EngineStatus::Down | EngineStatus::Asleep => self.on_failure(Failure::Agent, now),
            EngineStatus::Up | EngineStatus::Foreign => {
                if before != Some(status) {
                    self.health.on_good_news(now);
                }
                false
            }
        }
    }

    /// Whether its engine sleeps, by the word of an agent that still speaks: it answers probes, and serves nothing.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        let spoken_for = matches!(self.knowledge, Knowledge::AwaitingCopy | Knowledge::Live);
        spoken_for && self.description.as_ref().is_some_and(|it| it.status == EngineStatus::Asleep)
    }
}

/// The domain in which prompts are chained for replicas whose own is not known.
#[must_use]
pub fn canonical_domain() -> Domain {
    Domain {
        algorithm: Algorithm::Sha256Cbor,
        root: DEFAULT_ROOT.to_owned(),
        block_size: const { std::num::NonZeroU32::new(16).expect("16 is not 0") },
        extra_keys: ExtraKeyShape::Tagged,
    }
}
