//! Replicas whose blocks their agent names itself, and those whose blocks nobody can name.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use kvpick_core::{
    outcome::{Reason, Tier},
    replicas::canonical_domain,
};
use kvpick_proto::{
    naming::{Domain, Hasher},
    words::{Description, EngineStatus, KeyKind, KeyKindStatus, KeyState},
};
use rig::{
    connect, copy, describe, description, gained, keys, pick, prompt, replica, report, spec, start, world,
};

fn translated(block_size: u32) -> Description {
    let block_size = block_size.try_into().unwrap();
    let key_kinds = vec![KeyKindStatus { kind: KeyKind::Plain, state: KeyState::Translated }];
    let domain = Some(Domain { block_size, ..canonical_domain() });
    Description { key_kinds, ..description(1, domain) }
}

#[test]
fn a_translated_replica_is_picked_by_its_blocks() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let it = translated(48);
    let domain = it.domain.clone().unwrap();
    let tokens = prompt(1, 500);
    let blocks = Hasher::new(&domain).chain(domain.block_size, &tokens, |_| Vec::new());
    describe(&mut world, stream, it, now);
    world.on_message(stream, copy(1, vec![gained(&blocks[..7])], Some(0)), now).unwrap();
    assert_eq!(replica(&world, 1).facts(), Ok(&domain));
    let (pick, _) = pick(&mut world, "m", &tokens, now);
    assert_eq!((pick.tier, pick.reason, pick.predicted_tokens), (Tier::Precise, Reason::OK, 7 * 48));
    assert_eq!(pick.block_size, 48);
}

#[test]
fn when_blocks_get_other_names_the_old_ones_are_forgotten() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let blocks = keys(&prompt(1, 64));
    report(&mut world, stream, 1, &blocks, now);
    // The domain happens to be the same, the names are not.
    describe(&mut world, stream, translated(16), now);
    assert!(replica(&world, 1).holdings.is_empty());
    world.on_message(stream, copy(1, vec![gained(&blocks[..2])], Some(0)), now).unwrap();
    describe(&mut world, stream, Description { num_gpu_blocks: 7, ..translated(16) }, now);
    assert_eq!(replica(&world, 1).holdings.len(), 2, "nothing changed in naming");
    describe(&mut world, stream, description(1, Some(canonical_domain())), now);
    assert!(replica(&world, 1).holdings.is_empty());
}

#[test]
fn an_engine_of_another_make_is_served_by_what_was_sent_there() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let foreign = Description { status: EngineStatus::Foreign, ..description(1, None) };
    describe(&mut world, stream, foreign, now);
    world.on_message(stream, copy(1, vec![gained(&keys(&prompt(2, 64)))], Some(0)), now).unwrap();
    assert_eq!(replica(&world, 1).facts(), Err(Reason::NO_DOMAIN));
    let (first, _) = pick(&mut world, "m", &prompt(1, 100), now);
    let (second, _) = pick(&mut world, "m", &prompt(1, 100), now);
    for it in [first, second] {
        assert_eq!((it.tier, it.reason), (Tier::Approximate, Reason::NO_DOMAIN));
    }
}
