//! The server's configuration: one YAML file, every field below. `kvpick check-config` reports all mistakes at once.

mod kubernetes;
mod mistakes;
mod models;
mod objectives;
mod pins;
mod remote;
mod replicas;
mod tls;
mod weighing;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use kvpick_core::replicas::ReplicaSpec;
use kvpick_proto::words::ReplicaName;
use kvpick_service::{
    config::{self, ConfigError},
    logs::LogConfig,
};
use serde::{Deserialize, Serialize};

use crate::{flags::Flags, listen::Listen, memo::MemoConfig};

pub use kubernetes::KubernetesConfig;
pub use models::{ContentFormatConfig, ModelConfig};
pub use objectives::ObjectiveConfig;
pub use pins::PinsConfig;
pub use remote::{RemoteConfig, RemoteFrom, SourceConfig, base_url, read_key};
pub use replicas::ReplicaConfig;
pub use tls::TlsConfig;
pub use weighing::{BudgetConfig, MemoryConfig, ScoreConfig};

/// The whole file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of this server in agents' logs.
    #[serde(default = "default_server")]
    pub server: String,
    /// Where Envoy's ext_proc filter connects (gRPC): `ip:port`, or `unix:/path`. Port 0 lets the system choose.
    #[serde(default = "default_listen")]
    pub listen: Listen,
    /// TLS of `listen`; without it gRPC is spoken in the clear.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// A gRPC health server of its own, in the clear; health is served on `listen` as well.
    #[serde(default)]
    pub health: Option<SocketAddr>,
    /// Where agents connect (gRPC). Loopback, unless `insecure_feed` is set: whoever reaches it may say what a
    /// replica holds.
    #[serde(default = "default_feed")]
    pub feed: SocketAddr,
    /// TLS of `feed`: agents prove by their certificates which node is theirs, so `client_ca` is a must.
    #[serde(default)]
    pub feed_tls: Option<TlsConfig>,
    /// Health, readiness, metrics and status over HTTP, for operators.
    #[serde(default = "default_admin")]
    pub admin: SocketAddr,
    /// Accepts a `feed` address that other machines reach, with no proof of who speaks.
    #[serde(default)]
    pub insecure_feed: bool,
    /// The models whose prompts are made here. A model that replicas serve and that is not listed is balanced by
    /// load alone.
    #[serde(default)]
    pub models: Vec<ModelConfig>,
    /// Looks so often, in seconds, whether a file of a model has changed, and reloads then; 0 for never. SIGHUP and
    /// `POST /reload` of the admin server reload at any time.
    #[serde(default)]
    pub reload_check_s: u64,
    /// The replicas, where they are listed.
    #[serde(default)]
    pub replicas: Vec<ReplicaConfig>,
    /// In place of `replicas`: they are pods.
    #[serde(default)]
    pub kubernetes: Option<KubernetesConfig>,
    /// Adds the response header `x-kvpick-evidence` with what the pick was based on. For trying out: it tells clients
    /// addresses of replicas.
    #[serde(default)]
    pub evidence_header: bool,
    /// Leaves each stream with Envoy once the request is out, so that no message of the answer comes here, whatever the
    /// filter's modes say. In-flight requests are then estimates, failed replicas are noticed by their agents alone, who keeps
    /// which response is not learnt, and there is no evidence header.
    #[serde(default)]
    pub leave_after_request: bool,
    /// Switches on what the Gateway API Inference Extension's conformance suite asks of an endpoint picker: the request
    /// header `test-epp-endpoint-selection` says who is picked, and the response header `x-conformance-test-served-endpoint`
    /// who served by the load balancer's word. For tests: a client can then choose its replica.
    #[serde(default)]
    pub conformance: bool,
    /// What requests are for, by name, and which of them give way.
    #[serde(default)]
    pub objectives: Vec<ObjectiveConfig>,
    /// Most addresses in a destination, best first: 2 lets Envoy's retries go to the next best. Must be 1 where
    /// Envoy's cluster is of type `ORIGINAL_DST`, which takes no list.
    #[serde(default = "default_destinations")]
    pub destinations: usize,
    /// Largest request body that is looked at, in bytes; a larger one is balanced by load. Messages of Envoy's are taken up to
    /// this and 1 MiB, or 65 MiB: where its `request_body_buffer_limit` is larger than 64 MiB, so must this be.
    #[serde(default = "default_max_body_bytes")]
    pub max_body_bytes: usize,
    /// Threads that render, tokenize and hash prompts; 0 for one per core.
    #[serde(default)]
    pub workers: usize,
    /// How long a decision may take.
    #[serde(default)]
    pub budget: BudgetConfig,
    /// How cache hits are weighed against load.
    #[serde(default)]
    pub score: ScoreConfig,
    /// How long it is remembered what was sent where.
    #[serde(default)]
    pub memory: MemoryConfig,
    /// How it is remembered which replica keeps which response of `/v1/responses`.
    #[serde(default)]
    pub pins: PinsConfig,
    /// What is kept of earlier requests, so that no text is encoded twice.
    #[serde(default)]
    pub memo: MemoConfig,
    /// Logs.
    #[serde(default)]
    pub log: LogConfig,
}

fn default_server() -> String {
    "kvpick".to_owned()
}

const fn default_listen() -> Listen {
    Listen::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9002))
}

const fn default_feed() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9004)
}

const fn default_admin() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090)
}

const fn default_destinations() -> usize {
    2
}

const fn default_max_body_bytes() -> usize {
    64 << 20
}

/// Where a configuration comes from, so that it can be read again.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The file, if there is one: flags alone may do.
    pub file: Option<PathBuf>,
    /// What counts more than the file.
    pub flags: Flags,
}

impl From<PathBuf> for Origin {
    fn from(file: PathBuf) -> Self {
        Self { file: Some(file), flags: Flags::default() }
    }
}

impl Origin {
    /// Reads it. See [`Config::load`].
    ///
    /// # Errors
    /// The same.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let check = |mut it: Config| {
            self.flags.apply(&mut it);
            match it.mistakes_of_its_own() {
                mistakes if mistakes.is_empty() => Ok(it),
                mistakes => Err(mistakes),
            }
        };
        let Some(file) = &self.file else {
            let path = PathBuf::from("the flags");
            let nothing =
                config::parse("{}").map_err(|message| ConfigError::Parse { path: path.clone(), message })?;
            return check(nothing).map_err(|mistakes| ConfigError::Mistakes { path, mistakes });
        };
        config::load_checked(file, check)
    }
}

impl Config {
    /// Reads a file that is to be run with.
    ///
    /// # Errors
    /// A file that can't be read, or one with mistakes. A model's missing files are none here: the model alone is not
    /// loaded then.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Origin::from(file.to_owned()).load()
    }

    /// The replicas as the core knows them.
    #[must_use]
    pub fn replica_specs(&self) -> Vec<ReplicaSpec> {
        let spec = |it: &ReplicaConfig, rank| {
            ReplicaSpec::listed(ReplicaName { address: it.address, rank }, it.node.clone(), it.models.clone())
        };
        self.replicas.iter().flat_map(|it| it.all_ranks().map(move |rank| spec(it, rank))).collect()
    }
}
