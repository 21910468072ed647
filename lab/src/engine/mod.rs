//! A simulated engine: vLLM's routes, metrics and block events in front of a pool and a scheduler that only keep time.
//!
//! Reading order: [`announce`] (what is said of blocks), [`pool`] (physical blocks), [`attention`] (which of them a
//! prompt needs), [`limits`], [`sequence`] (a prompt and its blocks), [`cost`] and [`generate`] (how long a step takes,
//! what it says), [`request`], [`scheduler`] (which tokens are computed when): all pure. Around them [`version`] (what
//! differs between versions of vLLM), [`wire`] and [`publisher`] (events to subscribers), [`driver`] (one rank's
//! scheduler in real time), [`metrics`], [`model`], [`config`], `life` (all ranks from start to end), the HTTP routes,
//! and [`faults`] (what goes wrong on command).

pub mod announce;
pub mod attention;
pub mod command;
pub mod config;
pub mod cost;
pub mod driver;
pub mod faults;
mod free_queue;
pub mod generate;
mod http;
mod life;
pub mod limits;
pub mod metrics;
pub mod model;
pub mod pool;
pub mod publisher;
pub mod request;
pub mod scheduler;
pub mod sequence;
pub mod version;
pub mod wire;

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use self::config::{Config, StartError};
use self::{
    http::{App, Shown},
    life::Lives,
    publisher::RankEndpoints,
    wire::HashForm,
};

/// A running engine. It goes on until [`Engine::stop`], or until the process ends.
#[derive(Debug)]
pub struct Engine {
    http: SocketAddr,
    /// Of each rank, resolved.
    endpoints: Vec<RankEndpoints>,
    lives: Arc<Lives>,
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
        let limits = config.limits()?;
        let max_model_len = u32::try_from(limits.max_model_len).unwrap_or(u32::MAX);
        let prompter = model::load(&config.tokenizer, Some(max_model_len))?;
        let generator = model::generator(&prompter, config.seed, &config.tokenizer)?;
        let listen_error = |source| StartError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
        let http = listener.local_addr().map_err(listen_error)?;
        let lives = Arc::new(Lives::begin(&config, limits, generator.clone())?);
        let endpoints = lives.present().endpoints.clone();

        let shown = Shown {
            models: config.models,
            adapters: config.adapters,
            version: config.version,
            int_hashes: config.hashes == HashForm::Int,
            algorithm: config.algorithm.name(),
            block_size: config.block_size.get(),
            num_blocks: config.num_blocks,
            max_model_len: limits.max_model_len,
            dev_mode: config.dev_mode,
        };
        let app = App::new(http, shown, prompter, generator, Arc::clone(&lives));
        let stop = CancellationToken::new();
        let server = tokio::spawn(http::serve(listener, app, stop.clone()));
        Ok(Self { http, endpoints, lives, stop, server })
    }

    /// Where it serves HTTP.
    #[must_use]
    pub const fn http(&self) -> SocketAddr {
        self.http
    }

    /// Where each rank publishes its events.
    #[must_use]
    pub fn endpoints(&self) -> &[RankEndpoints] {
        &self.endpoints
    }

    /// Where rank 0 publishes events.
    #[must_use]
    pub fn events(&self) -> &str {
        self.endpoints.first().map_or("", |it| &it.events)
    }

    /// Where past batches of rank 0 can be asked for.
    #[must_use]
    pub fn replay(&self) -> Option<&str> {
        self.endpoints.first()?.replay.as_deref()
    }

    /// All addresses by name, as far as they are addresses: `http`, `events`, `replay`, and of ranks above 0 `events-1`,
    /// `replay-1` and so on.
    #[must_use]
    pub fn addresses(&self) -> BTreeMap<String, SocketAddr> {
        let mut addresses = BTreeMap::from([("http".to_owned(), self.http)]);
        for (rank, endpoints) in self.endpoints.iter().enumerate() {
            let suffix = if rank == 0 { String::new() } else { format!("-{rank}") };
            let named =
                [("events", Some(endpoints.events.as_str())), ("replay", endpoints.replay.as_deref())];
            for (name, endpoint) in named {
                let address = endpoint.and_then(|it| it.strip_prefix("tcp://"));
                if let Some(address) = address.and_then(|it| it.replace('*', "0.0.0.0").parse().ok()) {
                    addresses.insert(format!("{name}{suffix}"), address);
                }
            }
        }
        addresses
    }

    /// Ends it: requests that are under way break off, sockets close.
    pub async fn stop(self) {
        // The threads end at once when told to; waiting for them must not hold up the runtime all the same.
        let lives = self.lives;
        let threads = tokio::task::spawn_blocking(move || lives.end());
        self.stop.cancel();
        let mut server = self.server;
        if tokio::time::timeout(STOP_DEADLINE, &mut server).await.is_err() {
            tracing::warn!("clients keep connections open; the engine ends without them");
            server.abort();
        }
        let _ = threads.await;
    }
}

/// How long connections may take to end once their answers broke off.
const STOP_DEADLINE: Duration = Duration::from_secs(2);
