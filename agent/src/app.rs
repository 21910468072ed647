//! What is started, in which order, and how it stops.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use kvpick_agent_core::node::Node;
use kvpick_proto::words::Handle;
use kvpick_service::{
    addresses,
    admin::{self, Admin},
    drain::{self, Drain},
    logs::Logs,
    ready::Ready,
};
use prometheus::Registry;
use tokio::net::TcpListener;

use crate::{
    config::{Config, EngineConfig},
    engines::{self, Engines},
    metrics,
    pods::{self, Seen},
    publish, scrape,
    shared::{Shared, now},
    state::{self, StateFiles},
    status,
    tasks::Tasks,
    zmq::Opened,
};

/// How long a shutdown waits for tasks, none of which has work that would be lost.
const GRACE: Duration = Duration::from_secs(5);

/// An agent whose sockets are bound and whose parts run.
#[derive(Debug)]
pub struct App {
    tasks: Tasks,
    /// Where it listens: `admin`, and `events/<engine>` for each engine that connects to it.
    pub addresses: BTreeMap<String, SocketAddr>,
}

impl App {
    /// Binds, starts everything and returns at once.
    ///
    /// # Errors
    ///
    /// The admin socket can't be bound, or the system gives no threads. An engine's socket that can't be bound is no
    /// error: it is tried again, and the engine is served without it.
    pub async fn start(config: Config, logs: Option<Logs>) -> anyhow::Result<Self> {
        let (registry, ready, drain) = (Registry::new(), Ready::default(), Drain::new());
        let tasks = Tasks::new(drain.clone());
        let listener = TcpListener::bind(config.admin)
            .await
            .with_context(|| format!("admin: can't bind {}; is another program there?", config.admin))?;
        let mut addresses = BTreeMap::from([("admin".to_owned(), listener.local_addr()?)]);

        let mut node = Node::default();
        let mut engines: Vec<(Handle, EngineConfig, Option<Opened>)> = Vec::new();
        for config in &config.engines {
            let (now, unix_ms) = now();
            let handle = node.add_engine(engines::core(config), now, unix_ms);
            let mut opened = config.events.as_ref().map(Opened::open);
            let listens = opened.as_mut().and_then(Opened::listens_at);
            if let Some(address) = listens.and_then(|it| it.strip_prefix("tcp://")?.parse().ok()) {
                addresses.insert(format!("events/{}", config.name), address);
            }
            engines.push((handle, config.clone(), opened));
        }

        let files = match &config.state {
            Some(folder) => state::restore(folder, &mut node).await,
            None => StateFiles::new(),
        };
        let shared = Arc::new(Shared::new(node, files));
        metrics::register(&registry, Arc::clone(&shared)).context("metrics")?;
        let client = scrape::client().context("HTTP client")?;
        let follower = Engines {
            shared: Arc::clone(&shared),
            tasks: tasks.clone(),
            client,
            folder: config.state.clone(),
        };
        for (handle, config, opened) in engines {
            follower.follow(handle, config, opened, &ready, drain.clone())?;
        }
        let seen = Seen::default();
        if let Some(kubernetes) = &config.kubernetes {
            let client = kvpick_kube::client::client().await.context("kubernetes")?;
            let (told, follow) = pods::begin(client, kubernetes, &config.node);
            let stop = drain.clone();
            tasks.spawn("watch of pods", async move {
                tokio::select! {
                    () = follow => {}
                    () = stop.started() => {}
                }
            });
            let first = (seen.clone(), ready.hold("the pods of this node"));
            tasks.spawn("pods", pods::run(follower, told, kubernetes.clone(), first, drain.clone()));
        }
        let speaker = publish::Speaker::new(Arc::clone(&shared), config.node.clone(), config.tls.clone());
        let servers = publish::run(speaker, config.servers.clone(), tasks.clone());
        tasks.spawn("servers", servers);

        if let Some(folder) = config.state.clone() {
            tasks.spawn("state", state::run(Arc::clone(&shared), folder, drain.clone()));
        }

        let admin = Admin {
            registry,
            ready,
            status: {
                let (node, shared) = (config.node.clone(), Arc::clone(&shared));
                Arc::new(move || {
                    let mut status = status::status(&node, &shared.lock(), Instant::now());
                    status["kubernetes"] = seen.get();
                    status
                })
            },
            config: {
                let config = serde_json::to_value(&config.file).context("configuration")?;
                Arc::new(move || config.clone())
            },
            logs,
            routes: Default::default(),
        };
        tasks.spawn("admin", async move {
            if let Err(error) = admin::serve(listener, admin, drain).await {
                tracing::error!(%error, "the admin server has failed");
            }
        });
        tracing::info!(?addresses, engines = config.engines.len(), servers = ?config.servers, "started");
        Ok(Self { tasks, addresses })
    }

    /// Runs until a signal asks to stop.
    ///
    /// # Errors
    ///
    /// The addresses' file can't be written, or a part of the agent has ended that should not have.
    pub async fn run(self, addresses_file: Option<&Path>) -> anyhow::Result<()> {
        if let Some(file) = addresses_file {
            addresses::write(file, &self.addresses)
                .with_context(|| format!("can't write --addresses-file {}", file.display()))?;
        }
        let broken = tokio::select! {
            () = drain::terminated() => None,
            name = self.tasks.broken() => Some(name),
        };
        self.stop().await;
        match broken {
            None => Ok(()),
            Some(name) => Err(anyhow::anyhow!("the task `{name}` has ended by itself; the log says why")),
        }
    }

    /// Stops; returns whether everything ended in time.
    pub async fn stop(&self) -> bool {
        self.tasks.drain().start();
        self.tasks.drain().finished(GRACE).await
    }
}
