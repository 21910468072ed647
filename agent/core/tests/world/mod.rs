//! Engines and servers around one node.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../wire/mod.rs"]
pub(crate) mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use kvpick_agent_core::{
    engine::{Config, FLUSH_EVERY},
    load::Metrics,
    node::{Node, PeerId},
};
use kvpick_proto::{
    naming::BlockKey,
    words::{
        AgentMessage, Handle, Hello, KEYS_PER_MESSAGE, PROTOCOL, Place, ReplicaName, ServerMessage, Step,
        Welcome,
    },
};
use wire::Wire;

pub(crate) const UNIX_MS: u64 = 1_000_000;

pub(crate) const METRICS: &str = "process_start_time_seconds 1\nvllm:num_requests_running{engine=\"0\"} 0\n";

/// Engines, and servers that keep to the feed's rules.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) now: Instant,
    pub(crate) engines: Vec<(Handle, Wire)>,
    pub(crate) servers: BTreeMap<PeerId, Server>,
}

#[derive(Default)]
pub(crate) struct Server {
    pub(crate) said: Vec<AgentMessage>,
    pub(crate) replicas: BTreeMap<Handle, Replica>,
}

#[derive(Default)]
pub(crate) struct Replica {
    incarnation: String,
    pub(crate) held: BTreeSet<(Place, BlockKey)>,
    copy: Option<BTreeSet<(Place, BlockKey)>>,
    pub(crate) applied: Option<u64>,
}

fn apply(held: &mut BTreeSet<(Place, BlockKey)>, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Gained { place, keys, .. } => held.extend(keys.iter().map(|it| (*place, *it))),
            Step::Lost { place, keys } => held.retain(|it| it.0 != *place || !keys.contains(&it.1)),
            Step::Cleared => held.clear(),
        }
    }
}

impl Server {
    fn hear(&mut self, message: AgentMessage) {
        match &message {
            AgentMessage::Describe(handle, it) => {
                let replica = self.replicas.entry(*handle).or_default();
                if replica.incarnation != it.incarnation {
                    *replica = Replica { incarnation: it.incarnation.clone(), ..Replica::default() };
                }
            }
            AgentMessage::Change(handle, change) => {
                let replica = self.replicas.get_mut(handle).expect("a change of what was described");
                assert_eq!(replica.copy, None, "a change within a copy");
                apply(&mut replica.held, &change.steps);
                let cleared = change.steps.contains(&Step::Cleared);
                replica.applied = change.applied.or_else(|| replica.applied.filter(|_| !cleared));
            }
            AgentMessage::Copy(handle, chunk) => {
                let replica = self.replicas.get_mut(handle).expect("a copy of what was described");
                let mut named = replica.copy.take().unwrap_or_default();
                if chunk.first {
                    named.clear();
                }
                apply(&mut named, &chunk.steps);
                if chunk.last {
                    replica.held = named;
                    replica.applied = chunk.applied;
                } else {
                    replica.copy = Some(named);
                }
            }
            _ => (),
        }
        self.said.push(message);
    }
}

impl World {
    pub(crate) fn new(engines: usize) -> Self {
        Self::with_messages_of(KEYS_PER_MESSAGE, engines)
    }

    pub(crate) fn with_messages_of(keys: usize, engines: usize) -> Self {
        let mut world = Self {
            node: Node::new(keys),
            now: Instant::now(),
            engines: Vec::new(),
            servers: BTreeMap::new(),
        };
        for index in 0..engines {
            let address = format!("10.0.0.1:{}", 8000 + index).parse().unwrap();
            let config = Config::new(ReplicaName { address, rank: 0 });
            let handle = world.node.add_engine(config, world.now, UNIX_MS);
            world.engines.push((handle, Wire::new(index as u64)));
            world.scrape(index, METRICS);
        }
        world
    }

    pub(crate) fn scrape(&mut self, index: usize, text: &str) {
        let engine = self.node.engine(self.engines[index].0).unwrap();
        engine.on_metrics(Metrics::parse(text, 0), self.now, self.now, UNIX_MS);
    }

    /// A server that is connected, welcomes, and takes everything.
    pub(crate) fn server(&mut self) -> PeerId {
        let id = self.open();
        self.say(id, ServerMessage::Welcome(Welcome { protocol: PROTOCOL, server: "s".to_owned() }));
        self.hear(id);
        for (handle, _) in self.engines.clone() {
            self.say(id, ServerMessage::Accepted(handle));
        }
        self.hear(id);
        id
    }

    pub(crate) fn open(&mut self) -> PeerId {
        let hello = Hello {
            protocol: PROTOCOL,
            node: "n".to_owned(),
            epoch: 1,
            version: String::new(),
            token: String::new(),
        };
        let id = self.node.open(hello, self.now);
        self.servers.insert(id, Server::default());
        id
    }

    pub(crate) fn say(&mut self, id: PeerId, message: ServerMessage) {
        self.node.on_message(id, message, self.now).unwrap();
    }

    /// One message, if there is one.
    pub(crate) fn hear_one(&mut self, id: PeerId) -> bool {
        let message = self.node.next_message(id, self.now);
        let any = message.is_some();
        message.into_iter().for_each(|it| self.servers.get_mut(&id).unwrap().hear(it));
        any
    }

    /// All messages that there are now; returns them.
    pub(crate) fn hear(&mut self, id: PeerId) -> Vec<AgentMessage> {
        let before = self.servers[&id].said.len();
        while self.hear_one(id) {}
        self.servers[&id].said[before..].to_vec()
    }

    /// Blocks `from..from + len` of a chain are stored.
    pub(crate) fn store(&mut self, index: usize, chain: u64, from: u64, len: u64) {
        let (handle, wire) = &mut self.engines[index];
        let frames = wire.stored(chain, from, len);
        self.node.engine(*handle).unwrap().on_frames(frames, self.now, UNIX_MS).unwrap();
    }

    pub(crate) fn flush(&mut self) {
        self.now += FLUSH_EVERY;
        for (handle, _) in self.engines.clone() {
            self.node.on_time(handle, self.now, UNIX_MS);
        }
    }

    #[track_caller]
    pub(crate) fn assert_in_step(&mut self, id: PeerId) {
        self.flush();
        self.hear(id);
        for (handle, wire) in &self.engines {
            let replica = &self.servers[&id].replicas[handle];
            assert_eq!(replica.held, wire.held(), "{handle:?}");
            assert_eq!(replica.applied, wire.last(), "{handle:?}");
        }
    }
}
