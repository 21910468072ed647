//! A simulated engine: vLLM's routes, metrics and block events in front of a pool and a scheduler that only keep time.
//!
//! Reading order: [`pool`] (physical blocks), [`sequence`] (a prompt and its blocks), [`cost`] and [`generate`] (how
//! long a step takes, what it says), [`scheduler`] (which tokens are computed when): all pure. Around them [`wire`] and
//! [`publisher`] (events to subscribers), [`driver`] (the scheduler in real time), [`metrics`], [`model`], and the
//! HTTP routes.

pub mod command;
pub mod cost;
pub mod driver;
mod free_queue;
pub mod generate;
mod http;
pub mod metrics;
pub mod model;
pub mod pool;
pub mod publisher;
pub mod scheduler;
pub mod sequence;
pub mod wire;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    num::NonZeroU32,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, Hasher};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::{
    cost::StepCost,
    driver::Handle,
    http::App,
    metrics::Metrics,
    model::ModelError,
    publisher::{EndpointError, Endpoints, Publisher},
    scheduler::{Limits, Scheduler},
    wire::{Encoder, Encoding, HashForm},
};

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of the one model it serves; at least one. The first is in answers and metrics.
    pub models: Vec<String>,
    /// Folder with `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// Where it serves HTTP; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Where it announces its blocks.
    pub endpoints: Endpoints,
    /// Layout of events.
    pub encoding: Encoding,
    /// Form of hashes in events.
    pub hashes: HashForm,
    /// How blocks are hashed.
    pub algorithm: Algorithm,
    /// String whose hash is the parent of first blocks.
    pub root: String,
    /// Tokens in a block.
    pub block_size: NonZeroU32,
    /// Physical blocks, the placeholder included; at least 2.
    pub num_blocks: u32,
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
    /// A config with vLLM's defaults on ports that the system chooses.
    #[must_use]
    pub fn new(model: &str, tokenizer: PathBuf) -> Self {
        let anywhere = "tcp://127.0.0.1:*".to_owned();
        Self {
            models: vec![model.to_owned()],
            tokenizer,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            endpoints: Endpoints { events: anywhere.clone(), replay: Some(anywhere), topic: String::new() },
            encoding: Encoding::default(),
            hashes: HashForm::default(),
            algorithm: Algorithm::Sha256Cbor,
            root: DEFAULT_ROOT.to_owned(),
            block_size: const { NonZeroU32::new(16).unwrap() },
            num_blocks: 8192,
            max_num_batched_tokens: 8192,
            max_num_seqs: 256,
            max_model_len: None,
            cost: StepCost::default(),
            seed: 0,
        }
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

/// A running engine. It goes on until [`Engine::stop`], or until the process ends.
#[derive(Debug)]
pub struct Engine {
    http: SocketAddr,
    events: String,
    replay: Option<String>,
    handle: Handle,
    thread: thread::JoinHandle<()>,
    stop: CancellationToken,
    server: JoinHandle<io::Result<()>>,
}

impl Engine {
    /// Loads the model, opens all sockets and begins to serve.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let limits = limits(&config)?;
        let max_model_len = u32::try_from(limits.max_model_len).unwrap_or(u32::MAX);
        let prompter = model::load(&config.tokenizer, Some(max_model_len))?;
        let generator = model::generator(&prompter, config.seed, &config.tokenizer)?;
        let hasher = Hasher::with_root(config.algorithm, &config.root, config.encoding.extra_keys());
        let encoder = Encoder {
            encoding: config.encoding,
            hashes: config.hashes,
            block_size: config.block_size.get(),
            rank: 0,
        };
        let model = config.models.first().map_or("", String::as_str);
        let metrics = Metrics::new(model, &limits, config.algorithm.name())?;
        let listen_error = |source| StartError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
        let http = listener.local_addr().map_err(listen_error)?;
        let publisher = Publisher::start(&config.endpoints, encoder)?;
        let (events, replay) = (publisher.events().to_owned(), publisher.replay().map(str::to_owned));

        let scheduler = Scheduler::new(limits, config.cost, generator.clone(), hasher);
        let (handle, thread) = driver::start(scheduler, publisher, metrics.clone());
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let app = App {
            address: http,
            models: config.models,
            version: config.encoding.version(),
            created,
            max_model_len: limits.max_model_len,
            prompter: Arc::new(prompter),
            generator: Arc::new(generator),
            engine: handle.clone(),
            metrics,
            answers: Arc::default(),
        };
        let stop = CancellationToken::new();
        let server = tokio::spawn(http::serve(listener, app, stop.clone()));
        Ok(Self { http, events, replay, handle, thread, stop, server })
    }

    /// Where it serves HTTP.
    #[must_use]
    pub const fn http(&self) -> SocketAddr {
        self.http
    }

    /// Where it publishes events: the resolved endpoint where bound, else the one connected to.
    #[must_use]
    pub fn events(&self) -> &str {
        &self.events
    }

    /// Where past batches can be asked for.
    #[must_use]
    pub fn replay(&self) -> Option<&str> {
        self.replay.as_deref()
    }

    /// All addresses by name, as far as they are addresses: `http`, `events`, `replay`.
    #[must_use]
    pub fn addresses(&self) -> BTreeMap<String, SocketAddr> {
        let endpoint = |endpoint: &str| endpoint.strip_prefix("tcp://")?.parse().ok();
        let named = [
            ("http", Some(self.http)),
            ("events", endpoint(&self.events)),
            ("replay", self.replay.as_deref().and_then(endpoint)),
        ];
        named.into_iter().filter_map(|(name, address)| Some((name.to_owned(), address?))).collect()
    }

    /// Ends it: requests that are under way break off, sockets close.
    pub async fn stop(self) {
        self.handle.stop();
        self.stop.cancel();
        let mut server = self.server;
        if tokio::time::timeout(STOP_DEADLINE, &mut server).await.is_err() {
            tracing::warn!("clients keep connections open; the engine ends without them");
            server.abort();
        }
        // The thread ends at once when told to; waiting for it must not hold up the runtime all the same.
        let thread = self.thread;
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
}

fn limits(config: &Config) -> Result<Limits, StartError> {
    let wrong = |flag, problem: &str| Err(StartError::Setting { flag, problem: problem.to_owned() });
    if config.models.is_empty() {
        return wrong("model", "an engine serves at least one model");
    }
    if config.num_blocks < 2 {
        return wrong("num-blocks", "one block is a placeholder, so at least 2 are needed");
    }
    if config.max_num_batched_tokens == 0 || config.max_num_seqs == 0 {
        return wrong("max-num-batched-tokens, --max-num-seqs", "at least 1");
    }
    if !(config.cost.speed.is_finite() && 0.0 < config.cost.speed) {
        return wrong("speed", "a number above 0");
    }
    let held = u64::from(config.num_blocks - 1) * u64::from(config.block_size.get());
    let max_model_len = config.max_model_len.map_or_else(|| held.min(DEFAULT_MAX_MODEL_LEN), u64::from);
    if held < max_model_len {
        let problem = format!("{max_model_len} tokens do not fit into the blocks, which hold {held}");
        return Err(StartError::Setting { flag: "max-model-len", problem });
    }
    Ok(Limits {
        block_size: config.block_size,
        num_blocks: config.num_blocks,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_num_seqs: config.max_num_seqs,
        max_model_len: usize::try_from(max_model_len).unwrap_or(usize::MAX),
    })
}

/// Context length of the model that is imitated by default.
const DEFAULT_MAX_MODEL_LEN: u64 = 40_960;

/// How long connections may take to end once their answers broke off.
const STOP_DEADLINE: Duration = Duration::from_secs(2);
