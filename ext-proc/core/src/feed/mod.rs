//! The server's side of the feed: who may say what of which replica, and what becomes of it.
//!
//! One stream per agent connection. State changes before anyone is told of it: what a message does to the
//! replicas is done when [`Feed::on_message`] returns, its answers wait in the stream's outbox.

mod apply;
mod members;
mod notes;
mod stream;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use kvpick_proto::words::{
    AgentMessage, Description, Events, HEARTBEAT, Handle, Hello, InFlight, PROTOCOL, ReplicaName, SILENCE,
    ServerMessage, Welcome,
};

use members::Former;
pub use notes::{Close, Note};
use stream::{Bound, Stream};

use crate::{
    health::Failure,
    replicas::{Knowledge, Replica, ReplicaId, Replicas, STALE_GRACE},
};

/// A server takes no longer than this to say that it is ready, whatever its agents do.
pub const READY_AFTER: Duration = Duration::from_secs(5);

/// How long what is stale still counts while a new agent's copy is on the way. A copy is a few megabytes; an agent that
/// sends none for this long sends none.
const COPY_GRACE: Duration = Duration::from_secs(30);

/// Most replicas that one agent describes. A node has a few dozen at most; an agent with more has lost its way.
const MOST_HANDLES: usize = 1_024;

/// One agent connection.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct StreamId(u64);

/// All agent connections.
#[derive(Debug)]
pub struct Feed {
    server: String,
    streams: BTreeMap<StreamId, Stream>,
    next_stream: u64,
    started: Instant,
    /// Replicas that someone tried to describe and may not.
    refused: BTreeSet<ReplicaName>,
    notes: Vec<Note>,
    former: Former,
}

impl Feed {
    /// No connection yet. `server` names this server to agents.
    #[must_use]
    pub const fn new(server: String, now: Instant) -> Self {
        Self {
            server,
            streams: BTreeMap::new(),
            next_stream: 0,
            started: now,
            refused: BTreeSet::new(),
            notes: Vec::new(),
            former: Former::new(),
        }
    }

    /// A connection was made.
    pub fn open(&mut self, now: Instant) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        let stream = Stream {
            hello: None,
            handles: BTreeMap::new(),
            last_heard: now,
            last_said: now,
            outbox: Vec::new(),
            told_in_flight: BTreeMap::new(),
            superseded: false,
            kept: BTreeMap::new(),
        };
        self.streams.insert(id, stream);
        id
    }

    /// A connection has ended, whoever ended it. What it said becomes stale.
    pub fn close(&mut self, id: StreamId, replicas: &mut Replicas, now: Instant) {
        let Some(stream) = self.streams.remove(&id) else { return };
        if stream.superseded {
            return;
        }
        for bound in stream.handles.values() {
            if let Bound::To(replica) = bound {
                orphan(&mut replicas[*replica], &mut self.notes, now);
            }
        }
    }

    /// A message has come.
    ///
    /// # Errors
    /// When the stream must end; the caller then calls [`Self::close`].
    pub fn on_message(
        &mut self,
        id: StreamId,
        message: AgentMessage,
        replicas: &mut Replicas,
        now: Instant,
    ) -> Result<(), Close> {
        let stream = self.streams.get_mut(&id).ok_or(Close::Closed)?;
        stream.last_heard = now;
        let Some(hello) = &stream.hello else {
            let AgentMessage::Hello(hello) = message else { return Err(Close::HelloOutOfPlace) };
            return self.on_hello(id, hello, replicas, now);
        };
        if stream.superseded {
            return Err(Close::Superseded(hello.node.clone()));
        }
        match message {
            AgentMessage::Hello(_) => return Err(Close::HelloOutOfPlace),
            AgentMessage::Describe(handle, description) => {
                if MOST_HANDLES <= stream.handles.len() && !stream.handles.contains_key(&handle) {
                    return Err(Close::TooManyReplicas);
                }
                self.on_describe(id, handle, *description, replicas, now);
            }
            AgentMessage::Gone(handle) => {
                stream.kept.remove(&handle);
                if let Some(Bound::To(replica)) = stream.handles.remove(&handle) {
                    let replica = &mut replicas[replica];
                    replica.forget_blocks();
                    replica.busy.forget_agent();
                    replica.description = None;
                    replica.knowledge = Knowledge::None;
                }
            }
            AgentMessage::Change(handle, change) => {
                if let Some(replica) = stream.replica(handle)
                    && !apply::change(&mut replicas[replica], &change)
                {
                    stream.outbox.push(ServerMessage::CopyRequest(handle));
                }
            }
            AgentMessage::Copy(handle, chunk) => {
                if let Some(replica) = stream.replica(handle) {
                    let replica = &mut replicas[replica];
                    if !apply::copy(replica, &chunk) {
                        stream.outbox.push(ServerMessage::CopyRequest(handle));
                    } else if chunk.last {
                        let note =
                            Note::Copied { replica: replica.spec.name, blocks: replica.holdings.len() };
                        self.notes.push(note);
                    }
                }
            }
            AgentMessage::Load(handle, load) => {
                if let Some(replica) = stream.replica(handle) {
                    replicas[replica].busy.on_sample(load, now);
                }
            }
            AgentMessage::Others(handle, others) => {
                if let Some(replica) = stream.replica(handle) {
                    replicas[replica].busy.on_others(others);
                }
            }
            AgentMessage::Heartbeat => (),
        }
        Ok(())
    }

    /// What is to be said on a stream now; call it after each message and a few times a second. `in_flight` tells
    /// what this server has under way at a replica.
    ///
    /// # Errors
    /// When the stream must end.
    pub fn poll(
        &mut self,
        id: StreamId,
        in_flight: impl Fn(ReplicaId) -> InFlight,
        now: Instant,
    ) -> Result<Vec<ServerMessage>, Close> {
        let stream = self.streams.get_mut(&id).ok_or(Close::Closed)?;
        if stream.superseded {
            return Err(Close::Superseded(
                stream.hello.as_ref().map_or_else(String::new, |it| it.node.clone()),
            ));
        }
        if stream.last_heard + SILENCE < now {
            return Err(Close::Silent);
        }
        for (handle, bound) in &stream.handles {
            let Bound::To(replica) = bound else { continue };
            let current = in_flight(*replica);
            if stream.told_in_flight.insert(*handle, current) != Some(current) {
                stream.outbox.push(ServerMessage::InFlight(*handle, current));
            }
        }
        // The first word is the welcome.
        let is_due = stream.hello.is_some() && stream.last_said + HEARTBEAT <= now;
        if stream.outbox.is_empty() && is_due {
            stream.outbox.push(ServerMessage::Heartbeat);
        }
        if !stream.outbox.is_empty() {
            stream.last_said = now;
        }
        Ok(std::mem::take(&mut stream.outbox))
    }

    /// Empties what was stale for too long. Call it a few times a second.
    pub fn on_time(&mut self, replicas: &mut Replicas, now: Instant) {
        self.admit_kept(replicas, now);
        let spoken_for: BTreeSet<_> =
            self.streams.values().filter(|it| !it.superseded).flat_map(Stream::replicas).collect();
        for (id, replica) in replicas.iter_mut() {
            let Knowledge::Stale { since } = replica.knowledge else { continue };
            let grace = if spoken_for.contains(&id) { COPY_GRACE } else { STALE_GRACE };
            if since + grace < now {
                replica.forget_blocks();
                replica.knowledge = Knowledge::Emptied;
                self.notes.push(Note::Emptied { replica: replica.spec.name });
            }
        }
    }

    /// What keeps this server from being ready: replicas that an agent should describe and has not, for no stated
    /// reason. Nothing does after [`READY_AFTER`].
    #[must_use]
    pub fn awaited(&self, replicas: &Replicas, now: Instant) -> Vec<String> {
        if self.started + READY_AFTER <= now {
            return Vec::new();
        }
        let unsettled = |replica: &Replica| {
            let described = replica.description.as_ref();
            let stated =
                described.is_some_and(|it| matches!(it.events, Events::Off | Events::Unavailable { .. }));
            let settled = replica.spec.node.is_none()
                || replica.spec.is_away
                || stated
                || replica.knowledge == Knowledge::Live
                || self.refused.contains(&replica.spec.name);
            !settled
        };
        let missing = replicas.iter().filter(|(_, it)| unsettled(it));
        missing.map(|(_, it)| format!("blocks of {}", it.spec.name)).collect()
    }

    /// The nodes with an open stream, each with its epoch.
    #[must_use]
    pub fn nodes(&self) -> BTreeMap<&str, u64> {
        let streams = self.streams.values().filter(|it| !it.superseded);
        streams.filter_map(|it| it.hello.as_ref()).map(|it| (it.node.as_str(), it.epoch)).collect()
    }

    /// What happened since the last call.
    #[must_use = "notes are logged and counted"]
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    fn on_hello(
        &mut self,
        id: StreamId,
        hello: Hello,
        replicas: &mut Replicas,
        now: Instant,
    ) -> Result<(), Close> {
        if hello.protocol != PROTOCOL {
            return Err(Close::Protocol(hello.protocol));
        }
        if hello.node.is_empty() {
            return Err(Close::NoNode);
        }
        let rival = self.streams.iter_mut().find(|(_, it)| {
            !it.superseded && it.hello.as_ref().is_some_and(|other| other.node == hello.node)
        });
        if let Some((_, rival)) = rival {
            let epoch = rival.hello.as_ref().map_or(0, |it| it.epoch);
            if hello.epoch <= epoch {
                return Err(Close::Superseded(hello.node));
            }
            rival.superseded = true;
            let left: Vec<_> = rival.replicas().collect();
            for replica in left {
                orphan(&mut replicas[replica], &mut self.notes, now);
            }
            self.notes.push(Note::TookOver { node: hello.node.clone() });
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            let welcome = Welcome { protocol: PROTOCOL, server: self.server.clone() };
            stream.outbox.push(ServerMessage::Welcome(welcome));
            stream.hello = Some(hello);
        }
        Ok(())
    }

    fn on_describe(
        &mut self,
        id: StreamId,
        handle: Handle,
        description: Description,
        replicas: &mut Replicas,
        now: Instant,
    ) {
        let name = description.name;
        let admitted = self.admit(id, handle, &description, replicas, now);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let node = stream.hello.as_ref().map_or_else(String::new, |it| it.node.clone());
        stream.kept.remove(&handle);
        let replica = match admitted {
            Ok(replica) => replica,
            Err(reason) => {
                stream.keep(handle, description);
                let news = stream.handles.insert(handle, Bound::Refused(name)) != Some(Bound::Refused(name));
                if news {
                    if replicas.find(&name).is_some() {
                        self.refused.insert(name);
                    }
                    self.notes.push(Note::Refused { node, replica: name, reason: reason.clone() });
                }
                stream.outbox.push(ServerMessage::Refused(handle, reason));
                return;
            }
        };
        self.former.forget(&name);
        let before = stream.handles.insert(handle, Bound::To(replica));
        let fresh = before != Some(Bound::To(replica));
        if fresh && let Some(Bound::To(other)) = before {
            // The handle stands for another replica now, and nobody speaks for the one before.
            orphan(&mut replicas[other], &mut self.notes, now);
        }
        let replica = &mut replicas[replica];
        let before = replica.description.as_ref();
        let mut description = description;
        if description.incarnation.is_empty() {
            // An agent that could not find out which process it is says nothing of it.
            description.incarnation = before.map_or_else(String::new, |it| it.incarnation.clone());
        }
        let known = before.map(|it| &it.incarnation).filter(|it| !it.is_empty());
        if known.is_some_and(|it| *it != description.incarnation) {
            replica.forget_blocks();
            replica.routed.clear();
            replica.busy.on_restart();
            self.notes.push(Note::Restarted { replica: name });
        } else if before.is_some_and(|it| description.renames(it)) {
            // A full copy follows, by the new names.
            replica.forget_blocks();
            replica.routed.clear();
        } else if before.is_some_and(|it| it.domain.is_some() && it.domain != description.domain) {
            // The same engine turned out to name its blocks otherwise: old keys will never be asked for.
            replica.expected.clear();
            replica.routed.clear();
            replica.watched.void();
        }
        if replica.on_status(description.status, now) {
            self.notes.push(Note::Out { replica: name, how: Failure::Agent });
        }
        replica.description = Some(description);
        if fresh {
            replica.knowledge = match replica.knowledge {
                Knowledge::None | Knowledge::AwaitingCopy | Knowledge::Emptied => Knowledge::AwaitingCopy,
                Knowledge::Live => Knowledge::Stale { since: now },
                // However often its agent comes back: its word is as old as it was.
                Knowledge::Stale { since } => Knowledge::Stale { since },
            };
            stream.outbox.push(ServerMessage::Accepted(handle));
        }
    }
}

/// Nobody speaks for this replica any more.
fn orphan(replica: &mut Replica, notes: &mut Vec<Note>, now: Instant) {
    replica.holdings.abandon_copy();
    replica.watched.void();
    replica.busy.forget_agent();
    match replica.knowledge {
        Knowledge::Live => {
            replica.knowledge = Knowledge::Stale { since: now };
            notes.push(Note::Stale { replica: replica.spec.name });
        }
        Knowledge::AwaitingCopy => replica.knowledge = Knowledge::Emptied,
        Knowledge::Stale { .. } | Knowledge::None | Knowledge::Emptied => (),
    }
}
