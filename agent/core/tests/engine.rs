//! What becomes of an engine's events and answers.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod world;

use std::{collections::BTreeSet, time::Duration};

use kvpick_agent_core::engine::{FLUSH_EVERY, Models};
use kvpick_proto::words::{AgentMessage, Completeness, EngineStatus, Events};
use world::{METRICS, UNIX_MS, World};

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
    assert!(world.node.on_time(handle, world.now));
    assert_eq!(engine(&world), None);
    world.store(0, 1, 1, 1);
    assert_eq!(engine(&world), Some(first + FLUSH_EVERY));
    world.now += Duration::from_millis(100);
    assert!(!world.node.on_time(handle, world.now));
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
    world.node.on_time(handle, world.now);
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
