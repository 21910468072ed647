//! What servers are told, by whom they are served, and in which order.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod world;

use std::time::Duration;

use kvpick_agent_core::{
    engine::Config,
    load::Metrics,
    peer::{PeerError, State},
};
use kvpick_proto::words::{
    AgentMessage, Completeness, EngineStatus, Events, Handle, InFlight, KEYS_PER_MESSAGE, PROTOCOL,
    ReplicaName, ServerMessage, Step, Welcome,
};
use world::{METRICS, UNIX_MS, World, wire::Wire};

fn changes(messages: &[AgentMessage]) -> Vec<Handle> {
    let of = |it: &AgentMessage| match it {
        AgentMessage::Change(handle, _) => Some(*handle),
        _ => None,
    };
    messages.iter().filter_map(of).collect()
}

#[test]
fn hello_welcome_describe_accepted_copy_change() {
    let mut world = World::new(1);
    let handle = world.engines[0].0;
    world.store(0, 1, 0, 3);
    world.flush();
    let id = world.open();
    assert!(matches!(&world.hear(id)[..], [AgentMessage::Hello(_)]));
    world.say(id, ServerMessage::Welcome(Welcome { protocol: PROTOCOL, server: "s".to_owned() }));
    let said = world.hear(id);
    let [AgentMessage::Describe(_, description)] = &said[..] else { panic!("{said:?}") };
    assert_eq!(description.status, EngineStatus::Up);
    assert_eq!(description.events, Events::Live);
    assert_eq!(description.completeness, Completeness::Complete);
    assert_eq!(description.incarnation, "started-1");
    assert_eq!(world.node.peer(id).unwrap().state(handle), State::Awaiting);
    world.say(id, ServerMessage::Accepted(handle));
    let said = world.hear(id);
    let [AgentMessage::Load(..), AgentMessage::Copy(_, chunk)] = &said[..] else { panic!("{said:?}") };
    assert!(chunk.first && chunk.last);
    assert_eq!(chunk.applied, Some(0));
    world.store(0, 1, 3, 1);
    assert_eq!(changes(&world.hear(id)), [], "not announced yet");
    world.assert_in_step(id);
    assert_eq!(world.node.peer(id).unwrap().state(handle), State::InStep { behind: 0 });
}

#[test]
fn no_copy_delays_another_replicas_changes() {
    let mut world = World::new(3);
    let id = world.server();
    let per_message = KEYS_PER_MESSAGE as u64;
    world.store(0, 1, 0, 4 * per_message);
    world.store(1, 2, 0, 4 * per_message);
    world.assert_in_step(id);
    for index in [0, 1] {
        world.say(id, ServerMessage::CopyRequest(world.engines[index].0));
    }
    world.store(2, 3, 0, 1);
    world.flush();
    // One round for its description, which says that it is heard, and one for the change.
    (0..6).for_each(|_| assert!(world.hear_one(id)));
    let said = &world.servers[&id].said;
    assert_eq!(changes(&said[said.len() - 6..]), [world.engines[2].0]);
    let is_last =
        |it: &AgentMessage| matches!(it, AgentMessage::Copy(_, chunk) if chunk.last && !chunk.first);
    assert!(!said.iter().any(is_last), "no copy is through yet");
    world.assert_in_step(id);
}

#[test]
fn messages_stay_below_their_bound() {
    let mut world = World::new(1);
    let id = world.server();
    world.store(0, 1, 0, 3 * KEYS_PER_MESSAGE as u64);
    world.assert_in_step(id);
    world.say(id, ServerMessage::CopyRequest(world.engines[0].0));
    world.assert_in_step(id);
    let mut messages = 0;
    for message in &world.servers[&id].said {
        let steps = match message {
            AgentMessage::Change(_, change) => &change.steps,
            AgentMessage::Copy(_, chunk) => &chunk.steps,
            _ => continue,
        };
        messages += 1;
        let keys = |step: &Step| match step {
            Step::Gained { keys, .. } | Step::Lost { keys, .. } => keys.len(),
            Step::Cleared => 0,
        };
        assert!(steps.iter().map(keys).sum::<usize>() <= KEYS_PER_MESSAGE);
    }
    assert!(messages >= 6, "{messages}");
}

#[test]
fn a_slow_server_costs_no_memory() {
    let mut world = World::new(1);
    let id = world.server();
    let handle = world.engines[0].0;
    // Blocks come and go while the server takes nothing: that cancels.
    for round in 0..50 {
        world.store(0, round, 0, 20);
        world.flush();
        let (_, wire) = &mut world.engines[0];
        let frames = wire.removed(round, 0, 20);
        world.node.engine(handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
        world.flush();
    }
    assert_eq!(world.node.peer(id).unwrap().state(handle), State::InStep { behind: 0 });
    // Past the size of the mirror a copy is shorter.
    world.store(0, 100, 0, 3_000);
    world.assert_in_step(id);
    let (_, wire) = &mut world.engines[0];
    let frames = wire.removed(100, 0, 2_990);
    world.node.engine(handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
    world.flush();
    assert_eq!(world.node.peer(id).unwrap().state(handle), State::Copying);
    world.assert_in_step(id);
    assert_eq!(world.node.peer(id).unwrap().copies(), 2);
}

#[test]
fn refused_until_the_server_asks() {
    let mut world = World::new(2);
    let id = world.open();
    world.say(id, ServerMessage::Welcome(Welcome { protocol: PROTOCOL, server: "s".to_owned() }));
    world.hear(id);
    let [taken, refused] = [world.engines[0].0, world.engines[1].0];
    world.say(id, ServerMessage::Accepted(taken));
    world.say(id, ServerMessage::Refused(refused, "not yours".to_owned()));
    world.store(1, 1, 0, 2);
    world.flush();
    let about_refused = |it: &AgentMessage| matches!(it, AgentMessage::Copy(h, _) | AgentMessage::Load(h, _) if *h == refused);
    assert!(!world.hear(id).iter().any(about_refused));
    assert_eq!(world.node.peer(id).unwrap().state(refused), State::Refused("not yours".to_owned()));
    world.say(id, ServerMessage::CopyRequest(refused));
    world.assert_in_step(id);
}

#[test]
fn loads_go_on_change_and_each_second_with_their_age() {
    let mut world = World::new(1);
    let id = world.server();
    let loads = |said: Vec<AgentMessage>| -> Vec<_> {
        let load = |it| match it {
            AgentMessage::Load(_, load) => Some((load.running, load.age)),
            _ => None,
        };
        said.into_iter().filter_map(load).collect()
    };
    world.scrape(0, METRICS);
    assert_eq!(loads(world.hear(id)), []);
    world.now += Duration::from_millis(100);
    world.scrape(0, "process_start_time_seconds 1\nvllm:num_requests_running 4\n");
    world.now += Duration::from_millis(7);
    assert_eq!(loads(world.hear(id)), [(4, Duration::from_millis(7))]);
    world.now = world.node.peer(id).unwrap().due(world.now);
    world.now += Duration::from_millis(100);
    assert_eq!(loads(world.hear(id)).len(), 1);
    // A failed scrape says nothing of it.
    let engine = world.node.engine(world.engines[0].0).unwrap();
    engine.on_scrape_failed("connection refused".to_owned(), true, world.now);
    world.now += Duration::from_secs(2);
    let said = world.hear(id);
    assert!(
        said.iter().any(|it| matches!(it, AgentMessage::Describe(_, it) if it.status == EngineStatus::Down)),
        "{said:?}"
    );
    assert_eq!(loads(said), []);
}

#[test]
fn each_server_learns_what_the_others_have_in_flight() {
    let mut world = World::new(1);
    let [a, b, c] = [world.server(), world.server(), world.server()];
    let handle = world.engines[0].0;
    let flight = |requests| InFlight { requests, uncached_prefill_tokens: u64::from(requests) * 100 };
    world.say(a, ServerMessage::InFlight(handle, flight(1)));
    world.say(b, ServerMessage::InFlight(handle, flight(2)));
    let others = |said: Vec<AgentMessage>| -> Vec<_> {
        let of = |it| match it {
            AgentMessage::Others(_, others) => Some(others),
            _ => None,
        };
        said.into_iter().filter_map(of).collect()
    };
    assert_eq!(others(world.hear(a)), [flight(2)]);
    assert_eq!(others(world.hear(b)), [flight(1)]);
    assert_eq!(others(world.hear(c)), [flight(3)]);
    // Not more often than is of use, and then the latest.
    world.say(a, ServerMessage::InFlight(handle, flight(7)));
    world.say(a, ServerMessage::InFlight(handle, flight(8)));
    assert_eq!(others(world.hear(c)), []);
    world.now = world.node.peer(c).unwrap().due(world.now);
    assert_eq!(others(world.hear(c)), [flight(10)]);
    // Who is gone has nothing in flight.
    world.node.close(b);
    world.now += Duration::from_millis(50);
    assert_eq!(others(world.hear(c)), [flight(8)]);
}

#[test]
fn heartbeats_and_silence() {
    let mut world = World::new(0);
    let id = world.server();
    assert_eq!(world.hear(id), []);
    world.now += Duration::from_secs(1);
    assert_eq!(world.hear(id), [AgentMessage::Heartbeat]);
    assert!(!world.node.peer(id).unwrap().is_silent(world.now));
    world.now += Duration::from_secs(2);
    assert!(world.node.peer(id).unwrap().is_silent(world.now));
    world.say(id, ServerMessage::Heartbeat);
    assert!(!world.node.peer(id).unwrap().is_silent(world.now));
}

#[test]
fn a_server_begins_with_a_welcome_in_this_protocol() {
    let mut world = World::new(1);
    let now = world.now;
    let id = world.open();
    let welcome = |protocol| ServerMessage::Welcome(Welcome { protocol, server: String::new() });
    assert_eq!(world.node.on_message(id, ServerMessage::Heartbeat, now), Err(PeerError::Welcome));
    assert_eq!(world.node.on_message(id, welcome(99), now), Err(PeerError::Protocol(99)));
    assert_eq!(world.node.on_message(id, welcome(PROTOCOL), now), Ok(false));
    assert_eq!(world.node.on_message(id, welcome(PROTOCOL), now), Err(PeerError::Welcome));
    // Of a replica that this stream does not have.
    assert_eq!(world.node.on_message(id, ServerMessage::CopyRequest(Handle(9)), now), Ok(false));
}

#[test]
fn a_copy_waits_until_a_replay_has_ended() {
    let mut world = World::new(1);
    let name = ReplicaName { address: "10.0.0.1:9000".parse().unwrap(), rank: 0 };
    let config = Config { replay: true, ..Config::new(name) };
    let handle = world.node.add_engine(config, world.now, UNIX_MS);
    world.engines.push((handle, Wire::new(9)));
    world.scrape(1, METRICS);
    let id = world.server();
    let copied =
        |said: &[AgentMessage]| said.iter().any(|it| matches!(it, AgentMessage::Copy(h, _) if *h == handle));
    assert!(!copied(&world.servers[&id].said));
    let (now, (_, wire)) = (world.now, &mut world.engines[1]);
    let engine = world.node.engine(handle).unwrap();
    engine.on_connected(now);
    let request = engine.take_replay_request().unwrap();
    assert_eq!(request.from, 0);
    let mut frames = wire.stored(1, 0, 3);
    frames.insert(0, Vec::new());
    engine.on_replay(request.id, frames, now, UNIX_MS).unwrap();
    assert!(!copied(&world.hear(id)));
    let description = |world: &World| world.node.engines()[&handle].description().unwrap().clone();
    assert_ne!(description(&world).completeness, Completeness::Complete, "its history is not through");
    let end = vec![Vec::new(), Vec::new(), vec![0xff; 8], Vec::new()];
    world.node.engine(handle).unwrap().on_replay(request.id, end, now, UNIX_MS).unwrap();
    assert!(!copied(&world.hear(id)), "nothing of it is announced, and a copy would be empty");
    assert_eq!(description(&world).completeness, Completeness::Complete);
    world.flush();
    let said = world.hear(id);
    let is_whole = |it: &AgentMessage| matches!(it, AgentMessage::Copy(_, chunk) if chunk.applied == Some(0));
    assert!(copied(&said) && said.iter().any(is_whole));
    world.assert_in_step(id);
    // One whose events do not come up is copied as it is, which is empty.
    let config = Config { replay: true, ..Config::new(ReplicaName { rank: 1, ..name }) };
    let down = world.node.add_engine(config, world.now, UNIX_MS);
    let (now, metrics) = (world.now, Metrics::parse(METRICS, 0));
    world.node.engine(down).unwrap().on_metrics(metrics, now, now, UNIX_MS);
    world.hear(id);
    world.say(id, ServerMessage::Accepted(down));
    let copied =
        |said: &[AgentMessage]| said.iter().any(|it| matches!(it, AgentMessage::Copy(h, _) if *h == down));
    assert!(!copied(&world.hear(id)));
    world.now = world.node.engines()[&down].due().unwrap();
    world.node.on_time(down, world.now, UNIX_MS);
    assert!(copied(&world.hear(id)));
}
