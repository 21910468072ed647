//! The agent's configuration: one YAML file, every field below. `kvpick-agent check-config` reports all mistakes at
//! once.

pub(crate) mod endpoints;
mod kubernetes;
mod mistakes;
mod tls;
mod words;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use kvpick_agent_core::mirror::Copies;
use kvpick_proto::words::{ReplicaName, Tier};
use kvpick_service::logs::LogConfig;
use serde::{Deserialize, Serialize};

pub use kubernetes::{EventsEntry, KubernetesEntry};
pub use mistakes::{Mistake, Mistakes};
pub use tls::TlsEntry;
pub use words::{CopiesWord, Switch, TierWeights};

/// The whole file, as it is written.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Name of this node, as the servers' configuration has it: an agent may describe its own node's replicas only. By
    /// default that of the environment variable `KVPICK_NODE`.
    #[serde(default = "default_node")]
    pub node: String,
    /// `host:port` of each server's feed. Names are resolved again and again, and every address gets a stream; of several
    /// addresses of one server, one.
    pub servers: Vec<String>,
    /// TLS towards servers, where they have `feed_tls`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsEntry>,
    /// Health, readiness, metrics and status over HTTP, for operators. Port 0 lets the system choose.
    #[serde(default = "default_admin")]
    pub admin: String,
    /// A folder, by its absolute path, for what this agent knows of its engines: it goes on from that after its own
    /// restart, once the engine has proved that it still holds. It is made where it is not there. By default nothing is
    /// kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The engines of this node.
    #[serde(default)]
    pub engines: Vec<EngineEntry>,
    /// In place of `engines`: they are pods of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesEntry>,
    /// Logs.
    #[serde(default)]
    pub log: LogConfig,
}

/// One engine, or one rank of one.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EngineEntry {
    /// Where clients reach it, `ip:port`, exactly as Envoy and the servers' configuration know it.
    pub address: String,
    /// Its data-parallel rank. Ranks behind one address have an entry each, or one entry with `ranks`.
    #[serde(default)]
    pub rank: u32,
    /// How many ranks, from `rank` on, share the address. The entry then stands for all of them, and the ports of
    /// `subscribe`, `listen` and `replay` are those of rank 0: as vLLM does, the rank is added to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Where its HTTP API is read (`/metrics`, `/version`, `/v1/models`). By default `http://` and the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// `on` or `off`: whether its KV cache events are heard. Off, it is still described to servers, with its load.
    #[serde(default)]
    pub events: Switch,
    /// Where its events are published, for an engine that binds: `tcp://host:port`, or `ipc:///path` for a socket in a
    /// folder that both see. Or `discover`: its API is asked (vLLM 0.31 and later), for `replay` and `topic` too. This
    /// or `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscribe: Option<String>,
    /// Where this agent waits for its events, for an engine that connects: `tcp://127.0.0.1:port`. Loopback only, as
    /// anybody who reaches it may say what the engine holds. Port 0 lets the system choose. This or `subscribe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Where its earlier events can be had again: `tcp://host:port` or `ipc:///path`. Without it every lost message,
    /// every lost connection and every restart of this agent while the engine works costs what was known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// Only events of topics that begin so; the engine's `topic`. By default all.
    #[serde(default)]
    pub topic: String,
    /// Values of the engine's `PYTHONHASHSEED` to try beside the usual ones. Needed only where an engine was given
    /// one that is neither 0 nor 42.
    #[serde(default)]
    pub roots: Vec<String>,
    /// `guarded` or `set`: what to make of several copies of one block. `guarded` is for every vLLM up to 0.32, which
    /// announces the end of every copy: they are counted. `set` is for an engine that announces the end of the last copy
    /// only; with `guarded` its blocks would seem to be held long after they went.
    #[serde(default)]
    pub copies: CopiesWord,
    /// What a hit in each tier is worth beside one on the GPU, 0 to 1; 0 where its blocks must not count at all.
    #[serde(default)]
    pub tier_weights: TierWeights,
}

/// The same, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// See [`File::node`].
    pub node: String,
    /// See [`File::servers`].
    pub servers: Vec<String>,
    /// See [`File::tls`].
    pub tls: Option<TlsEntry>,
    /// See [`File::admin`].
    pub admin: SocketAddr,
    /// See [`File::state`].
    pub state: Option<PathBuf>,
    /// See [`File::engines`].
    pub engines: Vec<EngineConfig>,
    /// See [`File::kubernetes`].
    pub kubernetes: Option<KubernetesEntry>,
    /// As written, for people.
    pub file: File,
}

/// One engine, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Its name on the feed.
    pub name: ReplicaName,
    /// Whether other ranks have the same address.
    pub rank_by_header: bool,
    /// How many ranks of its address there are here.
    pub ranks: u32,
    /// Base of its API, without a slash at the end.
    pub api: String,
    /// How its events are had; `None` where they are off.
    pub events: Option<EventsConfig>,
    /// See [`EngineEntry::roots`].
    pub roots: Vec<String>,
    /// See [`EngineEntry::copies`].
    pub copies: Copies,
    /// See [`EngineEntry::tier_weights`].
    pub tier_weights: [(Tier, f32); 3],
}

/// How an engine's events are had.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventsConfig {
    /// In which direction.
    pub source: Source,
    /// See [`EngineEntry::replay`].
    pub replay: Option<String>,
    /// See [`EngineEntry::topic`].
    pub topic: String,
}

impl EventsConfig {
    /// Checks these as it does an engine's entry in a file.
    ///
    /// # Errors
    ///
    /// All mistakes; their fields begin with `record`.
    pub fn check(
        subscribe: Option<String>,
        listen: Option<String>,
        replay: Option<String>,
        topic: String,
    ) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::default();
        if subscribe.as_deref() == Some(DISCOVER) {
            mistakes.add("record.subscribe", "there is no API to ask; give the endpoint itself");
        }
        let address = "127.0.0.1:1".to_owned();
        let entry = EngineEntry { address, subscribe, listen, replay, topic, ..EngineEntry::default() };
        let checked = entry.check("record", &mut mistakes).pop();
        checked.and_then(|it| it.events).filter(|_| mistakes.0.is_empty()).ok_or(mistakes)
    }
}

/// Who connects to whom.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// The agent to the engine, there.
    Subscribe(String),
    /// The engine to the agent, there.
    Listen(String),
    /// The agent to the engine, where its API says.
    Discover,
}

impl File {
    /// Checks everything that types do not.
    ///
    /// # Errors
    ///
    /// All mistakes, in the order of the file.
    pub fn check(self) -> Result<Config, Vec<Mistake>> {
        let mut mistakes = Mistakes::default();
        if self.node.trim().is_empty() {
            let what =
                "is empty; write this node's name as the servers' configuration has it, or set KVPICK_NODE";
            mistakes.add("node", what);
        }
        if self.servers.is_empty() {
            mistakes.add("servers", "is empty; write `host:port` of at least one server's feed");
        }
        for (index, server) in self.servers.iter().enumerate() {
            if host_and_port(server).is_none_or(|(_, port)| port == 0) {
                mistakes.add(&format!("servers[{index}]"), format!("`{server}` is not `host:port`"));
            }
        }
        if let Some(tls) = &self.tls {
            tls.check(&mut mistakes);
        }
        let admin = self.admin.parse().ok();
        if admin.is_none() {
            mistakes.add("admin", format!("`{}` is not `ip:port`, such as 127.0.0.1:9005", self.admin));
        }
        if let Some(state) = self.state.as_ref().filter(|it| !Path::new(it).is_absolute()) {
            let what =
                format!("`{state}` is not the absolute path of a folder, such as /var/lib/kvpick-agent");
            mistakes.add("state", what);
        }
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.check(&mut mistakes);
            if !self.engines.is_empty() {
                mistakes.add("engines", "with `kubernetes` they are pods; give one of the two");
            }
        }
        let mut engines: Vec<EngineConfig> = Vec::new();
        // The entry that each of them is from.
        let mut entries = Vec::new();
        for (index, entry) in self.engines.iter().enumerate() {
            engines.extend(entry.check(&format!("engines[{index}]"), &mut mistakes));
            entries.resize(engines.len(), index);
        }
        let mut seen = BTreeMap::new();
        for (engine, index) in engines.iter().zip(&entries) {
            let first = *seen.entry(engine.name).or_insert(*index);
            if first != *index {
                let what = format!(
                    "address and rank {} are those of engines[{first}]; name each rank once",
                    engine.name.rank
                );
                mistakes.add(&format!("engines[{index}].address"), what);
            }
        }
        endpoints::check_shared(&engines, &entries, &mut mistakes);
        let mut ranks: BTreeMap<SocketAddr, u32> = BTreeMap::new();
        engines.iter().for_each(|it| *ranks.entry(it.name.address).or_default() += 1);
        for engine in &mut engines {
            engine.ranks = ranks[&engine.name.address];
            engine.rank_by_header |= engine.ranks > 1;
        }
        match admin {
            Some(admin) if mistakes.0.is_empty() => Ok(Config {
                node: self.node.clone(),
                servers: self.servers.clone(),
                tls: self.tls.clone(),
                admin,
                state: self.state.clone().map(PathBuf::from),
                engines,
                kubernetes: self.kubernetes.clone(),
                file: self,
            }),
            _ => Err(mistakes.0),
        }
    }
}

impl EngineEntry {
    /// The engines that this is, as it does for one in a file.
    ///
    /// # Errors
    ///
    /// All mistakes.
    pub fn engines(&self) -> Result<Vec<EngineConfig>, Mistakes> {
        let mut mistakes = Mistakes::default();
        let mut engines = self.check("pod", &mut mistakes);
        let ranks = u32::try_from(engines.len()).unwrap_or(1);
        engines.iter_mut().for_each(|it| it.ranks = ranks);
        if mistakes.0.is_empty() { Ok(engines) } else { Err(mistakes) }
    }

    fn check(&self, path: &str, mistakes: &mut Mistakes) -> Vec<EngineConfig> {
        let field = |name: &str| format!("{path}.{name}");
        let address: Option<SocketAddr> = self.address.parse().ok();
        if address.is_none() {
            let what = format!("`{}` is not `ip:port`; write it as Envoy knows the engine", self.address);
            mistakes.add(&field("address"), what);
        }
        let api = self.api.clone().unwrap_or_else(|| format!("http://{}", self.address));
        if !api.starts_with("http://") {
            mistakes.add(&field("api"), format!("`{api}` is not `http://host:port`"));
        }
        self.check_endpoints(field, mistakes);
        let source = match (&self.subscribe, &self.listen) {
            (Some(it), None) if it == DISCOVER => Some(Source::Discover),
            (Some(it), None) => Some(Source::Subscribe(it.clone())),
            (None, Some(it)) => Some(Source::Listen(it.clone())),
            _ => None,
        };
        let events = match (self.events, source) {
            (Switch::On, Some(source)) => {
                Some(EventsConfig { source, replay: self.replay.clone(), topic: self.topic.clone() })
            }
            (Switch::On, None) => {
                let what = "is on, so exactly one of `subscribe` (the engine binds) and `listen` (the engine \
                            connects) is needed; or write `events: off`";
                mistakes.add(&field("events"), what);
                None
            }
            (Switch::Off, _) => None,
            (Switch::Unknown, _) => {
                mistakes.add(&field("events"), "is neither `on` nor `off`");
                None
            }
        };
        let copies = self.copies.meaning();
        if copies.is_none() {
            mistakes.add(&field("copies"), format!("`{}` is neither `guarded` nor `set`", self.copies.0));
        }
        let TierWeights { gpu, cpu, storage } = self.tier_weights;
        for (name, weight) in [("gpu", gpu), ("cpu", cpu), ("storage", storage)] {
            if !(0.0..=1.0).contains(&weight) {
                let what = format!("{weight} is not between 0 (worth nothing) and 1 (as if on the GPU)");
                mistakes.add(&field(&format!("tier_weights.{name}")), what);
            }
        }
        let (Some(address), copies) = (address, copies.unwrap_or_default()) else { return Vec::new() };
        let of_rank = |rank| EngineConfig {
            name: ReplicaName { address, rank },
            rank_by_header: self.ranks.is_some(),
            ranks: 1,
            api: api.trim_end_matches('/').to_owned(),
            events: events
                .as_ref()
                .map(|it| if self.ranks.is_some() { it.of_rank(rank) } else { it.clone() }),
            roots: self.roots.clone(),
            copies,
            tier_weights: [(Tier::Gpu, gpu), (Tier::Cpu, cpu), (Tier::Storage, storage)],
        };
        self.all_ranks().map(of_rank).collect()
    }

    /// The ranks that this entry stands for; never more than there may be.
    fn all_ranks(&self) -> impl Iterator<Item = u32> {
        (0..self.ranks.unwrap_or(1).min(MOST_RANKS)).filter_map(|it| self.rank.checked_add(it))
    }
}

/// What `subscribe` says where the engine's API is to be asked.
const DISCOVER: &str = "discover";

/// Most data-parallel ranks of an entry.
const MOST_RANKS: u32 = 1_024;

/// `host:port`, where the host is a name, an IPv4 address or an IPv6 address in brackets.
pub(crate) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let plain = !host.contains([':', '/', ' ']) && !host.is_empty();
    let bracketed = host.starts_with('[') && host.ends_with(']');
    Some((host, port.parse().ok()?)).filter(|_| plain || bracketed)
}

pub(crate) fn is_loopback(host: &str) -> bool {
    host.parse::<std::net::Ipv4Addr>().is_ok_and(|it| it.is_loopback())
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the configuration, and a pod's spec has no other way to say it"
)]
fn default_node() -> String {
    std::env::var(kubernetes::NODE).unwrap_or_default()
}

fn default_admin() -> String {
    "127.0.0.1:9005".to_owned()
}
