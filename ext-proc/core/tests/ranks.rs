//! Data-parallel ranks behind one address: which rank is named, and who comes second.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use std::time::Instant;

use kvpick_core::{
    feed::StreamId,
    outcome::{Reason, Tier},
    pick::{self, Ask, Pick},
    replicas::{ReplicaSpec, canonical_domain},
    reply::Destination,
    request::honours_rank,
    world::{Ticket, World},
};
use kvpick_proto::{
    naming::BlockKey,
    words::{AgentMessage, Description, Handle, ReplicaName},
};
use rig::{BLOCK, connect, copy, description, gained, keys, ms, name, prompt, spec, start, world};

fn ranked(port: u16, rank: u32) -> ReplicaName {
    ReplicaName { rank, ..name(port) }
}

/// These replicas, of node `a`.
fn of(names: &[ReplicaName], now: Instant) -> (World, StreamId) {
    let spec = |it: &ReplicaName| ReplicaSpec { name: *it, ..spec(0, "a", &["m"]) };
    let mut world = world(names.iter().map(spec).collect(), now);
    let stream = connect(&mut world, "a", 1, now);
    (world, stream)
}

fn report(world: &mut World, stream: StreamId, name: ReplicaName, keys: &[BlockKey], now: Instant) {
    let handle = u32::from(name.address.port()) * 100 + name.rank;
    let it = Description { name, rank_by_header: true, ..description(0, Some(canonical_domain())) };
    world.on_message(stream, AgentMessage::Describe(Handle(handle), Box::new(it)), now).unwrap();
    world.on_message(stream, copy(handle, vec![gained(keys)], Some(0)), now).unwrap();
}

/// A pick for a prompt on a route that takes a rank, or on one that does not.
fn pick(world: &mut World, tokens: &[u32], honours_rank: bool, now: Instant) -> (Pick, Option<Ticket>) {
    let plan = world.plan(Some("m"));
    let prompts = [tokens.to_vec().into()];
    let chains = pick::chain(plan.namings.clone(), &prompts, None);
    let ask = Ask {
        model: Some("m"),
        prompts: Ok(&prompts),
        reads_cache: true,
        honours_rank,
        made: None,
        distrusted: false,
    };
    world.pick(&plan, &ask, &chains, now)
}

fn names(world: &World, pick: &Pick) -> Vec<ReplicaName> {
    pick.replicas.iter().map(|it| world.replicas[*it].spec.name).collect()
}

#[test]
fn the_rank_that_holds_the_prompt_is_named_and_another_address_comes_second() {
    let now = start();
    let all = [ranked(1, 0), ranked(1, 1), ranked(1, 2), ranked(2, 0), ranked(2, 1)];
    let (mut world, stream) = of(&all, now);
    let tokens = prompt(1, 200);
    for it in all {
        let held = if it == ranked(1, 1) { keys(&tokens) } else { Vec::new() };
        report(&mut world, stream, it, &held, now);
    }
    let (pick, _) = pick(&mut world, &tokens, true, now);
    assert_eq!((pick.tier, pick.reason, pick.rank), (Tier::Precise, Reason::OK, Some(1)));
    assert_eq!(pick.predicted_tokens, 12 * BLOCK as u64);
    let names = names(&world, &pick);
    assert_eq!(names[0], ranked(1, 1));
    assert_eq!(Destination::new(&names, 2).unwrap().as_str(), "127.0.0.1:1,127.0.0.1:2");
}

#[test]
fn who_has_no_such_rank_comes_second_only_if_nobody_has() {
    let now = start();
    let tokens = prompt(1, 200);
    let second = |others: &[ReplicaName]| {
        let holder = ranked(1, 1);
        let (mut world, stream) = of(&[&[ranked(1, 0), holder], others].concat(), now);
        for it in others {
            report(&mut world, stream, *it, &keys(&tokens)[..8], now);
        }
        report(&mut world, stream, ranked(1, 0), &[], now);
        report(&mut world, stream, holder, &keys(&tokens), now);
        let (pick, _) = pick(&mut world, &tokens, true, now);
        let names = names(&world, &pick);
        assert_eq!(names[0], holder);
        names.get(1).map(|it| it.address.port())
    };
    assert_eq!(second(&[ranked(2, 0), ranked(3, 0), ranked(3, 1)]), Some(3));
    assert_eq!(second(&[ranked(2, 0)]), Some(2));
    assert_eq!(second(&[]), None, "another rank fails with it");
}

#[test]
fn where_ranks_are_not_honoured_none_is_named_and_nothing_predicted() {
    let now = start();
    let (mut world, stream) = of(&[ranked(1, 0), ranked(1, 1)], now);
    let tokens = prompt(1, 200);
    for rank in [0, 1] {
        report(&mut world, stream, ranked(1, rank), &keys(&tokens), now);
    }
    let (first, ticket) = pick(&mut world, &tokens, false, now);
    assert_eq!((first.tier, first.reason), (Tier::Load, Reason::RANK_NOT_HONOURED));
    assert_eq!((first.rank, first.predicted_tokens, first.block_size), (None, 0, 0));
    assert_eq!(first.replicas.len(), 1, "the address once");
    // As the engine itself would do it, the other rank is next; what is under way counts per rank.
    let (other, _) = pick(&mut world, &tokens, false, now);
    assert_ne!(other.replicas, first.replicas);
    world.finish(ticket.unwrap(), now);
    assert_eq!(pick(&mut world, &tokens, false, now).0.replicas, first.replicas);
}

#[test]
fn nobody_knows_what_a_rank_holds_that_the_engine_has_chosen() {
    let now = start();
    let (mut world, stream) = of(&[ranked(1, 0), ranked(1, 1)], now);
    for rank in [0, 1] {
        report(&mut world, stream, ranked(1, rank), &[], now);
    }
    let tokens = prompt(1, 200);
    let mut predicted = |honours_rank, at| {
        let (pick, ticket) = pick(&mut world, &tokens, honours_rank, at);
        world.finish(ticket.unwrap(), at);
        pick.predicted_tokens
    };
    predicted(false, now);
    assert_eq!(predicted(true, now + ms(1_000)), 0, "nothing is expected of either");
    assert_eq!(predicted(true, now + ms(2_000)), 12 * BLOCK as u64, "it is of the one that was named");
}

#[test]
fn ranks_that_no_agent_speaks_of_are_named_too() {
    let now = start();
    let (mut world, _) = of(&[ranked(1, 0), ranked(1, 1), ranked(2, 0)], now);
    let mut named: Vec<_> = (0..3)
        .map(|i| {
            let (pick, _) = pick(&mut world, &prompt(i, 20), true, now);
            (names(&world, &pick)[0], pick.rank)
        })
        .collect();
    named.sort_unstable();
    assert_eq!(named, [(ranked(1, 0), Some(0)), (ranked(1, 1), Some(1)), (ranked(2, 0), None)]);
}

#[test]
fn the_routes_that_take_a_rank() {
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages"] {
        assert!(honours_rank(path), "{path}");
    }
    for path in ["/v1/responses", "/v1/embeddings", "/pooling", "/v1/messages/count_tokens", "/v1/", ""] {
        assert!(!honours_rank(path), "{path}");
    }
}
