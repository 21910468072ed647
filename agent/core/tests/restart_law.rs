//! An agent that restarts at any time and goes on from what it had written down, beside an engine that restarts at any
//! time: servers are never told of a block that the engine does not hold, and with a replay they are told of all.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

#[path = "wire/mod.rs"]
mod wire;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use kvpick_agent_core::{
    engine::{Config, Engine, Outcome},
    load::Metrics,
    snapshot::Snapshot,
};
use kvpick_proto::{
    naming::BlockKey,
    words::{Completeness, Place, ReplicaName, Step},
};
use proptest::prelude::*;
use wire::Wire;

#[derive(Clone, Debug)]
enum Op {
    Store {
        chain: u64,
        from: u64,
        len: u64,
    },
    Remove {
        chain: u64,
        at: u64,
    },
    Clear,
    /// What was published arrives, or a batch of it is lost.
    Hear,
    Lose,
    /// Its metrics are had.
    Scrape,
    Disconnect,
    Connect,
    /// The replay is answered, as far as the buffer goes; or its start only, which ends it or does not; or not at all.
    Answer,
    Break,
    Half,
    Fail,
    EngineRestarts,
    Write,
    /// The agent is gone, and is back.
    AgentRestarts,
    Flush,
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_u64..3, 0_u64..4, 1_u64..4).prop_map(|(chain, from, len)| Op::Store { chain, from, len }),
        5 => (0_u64..3, 0_u64..6).prop_map(|(chain, at)| Op::Remove { chain, at }),
        1 => Just(Op::Clear),
        14 => Just(Op::Hear),
        1 => Just(Op::Lose),
        6 => Just(Op::Scrape),
        1 => Just(Op::Disconnect),
        5 => Just(Op::Connect),
        8 => Just(Op::Answer),
        1 => Just(Op::Break),
        2 => Just(Op::Half),
        1 => Just(Op::Fail),
        1 => Just(Op::EngineRestarts),
        4 => Just(Op::Write),
        3 => Just(Op::AgentRestarts),
        8 => Just(Op::Flush),
        1 => Just(Op::Wait),
    ]
}

type Blocks = BTreeSet<(Place, BlockKey)>;

struct World {
    replay: bool,
    /// Batches that the replay socket keeps.
    buffer: usize,
    now: Instant,
    wire: Wire,
    /// Batches of this process, each with what is held after it.
    batches: Vec<(Vec<Vec<u8>>, Blocks)>,
    process: u64,
    /// Batches that are on their way.
    under_way: Vec<Vec<Vec<u8>>>,
    connected: bool,
    engine: Engine,
    file: Option<Vec<u8>>,
    /// What a server was told by this agent.
    told: Blocks,
    /// Times that knowledge was given up, when the engine restarted and this agent knew the process before: it knows the
    /// other one only once it has given up.
    unnoticed: Option<u64>,
}

fn engine(replay: bool, now: Instant) -> Engine {
    let name = ReplicaName { address: "10.0.0.1:8000".parse().unwrap(), rank: 0 };
    Engine::new(Config { replay, ..Config::new(name) }, now, 1)
}

impl World {
    fn new(replay: bool, buffer: usize) -> Self {
        let now = Instant::now();
        Self {
            replay,
            buffer,
            now,
            // The number of a publisher is the time of its batches.
            wire: Wire::new(1_000),
            batches: Vec::new(),
            process: 1,
            under_way: Vec::new(),
            connected: false,
            engine: engine(replay, now),
            file: None,
            told: BTreeSet::new(),
            unnoticed: None,
        }
    }

    fn publish(&mut self, make: impl FnOnce(&mut Wire) -> Vec<Vec<u8>>) {
        let frames = make(&mut self.wire);
        self.batches.push((frames.clone(), self.wire.held()));
        if self.connected {
            self.under_way.push(frames);
        }
    }

    fn step(&mut self, op: &Op) {
        self.now += Duration::from_millis(10);
        let now = self.now;
        match *op {
            // The rule for a second copy of a prompt's start depends on what is known, so there is none here.
            Op::Store { chain, from: 0, .. } if self.wire.holds_some_of(chain) => (),
            Op::Store { chain, from, len } => self.publish(|it| it.stored(chain, from, len)),
            Op::Remove { chain, at } => self.publish(|it| it.removed(chain, at, 1)),
            Op::Clear => self.publish(Wire::cleared),
            Op::Hear => {
                for frames in std::mem::take(&mut self.under_way) {
                    self.engine.on_frames(frames, now, 1).unwrap();
                }
            }
            Op::Lose if !self.under_way.is_empty() => drop(self.under_way.remove(0)),
            Op::Lose => (),
            Op::Scrape => {
                // Between what the process before published and what this one does.
                let start = self.process * 1_000 - 500;
                let text = format!("process_start_time_seconds {start}\nvllm:num_requests_running 0\n");
                self.engine.on_metrics(Metrics::parse(&text, 0), now, now, 1);
            }
            Op::Disconnect => self.disconnect(),
            Op::Connect if !self.connected => {
                self.connected = true;
                self.engine.on_connected(now);
            }
            Op::Connect => (),
            Op::Answer => self.answer(usize::MAX, true),
            Op::Break => self.answer(2, true),
            Op::Half => self.answer(2, false),
            Op::Fail => {
                if let Some(request) = self.engine.take_replay_request() {
                    self.engine.on_replay_failed(request.id, "no", now, 1);
                }
            }
            Op::EngineRestarts => {
                self.disconnect();
                self.unnoticed = (!self.engine.is_restoring()).then(|| self.resets());
                self.wire.restart();
                self.batches.clear();
                self.process += 1;
            }
            Op::Write => {
                if let Some(mut snapshot) = self.engine.snapshot(Vec::new()) {
                    self.file = Some(snapshot.encode().unwrap());
                }
            }
            Op::AgentRestarts => {
                (self.connected, self.engine) = (false, engine(self.replay, now));
                self.under_way.clear();
                self.told.clear();
                self.unnoticed = None;
                if let Some(file) = &self.file {
                    self.engine.restore(Snapshot::decode(file).unwrap(), now, 1);
                }
            }
            Op::Flush => self.flush(),
            Op::Wait => {
                self.now += Duration::from_secs(3);
                self.engine.on_time(self.now, 1);
            }
        }
    }

    /// It is noticed before anything of another connection; what was under way is lost.
    fn disconnect(&mut self) {
        if std::mem::take(&mut self.connected) {
            self.under_way.clear();
            self.engine.on_disconnected(self.now, 1);
        }
    }

    fn answer(&mut self, most: usize, ends: bool) {
        let Some(request) = self.engine.take_replay_request() else { return };
        let first = self.batches.len().saturating_sub(self.buffer);
        let number = |frames: &[Vec<u8>]| u64::from_be_bytes(frames[1][..].try_into().unwrap());
        let wanted = self.batches[first..].iter().filter(|it| number(&it.0) >= request.from);
        let all: Vec<_> = wanted.map(|it| it.0.clone()).collect();
        let is_whole = all.len() <= most;
        for mut frames in all.into_iter().take(most) {
            frames.insert(0, Vec::new());
            self.engine.on_replay(request.id, frames, self.now, 1).unwrap();
        }
        if is_whole {
            let end = vec![Vec::new(), Vec::new(), vec![0xff; 8], Vec::new()];
            self.engine.on_replay(request.id, end, self.now, 1).unwrap();
        } else if ends {
            self.engine.on_replay_failed(request.id, "stopped", self.now, 1);
        }
    }

    fn flush(&mut self) {
        self.now += Duration::from_millis(300);
        if self.engine.flush_due().is_none_or(|due| due > self.now) {
            return;
        }
        let Some(change) = self.engine.take_change(self.now) else { return };
        for step in change.steps {
            match step {
                Step::Gained { place, keys, .. } => self.told.extend(keys.iter().map(|it| (place, *it))),
                Step::Lost { place, keys } => self.told.retain(|it| it.0 != place || !keys.contains(&it.1)),
                Step::Cleared => self.told.clear(),
            }
        }
        self.check();
    }

    /// What was told is what the engine held after the batch that it was told as of.
    fn check(&mut self) {
        assert!(!self.engine.is_restoring() || self.told.is_empty(), "told of what is not proved");
        if self.unnoticed.is_some_and(|resets| resets == self.resets()) {
            return;
        }
        let Some(applied) = self.engine.announced() else { return assert!(self.told.is_empty()) };
        let held = self.batches.get(usize::try_from(applied).unwrap());
        let Some((_, held)) = held else { return assert!(self.told.is_empty(), "of another process") };
        let phantoms: Vec<_> = self.told.difference(held).collect();
        assert!(phantoms.is_empty(), "{phantoms:?} as of {applied}");
        let is_complete = self.engine.provisional_description().completeness == Completeness::Complete;
        assert!(!is_complete || self.told == *held, "complete as of {applied}, and not all is told");
    }

    fn resets(&self) -> u64 {
        let counts = self.engine.counts();
        counts.resets_restarted + counts.resets_lost + counts.resets_unproven
    }

    /// The last connection holds, and everything is answered.
    fn heal(&mut self) {
        // A replay that was left half answered ends with its connection.
        self.step(&Op::Disconnect);
        self.step(&Op::Connect);
        for _ in 0..4 {
            // Time enough for another look after any failure.
            self.now += Duration::from_secs(700);
            self.engine.on_time(self.now, 1);
            for op in [Op::Scrape, Op::Answer, Op::Hear, Op::Answer, Op::Flush] {
                self.step(&op);
            }
        }
        self.publish(|it| it.stored(9, 0, 1));
        for op in [Op::Hear, Op::Answer, Op::Hear, Op::Answer, Op::Flush] {
            self.step(&op);
        }
    }
}

fn run(replay: bool, buffer: usize, ops: &[Op]) -> World {
    let mut world = World::new(replay, buffer);
    for op in ops {
        world.step(op);
    }
    world.heal();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn with_replay_all_is_known_again(ops in proptest::collection::vec(op(), 0..120)) {
        let world = run(true, usize::MAX, &ops);
        prop_assert_eq!(&world.told, &world.wire.held());
        prop_assert_eq!(world.engine.provisional_description().completeness, Completeness::Complete);
    }

    #[test]
    fn with_a_short_replay_nothing_is_invented(ops in proptest::collection::vec(op(), 0..120)) {
        let world = run(true, 3, &ops);
        prop_assert!(world.told.is_subset(&world.wire.held()));
    }

    #[test]
    fn without_replay_nothing_is_invented(ops in proptest::collection::vec(op(), 0..120)) {
        let world = run(false, 0, &ops);
        prop_assert!(world.told.is_subset(&world.wire.held()));
    }
}

/// An agent that knows all, and was killed and started again.
fn restarted(replay: bool) -> World {
    let mut world = World::new(replay, usize::MAX);
    for op in [Op::Connect, Op::Scrape, Op::Answer] {
        world.step(&op);
    }
    for op in [Op::Store { chain: 1, from: 0, len: 5 }, Op::Remove { chain: 1, at: 2 }, Op::Hear, Op::Flush] {
        world.step(&op);
    }
    assert_eq!(world.told.len(), 4);
    world.step(&Op::Write);
    world.step(&Op::AgentRestarts);
    world
}

#[test]
fn what_a_proof_gives() {
    let mut world = restarted(true);
    world.step(&Op::Store { chain: 2, from: 0, len: 2 });
    world.step(&Op::Connect);
    world.step(&Op::Flush);
    assert!(world.told.is_empty() && world.engine.is_restoring());
    world.step(&Op::Answer);
    world.step(&Op::Flush);
    assert_eq!(world.told, world.wire.held());
    assert_eq!(world.engine.restored().unwrap().blocks, 4);

    let mut world = restarted(false);
    for op in [Op::Connect, Op::Scrape, Op::Flush] {
        world.step(&op);
    }
    assert!(world.told.is_empty() && world.engine.is_restoring());
    for op in [Op::Store { chain: 2, from: 0, len: 2 }, Op::Hear, Op::Flush] {
        world.step(&op);
    }
    assert_eq!(world.told, world.wire.held());
    let completeness = world.engine.provisional_description().completeness;
    assert_eq!(completeness, Completeness::Complete, "as it was before");
}

#[test]
fn servers_wait_for_a_proof_but_not_for_ever() {
    let mut world = restarted(false);
    world.step(&Op::Connect);
    world.step(&Op::Scrape);
    assert!(!world.engine.is_settled(world.now));
    world.now = world.engine.due().unwrap();
    world.engine.on_time(world.now, 1);
    world.step(&Op::Wait);
    assert!(world.engine.is_settled(world.now) && world.engine.is_restoring());
    let completeness = world.engine.provisional_description().completeness;
    assert_eq!(completeness, Completeness::PartialSince { unix_ms: 1 });
    // And it still waits.
    for op in [Op::Clear, Op::Store { chain: 2, from: 0, len: 2 }, Op::Hear, Op::Flush] {
        world.step(&op);
    }
    assert_eq!((world.told.len(), world.engine.restored().unwrap().outcome), (2, Outcome::Proved));
}

#[test]
fn a_snapshot_of_another_engine_is_not_taken() {
    let mut world = restarted(true);
    let snapshot = Snapshot::decode(world.file.as_ref().unwrap()).unwrap();
    world.engine = engine(true, world.now);
    world.engine.restore(Snapshot { name: "10.0.0.2:8000".to_owned(), ..snapshot }, world.now, 1);
    assert!(!world.engine.is_restoring());
    assert!(matches!(world.engine.restored().unwrap().outcome, Outcome::Refused(_)));
    assert_eq!(world.engine.mirror().len(), 0);
}
