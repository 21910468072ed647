//! How an engine is set up.

use std::{collections::BTreeSet, io, net::SocketAddr, num::NonZeroU32, path::PathBuf, sync::Arc};

use kvpick_proto::naming::Algorithm;

use super::{
    announce::Adapter,
    attention::Attention,
    cost::StepCost,
    limits::Limits,
    model::ModelError,
    publisher::{DEFAULT_BUFFER_STEPS, EndpointError, Endpoints},
    version::Version,
    wire::{Encoding, HashForm},
};

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of the one model it serves; at least one. The first is in answers and metrics.
    pub models: Vec<String>,
    /// Adapters of that model.
    pub adapters: Vec<Arc<Adapter>>,
    /// Folder with `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// Where it serves HTTP; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Where rank 0 announces its blocks.
    pub endpoints: Endpoints,
    /// The version of vLLM that is imitated.
    pub version: Version,
    /// Layout of events, where it is not that of the version.
    pub encoding: Option<Encoding>,
    /// Form of hashes in events.
    pub hashes: HashForm,
    /// How blocks are hashed.
    pub algorithm: Algorithm,
    /// String whose hash is the parent of first blocks; `None` is what the version does without `PYTHONHASHSEED`.
    pub root: Option<String>,
    /// Engines behind the one HTTP server, each with its own blocks; at least 1.
    pub ranks: u32,
    /// Whether the routes of vLLM's development mode are there.
    pub dev_mode: bool,
    /// Tokens in a block.
    pub block_size: NonZeroU32,
    /// Physical blocks of each rank, the placeholder included; at least 2.
    pub num_blocks: u32,
    /// What the model's layers attend to.
    pub attention: Attention,
    /// Most tokens computed in one step.
    pub max_num_batched_tokens: usize,
    /// Most requests that run at once.
    pub max_num_seqs: usize,
    /// Most tokens of prompt and answer; at most what the blocks hold, which is the default.
    pub max_model_len: Option<u32>,
    /// How long a step takes.
    pub cost: StepCost,
    /// What answers depend on besides the prompt.
    pub seed: u64,
}

impl Config {
    /// A config with vLLM's defaults on ports that the system chooses; but blocks are hashed by `sha256_cbor`.
    #[must_use]
    pub fn new(model: &str, tokenizer: PathBuf) -> Self {
        let anywhere = "tcp://127.0.0.1:*".to_owned();
        Self {
            models: vec![model.to_owned()],
            adapters: Vec::new(),
            tokenizer,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            endpoints: Endpoints {
                events: anywhere.clone(),
                replay: Some(anywhere),
                topic: String::new(),
                buffer_steps: DEFAULT_BUFFER_STEPS,
            },
            version: Version::default(),
            encoding: None,
            hashes: HashForm::default(),
            algorithm: Algorithm::Sha256Cbor,
            root: None,
            ranks: 1,
            dev_mode: true,
            block_size: const { NonZeroU32::new(16).unwrap() },
            num_blocks: 8192,
            attention: Attention::default(),
            max_num_batched_tokens: 8192,
            max_num_seqs: 256,
            max_model_len: None,
            cost: StepCost::default(),
            seed: 0,
        }
    }

    /// The limits of one rank, after a check of all settings.
    pub(super) fn limits(&self) -> Result<Limits, StartError> {
        let wrong = |flag, problem: String| Err(StartError::Setting { flag, problem });
        if self.models.is_empty() {
            return wrong("model", "an engine serves at least one model".to_owned());
        }
        if self.num_blocks < 2 {
            return wrong("num-blocks", "one block is a placeholder, so at least 2 are needed".to_owned());
        }
        if self.max_num_batched_tokens == 0 || self.max_num_seqs == 0 {
            return wrong("max-num-batched-tokens, --max-num-seqs", "at least 1".to_owned());
        }
        if self.ranks == 0 {
            return wrong("data-parallel-size", "at least 1".to_owned());
        }
        if !(self.cost.speed.is_finite() && 0.0 < self.cost.speed) {
            return wrong("speed", "a number above 0".to_owned());
        }
        if !self.version.algorithms().contains(&self.algorithm) {
            let (name, version) = (self.algorithm.name(), self.version.as_str());
            return wrong("algorithm", format!("vLLM {version} has no {name}; want sha256_cbor or sha256"));
        }
        let mut names = BTreeSet::new();
        let adapters = self.adapters.iter().map(|it| &it.name);
        if let Some(name) = self.models.iter().chain(adapters).find(|name| !names.insert(*name)) {
            return wrong("model, --lora", format!("{name:?} names two things"));
        }
        let held = u64::from(self.num_blocks - 1) * u64::from(self.block_size.get());
        let max_model_len = self.max_model_len.map_or_else(|| held.min(DEFAULT_MAX_MODEL_LEN), u64::from);
        if held < max_model_len {
            let problem = format!("{max_model_len} tokens do not fit into the blocks, which hold {held}");
            return wrong("max-model-len", problem);
        }
        Ok(Limits {
            block_size: self.block_size,
            num_blocks: self.num_blocks,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_seqs: self.max_num_seqs,
            max_model_len: usize::try_from(max_model_len).unwrap_or(usize::MAX),
            attention: self.attention,
            version: self.version,
        })
    }
}

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting that makes no engine.
    #[error("--{flag}: {problem}")]
    Setting {
        /// The flag of the setting.
        flag: &'static str,
        /// What is wrong with it, and what is wanted.
        problem: String,
    },
    /// The model's files.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The event sockets.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The HTTP listener.
    #[error("--listen {address}: {source}")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The metrics.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Context length of the model that is imitated by default.
const DEFAULT_MAX_MODEL_LEN: u64 = 40_960;
