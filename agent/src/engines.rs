//! Starts what follows an engine, and ends it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use kvpick_agent_core::engine;
use kvpick_proto::words::Handle;
use kvpick_service::{drain::Drain, ready::Ready};

use crate::{
    config::{EngineConfig, Source},
    discover::Discovery,
    engine::drive,
    scrape,
    shared::{Shared, now},
    state,
    tasks::Tasks,
    zmq::Opened,
};

/// How long an engine's tasks have to end, none of which has work that would be lost.
const GRACE: Duration = Duration::from_secs(5);

/// What engines need to be followed.
#[derive(Clone, Debug)]
pub(crate) struct Engines {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tasks: Tasks,
    pub(crate) client: reqwest::Client,
    /// Where what is known of them is kept.
    pub(crate) folder: Option<PathBuf>,
}

/// An engine that is followed.
#[derive(Debug)]
pub(crate) struct Running {
    handle: Handle,
    shared: Arc<Shared>,
    drain: Drain,
}

impl Running {
    /// Ends what follows it. What is known of it stays, for the file that the agent's next run begins with, and for servers,
    /// who hear that it is gone only when it is.
    pub(crate) async fn stop(self) {
        self.drain.start();
        if !self.drain.finished(GRACE).await {
            tracing::warn!(running = ?self.drain.running(), "an engine's tasks have not ended in time");
        }
    }

    /// The same for one that is gone: it is forgotten.
    pub(crate) async fn end(self) {
        let (shared, handle) = (Arc::clone(&self.shared), self.handle);
        self.stop().await;
        shared.remove_engine(handle);
    }
}

/// As the core has it.
pub(crate) fn core(config: &EngineConfig) -> engine::Config {
    let events = config.events.as_ref();
    engine::Config {
        name: config.name,
        events: events.is_some(),
        // Where the engine is asked, it is taken to have one until it says otherwise.
        replay: events.is_some_and(|it| it.replay.is_some() || it.source == Source::Discover),
        rank_by_header: config.rank_by_header,
        roots: config.roots.clone(),
        copies: config.copies,
        tier_weights: config.tier_weights,
    }
}

impl Engines {
    /// Follows an engine until `drain` starts.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) async fn start(&self, config: EngineConfig, drain: Drain) -> anyhow::Result<Running> {
        let (now, unix_ms) = now();
        let left = match &self.folder {
            Some(folder) => Some(state::left_of(folder, config.name).await),
            None => None,
        };
        let opened = config.events.as_ref().map(Opened::open);
        let handle = {
            let mut state = self.shared.lock();
            let handle = state.node.add_engine(core(&config), now, unix_ms);
            if let Some((snapshot, file)) = left {
                state.files.insert(handle, file);
                if let (Some(snapshot), Some(engine)) = (snapshot, state.node.engine(handle)) {
                    engine.restore(snapshot, now, unix_ms);
                }
            }
            handle
        };
        if let Err(error) = self.follow(handle, config, opened, &Ready::default(), drain.clone()) {
            self.shared.remove_engine(handle);
            return Err(error);
        }
        Ok(Running { handle, shared: Arc::clone(&self.shared), drain })
    }

    /// Starts the tasks of an engine that the node has. `ready` waits for the first answer of its API, or failure.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn follow(
        &self,
        handle: Handle,
        config: EngineConfig,
        opened: Option<Opened>,
        ready: &Ready,
        drain: Drain,
    ) -> anyhow::Result<()> {
        self.shared.add_engine(handle);
        let discovery = opened.as_ref().and_then(|it| it.target.clone()).map(Discovery::new);
        let events = opened.map(Opened::run).transpose().context("a thread for an engine's events")?;
        let tasks = self.tasks.with(drain.clone());
        tasks.spawn("engine", drive(Arc::clone(&self.shared), handle, events, drain.clone()));
        let first = ready.hold(format!("first answer of {}", config.api));
        let (shared, client, ends) = (Arc::clone(&self.shared), self.client.clone(), (first, drain));
        tasks.spawn("scrape", scrape::run(shared, handle, config, client, discovery, ends));
        Ok(())
    }
}
