//! What an engine that sleeps holds, and which cache groups one has.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod world;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use kvpick_agent_core::{
    engine::{Config, Engine},
    load::Metrics,
};
use kvpick_proto::words::ReplicaName;
use world::{UNIX_MS, World};

const ASLEEP: &str = "process_start_time_seconds 1\nvllm:engine_sleep_state{sleep_state=\"awake\"} 0\n";

#[test]
fn an_engine_that_sleeps_holds_nothing() {
    let mut world = World::new(1);
    let id = world.server();
    let handle = world.engines[0].0;
    world.store(0, 1, 0, 2);
    world.assert_in_step(id);
    // It went to sleep, woke up and worked while its answer was on its way.
    let asked = world.now;
    world.now += Duration::from_millis(100);
    world.store(0, 1, 2, 1);
    let answer = |world: &mut World, asked| {
        let now = world.now;
        world.node.engine(handle).unwrap().on_metrics(Metrics::parse(ASLEEP, 0), asked, now, UNIX_MS);
    };
    answer(&mut world, asked);
    world.assert_in_step(id);
    let before = world.node.engines()[&handle].description().unwrap().completeness;
    let now = world.now;
    answer(&mut world, now);
    answer(&mut world, now);
    let engine = &world.node.engines()[&handle];
    assert_eq!((engine.mirror().len(), engine.counts().cleared_by_sleep), (0, 1));
    assert_eq!(engine.description().unwrap().completeness, before);
    world.flush();
    world.hear(id);
    assert_eq!(world.servers[&id].replicas[&handle].held, BTreeSet::new());
    // That it was cleared it says itself with its first step.
    let frames = world.engines[0].1.cleared();
    world.node.engine(handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
    world.store(0, 1, 0, 1);
    world.assert_in_step(id);
}

#[test]
fn groups_are_learned_from_what_they_store() {
    let now = Instant::now();
    let name = ReplicaName { address: "10.0.0.1:9000".parse().unwrap(), rank: 0 };
    let mut engine = Engine::new(Config::new(name), now, UNIX_MS);
    let mut number = 0_u64;
    let mut say = |engine: &mut Engine, block_size: u8, rest: &[u8]| {
        let mut event = b"\x9c\xabBlockStored\x91\x07\xc0\x91\x01".to_vec();
        event.extend_from_slice(&[block_size, 0xc0, 0xc0, 0xc0, 0xc0]);
        event.extend_from_slice(rest);
        let payload = [b"\x93\x00\x91", &event[..], b"\x00"].concat();
        engine.on_frames(vec![Vec::new(), number.to_be_bytes().to_vec(), payload], now, UNIX_MS).unwrap();
        number += 1;
        let groups = &engine.provisional_description().groups;
        groups
            .iter()
            .map(|it| (it.index, it.kind.clone(), it.block_size, it.sliding_window))
            .collect::<Vec<_>>()
    };
    // Group, kind and window.
    let learned = say(&mut engine, 16, b"\x01\xc0\xc0");
    assert_eq!(learned, [(1, String::new(), 16, 0)]);
    let learned = say(&mut engine, 8, b"\x01\xa5mamba\xc0");
    assert_eq!(learned, [(1, "mamba".to_owned(), 16, 0)]);
    let learned = say(&mut engine, 32, b"\x01\xa5other\x40");
    assert_eq!(learned, [(1, "mamba".to_owned(), 32, 64)]);
    let learned = say(&mut engine, 4, b"\x00\xa1f\xc0");
    assert_eq!(learned, [(0, "f".to_owned(), 4, 0), (1, "mamba".to_owned(), 32, 64)]);
    // Another engine may have others.
    engine.on_disconnected(now, UNIX_MS);
    engine.on_time(now + Duration::from_secs(6), UNIX_MS);
    assert_eq!(engine.provisional_description().groups, []);
}
