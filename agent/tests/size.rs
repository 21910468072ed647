//! How large messages are on the wire.

use kvpick_agent_core::{
    decode::{Removed, Stored},
    mirror::Mirror,
    pending::Pending,
};
use kvpick_proto::{
    naming::BlockKey,
    pb,
    words::{AgentMessage, Change, CopyChunk, Handle, KEYS_PER_MESSAGE, Tier},
};
use prost::Message as _;

const BOUND: usize = 64 << 10;

/// A block whose parent is not its neighbour, so that it is a step of its own, in a group of two bytes.
fn single(number: u64) -> Stored {
    let key = |it: u64| BlockKey::from_u64(it.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Stored {
        keys: vec![key(2 * number)],
        parent: Some(key(2 * number + 1)),
        tokens: vec![0],
        block_size: 1,
        group: Some(63),
        tier: Some(Tier::Storage),
        ..Stored::default()
    }
}

fn chain(from: u64, len: u64) -> Stored {
    let keys: Vec<_> = (from..from + len).map(BlockKey::from_u64).collect();
    Stored { tokens: vec![0; keys.len()], keys, block_size: 1, ..Stored::default() }
}

/// Sizes of all messages of a copy, and of a change, of these stores.
fn sizes(stores: &[Stored], removals: &[Removed]) -> Vec<usize> {
    let mut mirror = Mirror::new();
    stores.iter().for_each(|it| mirror.store(it));
    let _held = mirror.take_net_change();
    let (mut sizes, mut cursor) = (Vec::new(), Some(mirror.copy()));
    let handle = Handle(u32::MAX);
    while let Some(at) = cursor {
        let (steps, next) = mirror.copy_part(at, KEYS_PER_MESSAGE);
        let chunk = CopyChunk { first: true, last: true, steps, applied: Some(u64::MAX) };
        sizes.push(pb::AgentMessage::from(AgentMessage::Copy(handle, chunk)).encoded_len());
        cursor = next;
    }
    // Everything again, after a clear, with removals between.
    mirror.clear();
    let mut pending = Pending::default();
    let mut tell = |mirror: &mut Mirror| {
        pending.fold(&Change { steps: mirror.take_net_change(), applied: Some(u64::MAX) }, false);
    };
    stores.iter().for_each(|it| mirror.store(it));
    tell(&mut mirror);
    removals.iter().for_each(|it| mirror.remove(it));
    tell(&mut mirror);
    while let Some(change) = pending.take(KEYS_PER_MESSAGE) {
        sizes.push(pb::AgentMessage::from(AgentMessage::Change(handle, change)).encoded_len());
    }
    sizes
}

#[test]
fn every_message_is_below_64_kib_whatever_is_in_it() {
    let singles: Vec<_> = (0..20_000).map(single).collect();
    let mixed: Vec<_> =
        (0..300).flat_map(|it| [chain(1 << 40 | it << 20, it), single(it), single(1_000 + it)]).collect();
    let chained = [chain(1 << 40, 50_000)];
    let removals: Vec<_> = singles
        .iter()
        .step_by(2)
        .map(|it| Removed { keys: it.keys.clone(), tier: it.tier, group: it.group, ..Removed::default() })
        .collect();
    for (stores, removals) in [(&singles[..], &removals[..]), (&mixed, &[]), (&chained, &[])] {
        let sizes = sizes(stores, removals);
        let largest = sizes.iter().max().copied().unwrap_or_default();
        assert!(largest < BOUND, "{largest}");
        // And no smaller than need be.
        assert!(largest > BOUND / 2, "{largest}");
    }
}
