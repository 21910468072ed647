//! All engines of a node and all streams to servers: an announcement of an engine reaches every stream at once, so
//! that each stream's copies and changes join exactly.

use std::{collections::BTreeMap, time::Instant};

use kvpick_proto::words::{AgentMessage, Handle, Hello, InFlight, KEYS_PER_MESSAGE, ServerMessage};

use crate::{
    engine::{Config, Engine},
    peer::{Peer, PeerError},
};

/// One stream to one server.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PeerId(u64);

/// All that an agent knows.
#[derive(Debug)]
pub struct Node {
    engines: BTreeMap<Handle, Engine>,
    /// The next engine's handle: none is used twice, as servers may still hear of one that is gone.
    next_engine: u32,
    peers: BTreeMap<PeerId, Peer>,
    next_peer: u64,
    max_keys: usize,
}

impl Default for Node {
    fn default() -> Self {
        Self::new(KEYS_PER_MESSAGE)
    }
}

impl Node {
    /// A node with no engines and no servers; a message is at most as large as `max_keys` keys and its framing.
    #[must_use]
    pub const fn new(max_keys: usize) -> Self {
        Self { engines: BTreeMap::new(), next_engine: 0, peers: BTreeMap::new(), next_peer: 0, max_keys }
    }

    /// Adds an engine; its handle names it on every stream.
    pub fn add_engine(&mut self, config: Config, now: Instant, unix_ms: u64) -> Handle {
        let handle = Handle(self.next_engine);
        self.next_engine += 1;
        self.engines.insert(handle, Engine::new(config, now, unix_ms));
        handle
    }

    /// An engine is gone, and so is what is known of it. Servers are told.
    pub fn remove_engine(&mut self, handle: Handle) {
        self.engines.remove(&handle);
    }

    /// The engines.
    #[must_use]
    pub const fn engines(&self) -> &BTreeMap<Handle, Engine> {
        &self.engines
    }

    /// One engine, to tell it what happened.
    pub fn engine(&mut self, handle: Handle) -> Option<&mut Engine> {
        self.engines.get_mut(&handle)
    }

    /// Does what is due for an engine; returns whether servers have something to be told.
    pub fn on_time(&mut self, handle: Handle, now: Instant, unix_ms: u64) -> bool {
        let Some(engine) = self.engines.get_mut(&handle) else { return false };
        engine.on_time(now, unix_ms);
        if engine.flush_due().is_none_or(|due| now < due) {
            return false;
        }
        // Where nothing has changed, a copy may have waited for that.
        let Some(change) = engine.take_change(now) else { return true };
        let held = engine.mirror().len();
        for peer in self.peers.values_mut() {
            peer.on_change(handle, &change, held);
        }
        true
    }

    /// A stream to a server begins.
    pub fn open(&mut self, hello: Hello, now: Instant) -> PeerId {
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        self.peers.insert(id, Peer::new(hello, self.max_keys, now));
        id
    }

    /// A stream has ended.
    pub fn close(&mut self, id: PeerId) {
        self.peers.remove(&id);
    }

    /// One stream.
    #[must_use]
    pub fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.get(&id)
    }

    /// A server said something; returns whether that concerns the other servers.
    ///
    /// # Errors
    ///
    /// What ends the stream.
    pub fn on_message(
        &mut self,
        id: PeerId,
        message: ServerMessage,
        now: Instant,
    ) -> Result<bool, PeerError> {
        let concerns_others = matches!(message, ServerMessage::InFlight(..));
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.on_message(message, now)?;
        }
        Ok(concerns_others)
    }

    /// What to say on a stream, now that there is room for a message.
    #[must_use = "what is taken is not said again"]
    pub fn next_message(&mut self, id: PeerId, now: Instant) -> Option<AgentMessage> {
        let mut peer = self.peers.remove(&id)?;
        let others = |handle| {
            let sum = |sum: InFlight, it: InFlight| InFlight {
                requests: sum.requests.saturating_add(it.requests),
                uncached_prefill_tokens: sum
                    .uncached_prefill_tokens
                    .saturating_add(it.uncached_prefill_tokens),
            };
            self.peers.values().map(|it| it.in_flight(handle)).fold(InFlight::default(), sum)
        };
        let message = peer.next_message(now, &self.engines, others);
        self.peers.insert(id, peer);
        message
    }
}
