//! What is started, in which order, and how it stops.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use kvpick_core::{parity::Parity, pins::Pins, session::Settings, world::World};
use kvpick_proto::pb::feed_server::FeedServer;
use kvpick_service::{
    addresses,
    admin::{self, Admin},
    drain::{self, Drain},
    logs::Logs,
    ready::Ready,
};
use prometheus::Registry;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    config::{Config, ModelConfig, Origin, TlsConfig},
    decide::Decider,
    ext_proc::Picker,
    feeds::{Feeds, Proof},
    listen::{Bound, Io, Listen, Tls},
    members,
    memo::Memos,
    messages,
    metrics::Metrics,
    parity, probe,
    reload::{self, Reloader, Reloads, Shown},
    shared::Shared,
    status,
};

/// How long a shutdown waits for requests under way before it cuts them.
const GRACE: Duration = Duration::from_secs(25);

/// A gRPC message holds a whole body in `BUFFERED` mode, or as much of one as has come; this is for what is around it.
const MESSAGE_OVERHEAD: usize = 1 << 20;

/// Bodies of this size are taken in and given back, also where only smaller ones are looked at.
const LEAST_BODY: usize = 64 << 20;

/// An agent's messages stay below 64 KiB but for a description of a replica with a thousand adapters.
const MOST_FEED_MESSAGE: usize = 16 << 20;

/// HTTP/2 windows. The default of 64 KiB costs a round trip for every body above it.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Streams that a peer may open and reset before they are served, on one connection. Envoy resets a stream for each
/// client that goes away, and has one connection: above the limit all its streams end, running answers among them. The
/// default is 20; the peers of this server are Envoy and agents, not clients.
const MOST_RESETS: usize = 100_000;

/// How long a server that is asked to stop goes on taking requests while it says that it is not serving: Envoy's health
/// checks are a second apart.
const FAREWELL: Duration = Duration::from_millis(1_500);

/// gRPC health services that are asked for in the field; see the endpoint picker protocol, and the charts of others.
const HEALTH_SERVICES: [&str; 5] =
    ["", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"];

/// A server whose sockets are bound and whose parts run.
#[derive(Debug)]
pub struct App {
    drain: Drain,
    /// Begins the farewell: not serving, by its own word.
    leaving: CancellationToken,
    reloads: Reloads,
    /// Where it listens: `ext_proc`, `feed` and `admin`.
    pub addresses: BTreeMap<String, SocketAddr>,
}

impl App {
    /// Binds, starts everything and returns at once; readiness comes later.
    ///
    /// # Errors
    /// A socket that can't be bound.
    pub async fn start(config: Config, logs: Option<Logs>) -> anyhow::Result<Self> {
        Self::start_from(config, None, logs).await
    }

    /// As [`Self::start`], with the place that the configuration was read from: it is read again at a reload.
    ///
    /// # Errors
    /// A socket that can't be bound.
    pub async fn start_from(
        config: Config,
        origin: Option<Origin>,
        logs: Option<Logs>,
    ) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).context("metrics")?;
        let drain = Drain::new();
        let ready = Ready::default();
        let weights = kvpick_core::score::Weights::from(config.score);
        let (memory, now) = (config.memory.into(), Instant::now());
        // Ties are broken differently by each server, or all of them would send a cold prompt to the same replica.
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &config.server);
        // Agents tell by it whether two addresses lead to one server.
        let unique = format!("{}/{seed:016x}", config.server);
        let mut world = World::new(unique, config.replica_specs(), &memory, weights, seed, now);
        world.pins = Pins::new(config.pins.bounds(), seed);
        world.parity = Parity::new(config.models.iter().map(|it| (it.name.clone(), it.aliases.clone())));
        let shared = Shared::new(world, metrics);

        let start_tls = |field, config: &Option<TlsConfig>| {
            let started = config.as_ref().map(|it| Tls::start(field, it, &drain)).transpose();
            started.map_err(anyhow::Error::msg)
        };
        let (picker_tls, feed_tls) =
            (start_tls("tls", &config.tls)?, start_tls("feed_tls", &config.feed_tls)?);
        let picker_socket = Bound::bind("listen", &config.listen).await?;
        let feed_socket = Bound::bind("feed", &Listen::Tcp(config.feed)).await?;
        let health_socket = match config.health {
            Some(address) => Some(Bound::bind("health", &Listen::Tcp(address)).await?),
            None => None,
        };
        let admin_socket = TcpListener::bind(config.admin)
            .await
            .with_context(|| format!("admin: can't bind {}; is another program there?", config.admin))?;
        let named = [
            ("ext_proc", picker_socket.address()),
            ("health", health_socket.as_ref().and_then(Bound::address)),
            ("feed", feed_socket.address()),
            ("admin", admin_socket.local_addr().ok()),
        ];
        let named = named.into_iter().filter_map(|(name, it)| Some((name.to_owned(), it?)));
        let addresses: BTreeMap<_, _> = named.collect();

        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let memos = Memos::new(config.memo, &registry).context("metrics")?;
        let (reloader, reloads) = Reloader::new(config.clone(), origin, shared.metrics.clone(), cores);
        let reloader = reloader.with_memos(memos);
        let (models, shown) = (reloader.models(), reloader.shown());
        let hold = |it: &ModelConfig| ready.hold(format!("model {}", it.name));
        let holds = config.models.iter().map(hold).collect();
        drain.spawn("models", reloader.run(holds, drain.clone()));
        drain.spawn(
            "parity of new models",
            parity::follow(Arc::clone(&shared), models.clone(), drain.clone()),
        );
        let workers = if config.workers == 0 { cores } else { config.workers };
        let rate = weights.prefill_rate;
        let decider = Decider::new(Arc::clone(&shared), models.clone(), workers, config.budget, rate);
        let decider = Arc::new(decider.with(&config.objectives, config.max_body_bytes));
        let settings = Settings {
            most_body: config.max_body_bytes,
            destinations: config.destinations,
            evidence_header: config.evidence_header,
            conformance: config.conformance,
        };
        let most = config.max_body_bytes.max(LEAST_BODY) + MESSAGE_OVERHEAD;
        let picker = Picker::new(Arc::clone(&shared), decider, settings, config.pins.header(), drain.clone());
        let picker = if config.leave_after_request { picker.leaving(rate) } else { picker };
        let picker = messages::Server::new(picker, most);
        let (health, health_service) = tonic_health::server::health_reporter();
        let told = follow_pods(&config, &shared, &drain).await?;
        let agents = told.as_ref().and_then(|it| it.agents.clone());
        let proof = match (&config.feed_tls, agents) {
            (Some(_), _) => Proof::Certificate,
            (None, Some(agents)) => Proof::Pod(agents),
            (None, None) => Proof::None,
        };
        let feeds = FeedServer::new(Feeds::new(Arc::clone(&shared), proof, drain.clone()))
            .max_decoding_message_size(MOST_FEED_MESSAGE);

        if let Some(socket) = health_socket {
            serve(
                "health server",
                socket.incoming(None, &drain),
                Routes::new(health_service.clone()),
                &drain,
            );
        }
        let routes = Routes::new(picker).add_service(health_service);
        serve("ext_proc server", picker_socket.incoming(picker_tls, &drain), routes, &drain);
        serve("feed server", feed_socket.incoming(feed_tls, &drain), Routes::new(feeds), &drain);
        let http = reqwest::Client::builder().no_proxy().build().context("HTTP client")?;
        drain.spawn("probes", probe::run(Arc::clone(&shared), http, drain.clone()));
        watch_copies(&shared, &ready, &drain);
        let leaving = CancellationToken::new();
        drain.spawn("health", report_health(health, ready.clone(), leaving.clone()));

        let admin = Admin {
            registry,
            status: {
                let (server, ready, shared) = (config.server.clone(), ready.clone(), Arc::clone(&shared));
                let shown = Arc::clone(&shown);
                Arc::new(move || {
                    let awaited = ready.awaited();
                    let mut status = status::status(&server, &awaited, &shared.world(), rate, Instant::now());
                    status["models"] = status::models(&models.borrow());
                    status["remotes"] = status::remotes(&models.borrow());
                    status["last_reload"] = json!(lock(&shown).last);
                    status["kubernetes"] = told.as_ref().map(members::status).unwrap_or_default();
                    status
                })
            },
            ready,
            config: Arc::new(move || serde_json::to_value(&lock(&shown).config).unwrap_or_default()),
            logs,
            routes: reloads.clone().routes(),
        };
        drain.spawn("admin", admin::serve(admin_socket, admin, drain.clone()));
        tracing::info!(?addresses, replicas = config.replicas.len(), models = config.models.len(), "started");
        Ok(Self { drain, leaving, reloads, addresses })
    }

    /// Runs until a signal asks to stop, then lets requests under way end.
    ///
    /// # Errors
    /// When the addresses' file can't be written, or the system takes no handler of a signal.
    pub async fn run(self, addresses_file: Option<&Path>) -> anyhow::Result<()> {
        let at_hangup = reload::at_hangup(self.reloads.clone(), self.drain.clone()).context("SIGHUP")?;
        self.drain.spawn("hangups", at_hangup);
        if let Some(file) = addresses_file {
            addresses::write(file, &self.addresses)
                .with_context(|| format!("can't write --addresses-file {}", file.display()))?;
        }
        drain::terminated().await;
        tracing::info!("asked to stop; not serving from here on, by health");
        self.leaving.cancel();
        tokio::time::sleep(FAREWELL).await;
        if self.stop(GRACE).await {
            tracing::info!("stopped; nothing was cut");
        }
        Ok(())
    }

    /// Stops; returns whether everything ended within the grace.
    pub async fn stop(&self, grace: Duration) -> bool {
        self.leaving.cancel();
        self.drain.start();
        let in_time = self.drain.finished(grace).await;
        if !in_time {
            tracing::warn!(running = ?self.drain.running(), "stopped; what still ran was cut");
        }
        in_time
    }
}

// Nothing panics while the lock is held, so a poisoned lock still guards good data.
fn lock(shown: &Mutex<Shown>) -> MutexGuard<'_, Shown> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves gRPC on the connections of a socket.
fn serve(name: &'static str, incoming: ReceiverStream<io::Result<Io>>, routes: Routes, drain: &Drain) {
    let stop = drain.clone();
    drain.spawn(name, async move {
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(5)))
            .http2_max_pending_accept_reset_streams(Some(MOST_RESETS))
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, async move { stop.started().await });
        if let Err(error) = server.await {
            tracing::error!(name, %error, "a server failed");
        }
    });
}

/// Follows the pods that replicas and agents are, where they are pods. Readiness waits for the first whole picture.
async fn follow_pods(
    config: &Config,
    shared: &Arc<Shared>,
    drain: &Drain,
) -> anyhow::Result<Option<members::Told>> {
    let Some(kubernetes) = &config.kubernetes else { return Ok(None) };
    let client = kvpick_kube::client::client().await.context("kubernetes")?;
    let told = members::begin(&client, kubernetes, drain);
    shared.world().expect_members();
    let run = members::run(Arc::clone(shared), told.pool.clone(), kubernetes.clone(), drain.clone());
    drain.spawn("members", run);
    Ok(Some(told))
}

/// Holds readiness until every replica's blocks are known, or it is said why not, or the wait is over.
fn watch_copies(shared: &Arc<Shared>, ready: &Ready, drain: &Drain) {
    const TICK: Duration = Duration::from_millis(20);
    let hold = ready.hold("agents' copies");
    let (shared, stop) = (Arc::clone(shared), drain.clone());
    drain.spawn("first copies", async move {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                _ = tick.tick() => (),
                () = stop.started() => return,
            }
            let awaited = shared.world().awaited(Instant::now());
            if awaited.is_empty() {
                break;
            }
        }
        drop(hold);
    });
}

/// Tells gRPC health clients, Envoy first of all.
async fn report_health(health: HealthReporter, ready: Ready, leaving: CancellationToken) {
    const TICK: Duration = Duration::from_millis(20);
    let all = async |status| {
        for service in HEALTH_SERVICES {
            health.set_service_status(service, status).await;
        }
    };
    all(ServingStatus::NotServing).await;
    health.set_service_status("liveness", ServingStatus::Serving).await;
    let mut tick = tokio::time::interval(TICK);
    while !ready.is_ready() {
        tokio::select! {
            _ = tick.tick() => (),
            () = leaving.cancelled() => return,
        }
    }
    all(ServingStatus::Serving).await;
    tracing::info!("ready");
    leaving.cancelled().await;
    all(ServingStatus::NotServing).await;
    health.set_service_status("liveness", ServingStatus::Serving).await;
}
