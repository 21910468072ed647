//! Other servers that make prompts: which is asked, and what came of it. The rules are the core's
//! ([`kvpick_core::remote`]); here are names and turns, in `server` is the HTTP.

mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bytes::Bytes;
use kvpick_core::{
    prompts::Prompt,
    remote::{Ending, Failure},
    request::Request,
};
use reqwest::{header::HeaderValue, redirect};
use serde_json::{Value, json};

use self::server::{Flight, Server};
use crate::config::{ModelConfig, RemoteConfig, RemoteFrom, SourceConfig, base_url, read_key};

/// How long an unused connection is kept. vLLM closes one after 5 s; a request that it crosses would be lost.
const IDLE: Duration = Duration::from_secs(4);

/// Replicas of which more is remembered than of those that may be asked now.
const MOST_FORMER: usize = 256;

/// A model's remote source.
#[derive(Debug)]
pub struct Remote {
    model: String,
    source: SourceConfig,
    config: RemoteConfig,
    servers: Servers,
    http: reqwest::Client,
    key: Option<HeaderValue>,
    turn: AtomicUsize,
    /// How many of the servers are left alone at present.
    resting: Arc<AtomicI64>,
}

#[derive(Debug)]
enum Servers {
    Fixed(Vec<Arc<Server>>),
    /// As far as they have been asked.
    Replicas(Mutex<BTreeMap<SocketAddr, Arc<Server>>>),
}

/// What a server said, not yet read: reading takes time, which is a worker's to spend.
#[derive(Debug)]
pub struct Told {
    answer: server::Answer,
    flight: Flight,
}

impl Told {
    /// The prompts.
    ///
    /// # Errors
    /// An answer that is not understood, or does not tell all; the former speaks against the server.
    pub fn read(self) -> Result<Vec<Prompt>, Failure> {
        let Self { answer, flight } = self;
        let prompts = answer.reading.prompts(&answer.body);
        flight.end(ending(prompts.as_ref().err()));
        prompts
    }
}

fn ending(failure: Option<&Failure>) -> Ending {
    match failure {
        None => Ending::Well,
        Some(failure) if failure.is_fault() => Ending::Failed,
        Some(failure) if failure.is_unasked() => Ending::Abandoned,
        Some(_) => Ending::Well,
    }
}

impl Remote {
    /// That of a model's configuration. Connects to nobody yet.
    ///
    /// # Errors
    /// A key that can't be read, or a URL that is none.
    pub fn new(model: &ModelConfig) -> anyhow::Result<Self> {
        let config = model.remote.clone().unwrap_or_default();
        let resting = Arc::default();
        let servers = match config.from {
            Some(RemoteFrom::Replicas) => Servers::Replicas(Mutex::default()),
            None => {
                let server = |url: &String| {
                    let base = base_url(url).map_err(anyhow::Error::msg);
                    let base = base.with_context(|| format!("remote.urls: {url:?}"))?;
                    Ok(Arc::new(Server::new(base, config.max_in_flight, &resting)))
                };
                Servers::Fixed(config.urls.iter().map(server).collect::<anyhow::Result<_>>()?)
            }
        };
        let key = config.api_key_file.as_deref().map(header).transpose().context("remote.api_key_file")?;
        let timeout = Duration::from_millis(config.timeout_ms);
        // A server of prompts sends nobody elsewhere; whoever does is none.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(timeout)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(config.max_in_flight)
            .build()
            .context("HTTP client")?;
        let (source, model) = (model.source, model.name.clone());
        Ok(Self { model, source, config, servers, http, key, turn: AtomicUsize::new(0), resting })
    }

    /// Whether the other one is set up in the same way.
    #[must_use]
    pub fn is_as(&self, other: &Self) -> bool {
        (&self.model, self.source, &self.config, &self.key)
            == (&other.model, other.source, &other.config, &other.key)
    }

    /// The name of its model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// How many of its servers are left alone at present.
    #[must_use]
    pub fn resting(&self) -> i64 {
        self.resting.load(Ordering::Relaxed)
    }

    /// Asks one server, and another one where the first fails at once. `replicas` are those that serve the model.
    ///
    /// # Errors
    /// Why there is no answer. Comes back by `deadline`.
    pub async fn ask(
        &self,
        request: &Request,
        body: &Bytes,
        replicas: &[SocketAddr],
        deadline: Instant,
    ) -> Result<Told, Failure> {
        let timeout = Duration::from_millis(self.config.timeout_ms);
        let deadline = deadline.min(Instant::now() + timeout).into();
        let mut servers = self.in_turn(replicas);
        let mut first = None;
        loop {
            let flight = enter(&mut servers).map_err(|failure| first.take().unwrap_or(failure))?;
            let answer = flight.server.ask(&self.http, self.key.as_ref(), request, body);
            let answer = tokio::time::timeout_at(deadline, answer).await.unwrap_or(Err(Failure::Timeout));
            match answer {
                Ok(answer) => return Ok(Told { answer, flight }),
                Err(failure) => {
                    let server = &flight.server.base;
                    tracing::debug!(server, model = self.model, %failure, "no prompt of this server");
                    flight.end(ending(Some(&failure)));
                    match failure {
                        Failure::Down(_) => first = first.or(Some(failure)),
                        other => return Err(other),
                    }
                }
            }
        }
    }

    /// Whether it is asked for every request.
    #[must_use]
    pub fn is_only(&self) -> bool {
        self.source == SourceConfig::Remote
    }

    /// The servers that may be asked, the one whose turn it is last, behind those that are asked more at present.
    fn in_turn(&self, replicas: &[SocketAddr]) -> Vec<Arc<Server>> {
        let mut servers = match &self.servers {
            Servers::Fixed(servers) => servers.clone(),
            Servers::Replicas(known) => {
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                let wanted: BTreeSet<_> = replicas.iter().copied().collect();
                if wanted.len() + MOST_FORMER < known.len() {
                    known.retain(|address, _| wanted.contains(address));
                }
                let server = |address: SocketAddr| {
                    let new = || {
                        let base = format!("http://{address}");
                        Arc::new(Server::new(base, self.config.max_in_flight, &self.resting))
                    };
                    Arc::clone(known.entry(address).or_insert_with(new))
                };
                wanted.into_iter().map(server).collect()
            }
        };
        if !servers.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % servers.len();
            servers.rotate_left(turn);
            servers.sort_by_cached_key(|it| std::cmp::Reverse(it.in_flight()));
        }
        servers
    }

    /// What is known of its servers, for people.
    #[must_use]
    pub fn status(&self) -> Value {
        let servers: Vec<_> = match &self.servers {
            Servers::Fixed(servers) => servers.iter().map(|it| it.status()).collect(),
            Servers::Replicas(known) => {
                let known = known.lock().unwrap_or_else(PoisonError::into_inner);
                known.values().map(|it| it.status()).collect()
            }
        };
        json!({"model": self.model, "source": self.source.label(), "servers": servers})
    }
}

fn header(key_file: &Path) -> anyhow::Result<HeaderValue> {
    let key = read_key(key_file).map_err(anyhow::Error::msg)?;
    let mut header = HeaderValue::from_str(&format!("Bearer {key}"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Goes to the last of the servers that lets one in; those behind it are taken off the list, and it too.
fn enter(servers: &mut Vec<Arc<Server>>) -> Result<Flight, Failure> {
    let mut failure = Failure::NoServer;
    while let Some(server) = servers.pop() {
        match Server::enter(&server) {
            Ok(flight) => return Ok(flight),
            Err(Failure::Overloaded) => failure = Failure::Overloaded,
            Err(other) if failure == Failure::NoServer => failure = other,
            Err(_) => {}
        }
    }
    Err(failure)
}
