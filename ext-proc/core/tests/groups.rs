//! What a replica's cache groups and tiers make of a hit, from an agent's words to a pick.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use kvpick_core::{outcome::Tier as Basis, replicas::canonical_domain, world::World};
use kvpick_proto::{
    naming::BlockKey,
    words::{Completeness, Description, Group, Place, Step, Tier},
};
use rig::{
    BLOCK, change, connect, copy, describe, description, keys, ms, pick, port, prompt, spec, start, world,
};

fn group(index: u32, kind: &str, block_size: u32, sliding_window: u32) -> Group {
    Group { index, kind: kind.to_owned(), block_size, sliding_window }
}

/// Group 0 has a window of four blocks and one token, group 1 attends to all tokens.
fn hybrid() -> Vec<Group> {
    vec![group(0, "sliding_window", 16, 65), group(1, "full_attention", 16, 0)]
}

fn in_group(group: u32, keys: &[BlockKey]) -> Step {
    Step::Gained { place: Place { group, tier: Tier::Gpu }, parent: None, keys: keys.to_vec() }
}

fn one(
    groups: Vec<Group>,
    steps: Vec<Step>,
    now: std::time::Instant,
) -> (World, kvpick_core::feed::StreamId) {
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let domain = Some(canonical_domain());
    describe(&mut world, stream, Description { groups, ..description(1, domain) }, now);
    world.on_message(stream, copy(1, steps, None), now).unwrap();
    (world, stream)
}

#[track_caller]
fn predicts(world: &mut World, blocks: usize, now: std::time::Instant) {
    let (pick, _) = pick(world, "m", &prompt(1, 200), now);
    assert_eq!((pick.tier, pick.predicted_tokens), (Basis::Precise, (blocks * BLOCK) as u64));
}

#[test]
fn a_hit_ends_where_every_group_can_go_on() {
    let (now, blocks) = (start(), keys(&prompt(1, 200)));
    let full = || in_group(1, &blocks);
    for (window, want) in [(4..8, 8), (0..3, 3), (1..4, 0), (0..12, 12), (0..0, 0)] {
        let steps = vec![in_group(0, &blocks[window.clone()]), full()];
        let (mut world, _) = one(hybrid(), steps, now);
        predicts(&mut world, want, now);
    }
    // Before 0.22.1 groups do not say what they are, and a block counts that any of them holds.
    let steps = vec![in_group(0, &blocks[4..8]), in_group(1, &blocks[..6])];
    let unsaid = vec![group(0, "", 16, 0), group(1, "", 16, 0)];
    predicts(&mut one(unsaid, steps, now).0, 8, now);
}

#[test]
fn a_state_is_looked_for_at_the_end_of_its_own_blocks() {
    let (now, blocks) = (start(), keys(&prompt(1, 200)));
    let groups = vec![group(0, "mamba", 64, 0), group(1, "full_attention", 16, 0)];
    // Besides, an entry of a part of a block, which is none of the states that are looked for.
    let steps = vec![in_group(0, &[blocks[3], blocks[9]]), in_group(1, &blocks)];
    predicts(&mut one(groups, steps, now).0, 4, now);
}

#[test]
fn what_is_on_its_way_counts_in_every_group() {
    let now = start();
    let (mut world, stream) = one(hybrid(), Vec::new(), now);
    predicts(&mut world, 0, now);
    predicts(&mut world, 12, now + ms(10));
    // Then events speak: the first blocks are behind the window, and what it needs was not kept.
    let blocks = keys(&prompt(1, 200));
    let steps = vec![in_group(1, &blocks), in_group(0, &blocks[5..8])];
    world.on_message(stream, change(1, steps, 1), now + ms(20)).unwrap();
    predicts(&mut world, 0, now + ms(30));
}

#[test]
fn a_part_of_the_knowledge_is_no_danger() {
    let (now, blocks) = (start(), keys(&prompt(1, 200)));
    let domain = || Some(canonical_domain());
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let partial = Completeness::PartialSince { unix_ms: 1 };
    let described = Description { groups: hybrid(), completeness: partial, ..description(1, domain()) };
    describe(&mut world, stream, described, now);
    let steps = vec![in_group(0, &blocks), in_group(1, &blocks[6..])];
    world.on_message(stream, copy(1, steps, None), now).unwrap();
    predicts(&mut world, 0, now);
}

#[test]
fn a_hit_is_worth_as_much_as_the_tier_where_it_lies() {
    let (now, tokens) = (start(), prompt(1, 200));
    let blocks = keys(&tokens);
    let weights = |cpu| vec![(Tier::Gpu, 1.0), (Tier::Cpu, cpu)];
    // Replica 1 has more of it, in a slower tier.
    for (cpu, want, predicted) in [(0.9, 1, 12), (0.5, 2, 8), (0.0, 2, 8)] {
        let mut world = world(vec![spec(1, "a", &["m"]), spec(2, "a", &["m"])], now);
        let stream = connect(&mut world, "a", 1, now);
        for (port, tier, held) in [(1, Tier::Cpu, &blocks[..]), (2, Tier::Gpu, &blocks[..8])] {
            let domain = Some(canonical_domain());
            let groups = vec![group(0, "full_attention", 16, 0)];
            let described = Description { groups, tier_weights: weights(cpu), ..description(port, domain) };
            describe(&mut world, stream, described, now);
            let place = Place { group: 0, tier };
            let steps = vec![Step::Gained { place, parent: None, keys: held.to_vec() }];
            world.on_message(stream, copy(port.into(), steps, None), now).unwrap();
        }
        let (pick, _) = pick(&mut world, "m", &tokens, now);
        assert_eq!((port(&world, &pick), pick.predicted_tokens), (want, predicted * BLOCK as u64), "{cpu}");
    }
}
