//! The server's configuration: one YAML file, every field below. `kvpick check-config` reports all mistakes at once.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use kvpick_core::{
    prompts::ContentFormat,
    replicas::{Memory, ReplicaSpec},
    score::Weights,
};
use kvpick_proto::words::ReplicaName;
use kvpick_service::logs::LogConfig;
use serde::{Deserialize, Serialize};

/// The whole file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of this server in agents' logs.
    #[serde(default = "default_server")]
    pub server: String,
    /// Where Envoy's ext_proc filter connects (gRPC). Port 0 lets the system choose.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Where agents connect (gRPC). Loopback, unless `insecure_feed` is set: whoever reaches it may say what a
    /// replica holds.
    #[serde(default = "default_feed")]
    pub feed: SocketAddr,
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
    /// The replicas.
    pub replicas: Vec<ReplicaConfig>,
    /// Adds the response header `x-kvpick-evidence` with what the pick was based on. For trying out: it tells clients
    /// addresses of replicas.
    #[serde(default)]
    pub evidence_header: bool,
    /// Most addresses in a destination, best first: 2 lets Envoy's retries go to the next best. Must be 1 where
    /// Envoy's cluster is of type `ORIGINAL_DST`, which takes no list.
    #[serde(default = "default_destinations")]
    pub destinations: usize,
    /// Largest request body that is looked at, in bytes; a larger one is balanced by load. At least as large as
    /// Envoy's `request_body_buffer_limit`.
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
    /// Logs.
    #[serde(default)]
    pub log: LogConfig,
}

/// A model whose prompts are made here.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Its name in requests (vLLM's `--served-model-name`).
    pub name: String,
    /// Further names of the same model.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Folder with the model's `tokenizer.json`, `tokenizer_config.json` and, where the model has one,
    /// `chat_template.jinja`.
    pub path: PathBuf,
    /// File that vLLM is given as `--chat-template`.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
    /// vLLM's `--chat-template-content-format`.
    #[serde(default)]
    pub chat_template_content_format: ContentFormatConfig,
    /// vLLM's `--default-chat-template-kwargs`.
    #[serde(default)]
    pub default_chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
    /// vLLM's `--trust-request-chat-template`.
    #[serde(default)]
    pub trust_request_chat_template: bool,
    /// vLLM's `--exclude-tools-when-tool-choice-none`.
    #[serde(default)]
    pub exclude_tools_when_tool_choice_none: bool,
    /// Leaves messages of the role `developer` as they are where the template does not know it, as vLLM 0.16 does; 0.32
    /// makes them system messages.
    #[serde(default)]
    pub keeps_developer_role: bool,
    /// vLLM's `--max-model-len`, in tokens; needed for requests with `truncate_prompt_tokens: -1` only.
    #[serde(default)]
    pub max_model_len: Option<u32>,
    /// Whether this is a gpt-oss model, whose chats vLLM writes in the Harmony format without a template. Found out from
    /// the folder's `config.json`, or else from the tokenizer, where it is not said.
    #[serde(default)]
    pub harmony: Option<bool>,
    /// The engine's `VLLM_SYSTEM_START_DATE`: the date in gpt-oss prompts. Without one, prompts change at the engine's
    /// midnight.
    #[serde(default)]
    pub start_date: Option<String>,
    /// The engine's `VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS`.
    #[serde(default)]
    pub harmony_system_instructions: bool,
    /// The engine's local time is this many minutes ahead of UTC; for prompts that show the date.
    #[serde(default)]
    pub utc_offset_minutes: i32,
}

/// See [`ContentFormat`].
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "vLLM's own names")]
pub enum ContentFormatConfig {
    #[default]
    Auto,
    String,
    Openai,
}

impl From<ContentFormatConfig> for ContentFormat {
    fn from(it: ContentFormatConfig) -> Self {
        match it {
            ContentFormatConfig::Auto => Self::Auto,
            ContentFormatConfig::String => Self::String,
            ContentFormatConfig::Openai => Self::OpenAi,
        }
    }
}

/// A replica.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// Its serving address `ip:port`, exactly as Envoy's cluster knows it.
    pub address: SocketAddr,
    /// Its data-parallel rank, where several share the address.
    #[serde(default)]
    pub rank: u32,
    /// How many ranks, from `rank` on, share the address: this entry then stands for one replica for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// The node whose agent may describe it. Without one it is balanced by what this server sent there.
    #[serde(default)]
    pub node: Option<String>,
    /// The models that it serves, as in requests.
    #[serde(default)]
    pub models: Vec<String>,
}

/// How long a decision may take before the request goes by load: at most
/// `base_ms + share_of_prefill x (estimated prefill time of the prompt)`, at most `max_ms`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetConfig {
    /// In milliseconds, for any prompt.
    pub base_ms: u64,
    /// Share of the time that the engine would need to prefill the whole prompt: what a hit can save at most.
    pub share_of_prefill: f64,
    /// In milliseconds. Keep it below half of the filter's `message_timeout`.
    pub max_ms: u64,
    /// In milliseconds; in place of `max_ms` in `FULL_DUPLEX_STREAMED`, where Envoy has no clock of its own.
    pub full_duplex_ms: u64,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self { base_ms: 20, share_of_prefill: 0.1, max_ms: 300, full_duplex_ms: 500 }
    }
}

/// How cache hits are weighed against load; see `kvpick_core::score`. All prices are in prompt tokens.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoreConfig {
    /// Prefill speed of one replica, in tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Price of each request that runs on a replica.
    pub per_request: f64,
    /// Price of each request that queues there.
    pub per_waiting: f64,
    /// Price of each uncached token, times the share of the replica's cache that is filled.
    pub per_eviction: f64,
    /// Price of a cache that running requests fill beyond 80 %, times the square of what is beyond.
    pub when_full: f64,
}

impl Default for ScoreConfig {
    fn default() -> Self {
        let Weights { prefill_rate, per_request, per_waiting, per_eviction, when_full } = Weights::default();
        Self { prefill_tokens_per_second: prefill_rate, per_request, per_waiting, per_eviction, when_full }
    }
}

impl From<ScoreConfig> for Weights {
    fn from(it: ScoreConfig) -> Self {
        Self {
            prefill_rate: it.prefill_tokens_per_second,
            per_request: it.per_request,
            per_waiting: it.per_waiting,
            per_eviction: it.per_eviction,
            when_full: it.when_full,
        }
    }
}

/// How long it is remembered what was sent where.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// In seconds: for replicas whose events do not tell all.
    pub routed_expiry_s: u64,
    /// In seconds: for blocks that events should soon confirm.
    pub expected_expiry_s: u64,
    /// Most blocks remembered per replica, about 60 bytes each.
    pub blocks_per_replica: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        let Memory { routed_expiry, expected_expiry, bound } = Memory::default();
        Self {
            routed_expiry_s: routed_expiry.as_secs(),
            expected_expiry_s: expected_expiry.as_secs(),
            blocks_per_replica: bound,
        }
    }
}

impl From<MemoryConfig> for Memory {
    fn from(it: MemoryConfig) -> Self {
        Self {
            routed_expiry: Duration::from_secs(it.routed_expiry_s),
            expected_expiry: Duration::from_secs(it.expected_expiry_s),
            bound: it.blocks_per_replica,
        }
    }
}

fn default_server() -> String {
    "kvpick".to_owned()
}

const fn default_listen() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9002)
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

impl Config {
    /// Every mistake that can be seen without starting, each with its field and its remedy; empty when there is none.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !self.feed.ip().is_loopback() && !self.insecure_feed {
            found.push(format!(
                "feed: {} is not loopback, and whoever reaches it may say what a replica holds; use 127.0.0.1, or set \
                 insecure_feed: true where the network keeps others away",
                self.feed
            ));
        }
        if self.replicas.is_empty() {
            found.push("replicas: the list is empty; name at least one replica".to_owned());
        }
        let mut seen = BTreeSet::new();
        for (i, replica) in self.replicas.iter().enumerate() {
            if replica.address.port() == 0 {
                found.push(format!("replicas[{i}].address: port 0 is no serving port; write the real one"));
            }
            if replica.ranks.is_some_and(|it| !(1..=MOST_RANKS).contains(&it)) || MOST_RANKS < replica.rank {
                found.push(format!(
                    "replicas[{i}].ranks: there are 1 to {MOST_RANKS} ranks behind an address; write how many share {}",
                    replica.address
                ));
            }
            if let Some(rank) = replica.all_ranks().find(|it| !seen.insert((replica.address, *it))) {
                let address = replica.address;
                found.push(format!("replicas[{i}]: {address} rank {rank} is listed twice; remove one"));
            }
            if replica.models.is_empty() {
                found.push(format!(
                    "replicas[{i}].models: the list is empty; name the models that {} serves",
                    replica.address
                ));
            }
        }
        let mut names = BTreeSet::new();
        for (i, model) in self.models.iter().enumerate() {
            for name in std::iter::once(&model.name).chain(&model.aliases) {
                if !names.insert(name) {
                    found.push(format!("models[{i}]: the name {name:?} is given twice; keep one"));
                }
            }
            let file = model.path.join("tokenizer.json");
            if !file.is_file() {
                found.push(format!(
                    "models[{i}].path: there is no {}; give the folder with the model's tokenizer.json",
                    file.display()
                ));
            }
            if model.utc_offset_minutes.unsigned_abs() > 24 * 60 {
                found.push(format!(
                    "models[{i}].utc_offset_minutes: {} is more than a day; give minutes ahead of UTC",
                    model.utc_offset_minutes
                ));
            }
            if let Some(file) = model.chat_template.as_ref().filter(|it| !it.is_file()) {
                found.push(format!(
                    "models[{i}].chat_template: there is no {}; give the file that vLLM is given",
                    file.display()
                ));
            }
        }
        let mut range = |field: &str, value: u64, least: u64, most: u64| {
            if value < least || most < value {
                found.push(format!("{field}: {value} is out of range; use {least} to {most}"));
            }
        };
        range("destinations", self.destinations as u64, 1, 16);
        range("max_body_bytes", self.max_body_bytes as u64, 1_024, 1 << 30);
        range("workers", self.workers as u64, 0, 1_024);
        let BudgetConfig { base_ms, max_ms, full_duplex_ms, .. } = self.budget;
        for (field, value) in [("base_ms", base_ms), ("max_ms", max_ms), ("full_duplex_ms", full_duplex_ms)] {
            range(&format!("budget.{field}"), value, 1, 60_000);
        }
        range("memory.routed_expiry_s", self.memory.routed_expiry_s, 1, 86_400);
        range("memory.expected_expiry_s", self.memory.expected_expiry_s, 1, 86_400);
        range("memory.blocks_per_replica", self.memory.blocks_per_replica as u64, 1, 1 << 26);
        let sockets = [("listen", self.listen), ("feed", self.feed), ("admin", self.admin)];
        for (i, (field, address)) in sockets.iter().enumerate() {
            let taken = sockets[..i].iter().find(|(_, it)| it == address && address.port() != 0);
            if let Some((other, _)) = taken {
                found.push(format!("{field}: {address} is that of {other}; give each its own port"));
            }
        }
        let score = &self.score;
        let prices = [score.per_request, score.per_waiting, score.per_eviction, score.when_full];
        if prices.iter().any(|it| !it.is_finite() || *it < 0.0) {
            found.push("score: a price is negative or no number; all are 0 or more".to_owned());
        }
        if !score.prefill_tokens_per_second.is_finite() || score.prefill_tokens_per_second <= 0.0 {
            found.push("score.prefill_tokens_per_second: must be above 0; measure one replica".to_owned());
        }
        if !self.budget.share_of_prefill.is_finite() || self.budget.share_of_prefill < 0.0 {
            found.push("budget.share_of_prefill: must be 0 or more; the default is 0.1".to_owned());
        }
        found
    }

    /// The replicas as the core knows them.
    #[must_use]
    pub fn replica_specs(&self) -> Vec<ReplicaSpec> {
        let spec = |it: &ReplicaConfig, rank| ReplicaSpec {
            name: ReplicaName { address: it.address, rank },
            node: it.node.clone(),
            models: it.models.clone(),
        };
        self.replicas.iter().flat_map(|it| it.all_ranks().map(move |rank| spec(it, rank))).collect()
    }
}

/// Most data-parallel ranks behind one address.
const MOST_RANKS: u32 = 1_024;

impl ReplicaConfig {
    /// The ranks that this entry stands for; never more than there may be.
    fn all_ranks(&self) -> impl Iterator<Item = u32> {
        (0..self.ranks.unwrap_or(1).min(MOST_RANKS)).filter_map(|it| self.rank.checked_add(it))
    }
}
