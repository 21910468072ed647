//! Who may say what of which replica, and what becomes of it when they fall silent.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use kvpick_core::{
    feed::{Close, Note},
    health::Failure,
    replicas::{Knowledge, canonical_domain},
};
use kvpick_proto::words::{
    AgentMessage, Change, CopyChunk, EngineStatus, Events, Handle, InFlight, ServerMessage, Step,
};
use rig::{
    change, connect, copy, describe, description, gained, hello, keys, lost, ms, name, prompt, replica,
    report, spec, start, world,
};

#[test]
fn an_agent_describes_its_own_replicas_only() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"]), spec(2, "b", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let blocks = keys(&prompt(1, 64));
    for _ in 0..3 {
        describe(&mut world, stream, description(2, Some(canonical_domain())), now);
        world.on_message(stream, copy(2, vec![gained(&blocks)], Some(0)), now).unwrap();
    }
    assert_eq!(replica(&world, 2).knowledge, Knowledge::None);
    assert!(replica(&world, 2).holdings.is_empty());
    let said = world.poll_stream(stream, now).unwrap();
    assert!(
        matches!(&said[0], ServerMessage::Refused(Handle(2), reason) if reason.contains("node b")),
        "{said:?}"
    );
    let refusals = world.on_time(now).into_iter().filter(|it| matches!(it, Note::Refused { .. })).count();
    assert_eq!(refusals, 1, "said once, however often it is tried");

    report(&mut world, stream, 1, &blocks, now);
    assert_eq!(replica(&world, 1).knowledge, Knowledge::Live);
    assert_eq!(replica(&world, 1).holdings.len(), 4);
}

#[test]
fn replicas_that_are_not_configured_are_refused() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    describe(&mut world, stream, description(9, None), now);
    let said = world.poll_stream(stream, now).unwrap();
    assert!(
        matches!(&said[0], ServerMessage::Refused(Handle(9), reason) if reason.contains("replicas")),
        "{said:?}"
    );
}

#[test]
fn changes_are_applied_in_order_and_carry_the_sequence() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &[], now);
    let blocks = keys(&prompt(1, 64));
    let steps = vec![gained(&blocks[..3]), lost(&blocks[1..2]), Step::Cleared, gained(&blocks[3..])];
    world.on_message(stream, change(1, steps, 17), now).unwrap();
    assert_eq!(replica(&world, 1).holdings.len(), 1);
    assert_eq!(replica(&world, 1).applied, Some(17));
}

#[test]
fn a_clear_takes_the_sequence_back() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &[], now);
    world.on_message(stream, change(1, vec![gained(&keys(&prompt(1, 64)))], 499), now).unwrap();
    let cleared = Change { steps: vec![Step::Cleared], applied: None };
    world.on_message(stream, AgentMessage::Change(Handle(1), cleared), now).unwrap();
    assert_eq!(replica(&world, 1).applied, None);
    let nothing = Change { steps: Vec::new(), applied: Some(3) };
    world.on_message(stream, AgentMessage::Change(Handle(1), nothing), now).unwrap();
    assert_eq!(replica(&world, 1).applied, Some(3));
}

#[test]
fn a_change_without_a_copy_is_not_taken_and_a_copy_is_asked_for() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    describe(&mut world, stream, description(1, None), now);
    world.on_message(stream, change(1, vec![gained(&keys(&prompt(1, 64)))], 3), now).unwrap();
    let chunk = CopyChunk { first: false, last: true, steps: Vec::new(), applied: None };
    world.on_message(stream, AgentMessage::Copy(Handle(1), chunk), now).unwrap();
    assert!(replica(&world, 1).holdings.is_empty());
    let said = world.poll_stream(stream, now).unwrap();
    let asked = said.iter().filter(|it| **it == ServerMessage::CopyRequest(Handle(1))).count();
    assert_eq!(asked, 2, "{said:?}");
}

#[test]
fn a_silent_agents_word_counts_half_then_not_at_all() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &keys(&prompt(1, 64)), now);
    assert_eq!(replica(&world, 1).trust(), 1.0);
    assert!(world.poll_stream(stream, now + ms(3_000)).is_ok());
    assert_eq!(world.poll_stream(stream, now + ms(3_001)), Err(Close::Silent));
    world.close_stream(stream, now + ms(3_001));
    assert_eq!(replica(&world, 1).trust(), 0.5);
    assert_eq!(replica(&world, 1).holdings.len(), 4);
    assert!(world.on_time(now + ms(8_001)).iter().all(|it| !matches!(it, Note::Emptied { .. })));
    assert!(world.on_time(now + ms(8_002)).contains(&Note::Emptied { replica: name(1) }));
    assert_eq!(replica(&world, 1).knowledge, Knowledge::Emptied);
    assert!(replica(&world, 1).holdings.is_empty());
}

#[test]
fn a_newer_stream_takes_over_at_once_and_the_older_is_closed() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let old = connect(&mut world, "a", 1, now);
    report(&mut world, old, 1, &keys(&prompt(1, 64)), now);
    let new = connect(&mut world, "a", 2, now);
    assert_eq!(world.on_message(old, AgentMessage::Heartbeat, now), Err(Close::Superseded("a".to_owned())));
    world.close_stream(old, now);

    describe(&mut world, new, description(1, Some(canonical_domain())), now);
    assert_eq!(replica(&world, 1).holdings.len(), 4, "what was known stands until the copy is whole");
    world.on_time(now + ms(29_000));
    assert_eq!(replica(&world, 1).holdings.len(), 4, "and that may take its time");
    let first =
        CopyChunk { first: true, last: false, steps: vec![gained(&keys(&prompt(2, 32)))], applied: None };
    world.on_message(new, AgentMessage::Copy(Handle(1), first), now + ms(29_000)).unwrap();
    world.on_time(now + ms(31_000));
    assert_eq!(replica(&world, 1).holdings.len(), 0, "but not for ever");
    let last = CopyChunk { first: false, last: true, steps: Vec::new(), applied: Some(5) };
    world.on_message(new, AgentMessage::Copy(Handle(1), last), now + ms(32_000)).unwrap();
    assert_eq!(replica(&world, 1).holdings.len(), 2);
    assert_eq!(replica(&world, 1).knowledge, Knowledge::Live);
}

#[test]
fn coming_back_again_and_again_makes_no_word_younger() {
    let start = start();
    let mut world = world(vec![spec(1, "a", &["m"])], start);
    let mut stream = connect(&mut world, "a", 1, start);
    report(&mut world, stream, 1, &keys(&prompt(1, 64)), start);
    for i in 1..=4 {
        let now = start + ms(2_000 * i);
        world.close_stream(stream, now);
        assert!(!replica(&world, 1).holdings.is_empty(), "{i}");
        stream = connect(&mut world, "a", 1 + i, now);
        describe(&mut world, stream, description(1, Some(canonical_domain())), now);
    }
    world.close_stream(stream, start + ms(8_000));
    world.on_time(start + ms(8_000));
    assert!(replica(&world, 1).holdings.is_empty(), "6 s after its last word");
}

#[test]
fn a_handle_that_changes_hands_leaves_nobody_live() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"]), spec(2, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &keys(&prompt(1, 64)), now);
    let other = AgentMessage::Describe(Handle(1), Box::new(description(2, None)));
    world.on_message(stream, other, now).unwrap();
    assert_eq!(replica(&world, 1).knowledge, Knowledge::Stale { since: now });
    assert_eq!(replica(&world, 2).knowledge, Knowledge::AwaitingCopy);
}

#[test]
fn an_engine_that_sleeps_is_not_woken_by_a_probe() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let asleep = kvpick_proto::words::Description { status: EngineStatus::Asleep, ..description(1, None) };
    describe(&mut world, stream, asleep, now);
    assert!(world.on_time(now).contains(&Note::Out { replica: name(1), how: Failure::Agent }));
    let id = world.replicas.find(&name(1)).unwrap();
    assert!(world.take_probes(now + ms(60_000)).is_empty());
    assert!(!world.on_answer(id, now), "an answer that was on its way");
    // An agent that is gone keeps nobody asleep.
    world.close_stream(stream, now);
    assert_eq!(world.take_probes(now + ms(60_000)), [id]);
    assert!(world.on_answer(id, now));
}

#[test]
fn an_older_stream_does_not_take_over() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    connect(&mut world, "a", 5, now);
    for epoch in [4, 5] {
        let late = world.open_stream(now);
        assert_eq!(world.on_message(late, hello("a", epoch), now), Err(Close::Superseded("a".to_owned())));
        world.close_stream(late, now);
    }
    assert_eq!(world.feed.nodes().into_iter().collect::<Vec<_>>(), [("a", 5)]);
}

#[test]
fn another_incarnation_inherits_nothing() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &keys(&prompt(1, 64)), now);
    let reborn = kvpick_proto::words::Description {
        incarnation: "second".to_owned(),
        ..description(1, Some(canonical_domain()))
    };
    describe(&mut world, stream, reborn, now);
    assert!(replica(&world, 1).holdings.is_empty());
    assert_eq!(replica(&world, 1).applied, None);
    world.on_message(stream, change(1, vec![gained(&keys(&prompt(2, 32)))], 0), now).unwrap();
    assert_eq!(replica(&world, 1).holdings.len(), 2, "the stream goes on with changes");
}

#[test]
fn an_incarnation_that_nobody_knows_is_no_other_one() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &keys(&prompt(1, 64)), now);
    for (incarnation, blocks) in [("", 4), ("first", 4), ("", 4), ("second", 0)] {
        let described = kvpick_proto::words::Description {
            incarnation: incarnation.to_owned(),
            ..description(1, Some(canonical_domain()))
        };
        describe(&mut world, stream, described, now);
        assert_eq!(replica(&world, 1).holdings.len(), blocks, "{incarnation:?}");
    }
}

#[test]
fn streams_that_do_not_begin_with_hello_end() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = world.open_stream(now);
    assert_eq!(world.on_message(stream, AgentMessage::Heartbeat, now), Err(Close::HelloOutOfPlace));
    let stream = connect(&mut world, "a", 1, now);
    assert_eq!(world.on_message(stream, hello("a", 2), now), Err(Close::HelloOutOfPlace));
    let stream = world.open_stream(now);
    assert_eq!(world.on_message(stream, hello("", 2), now), Err(Close::NoNode));
}

#[test]
fn one_agent_describes_a_bounded_number_of_replicas() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let mut describe = |handle| {
        let described = AgentMessage::Describe(Handle(handle), Box::new(description(9, None)));
        world.on_message(stream, described, now)
    };
    let end = (0..10_000).find_map(|handle| describe(handle).err());
    assert_eq!(end, Some(Close::TooManyReplicas));
    assert_eq!(describe(0), Ok(()), "one that is known may be described again");
}

#[test]
fn nothing_is_said_before_the_welcome_however_late_the_hello_is() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = world.open_stream(now);
    assert_eq!(world.poll_stream(stream, now + ms(2_000)).unwrap(), []);
    world.on_message(stream, hello("a", 1), now + ms(2_000)).unwrap();
    let said = world.poll_stream(stream, now + ms(2_000)).unwrap();
    assert!(matches!(said[..], [ServerMessage::Welcome(_)]), "{said:?}");
}

#[test]
fn a_stream_is_told_what_is_in_flight_and_that_the_server_lives() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &[], now);
    world.poll_stream(stream, now).unwrap();
    assert_eq!(world.poll_stream(stream, now + ms(999)).unwrap(), []);
    assert_eq!(world.poll_stream(stream, now + ms(1_000)).unwrap(), [ServerMessage::Heartbeat]);
    let (_, ticket) = rig::pick(&mut world, "m", &prompt(1, 100), now + ms(1_000));
    let told = InFlight { requests: 1, uncached_prefill_tokens: 100 };
    assert_eq!(
        world.poll_stream(stream, now + ms(1_000)).unwrap(),
        [ServerMessage::InFlight(Handle(1), told)]
    );
    world.finish(ticket.unwrap(), now + ms(1_100));
    let told = InFlight::default();
    assert_eq!(
        world.poll_stream(stream, now + ms(1_100)).unwrap(),
        [ServerMessage::InFlight(Handle(1), told)]
    );
}

#[test]
fn ready_when_each_replica_has_a_copy_or_a_reason_or_after_a_while() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"]), spec(2, "a", &["m"]), spec(3, "b", &["m"])], now);
    assert_eq!(world.awaited(now).len(), 3);
    let a = connect(&mut world, "a", 1, now);
    report(&mut world, a, 1, &[], now);
    let events = Events::Unavailable { reason: "refused".to_owned(), remedy: "start it".to_owned() };
    describe(&mut world, a, kvpick_proto::words::Description { events, ..description(2, None) }, now);
    assert_eq!(world.awaited(now), ["blocks of 127.0.0.1:3"]);
    assert_eq!(world.awaited(now + ms(5_000)), Vec::<String>::new());
}

#[test]
fn an_engine_that_is_down_by_its_agents_word_is_out() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let down = kvpick_proto::words::Description { status: EngineStatus::Down, ..description(1, None) };
    describe(&mut world, stream, down, now);
    assert!(!replica(&world, 1).health.is_in());
    assert_eq!(world.take_probes(now + ms(999)).len(), 0);
    assert_eq!(world.take_probes(now + ms(1_000)).len(), 1);
    assert_eq!(world.take_probes(now + ms(1_000)).len(), 0, "once per probe");
    describe(&mut world, stream, description(1, None), now + ms(1_200));
    assert_eq!(world.take_probes(now + ms(1_200)).len(), 1, "at once when the agent reaches it again");
}

#[test]
fn an_old_word_that_an_engine_is_down_does_not_outweigh_its_answer() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let down = kvpick_proto::words::Description { status: EngineStatus::Down, ..description(1, None) };
    describe(&mut world, stream, down.clone(), now);
    let probed = world.take_probes(now + ms(1_000));
    assert!(world.on_answer(probed[0], now + ms(1_010)));
    // The agent has learnt something else of it, and has not reached it since.
    describe(
        &mut world,
        stream,
        kvpick_proto::words::Description { num_gpu_blocks: 9, ..down },
        now + ms(1_020),
    );
    assert!(replica(&world, 1).health.is_in());
}

#[test]
fn a_replica_that_its_agent_gives_up_is_unknown() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &keys(&prompt(1, 64)), now);
    world.on_message(stream, AgentMessage::Gone(Handle(1)), now).unwrap();
    assert_eq!(replica(&world, 1).knowledge, Knowledge::None);
    assert!(replica(&world, 1).holdings.is_empty());
}
