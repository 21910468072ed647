//! What all tasks of the agent share: the node behind one lock, and a bell for whoever talks to servers.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use kvpick_agent_core::node::{Node, PeerId};
use kvpick_proto::words::Handle;
use tokio::sync::{Notify, watch};

use crate::{discover::Discovered, state::StateFiles};

/// The agent's state. One lock, so that an announcement reaches every stream at once; what is done under it is
/// computing only, and takes a millisecond or two at most.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Rung when servers may have something to be told.
    news: watch::Sender<()>,
    engines: Mutex<BTreeMap<Handle, Arc<Wakers>>>,
}

/// What is behind the lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) node: Node,
    pub(crate) servers: BTreeMap<SocketAddr, Server>,
    pub(crate) scrapes: BTreeMap<Handle, Scrapes>,
    /// What engines say themselves of where their events are.
    pub(crate) discovered: BTreeMap<Handle, Discovered>,
    /// Empty where nothing is kept.
    pub(crate) files: StateFiles,
}

/// How many scrapes there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scrapes {
    pub(crate) good: u64,
    pub(crate) failed: u64,
}

/// One server, for people.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) link: Link,
    pub(crate) since_unix_ms: u64,
    pub(crate) last_error: Option<String>,
    pub(crate) peer: Option<PeerId>,
    /// While connected: the server's name for itself, and the epoch of the stream.
    pub(crate) welcome: Option<(String, u64)>,
    pub(crate) streams: u64,
}

/// Where the connection to a server stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    Connecting,
    Connected,
    Waiting,
    /// It led to a server that has a stream at another address.
    Twin,
}

impl Link {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Waiting => "waiting to connect again",
            Self::Twin => "the same server as at another address",
        }
    }
}

/// What wakes an engine's two tasks.
#[derive(Debug, Default)]
struct Wakers {
    /// The one that drives it: another has told it something.
    driver: Notify,
    /// The one that asks its API: it works, or its connection changed.
    scraper: Notify,
}

impl Shared {
    pub(crate) fn new(node: Node, files: StateFiles) -> Self {
        let state = State { node, files, ..State::default() };
        Self { state: Mutex::new(state), news: watch::channel(()).0, engines: Mutex::default() }
    }

    fn wakers(&self) -> MutexGuard<'_, BTreeMap<Handle, Arc<Wakers>>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wakers_of(&self, handle: Handle) -> Option<Arc<Wakers>> {
        self.wakers().get(&handle).cloned()
    }

    /// An engine's tasks are about to begin, and can be woken from now on.
    pub(crate) fn add_engine(&self, handle: Handle) {
        self.wakers().entry(handle).or_default();
    }

    /// Forgets an engine whose tasks have ended.
    pub(crate) fn remove_engine(&self, handle: Handle) {
        let mut state = self.lock();
        state.node.remove_engine(handle);
        state.scrapes.remove(&handle);
        state.discovered.remove(&handle);
        state.files.remove(&handle);
        drop(state);
        self.wakers().remove(&handle);
        self.ring();
    }

    /// Nothing awaits while it holds this.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // What panicked under the lock was one step of one engine or stream; the others go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Servers may have something to be told.
    pub(crate) fn ring(&self) {
        self.news.send_replace(());
    }

    /// Changes whenever servers may have something to be told.
    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    pub(crate) fn wake_driver(&self, handle: Handle) {
        if let Some(it) = self.wakers_of(handle) {
            it.driver.notify_one();
        }
    }

    pub(crate) fn wake_scraper(&self, handle: Handle) {
        if let Some(it) = self.wakers_of(handle) {
            it.scraper.notify_one();
        }
    }

    pub(crate) async fn driver_woken(&self, handle: Handle) {
        match self.wakers_of(handle) {
            Some(it) => it.driver.notified().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) async fn scraper_woken(&self, handle: Handle) {
        match self.wakers_of(handle) {
            Some(it) => it.scraper.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// This moment, in both of the clocks that the core is given.
pub(crate) fn now() -> (Instant, u64) {
    (Instant::now(), u64::try_from(unix().as_millis()).unwrap_or(u64::MAX))
}

/// Unix time.
pub(crate) fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
