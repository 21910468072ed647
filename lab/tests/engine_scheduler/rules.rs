//! vLLM's rules of chunked prefill, admission, queueing and preemption, one by one.

use std::{sync::Arc, time::Duration};

use kvpick_lab::engine::{
    announce::{Adapter, Event},
    cost::{StepCost, StepWork},
    scheduler::{Limits, NewRequest, RequestId},
    version::Version,
};

use crate::world::{LIMITS, World, prompt, request};

/// Ten blocks of four tokens can be used.
const SMALL: Limits = Limits { num_blocks: 11, max_model_len: 40, ..LIMITS };

/// How long a step takes that computes these: (tokens before, tokens, whether past the prompt).
fn took(work: &[(usize, usize, bool)]) -> Duration {
    let mut sum = StepWork::default();
    work.iter().for_each(|(before, count, decode)| sum.add(*before, *count, *decode));
    StepCost::default().duration(sum)
}

fn close(a: Duration, b: Duration) -> bool {
    a.abs_diff(b) < Duration::from_nanos(10)
}

#[test]
fn a_step_gives_each_generating_request_its_token_and_a_prompt_the_rest_of_the_budget() {
    let mut world = World::new(LIMITS);
    let talks = world.add(&prompt(0, 10), 10);
    world.step().unwrap();
    let reads = world.add(&prompt(100, 150), 1);
    // Of 64 tokens, one is the other's.
    let chunks = [(0, 63), (63, 63), (126, 24)];
    for (i, (before, count)) in chunks.into_iter().enumerate() {
        let length = world.step().unwrap();
        assert!(close(length, took(&[(10 + i, 1, true), (before, count, false)])), "{i}: {length:?}");
        assert_eq!(world.tokens(talks).len(), 2 + i);
    }
    assert_eq!(world.tokens(reads).len(), 1);
}

#[test]
fn a_prompt_that_is_half_done_goes_before_a_new_one() {
    let mut world = World::new(LIMITS);
    let [long, short] = [world.add(&prompt(0, 100), 1), world.add(&prompt(200, 10), 1)];
    world.step().unwrap();
    assert_eq!((world.scheduler.running(), world.scheduler.waiting()), (1, 1));
    world.step().unwrap();
    // 36 and 10 tokens.
    assert_eq!((world.tokens(long).len(), world.tokens(short).len()), (1, 1));
    assert!(close(
        world.time_to_first(short),
        took(&[(0, 64, false)]) + took(&[(64, 36, false), (0, 10, false)])
    ));
}

#[test]
fn who_waits_for_blocks_holds_up_all_behind_even_those_that_would_fit() {
    let mut world = World::new(SMALL);
    let first = world.add(&prompt(0, 24), 9);
    world.step().unwrap();
    let [large, small] = [world.add(&prompt(100, 20), 1), world.add(&prompt(200, 4), 1)];
    for _ in 0..7 {
        world.step().unwrap();
        assert_eq!(world.scheduler.waiting(), 2);
    }
    world.run();
    assert_eq!(world.tokens(first).len(), 9);
    // Both came in the step after the first one's last.
    let waited = world.time_to_first(large);
    assert_eq!(waited, world.time_to_first(small));
    assert!(took(&[(24, 1, true)]) * 8 < waited, "{waited:?}");
}

#[test]
fn old_versions_admit_a_prompt_whose_first_chunk_fits_new_ones_only_all_of_it() {
    for (version, admitted, preemptions) in [(Version::V0_16, 2, 1), (Version::V0_32, 1, 0)] {
        let mut world = World::new(Limits { version, max_num_batched_tokens: 24, ..SMALL });
        let first = world.add(&prompt(0, 16), 2);
        let second = world.add(&prompt(100, 32), 1);
        world.step().unwrap();
        assert_eq!(world.scheduler.running(), admitted, "{version:?}");
        world.run();
        assert_eq!(world.scheduler.totals().preemptions, preemptions, "{version:?}");
        assert_eq!((world.tokens(first).len(), world.tokens(second).len()), (2, 1));
    }
}

#[test]
fn the_victim_is_the_last_admitted_and_comes_back_before_all_who_wait() {
    let mut world = World::new(Limits { max_num_seqs: 2, ..SMALL });
    let ids = [0, 100, 200].map(|from| world.add(&prompt(from, 16), 12));
    let mut steps = 0;
    while world.scheduler.totals().preemptions == 0 {
        world.step().unwrap();
        steps += 1;
    }
    // Four blocks each and one for the first token; the eleventh is wanted after five tokens.
    assert_eq!(steps, 6);
    assert_eq!(
        (world.scheduler.running(), world.scheduler.waiting()),
        (1, 2),
        "nobody takes its place at once"
    );
    world.run();
    let done = |id: RequestId| world.produced[&id].len();
    assert_eq!(ids.map(done), [12; 3]);
    let first_token = |id: RequestId| world.time_to_first(id);
    assert!(first_token(ids[1]) < first_token(ids[2]));
    // Its beginning was still held when it came back, but that was its own.
    assert_eq!(world.cached(ids[1]), 0);
    assert_eq!(world.scheduler.totals().prefix_queries, 48, "who comes back is not counted again");
}

#[test]
fn a_request_that_comes_back_computes_only_what_was_given_away() {
    let mut world = World::new(SMALL);
    let [first, second] = [world.add(&prompt(0, 16), 8), world.add(&prompt(100, 16), 8)];
    while world.scheduler.totals().preemptions == 0 {
        world.step().unwrap();
    }
    world.batches.clear();
    world.run();
    // Of its five blocks the first one took the last two.
    let stored: usize = world.stored().iter().flatten().sum();
    assert!(stored < 4, "{:?}", world.stored());
    assert_eq!((world.tokens(first).len(), world.tokens(second).len()), (8, 8));
}

#[test]
fn one_request_alone_is_never_preempted_for_good() {
    let mut world = World::new(SMALL);
    let id = world.add(&prompt(0, 16), 24);
    world.run();
    assert_eq!((world.tokens(id).len(), world.scheduler.totals().preemptions), (24, 0));
}

#[test]
fn queueing_counts_towards_the_first_token() {
    let mut world = World::new(Limits { max_num_seqs: 1, ..LIMITS });
    let [first, second] = [world.add(&prompt(0, 8), 5), world.add(&prompt(100, 8), 1)];
    world.run();
    let decodes: Duration = (8..12).map(|before| took(&[(before, 1, true)])).sum();
    assert!(close(world.time_to_first(first), took(&[(0, 8, false)])));
    assert!(close(world.time_to_first(second), took(&[(0, 8, false)]) * 2 + decodes));
}

#[test]
fn adapters_and_salts_hit_their_own_blocks_only() {
    let mut world = World::new(LIMITS);
    let adapter =
        |id, path: &str| Some(Arc::new(Adapter { id, name: "poet".to_owned(), path: path.to_owned() }));
    let ask = |world: &mut World, adapter, salt: Option<&str>| {
        let salt = salt.map(str::to_owned);
        let new = NewRequest { adapter, salt, ..request(&prompt(0, 20), Some(1)) };
        let id = world.scheduler.add(new, world.now).unwrap();
        world.run();
        world.cached(id)
    };
    for cached in [0, 16] {
        assert_eq!(ask(&mut world, None, None), cached);
        assert_eq!(ask(&mut world, adapter(1, "/a"), None), cached);
        // The path is hashed, the engine's own number is not.
        assert_eq!(ask(&mut world, adapter(1, "/b"), None), cached);
        assert_eq!(ask(&mut world, adapter(1, "/a"), Some("salt")), cached);
    }
    assert_eq!(ask(&mut world, adapter(2, "/a"), None), 16);
}

#[test]
fn sessions_are_told_since_0_30() {
    for (version, told) in [(Version::V0_24, false), (Version::V0_32, true)] {
        let mut world = World::new(Limits { version, ..LIMITS });
        let new = NewRequest { session: Some("s-1".into()), ..request(&prompt(0, 8), Some(1)) };
        world.scheduler.add(new, world.now).unwrap();
        world.run();
        let [Event::Stored(stored)] = world.batches[0].as_slice() else { panic!("{:?}", world.batches) };
        assert_eq!(stored.session.as_deref(), told.then_some("s-1"));
    }
}

#[test]
fn a_hit_is_announced_again_on_demand_and_whenever_admission_is_tried() {
    for (version, reports) in [(Version::V0_24, false), (Version::V0_32, true)] {
        let mut world = World::new(Limits { version, ..SMALL });
        world.add(&prompt(0, 16), 1);
        world.run();
        let occupant = world.add(&prompt(100, 16), 4);
        world.step().unwrap();
        world.batches.clear();
        // Twelve of its tokens are held, and six more blocks are not free before the other one ends.
        let new = NewRequest { reports_hit: true, ..request(&prompt(0, 38), Some(1)) };
        let id = world.scheduler.add(new, world.now).unwrap();
        world.run();
        assert_eq!((world.tokens(occupant).len(), world.cached(id)), (4, 16));
        let again = world.stored().into_iter().filter(|batch| batch.first() == Some(&4)).count();
        assert_eq!(again, if reports { 4 } else { 0 }, "{version:?}: {:?}", world.stored());
        // It raised no count.
        assert!(world.scheduler.pool().copies(0).values().all(|copies| *copies == 1));
    }
}

#[test]
fn old_versions_count_a_lookup_whenever_admission_is_tried() {
    for (version, lookups) in [(Version::V0_24, 4), (Version::V0_32, 1)] {
        let mut world = World::new(Limits { version, ..SMALL });
        world.add(&prompt(0, 16), 4);
        world.step().unwrap();
        world.add(&prompt(100, 38), 1);
        world.run();
        assert_eq!(world.scheduler.totals().prefix_queries, 16 + lookups * 38, "{version:?}");
    }
}

#[test]
fn an_answer_that_is_given_is_given_and_goes_on_by_itself() {
    let mut world = World::new(LIMITS);
    let new = NewRequest { answer: vec![7, 8], ..request(&prompt(0, 8), Some(4)) };
    let id = world.scheduler.add(new, world.now).unwrap();
    world.run();
    assert_eq!(world.tokens(id)[..2], [7, 8]);
    assert_eq!(world.tokens(id).len(), 4);
}

#[test]
fn ranks_know_nothing_of_each_other() {
    let mut ranks = [World::new(LIMITS), World::new(LIMITS)];
    for rank in &mut ranks {
        let id = rank.add(&prompt(0, 20), 1);
        rank.run();
        assert_eq!(rank.cached(id), 0);
    }
    assert_eq!(ranks[0].batches, ranks[1].batches);
    assert!(ranks[0].scheduler.reset_prefix_cache());
    let [reset, other] = ranks.each_mut().map(|rank| {
        let id = rank.add(&prompt(0, 20), 1);
        rank.run();
        rank.cached(id)
    });
    assert_eq!((reset, other), (0, 16));
}
