//! The scheduler on virtual time.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rules;
mod windows;
mod world;

use kvpick_lab::engine::{
    pool::Event,
    scheduler::{FinishReason, Limits, NewRequest, Refusal, RequestId},
};
use world::{LIMITS, World, prompt, request};

#[test]
fn an_answer_has_as_many_tokens_as_asked_and_then_the_engine_is_idle() {
    let mut world = World::new(LIMITS);
    let id = world.add(&prompt(0, 10), 3);
    assert_eq!((world.scheduler.waiting(), world.scheduler.running()), (1, 0));
    world.run();
    let produced = &world.produced[&id];
    assert_eq!(
        produced.iter().map(|it| it.finish).collect::<Vec<_>>(),
        [None, None, Some(FinishReason::Length)]
    );
    assert!(produced[0].time_to_first.is_some() && produced[1].time_to_first.is_none());
    assert_eq!((world.scheduler.running(), world.scheduler.pool().usage()), (0, 0.0));
}

#[test]
fn an_answer_without_a_limit_ends_by_itself() {
    let mut world = World::new(LIMITS);
    let id = world.scheduler.add(request(&prompt(0, 10), None), world.now).unwrap();
    let long = world.scheduler.add(request(&prompt(100, 399), None), world.now).unwrap();
    world.run();
    assert_eq!(world.produced[&id].last().unwrap().finish, Some(FinishReason::Stop));
    assert_eq!(world.produced[&long].last().unwrap().finish, Some(FinishReason::Length));
    assert_eq!(world.tokens(long).len(), 1);
}

#[test]
fn what_can_not_be_done_is_refused() {
    let mut world = World::new(LIMITS);
    let mut add = |request| world.scheduler.add(request, world.now).unwrap_err();
    assert_eq!(add(request(&[], Some(1))), Refusal::EmptyPrompt);
    assert_eq!(add(request(&[1], Some(0))), Refusal::NoTokens);
    let refusal = Refusal::TooLong { max: 400, prompt: 390, output: 11 };
    assert_eq!(add(request(&prompt(0, 390), Some(11))), refusal);
    assert!(matches!(add(request(&prompt(0, 400), None)), Refusal::TooLong { .. }));
}

#[test]
fn a_long_prompt_is_computed_in_chunks_that_are_announced_one_by_one() {
    let mut world = World::new(LIMITS);
    let id = world.add(&prompt(0, 150), 1);
    for _ in 0..2 {
        world.step().unwrap();
        assert!(!world.produced.contains_key(&id));
    }
    world.run();
    let stored: Vec<usize> = world
        .batches
        .iter()
        .map(|batch| match batch.as_slice() {
            [Event::Stored(stored)] => stored.hashes.len(),
            other => panic!("want one store, got {other:?}"),
        })
        .collect();
    assert_eq!(stored, [16, 16, 5]);
}

#[test]
fn running_requests_go_before_waiting_ones_within_the_budget() {
    let mut world = World::new(LIMITS);
    let first = world.add(&prompt(0, 60), 5);
    let second = world.add(&prompt(100, 60), 5);
    world.step().unwrap();
    // 60 of 64 tokens went to the first, the rest to the second.
    assert!(world.produced.contains_key(&first) && !world.produced.contains_key(&second));
    world.step().unwrap();
    assert_eq!((world.tokens(first).len(), world.tokens(second).len()), (2, 1));
}

#[test]
fn no_more_requests_run_than_allowed() {
    let mut world = World::new(Limits { max_num_seqs: 2, ..LIMITS });
    let ids = [0, 100, 200].map(|from| world.add(&prompt(from, 8), 2));
    world.step().unwrap();
    assert_eq!((world.scheduler.running(), world.scheduler.waiting()), (2, 1));
    world.run();
    assert!(ids.iter().all(|id| world.tokens(*id).len() == 2));
}

#[test]
fn the_next_turn_hits_prompt_and_answer_but_for_the_last_token() {
    let mut world = World::new(LIMITS);
    let first = world.add(&prompt(0, 10), 7);
    world.run();
    // 17 tokens, of which the last is not computed: 4 whole blocks.
    let mut history = prompt(0, 10);
    history.extend(world.tokens(first));
    history.extend([500, 501, 502]);
    let second = world.add(&history, 1);
    world.run();
    assert_eq!(world.cached(second), 16);

    // With 16 tokens the last one completes a block, which is therefore not held.
    let mut world = World::new(LIMITS);
    let first = world.add(&prompt(0, 10), 6);
    world.run();
    let mut history = prompt(0, 10);
    history.extend(world.tokens(first));
    history.extend([500, 501, 502]);
    let second = world.add(&history, 1);
    world.run();
    assert_eq!(world.cached(second), 12);
    let totals = world.scheduler.totals();
    assert_eq!((totals.prefix_queries, totals.prefix_hits, totals.generated), (10 + 19, 12, 7));
}

#[test]
fn requests_of_one_step_share_what_the_first_of_them_computes() {
    let mut world = World::new(LIMITS);
    let first = world.add(&prompt(0, 20), 1);
    let second = world.add(&prompt(0, 20), 1);
    world.step().unwrap();
    assert_eq!((world.cached(first), world.cached(second)), (0, 16));
}

#[test]
fn a_hit_is_not_read_where_the_request_forbids_it() {
    let mut world = World::new(LIMITS);
    world.add(&prompt(0, 20), 1);
    world.run();
    let blind = NewRequest { reads_cache: false, ..request(&prompt(0, 20), Some(1)) };
    let blind = world.scheduler.add(blind, world.now).unwrap();
    world.run();
    assert_eq!(world.cached(blind), 0);
    // Every block of it is a second copy.
    assert!(world.scheduler.pool().copies(0).values().all(|copies| *copies == 2));
}

#[test]
fn a_hit_makes_the_first_token_come_sooner() {
    let mut world = World::new(LIMITS);
    let cold = world.add(&prompt(0, 60), 1);
    world.run();
    let warm = world.add(&prompt(0, 60), 1);
    world.run();
    let ttft = |id| world.produced[&id][0].time_to_first.unwrap();
    assert_eq!(world.cached(warm), 56);
    assert!(ttft(warm) < ttft(cold));
}

#[test]
fn removals_come_before_the_store_that_needed_the_room_in_one_batch() {
    let mut world = World::new(Limits { num_blocks: 11, max_model_len: 40, ..LIMITS });
    world.add(&prompt(0, 36), 1);
    world.run();
    world.batches.clear();
    world.add(&prompt(100, 12), 1);
    world.run();
    let [batch] = world.batches.as_slice() else { panic!("want one batch, got {:?}", world.batches) };
    // One of ten blocks was never used; the other two are taken from the end of the first prompt.
    assert!(
        matches!(batch.as_slice(), [Event::Removed(_), Event::Removed(_), Event::Stored(_)]),
        "{batch:?}"
    );
    let third = world.add(&prompt(0, 36), 1);
    world.run();
    assert_eq!(world.cached(third), 28);
}

#[test]
fn the_last_admitted_gives_way_when_blocks_run_out_and_all_end_well() {
    let mut world = World::new(Limits { num_blocks: 11, max_model_len: 40, ..LIMITS });
    let first = world.add(&prompt(0, 16), 20);
    let second = world.add(&prompt(100, 16), 20);
    world.run();
    assert!(0 < world.scheduler.totals().preemptions);
    assert_eq!((world.tokens(first).len(), world.tokens(second).len()), (20, 20));
    let last = |id: RequestId| world.produced[&id].last().unwrap().finish;
    assert_eq!((last(first), last(second)), (Some(FinishReason::Length), Some(FinishReason::Length)));
    // The first was never disturbed, and what the second found again was its own work.
    assert_eq!((world.cached(first), world.cached(second)), (0, 0));

    // The answer is the same as without trouble.
    let mut calm = World::new(LIMITS);
    let alone = calm.add(&prompt(100, 16), 20);
    calm.run();
    assert_eq!(world.tokens(second), calm.tokens(alone));
}

#[test]
fn an_aborted_request_leaves_its_blocks_held_and_unused() {
    let mut world = World::new(LIMITS);
    let id = world.add(&prompt(0, 20), 50);
    world.step().unwrap();
    let waiting = world.add(&prompt(100, 20), 50);
    world.scheduler.abort(id);
    world.scheduler.abort(waiting);
    assert!(world.step().is_none());
    assert_eq!(world.scheduler.pool().free_blocks(), world.scheduler.pool().usable());
    let again = world.add(&prompt(0, 20), 1);
    world.run();
    assert_eq!(world.cached(again), 16);
    assert!(!world.produced.contains_key(&waiting));
}

#[test]
fn a_reset_is_announced_with_the_next_step_only() {
    let mut world = World::new(LIMITS);
    world.add(&prompt(0, 20), 2);
    world.step().unwrap();
    assert!(!world.scheduler.reset_prefix_cache());
    world.run();
    world.batches.clear();
    assert!(world.scheduler.reset_prefix_cache());
    assert!(world.step().is_none() && world.batches.is_empty());
    // A prompt below one block stores nothing, yet its step carries the announcement.
    world.add(&[1, 2], 1);
    world.run();
    assert_eq!(world.batches, [vec![Event::Cleared]]);
    let again = world.add(&prompt(0, 20), 1);
    world.run();
    assert_eq!(world.cached(again), 0);
}
