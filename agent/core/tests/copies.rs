//! What a mirror makes of copies that an engine tells of, or does not.

use kvpick_agent_core::{
    decode::{Removed, Stored},
    mirror::{Copies, Mirror},
};
use kvpick_proto::{
    naming::BlockKey,
    words::{Place, Step},
};

fn key(value: u64) -> BlockKey {
    BlockKey::from_u64(value)
}

fn keys(values: &[u64]) -> Vec<BlockKey> {
    values.iter().copied().map(key).collect()
}

fn store(parent: Option<u64>, values: &[u64]) -> Stored {
    let (keys, tokens) = (keys(values), vec![0; values.len()]);
    Stored { keys, parent: parent.map(key), tokens, block_size: 1, ..Stored::default() }
}

fn removal(values: &[u64]) -> Removed {
    Removed { keys: keys(values), ..Removed::default() }
}

fn gained(parent: Option<u64>, values: &[u64]) -> Step {
    Step::Gained { place: Place::GPU, parent: parent.map(key), keys: keys(values) }
}

#[test]
fn copies_that_are_told_to_be_left_are_left() {
    for policy in [Copies::Guarded, Copies::Set] {
        let left =
            |values: &[u64], remaining: &[u32]| Removed { remaining: remaining.to_vec(), ..removal(values) };
        let mut mirror = Mirror::of(policy);
        mirror.store(&store(None, &[1, 2, 3]));
        mirror.remove(&left(&[1, 2, 9], &[1, 0, 4]));
        let copies = |mirror: &Mirror| [1, 2, 3, 9].map(|it| mirror.copies(Place::GPU, key(it)));
        assert_eq!(copies(&mirror), [1, 0, 1, 0], "{policy:?}");
        assert_eq!((mirror.counts().unknown_removals, mirror.gpu_copies(), mirror.len()), (1, 2, 2));
        // As many as there are blocks, or they are not theirs.
        mirror.remove(&left(&[1, 3], &[7]));
        assert_eq!(copies(&mirror), [0; 4], "{policy:?}");
    }
    // A number that cannot be is cut as any other.
    let mut mirror = Mirror::new();
    mirror.set_num_gpu_blocks(10);
    mirror.store(&store(None, &[1, 2]));
    mirror.remove(&Removed { remaining: vec![u32::MAX; 2], ..removal(&[1, 2]) });
    assert_eq!((mirror.gpu_copies(), mirror.counts().cuts), (2, 1));
}

#[test]
fn of_a_set_the_first_removal_is_the_end() {
    let mut mirror = Mirror::of(Copies::Set);
    mirror.store(&store(None, &[1, 2]));
    mirror.store(&store(None, &[1, 2]));
    mirror.store(&store(Some(1), &[2]));
    assert_eq!((mirror.gpu_copies(), mirror.counts().ambiguous_stores), (2, 0));
    mirror.remove(&removal(&[2]));
    assert_eq!(mirror.take_net_change(), vec![gained(None, &[1])]);
    mirror.remove(&removal(&[2]));
    assert_eq!((mirror.len(), mirror.counts().unknown_removals), (1, 1));
}

#[test]
fn tokens_with_no_block_size_are_no_placeholder() {
    let mut mirror = Mirror::new();
    mirror.store(&Stored { block_size: 0, ..store(None, &[1]) });
    assert_eq!(mirror.take_net_change(), vec![gained(None, &[1])]);
}
