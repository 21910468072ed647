//! What becomes of an engine's events and answers.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod world;

use std::{collections::BTreeSet, time::Duration};

use kvpick_agent_core::{
    engine::{Config, Engine, FLUSH_EVERY, Models},
    load::Metrics,
};
use kvpick_proto::words::{
    Adapter, AgentMessage, Change, Completeness, EngineStatus, Events, ReplicaName, Step,
};
use world::{METRICS, UNIX_MS, World, wire::Wire};

#[test]
fn the_first_change_after_a_quiet_time_goes_at_once_the_next_waits() {
    let mut world = World::new(1);
    let handle = world.engines[0].0;
    let engine = |world: &World| world.node.engines()[&handle].flush_due();
    world.now += Duration::from_secs(1);
    world.store(0, 1, 0, 1);
    let first = engine(&world).unwrap();
    assert_eq!(first - world.now, Duration::from_millis(3));
    world.now = first;
    assert!(world.node.on_time(handle, world.now, UNIX_MS));
    assert_eq!(engine(&world), None);
    world.store(0, 1, 1, 1);
    assert_eq!(engine(&world), Some(first + FLUSH_EVERY));
    world.now += Duration::from_millis(100);
    assert!(!world.node.on_time(handle, world.now, UNIX_MS));
}

#[test]
fn a_batch_that_changes_nothing_is_still_accounted_for() {
    let mut world = World::new(1);
    let id = world.server();
    world.store(0, 1, 0, 2);
    world.assert_in_step(id);
    // Another copy of the second block.
    world.store(0, 1, 1, 1);
    world.assert_in_step(id);
    assert_eq!(world.servers[&id].replicas[&world.engines[0].0].applied, Some(1));
}

#[test]
fn a_new_incarnation_is_copied_again() {
    let mut world = World::new(1);
    let id = world.server();
    world.store(0, 1, 0, 2);
    world.assert_in_step(id);
    // The scrape is the first to notice; without replay that is a restart.
    world.scrape(0, "process_start_time_seconds 2\nvllm:num_requests_running 0\n");
    world.engines[0].1.restart();
    world.flush();
    world.hear(id);
    assert_eq!(world.servers[&id].replicas[&world.engines[0].0].held, BTreeSet::new());
    world.store(0, 7, 0, 2);
    world.assert_in_step(id);
}

#[test]
fn a_clear_makes_it_complete() {
    let mut world = World::new(1);
    let id = world.server();
    let handle = world.engines[0].0;
    world.engines[0].1.skip(5);
    world.store(0, 1, 0, 2);
    world.assert_in_step(id);
    let completeness = |world: &World| world.node.engines()[&handle].description().unwrap().completeness;
    assert_eq!(completeness(&world), Completeness::PartialSince { unix_ms: UNIX_MS });
    let frames = world.engines[0].1.cleared();
    world.node.engine(handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
    assert_eq!(completeness(&world), Completeness::Complete);
    world.assert_in_step(id);
}

#[test]
fn a_batch_that_cannot_be_read_loses_what_was_known() {
    let mut world = World::new(1);
    let id = world.server();
    let handle = world.engines[0].0;
    world.store(0, 1, 0, 2);
    let frames = world.engines[0].1.garbage();
    world.node.engine(handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
    let engine = &world.node.engines()[&handle];
    assert_eq!(engine.counts().undecodable, 1);
    assert!(matches!(engine.description().unwrap().completeness, Completeness::PartialSince { .. }));
    world.assert_in_step(id);
}

#[test]
fn a_slow_answer_is_no_failure_at_once() {
    let mut world = World::new(1);
    let handle = world.engines[0].0;
    let status = |world: &World| world.node.engines()[&handle].description().unwrap().status;
    let fail = |world: &mut World| {
        let now = world.now;
        world.node.engine(handle).unwrap().on_scrape_failed("timed out".to_owned(), false, now);
    };
    fail(&mut world);
    world.now += Duration::from_secs(4);
    fail(&mut world);
    assert_eq!(status(&world), EngineStatus::Up);
    world.now += Duration::from_secs(1);
    fail(&mut world);
    assert_eq!(status(&world), EngineStatus::Down);
    world.scrape(0, METRICS);
    assert_eq!(status(&world), EngineStatus::Up);
    world.scrape(0, "go_goroutines 7\n");
    assert_eq!(status(&world), EngineStatus::Foreign);
}

#[test]
fn events_that_do_not_come_are_said_to_be_unavailable() {
    let mut world = World::new(1);
    let handle = world.engines[0].0;
    let events = |world: &World| world.node.engines()[&handle].description().unwrap().events.clone();
    assert_eq!(events(&world), Events::Awaited);
    world.now = world.node.engines()[&handle].due().unwrap();
    world.node.on_time(handle, world.now, UNIX_MS);
    assert!(matches!(events(&world), Events::Unavailable { reason, .. } if reason.contains("no connection")));
    world.node.engine(handle).unwrap().on_connected(world.now);
    assert_eq!(events(&world), Events::Awaited);
    let serving = |tokens: u32| format!("vllm:prefix_cache_queries_total {tokens}\n");
    world.scrape(0, &serving(1_000));
    assert_eq!(events(&world), Events::Awaited);
    world.scrape(0, &serving(100_000));
    assert!(
        matches!(events(&world), Events::Unavailable { reason, .. } if reason.contains("announces no blocks"))
    );
    world.store(0, 1, 0, 1);
    assert_eq!(events(&world), Events::Live);
}

#[test]
fn models_and_version_are_described() {
    let mut world = World::new(1);
    let id = world.server();
    let engine = world.node.engine(world.engines[0].0).unwrap();
    engine.on_version("0.32.0".to_owned());
    engine.on_models(Models { models: vec!["m".to_owned()], adapters: Vec::new(), max_model_len: 1024 });
    let said = world.hear(id);
    let [AgentMessage::Describe(_, it)] = &said[..] else { panic!("{said:?}") };
    assert_eq!(
        (it.engine_version.as_str(), &it.models[..], it.max_model_len),
        ("0.32.0", &["m".to_owned()][..], 1024)
    );
}

#[test]
fn what_was_told_as_applied_goes_with_a_reset() {
    let mut world = World::new(1);
    let id = world.server();
    let handle = world.engines[0].0;
    // Also where nothing is held, so that there is nothing to be cleared.
    for stays in [true, false] {
        world.node.engine(handle).unwrap().on_connected(world.now);
        world.scrape(0, METRICS);
        world.store(0, 1, 0, 2);
        if !stays {
            let frames = world.engines[0].1.removed(1, 0, 2);
            world.node.engine(handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
        }
        world.assert_in_step(id);
        assert!(world.servers[&id].replicas[&handle].applied.is_some());
        // Nothing proves that it is the same, and it is another.
        world.node.engine(handle).unwrap().on_disconnected(world.now, UNIX_MS);
        world.engines[0].1.restart();
        world.now += Duration::from_secs(6);
        world.flush();
        world.assert_in_step(id);
        assert_eq!(world.servers[&id].replicas[&handle].applied, None);
        assert_eq!(world.node.engines()[&handle].announced(), None);
    }
}

#[test]
fn another_engines_batch_of_the_same_number_is_told() {
    let mut world = World::new(1);
    let id = world.server();
    world.store(0, 1, 0, 2);
    world.assert_in_step(id);
    // Before anything of it is announced it is where the one before was.
    world.engines[0].1.restart();
    world.store(0, 7, 0, 1);
    world.assert_in_step(id);
    assert_eq!(world.servers[&id].replicas[&world.engines[0].0].applied, Some(0));
}

#[test]
fn what_is_heard_has_a_connection() {
    let mut world = World::new(1);
    let handle = world.engines[0].0;
    world.node.engine(handle).unwrap().on_disconnected(world.now, UNIX_MS);
    world.store(0, 1, 0, 1);
    world.now += Duration::from_secs(6);
    world.node.on_time(handle, world.now, UNIX_MS);
    assert_eq!(world.node.engines()[&handle].provisional_description().events, Events::Live);
}

#[test]
fn an_engine_is_described_once_it_says_who_it_is_or_does_not_for_a_while() {
    let mut world = World::new(0);
    let config = |rank| Config {
        events: false,
        ..Config::new(ReplicaName { address: "10.0.0.1:9000".parse().unwrap(), rank })
    };
    let incarnation =
        |world: &World, handle| world.node.engines()[&handle].description().map(|it| it.incarnation.clone());
    let [slow, down] = [0, 1].map(|rank| world.node.add_engine(config(rank), world.now, UNIX_MS));
    for handle in [slow, down] {
        world.node.engine(handle).unwrap().on_scrape_failed("refused".to_owned(), true, world.now);
        assert_eq!(incarnation(&world, handle), None);
    }
    world.now += Duration::from_secs(1);
    let metrics = Metrics::parse(METRICS, 0);
    let now = world.now;
    world.node.engine(slow).unwrap().on_metrics(metrics, now, now, UNIX_MS);
    assert_eq!(incarnation(&world, slow).as_deref(), Some("started-1"));
    world.now = world.node.engines()[&down].due().unwrap();
    assert_eq!(world.now - now, Duration::from_secs(1));
    world.node.on_time(down, world.now, UNIX_MS);
    assert_eq!(incarnation(&world, down).as_deref(), Some(""));
    // What is known once stays.
    world.node.engine(slow).unwrap().on_scrape_failed("refused".to_owned(), true, world.now);
    assert_eq!(incarnation(&world, slow).as_deref(), Some("started-1"));
}

#[test]
fn what_went_lost_is_looked_for_while_there_is_a_connection() {
    let mut world = World::new(0);
    let name = ReplicaName { address: "10.0.0.1:9000".parse().unwrap(), rank: 0 };
    let config = Config { replay: true, ..Config::new(name) };
    let handle = world.node.add_engine(config, world.now, UNIX_MS);
    let end = || vec![Vec::new(), Vec::new(), vec![0xff; 8], Vec::new()];
    let start = world.now;
    let engine = world.node.engine(handle).unwrap();
    engine.on_connected(start);
    let id = engine.take_replay_request().unwrap().id;
    let mut asked = Vec::new();
    let mut wait = |engine: &mut Engine| {
        let (due, request) = loop {
            let due = engine.due().unwrap();
            engine.on_time(due, UNIX_MS);
            let _change = engine.take_change(due);
            if let Some(request) = engine.take_replay_request() {
                break (due, request);
            }
            assert!(due < start + Duration::from_secs(3_600), "it never asks");
            if due >= start + Duration::from_secs(2) {
                engine.on_replay(id, end(), due, UNIX_MS).unwrap();
            }
        };
        asked.push((due - start).as_secs());
        (due, request.id)
    };
    // The first replay is long, which delays the second look and does not end it.
    let (due, id) = wait(engine);
    engine.on_replay(id, end(), due, UNIX_MS).unwrap();
    for _ in 0..2 {
        let (due, id) = wait(engine);
        engine.on_replay_failed(id, "silent", due, UNIX_MS);
    }
    let (due, id) = wait(engine);
    engine.on_replay(id, end(), due, UNIX_MS).unwrap();
    let (due, _) = wait(engine);
    assert_eq!(asked, [3, 33, 38, 48, 78]);
    engine.on_disconnected(due, UNIX_MS);
    engine.on_time(due + Duration::from_secs(3_600), UNIX_MS);
    assert_eq!(engine.take_replay_request(), None);
}

#[test]
fn texts_of_an_engine_are_bounded() {
    let mut world = World::new(1);
    let handle = world.engines[0].0;
    let long = "x".repeat(5 << 20);
    // A map with hashes, tokens, block size and a kind.
    let mut payload = b"\x93\x00\x91\x85\xa4type\xabBlockStored\xacblock_hashes\x91\x01\xa9token_ids\x91\x07\xaablock_size\x01".to_vec();
    payload.extend_from_slice(b"\xb2kv_cache_spec_kind\xdb");
    payload.extend_from_slice(&u32::try_from(long.len()).unwrap().to_be_bytes());
    payload.extend_from_slice(long.as_bytes());
    payload.push(0);
    let engine = world.node.engine(handle).unwrap();
    engine.on_frames(vec![Vec::new(), vec![0; 8], payload], world.now, UNIX_MS).unwrap();
    let adapter = |name: &str, path: &str| Adapter { name: name.to_owned(), path: path.to_owned() };
    engine.on_models(Models {
        models: (0..2_000).map(|it| it.to_string()).chain([long.clone()]).collect(),
        adapters: vec![adapter("a", "/a"), adapter("b", &long), adapter(&long, "/c")],
        max_model_len: 1,
    });
    engine.on_version(long);
    let it = engine.description().unwrap();
    assert_eq!((it.groups.len(), it.groups[0].kind.as_str()), (1, ""));
    assert_eq!((it.models.len(), &it.adapters[..]), (1_024, &[adapter("a", "/a")][..]));
    assert_eq!(it.engine_version, "");
    assert_eq!(engine.counts().long_texts, 6);
    assert_eq!(engine.mirror().len(), 1, "its blocks are held all the same");
}

#[test]
fn half_a_history_is_not_announced() {
    let mut world = World::new(0);
    let name = ReplicaName { address: "10.0.0.1:9000".parse().unwrap(), rank: 0 };
    let config = Config { replay: true, ..Config::new(name) };
    let handle = world.node.add_engine(config, world.now, UNIX_MS);
    let mut wire = Wire::new(0);
    let end = vec![Vec::new(), Vec::new(), vec![0xff; 8], Vec::new()];
    let mut now = world.now;
    let engine = world.node.engine(handle).unwrap();
    engine.on_connected(now);
    let id = engine.take_replay_request().unwrap().id;
    engine.on_replay(id, wire.stored(1, 0, 2), now, UNIX_MS).unwrap();
    assert_eq!((engine.flush_due(), engine.take_change(now)), (None, None));
    engine.on_replay(id, end.clone(), now, UNIX_MS).unwrap();
    assert_eq!(engine.take_change(now).unwrap().applied, Some(0));
    // It restarts: that its blocks went is told at once, those of the next one once all are there.
    wire.restart();
    engine.on_disconnected(now, UNIX_MS);
    engine.on_connected(now);
    let id = engine.take_replay_request().unwrap().id;
    engine.on_replay(id, end.clone(), now, UNIX_MS).unwrap();
    let id = engine.take_replay_request().unwrap().id;
    engine.on_replay(id, wire.stored(2, 0, 2), now, UNIX_MS).unwrap();
    now = engine.flush_due().unwrap();
    assert_eq!(engine.take_change(now), Some(Change { steps: vec![Step::Cleared], applied: None }));
    assert_eq!((engine.flush_due(), engine.take_change(now)), (None, None));
    engine.on_replay(id, wire.removed(2, 1, 1), now, UNIX_MS).unwrap();
    engine.on_replay(id, end, now, UNIX_MS).unwrap();
    let change = engine.take_change(now).unwrap();
    let Step::Gained { keys, .. } = &change.steps[0] else { panic!("{change:?}") };
    assert_eq!((keys.len(), change.applied), (1, Some(1)));
}
