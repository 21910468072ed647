//! Batches of another data-parallel rank than is expected.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

#[path = "wire/mod.rs"]
mod wire;

use std::time::{Duration, Instant};

use kvpick_agent_core::{
    decode::{other_rank, rank_of},
    engine::{Config, Engine},
    sequence::ReplayRequest,
};
use kvpick_proto::words::{Completeness, Events, ReplicaName};
use wire::Wire;

const UNIX_MS: u64 = 1_000_000;

struct World {
    engine: Engine,
    now: Instant,
}

impl World {
    /// The engine of rank 1, connected; alone at its address, or one of several.
    fn new(rank_by_header: bool, replay: bool) -> Self {
        let name = ReplicaName { address: ([127, 0, 0, 1], 8000).into(), rank: 1 };
        let config = Config { replay, rank_by_header, ..Config::new(name) };
        let now = Instant::now();
        let mut engine = Engine::new(config, now, UNIX_MS);
        engine.on_connected(now);
        Self { engine, now }
    }

    fn live(&mut self, frames: Vec<Vec<u8>>) {
        self.engine.on_frames(frames, self.now, UNIX_MS).unwrap();
    }

    /// A message of a replay's answer, as vLLM before 0.26 has it.
    fn replayed(&mut self, id: u64, mut frames: Vec<Vec<u8>>) {
        frames[0].clear();
        self.engine.on_replay(id, frames, self.now, UNIX_MS).unwrap();
    }

    fn end(&mut self, id: u64) {
        self.replayed(id, vec![Vec::new(), vec![0xff; 8], Vec::new()]);
    }

    fn seconds_pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Whether the mirror holds what this publisher holds, and nothing else.
    fn mirrors(&self, wire: &Wire) -> bool {
        let (mirror, held) = (self.engine.mirror(), wire.held());
        mirror.len() == held.len() && held.iter().all(|(place, key)| mirror.copies(*place, *key) > 0)
    }

    fn why(&self) -> Option<(&str, &str)> {
        match &self.engine.provisional_description().events {
            Events::Unavailable { reason, remedy } => Some((reason, remedy)),
            _ => None,
        }
    }

    fn strays(&self) -> u64 {
        self.engine.counts().stray_batches
    }
}

#[test]
fn a_rank_is_read_from_behind_the_events() {
    for (payload, rank) in [
        (&b"\x93\xcb\0\0\0\0\0\0\0\0\x90\x02"[..], Some(2)),
        (b"\x93\x01\x91\x91\xb0AllBlocksCleared\xcc\x80", Some(128)),
        (b"\x94\x01\x90\x03\x07", Some(3)),
        (b"\x93\x01\x90\xc0", None),
        (b"\x92\x01\x90", None),
        (b"\x93\x01\x91\xc1\x01", None),
        (b"\x93\x01\x90\xff", None),
        (b"\x93\x01", None),
        (b"\xc1", None),
        (b"", None),
    ] {
        assert_eq!(rank_of(payload), rank, "{payload:02x?}");
        assert_eq!(other_rank(payload, 1), rank.filter(|it| *it != 1), "{payload:02x?}");
        if let Some(rank) = rank {
            assert_eq!(other_rank(payload, rank), None, "{payload:02x?}");
        }
    }
}

#[test]
fn another_ranks_batches_are_left_out_and_said_until_the_right_ones_come() {
    let mut world = World::new(true, false);
    let (mut right, mut other) = (Wire::new(1).of_rank(1), Wire::new(2).of_rank(2));
    world.live(other.stored(5, 0, 3));
    let (reason, remedy) = world.why().unwrap();
    assert!(reason.contains("of rank 2") && reason.contains("for rank 1"), "{reason}");
    assert!(remedy.contains("ports"), "{remedy}");
    assert_eq!((world.engine.mirror().len(), world.strays()), (0, 1));
    // The numbers of the two cross, and neither is a gap or a restart of the other.
    world.live(right.stored(1, 0, 4));
    world.live(other.removed(5, 0, 3));
    world.live(other.stored(1, 0, 9));
    world.live(right.removed(1, 3, 1));
    assert!(world.mirrors(&right));
    assert_eq!(world.engine.provisional_description().completeness, Completeness::Complete);
    assert!(world.why().is_some(), "somebody still publishes there who should not");
    world.seconds_pass(5);
    world.live(right.stored(2, 0, 2));
    assert_eq!(world.engine.provisional_description().events, Events::Live);
    assert!(world.mirrors(&right));
    let counts = world.engine.counts();
    assert_eq!((counts.stray_batches, counts.batches), (3, 3));
    assert_eq!(counts.resets_restarted + counts.resets_lost + counts.resets_unproven, 0);
}

#[test]
fn a_new_connection_has_a_clean_sheet() {
    let mut world = World::new(true, false);
    world.live(Wire::new(2).of_rank(2).stored(5, 0, 3));
    assert!(world.why().is_some());
    world.engine.on_disconnected(world.now, UNIX_MS);
    world.engine.on_connected(world.now);
    world.live(Wire::new(1).of_rank(1).stored(5, 0, 3));
    assert_eq!(world.engine.provisional_description().events, Events::Live);
}

#[test]
fn a_replay_of_another_rank_has_failed() {
    let mut world = World::new(true, true);
    let ReplayRequest { id, .. } = world.engine.take_replay_request().unwrap();
    let mut other = Wire::new(2).of_rank(0);
    world.replayed(id, other.stored(5, 0, 3));
    world.replayed(id, other.stored(6, 0, 3));
    world.end(id);
    assert!(world.why().unwrap().0.contains("of rank 0"));
    assert_eq!(world.engine.mirror().len(), 0);
    let counts = world.engine.counts();
    assert_eq!((counts.stray_batches, counts.failed_replays, counts.replays), (1, 1, 0));
    // It is not proof of an engine that has published nothing.
    let mut right = Wire::new(1).of_rank(1);
    right.skip(3);
    world.live(right.stored(1, 0, 3));
    let ReplayRequest { id, .. } = world.engine.take_replay_request().expect("it is asked for again");
    world.engine.on_replay_failed(id, "nothing new", world.now, UNIX_MS);
    assert!(world.mirrors(&right));
    assert!(matches!(world.engine.provisional_description().completeness, Completeness::PartialSince { .. }));
}

#[test]
fn an_engine_alone_at_its_address_may_have_any_rank_but_one_only() {
    let mut world = World::new(false, false);
    let (mut first, mut second) = (Wire::new(1).of_rank(7), Wire::new(2).of_rank(8));
    world.live(first.stored(1, 0, 3));
    assert_eq!(world.engine.provisional_description().events, Events::Live);
    world.live(second.stored(1, 0, 2));
    let (reason, remedy) = world.why().unwrap();
    assert!(reason.contains("two publishers share the endpoint"), "{reason}");
    assert!(remedy.contains("an endpoint of its own"), "{remedy}");
    world.live(first.stored(1, 3, 2));
    assert!(world.mirrors(&first));
    assert_eq!(world.strays(), 1);
    // Another engine there, with another rank, is none of that.
    world.engine.on_disconnected(world.now, UNIX_MS);
    world.engine.on_connected(world.now);
    second.restart();
    world.live(second.stored(9, 0, 2));
    assert_eq!((world.strays(), world.mirrors(&second)), (1, true));
}

#[test]
fn what_is_known_goes_where_the_replay_that_was_to_prove_it_is_no_longer_offered() {
    let mut world = World::new(true, true);
    let ReplayRequest { id, .. } = world.engine.take_replay_request().unwrap();
    world.end(id);
    let mut right = Wire::new(1).of_rank(1);
    world.live(right.stored(1, 0, 3));
    assert!(world.mirrors(&right));
    world.engine.on_disconnected(world.now, UNIX_MS);
    assert!(world.mirrors(&right), "the replay will tell");
    world.engine.set_replay(true, world.now, UNIX_MS);
    assert!(world.mirrors(&right), "as before");
    world.engine.set_replay(false, world.now, UNIX_MS);
    assert_eq!(world.engine.mirror().len(), 0);
    world.engine.on_connected(world.now);
    assert_eq!(world.engine.take_replay_request(), None);
    world.engine.on_disconnected(world.now, UNIX_MS);
    world.engine.set_replay(true, world.now, UNIX_MS);
    world.engine.on_connected(world.now);
    assert!(world.engine.take_replay_request().is_some());
}
