//! Models that attend to a sliding window in some layers and to everything in others.

use std::num::NonZeroU32;

use kvpick_lab::engine::{
    attention::{Attention, Group},
    pool::Event,
    scheduler::Limits,
    version::Version,
};

use crate::world::{LIMITS, World, prompt};

/// Three blocks of four tokens cover all but one of these.
const HYBRID: Limits =
    Limits { attention: Attention::Hybrid { window: NonZeroU32::new(10).unwrap() }, ..LIMITS };

#[test]
fn each_group_announces_for_itself_the_window_first() {
    let mut world = World::new(HYBRID);
    world.add(&prompt(0, 33), 1);
    world.run();
    let [Event::Stored(window), Event::Stored(full)] = world.batches[0].as_slice() else {
        panic!("{:?}", world.batches)
    };
    assert_eq!((window.group, full.group), (0, 1));
    assert_eq!((window.window(), full.kind), (Some(10), Group::Full));
    // The window keeps what an equal prompt can resume at; both tell all tokens.
    assert_eq!(window.hashes, full.hashes[5..]);
    assert_eq!((full.hashes.len(), window.tokens.len(), full.tokens.len()), (8, 32, 32));
}

#[test]
fn a_prompt_that_leaves_another_one_before_its_end_misses_once() {
    let mut world = World::new(HYBRID);
    let branch = |own: u32| -> Vec<u32> { (0..20).chain(own * 100..own * 100 + 13).collect() };
    let cached: Vec<usize> = [1, 2, 3, 2]
        .into_iter()
        .map(|own| {
            let id = world.add(&branch(own), 1);
            world.run();
            world.cached(id)
        })
        .collect();
    assert_eq!(cached, [0, 0, 20, 32]);
    // Versions that keep all blocks hit at once.
    let mut dense = World::new(Limits { version: Version::V0_24, ..HYBRID });
    dense.add(&branch(1), 1);
    dense.run();
    let id = dense.add(&branch(2), 1);
    dense.run();
    assert_eq!(dense.cached(id), 20);
}

#[test]
fn what_is_generated_is_kept_by_full_attention_alone() {
    let mut world = World::new(HYBRID);
    world.add(&prompt(0, 9), 8);
    world.run();
    // The prompt's two blocks, then one with hashes and one without per generated block.
    assert_eq!(world.stored(), [[2, 2], [0, 1], [0, 1]]);
}

#[test]
fn a_long_prompt_in_chunks_gives_back_what_the_window_has_passed() {
    let mut world = World::new(Limits { num_blocks: 74, ..HYBRID });
    // 50 blocks for full attention, and never more than a window and a chunk beside them.
    let id = world.add(&prompt(0, 200), 1);
    let mut most: f64 = 0.0;
    while world.step().is_some() {
        most = most.max(world.scheduler.pool().usage());
    }
    assert_eq!(world.tokens(id).len(), 1);
    assert!(most <= 1.0 && 0.9 < most, "{most}");
    assert_eq!(world.scheduler.totals().preemptions, 0);
}
