//! What is said to one server, and in which order.
//!
//! Nothing is queued: what a message holds is decided when there is room to send it. While a server is slow, or a
//! copy is under way, changes fold into one.

use std::{
    collections::BTreeMap,
    ops::Bound,
    time::{Duration, Instant},
};

use kvpick_proto::words::{
    AgentMessage, Change, CopyChunk, Description, HEARTBEAT, Handle, Hello, InFlight, Load, PROTOCOL,
    SILENCE, ServerMessage,
};

use crate::{engine::Engine, mirror::Cursor, pending::Pending};

/// What the other servers have in flight is said again at most this often: a placement decision is some
/// milliseconds, so that an older sum would mislead, and N servers that each report every change are N times as many.
const OTHERS_EVERY: Duration = Duration::from_millis(50);

/// A fold of up to this many blocks is never worth a copy.
const SMALL_FOLD: usize = 1_024;

/// Why a stream must end.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PeerError {
    /// It speaks another protocol.
    #[error(
        "the server speaks version {0} of the feed, this agent version {PROTOCOL}; update the older of the two"
    )]
    Protocol(u32),
    /// A server begins with a welcome, once.
    #[error("the server's first message is not a welcome, or there was a second one")]
    Welcome,
}

/// One stream to one server.
#[derive(Debug)]
pub struct Peer {
    /// What is said first, if it was not.
    hello: Option<Hello>,
    /// The server's name for itself, once it has answered.
    server: Option<String>,
    replicas: BTreeMap<Handle, Replica>,
    /// Whose turn it was last.
    turn: Option<Handle>,
    heard: Instant,
    said: Instant,
    copies: u64,
    max_keys: usize,
}

/// How things stand with one replica on one stream.
#[derive(Debug)]
struct Replica {
    /// What it was described as last.
    described: Description,
    told: Told,
    load: Option<(Load, Instant)>,
    load_said: Option<Instant>,
    /// What this server has in flight there.
    in_flight: InFlight,
    /// What it was told of the others.
    others: InFlight,
    others_said: Option<Instant>,
}

/// What the server knows of a replica's blocks.
#[derive(Debug)]
enum Told {
    /// Described; the server has not said whether it takes it.
    Awaiting,
    /// It does not, and said why.
    Refused(String),
    /// It waits for a full copy.
    NeedsCopy,
    /// A copy is under way, and this comes after it.
    Copying { cursor: Cursor, first: bool, applied: Option<u64>, pending: Pending },
    /// All but this.
    InStep(Pending),
}

/// For people: where one replica stands with one server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// Not described to it yet, or without an answer.
    Awaiting,
    /// It does not take what this agent says of the replica.
    Refused(String),
    /// A full copy is due or under way.
    Copying,
    /// It was told everything but so many blocks.
    InStep {
        /// Blocks whose state it has not been told yet.
        behind: usize,
    },
}

impl Peer {
    /// A stream on which nothing was said yet; a message is at most as large as `max_keys` keys.
    #[must_use]
    pub const fn new(hello: Hello, max_keys: usize, now: Instant) -> Self {
        Self {
            hello: Some(hello),
            server: None,
            replicas: BTreeMap::new(),
            turn: None,
            heard: now,
            said: now,
            copies: 0,
            max_keys,
        }
    }

    /// The server said something.
    ///
    /// # Errors
    ///
    /// What ends the stream.
    pub fn on_message(&mut self, message: ServerMessage, now: Instant) -> Result<(), PeerError> {
        self.heard = now;
        let handle = match (&message, &self.server) {
            (ServerMessage::Welcome(welcome), None) if welcome.protocol == PROTOCOL => {
                self.server = Some(welcome.server.clone());
                return Ok(());
            }
            (ServerMessage::Welcome(welcome), None) => return Err(PeerError::Protocol(welcome.protocol)),
            (ServerMessage::Welcome(_), Some(_)) | (_, None) => return Err(PeerError::Welcome),
            (ServerMessage::Heartbeat, Some(_)) => return Ok(()),
            (
                ServerMessage::Accepted(handle)
                | ServerMessage::Refused(handle, _)
                | ServerMessage::CopyRequest(handle)
                | ServerMessage::InFlight(handle, _),
                Some(_),
            ) => *handle,
        };
        // One that this stream does not have is one that is gone by now.
        let Some(replica) = self.replicas.get_mut(&handle) else { return Ok(()) };
        match (message, &replica.told) {
            (ServerMessage::Accepted(_), Told::Awaiting | Told::Refused(_))
            | (ServerMessage::CopyRequest(_), _) => {
                replica.told = Told::NeedsCopy;
            }
            (ServerMessage::Refused(_, reason), _) => replica.told = Told::Refused(reason),
            (ServerMessage::InFlight(_, in_flight), _) => replica.in_flight = in_flight,
            _ => (),
        }
        Ok(())
    }

    /// An engine's blocks have changed, and this is announced to every server. `held`: how many blocks it holds now.
    pub fn on_change(&mut self, handle: Handle, change: &Change, held: usize) {
        let Some(replica) = self.replicas.get_mut(&handle) else { return };
        let pending = match &mut replica.told {
            Told::Awaiting | Told::Refused(_) | Told::NeedsCopy => return,
            Told::Copying { pending, .. } => {
                pending.fold(change, false);
                pending
            }
            Told::InStep(pending) => {
                pending.fold(change, true);
                pending
            }
        };
        if pending.len() > held.max(SMALL_FOLD) {
            replica.told = Told::NeedsCopy;
        }
    }

    /// The next message, now that there is room for one; `None` while there is nothing to say. `others` gives what
    /// other servers have in flight at a replica.
    #[must_use = "what is taken is not said again"]
    pub fn next_message(
        &mut self,
        now: Instant,
        engines: &BTreeMap<Handle, Engine>,
        others: impl Fn(Handle) -> InFlight,
    ) -> Option<AgentMessage> {
        let message = self.choose(now, engines, others)?;
        self.said = now;
        Some(message)
    }

    fn choose(
        &mut self,
        now: Instant,
        engines: &BTreeMap<Handle, Engine>,
        others: impl Fn(Handle) -> InFlight,
    ) -> Option<AgentMessage> {
        if let Some(hello) = self.hello.take() {
            return Some(AgentMessage::Hello(hello));
        }
        if self.server.is_some() {
            if let Some(handle) = self.replicas.keys().copied().find(|it| !engines.contains_key(it)) {
                self.replicas.remove(&handle);
                return Some(AgentMessage::Gone(handle));
            }
            // Each replica in its turn, one message each, so that none waits for another's copy.
            let after = self.turn.map_or(Bound::Unbounded, Bound::Excluded);
            let turns = engines.range((after, Bound::Unbounded)).chain(engines);
            for (handle, engine) in turns {
                if let Some(message) = self.of_replica(*handle, engine, now, &others) {
                    self.turn = Some(*handle);
                    return Some(message);
                }
            }
        }
        (self.said + HEARTBEAT <= now).then_some(AgentMessage::Heartbeat)
    }

    fn of_replica(
        &mut self,
        handle: Handle,
        engine: &Engine,
        now: Instant,
        others: impl Fn(Handle) -> InFlight,
    ) -> Option<AgentMessage> {
        let description = engine.description()?;
        let Some(replica) = self.replicas.get_mut(&handle) else {
            self.replicas.insert(handle, Replica::new(description.clone()));
            return Some(AgentMessage::Describe(handle, Box::new(description.clone())));
        };
        if replica.described != *description {
            replica.on_description(description.clone());
            return Some(AgentMessage::Describe(handle, Box::new(description.clone())));
        }
        if matches!(replica.told, Told::Awaiting | Told::Refused(_)) {
            return None;
        }
        if let Some((load, sampled)) = engine.load() {
            let news = replica.load.as_ref().is_none_or(|(told, _)| told != load);
            let due = replica.load_said.is_none_or(|it| it + HEARTBEAT <= now);
            if news || due {
                replica.load = Some((load.clone(), sampled));
                replica.load_said = Some(now);
                let age = now.saturating_duration_since(sampled);
                return Some(AgentMessage::Load(handle, Load { age, ..load.clone() }));
            }
        }
        let others = others(handle);
        if others != replica.others && replica.others_said.is_none_or(|it| it + OTHERS_EVERY <= now) {
            replica.others = others;
            replica.others_said = Some(now);
            return Some(AgentMessage::Others(handle, others));
        }
        let message = replica.blocks(handle, engine, now, self.max_keys)?;
        let begins = matches!(&message, AgentMessage::Copy(_, chunk) if chunk.first);
        self.copies += u64::from(begins);
        Some(message)
    }

    /// Whether the server has been silent for so long that the stream must end.
    #[must_use]
    pub fn is_silent(&self, now: Instant) -> bool {
        self.heard + SILENCE <= now
    }

    /// When [`Self::next_message`] has something to say, after it had nothing at `now`, though nothing happens; or
    /// when the silence is too long.
    #[must_use]
    pub fn due(&self, now: Instant) -> Instant {
        let loads = self.replicas.values().filter_map(|it| Some(it.load_said? + HEARTBEAT));
        let others = self.replicas.values().filter_map(|it| Some(it.others_said? + OTHERS_EVERY));
        let always = [self.said + HEARTBEAT, self.heard + SILENCE];
        let later = loads.chain(others).chain(always).filter(|it| *it > now);
        later.min().unwrap_or(now + HEARTBEAT)
    }

    /// The server's name for itself; `None` before it answered.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// What this server has in flight at a replica.
    #[must_use]
    pub fn in_flight(&self, handle: Handle) -> InFlight {
        self.replicas.get(&handle).map(|it| it.in_flight).unwrap_or_default()
    }

    /// Full copies begun so far.
    #[must_use]
    pub const fn copies(&self) -> u64 {
        self.copies
    }

    /// Where a replica stands with this server.
    #[must_use]
    pub fn state(&self, handle: Handle) -> State {
        match self.replicas.get(&handle).map(|it| &it.told) {
            None | Some(Told::Awaiting) => State::Awaiting,
            Some(Told::Refused(reason)) => State::Refused(reason.clone()),
            Some(Told::NeedsCopy | Told::Copying { .. }) => State::Copying,
            Some(Told::InStep(pending)) => State::InStep { behind: pending.len() },
        }
    }
}

impl Replica {
    fn new(described: Description) -> Self {
        Self {
            described,
            told: Told::Awaiting,
            load: None,
            load_said: None,
            in_flight: InFlight::default(),
            others: InFlight::default(),
            others_said: None,
        }
    }

    fn on_description(&mut self, description: Description) {
        let restarted = self.described.incarnation != description.incarnation;
        let renames = description.renames(&self.described);
        self.described = description;
        // The server may forget the blocks of the process before, also where that was not known.
        if (restarted || renames) && matches!(self.told, Told::Copying { .. } | Told::InStep(_)) {
            self.told = Told::NeedsCopy;
        }
    }

    fn blocks(
        &mut self,
        handle: Handle,
        engine: &Engine,
        now: Instant,
        max_keys: usize,
    ) -> Option<AgentMessage> {
        if matches!(self.told, Told::NeedsCopy) && engine.is_copyable(now) {
            self.told = Told::Copying {
                cursor: engine.mirror().copy(),
                first: true,
                applied: engine.announced(),
                pending: Pending::default(),
            };
        }
        match &mut self.told {
            Told::InStep(pending) => {
                pending.take(max_keys).map(|change| AgentMessage::Change(handle, change))
            }
            Told::Copying { cursor, first, applied, pending } => {
                let (steps, next) = engine.mirror().copy_part(*cursor, max_keys);
                let first = std::mem::take(first);
                let Some(next) = next else {
                    let chunk = CopyChunk { first, last: true, steps, applied: *applied };
                    self.told = Told::InStep(std::mem::take(pending));
                    return Some(AgentMessage::Copy(handle, chunk));
                };
                *cursor = next;
                Some(AgentMessage::Copy(handle, CopyChunk { first, last: false, steps, applied: None }))
            }
            Told::Awaiting | Told::Refused(_) | Told::NeedsCopy => None,
        }
    }
}
