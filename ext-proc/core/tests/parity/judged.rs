//! Which requests are judged, when, and by which blocks.

use super::*;

#[test]
fn a_request_is_judged_as_soon_as_all_has_come() {
    let mut rig = Rig::new();
    let tokens = prompt(1, 200);
    let (_, ticket) = rig.send(&Sent::of(tokens.clone()));
    rig.store(&keys(&tokens)[..5]);
    rig.pass(ms(100));
    rig.store(&keys(&tokens)[5..]);
    rig.pass(ms(100));
    assert_eq!(rig.totals(), (0, 0, 0), "it has not answered");
    rig.world.on_success(&ticket, rig.now);
    rig.pass(ms(100));
    assert_eq!(rig.totals(), (1, 12, 0));
    rig.world.finish(ticket, rig.now);
    rig.pass(PATIENCE * 10);
    assert_eq!(rig.totals(), (1, 12, 0), "once");
}

#[test]
fn what_has_not_come_for_long_is_missing() {
    let mut rig = Rig::new();
    let tokens = prompt(1, 200);
    rig.serve(&Sent::of(tokens.clone()));
    rig.store(&keys(&tokens)[..5]);
    rig.pass(PATIENCE - ms(1));
    assert_eq!(rig.totals(), (0, 0, 0));
    rig.pass(ms(1));
    assert_eq!(rig.totals(), (1, 5, 7));
}

#[test]
fn awaited_are_whole_new_blocks_of_the_prompt() {
    // (tokens in the prompt, blocks held before) -> blocks awaited; more than are watched of one request are not.
    for (tokens, held, want) in [
        (15, 0, 0),
        (16, 0, 1),
        (64, 0, 4),
        (79, 0, 4),
        (64, 3, 1),
        (64, 4, 0),
        (79, 4, 0),
        (16 * 100, 0, 32),
        (16 * 100, 90, 10),
    ] {
        let mut rig = Rig::new();
        let tokens = prompt(1, tokens);
        rig.store(&keys(&tokens)[..held]);
        let (_, ticket) = rig.send(&Sent::of(tokens.clone()));
        assert_eq!(ticket.is_watched(), 0 < want);
        rig.world.on_success(&ticket, rig.now);
        rig.store_other();
        rig.pass(PATIENCE);
        assert_eq!(rig.totals(), (u64::from(0 < want), 0, want), "{} tokens, {held} held", tokens.len());
    }
}

#[test]
fn a_replica_that_stores_nothing_at_all_says_nothing() {
    let mut rig = Rig::new();
    rig.store_other();
    rig.serve(&Sent::of(prompt(1, 200)));
    for _ in 0..10 {
        rig.pass(PATIENCE);
    }
    assert_eq!(rig.totals(), (0, 0, 0));
    assert!(rig::replica(&rig.world, 1).watched.is_empty(), "nor is it awaited for ever");

    // Late is not never.
    let tokens = prompt(2, 200);
    rig.serve(&Sent::of(tokens.clone()));
    rig.pass(PATIENCE * 3);
    rig.store(&keys(&tokens));
    rig.pass(ms(100));
    assert_eq!(rig.totals(), (1, 12, 0));
}

#[test]
fn a_block_that_is_evicted_again_was_there() {
    let mut rig = Rig::new();
    let tokens = prompt(1, 200);
    rig.serve(&Sent::of(tokens.clone()));
    rig.say(change(1, vec![gained(&keys(&tokens))], 1));
    rig.say(change(1, vec![lost(&keys(&tokens))], 2));
    rig.pass(ms(100));
    assert_eq!(rig.totals(), (1, 12, 0));

    // What was stored before a request was sent, and evicted, tells nothing of it.
    let tokens = prompt(4, 32);
    let (_, first) = rig.send(&Sent::of(tokens.clone()));
    rig.store(&keys(&tokens)[..1]);
    rig.say(change(1, vec![lost(&keys(&tokens)[..1])], 3));
    rig.serve(&Sent::of(tokens[..16].to_vec()));
    rig.store_other();
    rig.pass(PATIENCE);
    assert_eq!(rig.totals(), (2, 12, 1));
    rig.world.finish(first, rig.now);

    // A cache that is turned over may lose blocks before its agent speaks of them.
    rig.serve(&Sent::of(prompt(2, 200)));
    let others = keys(&prompt(3, 16 * 501));
    rig.store(&others);
    rig.say(change(1, vec![lost(&others)], 3));
    rig.pass(PATIENCE);
    assert_eq!(rig.totals(), (2, 12, 1));
}

#[test]
fn another_request_of_the_same_prompt_confirms_it() {
    let mut rig = Rig::new();
    let sent = Sent::of(prompt(1, 200));
    rig.serve(&sent);
    rig.pass(ms(50));
    rig.serve(&sent);
    rig.store(&keys(&prompt(1, 200)));
    rig.pass(ms(50));
    assert_eq!(rig.totals(), (2, 24, 0));
}

#[test]
fn what_failed_or_was_answered_by_another_is_not_judged() {
    let mut rig = Rig::new();
    let tokens = prompt(1, 200);
    let (_, ticket) = rig.send(&Sent::of(tokens.clone()));
    rig.store(&keys(&tokens));
    rig.world.finish(ticket, rig.now);
    rig.pass(PATIENCE * 10);
    assert_eq!(rig.totals(), (0, 0, 0));
}

fn say(it: Description) -> AgentMessage {
    AgentMessage::Describe(Handle(1), Box::new(it))
}

fn described() -> Description {
    description(1, Some(canonical_domain()))
}

#[test]
fn what_may_have_hidden_a_store_voids_all_that_was_sent_before() {
    type Event = fn(&mut Rig);
    let events: [(&str, Event); 8] = [
        ("the engine has cleared its cache", |rig| rig.say(change(1, vec![Step::Cleared], 9))),
        ("the agent sends a full copy", |rig| rig.say(copy(1, Vec::new(), Some(9)))),
        ("a copy is under way", |rig| {
            let chunk = CopyChunk { first: true, last: false, steps: Vec::new(), applied: None };
            rig.say(AgentMessage::Copy(Handle(1), chunk));
        }),
        ("the agent is gone", |rig| rig.world.close_stream(rig.stream, rig.now)),
        ("the engine is another process", |rig| {
            rig.say(say(Description { incarnation: "second".to_owned(), ..described() }));
        }),
        ("it names its blocks otherwise", |rig| {
            let domain = kvpick_proto::naming::Domain { root: "42".to_owned(), ..canonical_domain() };
            rig.say(say(Description { domain: Some(domain), ..described() }));
        }),
        ("the agent has lost track", |rig| {
            let completeness = Completeness::PartialSince { unix_ms: 1 };
            rig.say(say(Description { completeness, ..described() }));
        }),
        ("the replica is the agent's no more", |rig| rig.say(AgentMessage::Gone(Handle(1)))),
    ];
    for (what, event) in events {
        let mut rig = Rig::new();
        rig.serve(&Sent::of(prompt(1, 200)));
        rig.store_other();
        event(&mut rig);
        if what != "the agent is gone" {
            rig.store_other();
        }
        rig.pass(PATIENCE);
        rig.pass(PATIENCE * 10);
        assert_eq!(rig.totals(), (0, 0, 0), "{what}");
        assert!(rig::replica(&rig.world, 1).watched.is_empty(), "{what}");
    }
}

#[test]
fn only_where_the_agent_tells_all_in_the_engines_names() {
    type Described = Box<dyn Fn(Description) -> Description>;
    let translated = KeyKindStatus { kind: KeyKind::Plain, state: KeyState::Translated };
    let partial = Completeness::PartialSince { unix_ms: 1 };
    let cases: [(&str, Described); 5] = [
        ("partial", Box::new(move |it| Description { completeness: partial, ..it })),
        ("translated", Box::new(move |it| Description { key_kinds: vec![translated.clone()], ..it })),
        ("no events", Box::new(|it| Description { events: Events::Off, ..it })),
        ("no domain", Box::new(|it| Description { domain: None, ..it })),
        ("one rank of several", Box::new(|it| Description { rank_by_header: true, ..it })),
    ];
    for (what, describes) in cases {
        let mut rig = Rig::with(describes);
        let sent = Sent { honours_rank: false, ..Sent::of(prompt(1, 200)) };
        assert!(!rig.send(&sent).1.is_watched(), "{what}");
    }
    let mut rig = Rig::with(|it| Description { rank_by_header: true, ..it });
    assert!(rig.send(&Sent::of(prompt(1, 200))).1.is_watched(), "the rank is named");
    assert!(!rig.send(&Sent { made: None, ..Sent::of(prompt(2, 200)) }).1.is_watched(), "not made here");
}

#[test]
fn of_groups_that_leave_blocks_out_nothing_is_awaited() {
    let group = |index, kind: &str, block_size, sliding_window| Group {
        index,
        kind: kind.to_owned(),
        block_size,
        sliding_window,
    };
    // Of 12 blocks.
    for (groups, want) in [
        (vec![group(0, "full_attention", 16, 0)], 12),
        (vec![group(0, "full_attention", 16, 0), group(1, "sliding_window", 16, 65)], 12),
        (vec![group(0, "full_attention", 32, 0)], 6),
        (vec![group(0, "full_attention", 16, 0), group(1, "mamba", 80, 0)], 10),
        (vec![group(0, "sliding_window", 16, 65)], 0),
        (vec![group(0, "", 16, 0), group(1, "", 16, 0)], 12),
        (vec![group(0, "", 16, 0), group(1, "", 32, 0)], 0),
    ] {
        let shown = format!("{groups:?}");
        let mut rig = Rig::with(|it| Description { groups: groups.clone(), ..it });
        rig.serve(&Sent::of(prompt(1, 200)));
        rig.store_other();
        rig.pass(PATIENCE);
        assert_eq!(rig.totals().2, want, "{shown}");
    }
    // A store counts in whatever group and tier, as its name is right.
    let mut rig = Rig::with(|it| Description { groups: vec![group(0, "full_attention", 32, 0)], ..it });
    rig.serve(&Sent::of(prompt(1, 200)));
    let odd: Vec<_> = keys(&prompt(1, 200)).into_iter().skip(1).step_by(2).collect();
    let place = Place { group: 1, tier: Store::Cpu };
    let steps = vec![Step::Gained { place, parent: None, keys: odd }];
    rig.say(AgentMessage::Change(Handle(1), Change { steps, applied: Some(1) }));
    rig.pass(ms(100));
    assert_eq!(rig.totals(), (1, 6, 0));
}

#[test]
fn an_answer_that_begins_early_proves_no_computed_prompt() {
    let early = Made { answers_early: true, ..CHAT };
    // (samples: seconds after the answer and requests that wait; when the request ends) -> whether it is judged at 20.
    for (samples, end, judged) in [
        (&[][..], 20, false),
        (&[(1, 0)], 20, false),
        (&[(3, 0)], 20, true),
        (&[(3, 5)], 20, false),
        (&[(3, 5), (6, 5), (9, 0)], 20, true),
        (&[(3, 5), (6, 5), (9, 0)], 8, false),
        (&[(3, 0)], 4, true),
        (&[(3, 0)], 2, false),
    ] {
        let mut rig = Rig::new();
        let (_, ticket) = rig.send(&Sent { made: Some(early), ..Sent::of(prompt(1, 200)) });
        rig.world.on_success(&ticket, rig.now);
        rig.store_other();
        let mut ticket = Some(ticket);
        for second in 1..=20 {
            rig.pass(ms(1_000));
            if let Some((_, waiting)) = samples.iter().find(|it| it.0 == second) {
                rig.say(AgentMessage::Load(Handle(1), Load { waiting: *waiting, ..Load::default() }));
            }
            rig.pass(ms(0));
            if let Some(ticket) = ticket.take_if(|_| second == end) {
                rig.world.finish(ticket, rig.now);
            }
        }
        assert_eq!(rig.totals().0 == 1, judged, "{samples:?}, ends at {end}");
    }
}

#[test]
fn few_requests_are_watched_at_a_time() {
    let mut rig = Rig::new();
    let mut watched = 0;
    let mut tickets = Vec::new();
    for _ in 0..100 {
        let tokens = rig.fresh(200);
        let (_, ticket) = rig.send(&Sent::of(tokens));
        watched += usize::from(ticket.is_watched());
        tickets.push(ticket);
    }
    assert_eq!(watched, 64);
    tickets.into_iter().for_each(|it| rig.world.finish(it, rig.now));
    assert!(rig.send(&Sent::of(prompt(1, 200))).1.is_watched(), "there is room again");
}
