//! The servers, and the streams between them and the agent: slow, stuck, cut, taken over.

use std::{collections::VecDeque, time::Duration};

use kvpick_agent_core::node::PeerId;
use kvpick_core::{
    feed::{Close, StreamId},
    replicas::{Knowledge, Memory, ReplicaSpec},
    score::Weights,
    world::World,
};
use kvpick_proto::words::{AgentMessage, Hello, PROTOCOL, ServerMessage, Step, Tier};

use super::{
    engine::Held,
    shadow::Shadow,
    sim::{Event, MS, Sim, Time},
};

const NODE: &str = "node";

/// One server, and what it was sent.
pub(crate) struct Server {
    pub(crate) world: World,
    pub(crate) is_up: bool,
    pub(crate) streams: Vec<Stream>,
    pub(crate) connecting: bool,
    pub(super) shadows: Vec<Shadow>,
}

/// One stream, from both ends.
pub(crate) struct Stream {
    pub(crate) id: u64,
    /// The agent's end, while it is there; and the server's.
    peer: Option<PeerId>,
    server: Option<StreamId>,
    up: VecDeque<(Time, AgentMessage)>,
    down: VecDeque<(Time, ServerMessage)>,
    /// When the agent looks after it though nothing happens.
    pub(crate) due: Option<Time>,
    pub(crate) stuck_until: Time,
    pub(crate) is_cut: bool,
    pub(crate) is_slow: bool,
}

impl Server {
    pub(crate) fn new(world: World) -> Self {
        Self { world, is_up: true, streams: Vec::new(), connecting: false, shadows: Vec::new() }
    }

    /// Whether its index has the block.
    pub(crate) fn has(&self, site: usize, block: Held) -> bool {
        let (_, replica) = self.world.replicas.iter().nth(site).unwrap();
        let scale = replica.holdings.scale(&[(Tier::Gpu, 1.0)], Some(block.0));
        scale.of(replica.holdings.places(block.1)) > 0.0
    }

    fn stream(&mut self, id: u64) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|it| it.id == id)
    }
}

impl Sim {
    pub(crate) fn world(&self) -> World {
        let spec = |name| ReplicaSpec::listed(name, Some(NODE.to_owned()), vec!["m".to_owned()]);
        let specs = self.sites.iter().map(|it| spec(it.name)).collect();
        World::new("server".to_owned(), specs, &Memory::default(), Weights::default(), 1, self.clocks().0)
    }

    // === The agent's end ===

    pub(crate) fn stream_connects(&mut self, at: usize) {
        let server = &mut self.servers[at];
        server.connecting = false;
        if server.streams.iter().any(|it| it.peer.is_some()) {
            return;
        }
        if !server.is_up {
            return self.connect_stream(at);
        }
        self.epochs += 1;
        let id = self.epochs;
        let hello = Hello {
            protocol: PROTOCOL,
            node: NODE.to_owned(),
            epoch: id,
            version: String::new(),
            token: String::new(),
        };
        let now = self.clocks().0;
        let peer = self.node.open(hello, now);
        let server = &mut self.servers[at];
        let stream = Stream {
            id,
            peer: Some(peer),
            server: Some(server.world.open_stream(now)),
            up: VecDeque::new(),
            down: VecDeque::new(),
            due: None,
            stuck_until: 0,
            is_cut: false,
            is_slow: false,
        };
        server.streams.push(stream);
        server.shadows.resize_with(self.sites.len(), Shadow::default);
        self.trace.add(|| format!("{:>10} server {at}: stream {id}", self.now));
        self.plan_at(self.now, Event::StreamTick(at, id));
        self.pump(at, id);
    }

    fn connect_stream(&mut self, at: usize) {
        if !std::mem::replace(&mut self.servers[at].connecting, true) {
            self.plan_in(50..2_000, Event::StreamConnects(at));
        }
    }

    pub(crate) fn pump_all(&mut self) {
        for at in 0..self.servers.len() {
            let ids: Vec<_> = self.servers[at].streams.iter().map(|it| it.id).collect();
            ids.into_iter().for_each(|id| self.pump(at, id));
        }
    }

    /// The agent says what it has to say, as long as there is room.
    fn pump(&mut self, at: usize, id: u64) {
        let now = self.clocks().0;
        let room = self.plan.room;
        while let Some(stream) = self.servers[at].stream(id)
            && let Some(peer) = stream.peer
        {
            if stream.up.len() >= room {
                // Only the silence is watched.
                stream.due = Some(self.now + 500 * MS);
                return;
            }
            let Some(message) = self.node.next_message(peer, now) else {
                let due = self.node.peer(peer).unwrap().due(now);
                let due = self.time_of(due).max(self.now + 1);
                self.servers[at].stream(id).unwrap().due = Some(due);
                return;
            };
            let (is_slow, is_cut) = (stream.is_slow, stream.is_cut);
            let delay = if is_slow { self.some(100..700) } else { self.some(0..30) };
            let stream = self.servers[at].stream(id).unwrap();
            let arrives = stream.up.back().map_or(0, |it| it.0).max(self.now + delay);
            stream.up.push_back((arrives, message));
            if !is_cut {
                self.plan_at(arrives, Event::ToServer(at, id));
            }
        }
    }

    pub(crate) fn stream_due(&mut self, at: usize, id: u64) {
        let now = self.clocks().0;
        let Some(stream) = self.servers[at].stream(id) else { return };
        stream.due = None;
        let Some(peer) = stream.peer else { return };
        if self.node.peer(peer).unwrap().is_silent(now) {
            return self.agent_ends(at, id);
        }
        self.pump(at, id);
    }

    pub(crate) fn agent_hears(&mut self, at: usize, id: u64) {
        let (now, time) = (self.clocks().0, self.now);
        let Some(stream) = self.servers[at].stream(id) else { return };
        let Some(peer) = stream.peer.filter(|_| !stream.is_cut) else { return };
        if time < stream.stuck_until {
            let until = stream.stuck_until;
            return self.plan_at(until, Event::ToAgent(at, id));
        }
        while let Some((_, message)) =
            self.servers[at].stream(id).unwrap().down.pop_front_if(|it| it.0 <= time)
        {
            self.trace.add(|| format!("{time:>10} server {at} says {message:?}"));
            self.node.on_message(peer, message, now).unwrap();
        }
        self.pump_all();
    }

    /// The agent finds that a stream has ended, or ends it.
    pub(crate) fn agent_ends(&mut self, at: usize, id: u64) {
        let Some(stream) = self.servers[at].stream(id) else { return };
        let Some(peer) = stream.peer.take() else { return };
        stream.due = None;
        stream.down.clear();
        let is_cut = stream.is_cut;
        self.node.close(peer);
        self.trace.add(|| format!("{:>10} server {at}: the agent's end of stream {id} ends", self.now));
        if !is_cut {
            self.plan_in(0..100, Event::ServerEnds(at, id));
        }
        self.connect_stream(at);
    }

    // === The server's end ===

    pub(crate) fn server_hears(&mut self, at: usize, id: u64) {
        let (now, time) = (self.clocks().0, self.now);
        let server = &mut self.servers[at];
        let Some(stream) = server.streams.iter_mut().find(|it| it.id == id) else { return };
        let Some(sid) = stream.server.filter(|_| !stream.is_cut) else { return };
        if time < stream.stuck_until {
            let until = stream.stuck_until;
            return self.plan_at(until, Event::ToServer(at, id));
        }
        let mut messages = Vec::new();
        while let Some((_, message)) = stream.up.pop_front_if(|it| it.0 <= time) {
            messages.push(message);
        }
        let mut end = None;
        for message in messages {
            self.trace.add(|| format!("{time:>10} server {at} is told {message:?}"));
            let handle = match &message {
                AgentMessage::Describe(it, _) | AgentMessage::Change(it, _) | AgentMessage::Copy(it, _) => {
                    Some(*it)
                }
                _ => None,
            };
            let site = handle.map(|it| it.0 as usize);
            let before = site.map(|site| server.world.replicas.iter().nth(site).unwrap().1.applied);
            let told = server.world.on_message(sid, message.clone(), now);
            if let Err(error) = told {
                end = Some(error);
                break;
            }
            let Some(site) = site else { continue };
            server.shadows[site].hear(id, &message);
            let after = server.world.replicas.iter().nth(site).unwrap().1.applied;
            if let AgentMessage::Change(_, change) = &message
                && !change.steps.contains(&Step::Cleared)
            {
                assert!(before <= Some(after), "server {at}: applied went from {before:?} to {after:?}");
            }
            server.check_shadow(at, site, &message);
        }
        match end {
            Some(Close::Superseded(_)) => self.server_ends(at, id),
            Some(error) => panic!("server {at} closes stream {id}: {error}"),
            None => self.answer(at, id),
        }
        self.pump(at, id);
    }

    fn answer(&mut self, at: usize, id: u64) {
        let now = self.clocks().0;
        let server = &mut self.servers[at];
        let Some(stream) = server.streams.iter_mut().find(|it| it.id == id) else { return };
        let Some(sid) = stream.server else { return };
        match server.world.poll_stream(sid, now) {
            Ok(messages) => {
                for message in messages {
                    let delay = self.some(0..30);
                    let stream = self.servers[at].stream(id).unwrap();
                    let arrives = stream.down.back().map_or(0, |it| it.0).max(self.now + delay);
                    stream.down.push_back((arrives, message));
                    self.plan_at(arrives, Event::ToAgent(at, id));
                }
            }
            Err(Close::Superseded(_) | Close::Silent) => self.server_ends(at, id),
            Err(error) => panic!("server {at} closes stream {id}: {error}"),
        }
    }

    pub(crate) fn server_ends(&mut self, at: usize, id: u64) {
        let now = self.clocks().0;
        let server = &mut self.servers[at];
        let Some(stream) = server.streams.iter_mut().find(|it| it.id == id) else { return };
        if let Some(sid) = stream.server.take() {
            server.world.close_stream(sid, now);
            self.trace.add(|| format!("{:>10} server {at}: its end of stream {id} ends", self.now));
        }
        for shadow in &mut server.shadows {
            if shadow.stream.is_some_and(|(of, _)| of == id) {
                (shadow.stream, shadow.copy) = (None, None);
            }
        }
        let stream = server.stream(id).unwrap();
        if stream.peer.is_some() && !stream.is_cut {
            self.plan_in(0..100, Event::AgentEnds(at, id));
        }
        server_sweep(&mut self.servers[at]);
    }

    pub(crate) fn stream_tick(&mut self, at: usize, id: u64) {
        if self.servers[at].stream(id).is_some_and(|it| it.server.is_some()) {
            self.answer(at, id);
            self.plan_in(250..251, Event::StreamTick(at, id));
        }
    }

    pub(crate) fn world_tick(&mut self, at: usize) {
        let now = self.clocks().0;
        let server = &mut self.servers[at];
        let _notes = server.world.on_time(now);
        for ((_, replica), shadow) in server.world.replicas.iter().zip(&mut server.shadows) {
            if replica.knowledge == Knowledge::Emptied {
                shadow.held.clear();
            }
        }
        server_sweep(server);
        self.plan_in(100..101, Event::WorldTick(at));
    }

    /// The server's process ends, and another one takes its place.
    pub(crate) fn kill_server(&mut self, at: usize) {
        self.trace.add(|| format!("{:>10} server {at} ends", self.now));
        self.servers[at].is_up = false;
        let streams: Vec<_> =
            self.servers[at].streams.iter_mut().map(|it| (it.server.take(), it.id)).collect();
        for (_, id) in streams {
            self.plan_in(0..2_000, Event::AgentEnds(at, id));
        }
        self.plan_in(10..4_000, Event::ServerBoots(at));
    }

    pub(crate) fn server_boots(&mut self, at: usize) {
        let world = self.world();
        let server = &mut self.servers[at];
        if !std::mem::replace(&mut server.is_up, true) {
            server.world = world;
            server.shadows.clear();
            server.shadows.resize_with(self.sites.len(), Shadow::default);
        }
    }

    /// Nothing passes on a stream any more; each end notices in its own time.
    pub(crate) fn cut_stream(&mut self, at: usize, id: u64) {
        let Some(stream) = self.servers[at].stream(id) else { return };
        stream.is_cut = true;
        self.plan_in(0..4_000, Event::AgentEnds(at, id));
        self.plan_in(0..4_000, Event::ServerEnds(at, id));
    }

    /// Whether every server has a good stream.
    pub(crate) fn are_streams_up(&self) -> bool {
        let is_good = |it: &Stream| it.peer.is_some() && it.server.is_some() && !it.is_cut && !it.is_slow;
        self.servers.iter().all(|it| it.is_up && it.streams.iter().any(is_good))
    }
}

/// Lets go what has ended at both ends.
fn server_sweep(server: &mut Server) {
    server.streams.retain(|it| it.peer.is_some() || it.server.is_some());
}

/// Longest pause that a stream may have without being given up.
pub(crate) const STUCK: Duration = Duration::from_millis(2_500);
