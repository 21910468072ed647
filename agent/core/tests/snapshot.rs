//! What is written down and read again is the same; anything else is refused.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

use std::time::Instant;

use kvpick_agent_core::{
    decode::{Removed, Stored},
    domain::Learnt,
    engine::{Config, Engine},
    load::Metrics,
    mirror::{Kept, Mirror},
    sequence::Position,
    snapshot::{MAX_BYTES, Snapshot, SnapshotError},
};
use kvpick_proto::{
    naming::{Algorithm, BlockKey, ExtraKeyShape},
    words::{Completeness, Group, KeyKind, Place, ReplicaName, Tier},
};
use proptest::prelude::*;

fn snapshot(blocks: Vec<Kept>) -> Snapshot {
    Snapshot {
        name: "10.0.0.1:8000#1".to_owned(),
        position: Position { last: 1 << 40, digest: u64::MAX, process_start: Some(1_790_000_000.25) },
        completeness: Completeness::PartialSince { unix_ms: 77 },
        num_gpu_blocks: 9,
        learnt: Some(Learnt {
            algorithm: Algorithm::Xxh3Cbor,
            root: "42".to_owned(),
            block_size: 16.try_into().unwrap(),
            extra_keys: ExtraKeyShape::BareWithOffset,
            kinds: vec![KeyKind::Plain, KeyKind::Salt],
        }),
        groups: vec![Group {
            index: 3,
            kind: "sliding_window".to_owned(),
            block_size: 16,
            sliding_window: 128,
        }],
        blocks,
    }
}

fn block(key: u64, after: Option<u64>, copies: u32, order: u64) -> Kept {
    let key = BlockKey::from_u64(key);
    Kept { place: Place::GPU, key, after: after.map(BlockKey::from_u64), copies, order }
}

fn some() -> Snapshot {
    let cpu = Place { group: 3, tier: Tier::Cpu };
    snapshot(vec![
        block(1, None, 1, 0),
        block(2, Some(1), 3, 1),
        Kept { place: cpu, ..block(2, Some(1), 1, 2) },
        block(9, None, u32::MAX, 3),
        block(u64::MAX, Some(77), 1, 4),
    ])
}

#[test]
fn what_is_written_is_read() {
    assert_eq!(Snapshot::decode(&some().encode().unwrap()).unwrap(), some());
    let mut bare = Snapshot {
        completeness: Completeness::Complete,
        learnt: None,
        groups: Vec::new(),
        position: Position { last: 0, digest: 0, process_start: None },
        ..snapshot(Vec::new())
    };
    assert_eq!(Snapshot::decode(&bare.encode().unwrap()).unwrap(), bare);
}

#[test]
fn order_is_that_of_arrival() {
    let mut mixed = snapshot(vec![block(2, Some(1), 1, 30), block(9, None, 5, 99), block(1, None, 2, 7)]);
    let read = Snapshot::decode(&mixed.encode().unwrap()).unwrap();
    assert_eq!(read.blocks, [block(1, None, 2, 0), block(2, Some(1), 1, 1), block(9, None, 5, 2)]);
}

#[test]
fn every_torn_file_is_refused() {
    let whole = some().encode().unwrap();
    for length in 0..whole.len() {
        let error = Snapshot::decode(&whole[..length]).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Checksum | SnapshotError::Foreign | SnapshotError::Version(0)),
            "{length}: {error}"
        );
    }
}

#[test]
fn every_changed_byte_is_refused() {
    let whole = some().encode().unwrap();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            assert!(Snapshot::decode(&changed).is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn files_of_others_are_refused() {
    assert_eq!(Snapshot::decode(b"").unwrap_err(), SnapshotError::Foreign);
    assert_eq!(Snapshot::decode(b"node: n\nservers: []\n").unwrap_err(), SnapshotError::Foreign);
    let whole = some().encode().unwrap();
    // The version is the second field, after the text of the first.
    let at = 2 + usize::from(whole[1]) + 1;
    let mut newer = whole;
    newer[at] = 2;
    assert_eq!(Snapshot::decode(&newer).unwrap_err(), SnapshotError::Version(2));
    assert_eq!(Snapshot::decode(&vec![0; MAX_BYTES + 1]).unwrap_err(), SnapshotError::TooLarge);
}

#[test]
fn values_that_are_never_written_are_refused() {
    let mut twice = snapshot(vec![block(1, None, 1, 0), block(1, None, 1, 1)]);
    assert_eq!(Snapshot::decode(&twice.encode().unwrap()).unwrap_err(), SnapshotError::Value("steps.keys"));
    let place = Place { group: 64, tier: Tier::Gpu };
    let mut group = snapshot(vec![Kept { place, ..block(1, None, 1, 0) }]);
    assert_eq!(Snapshot::decode(&group.encode().unwrap()).unwrap_err(), SnapshotError::Value("steps.group"));
}

#[derive(Clone, Debug)]
enum Op {
    Store { group: u32, chain: u64, from: u64, len: u64 },
    Remove { group: u32, chain: u64, at: u64 },
    Clear,
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_u32..2, 0_u64..4, 0_u64..6, 1_u64..6)
            .prop_map(|(group, chain, from, len)| Op::Store { group, chain, from, len }),
        6 => (0_u32..2, 0_u64..4, 0_u64..9).prop_map(|(group, chain, at)| Op::Remove { group, chain, at }),
        1 => Just(Op::Clear),
        3 => Just(Op::Flush),
    ]
}

fn apply(mirror: &mut Mirror, op: &Op) {
    let key = |chain: u64, at: u64| BlockKey::from_u64(chain * 100 + at);
    match *op {
        Op::Store { group, chain, from, len } => mirror.store(&Stored {
            keys: (from..from + len).map(|at| key(chain, at)).collect(),
            parent: from.checked_sub(1).map(|at| key(chain, at)),
            tokens: vec![0; usize::try_from(len).unwrap()],
            block_size: 1,
            group: Some(group),
            ..Stored::default()
        }),
        Op::Remove { group, chain, at } => {
            mirror.remove(&Removed { keys: vec![key(chain, at)], group: Some(group), ..Removed::default() });
        }
        Op::Clear => mirror.clear(),
        Op::Flush => drop(mirror.take_net_change()),
    }
}

/// What it holds, in the order in which it came.
fn held(mirror: &Mirror) -> Vec<(Place, BlockKey, Option<BlockKey>, u32)> {
    let mut all = mirror.kept();
    all.sort_unstable_by_key(|it| it.order);
    all.into_iter().map(|it| (it.place, it.key, it.after, it.copies)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whenever it is written down: what is read goes on as what was written does.
    #[test]
    fn a_restored_mirror_is_the_same(
        before in proptest::collection::vec(op(), 0..40),
        after in proptest::collection::vec(op(), 0..20),
        gpu_blocks in prop_oneof![Just(0_u64), 4_u64..60],
    ) {
        let mut mirror = Mirror::new();
        mirror.set_num_gpu_blocks(gpu_blocks);
        before.iter().for_each(|op| apply(&mut mirror, op));
        let mut written = Snapshot { num_gpu_blocks: mirror.num_gpu_blocks(), ..snapshot(mirror.kept()) };
        let read = Snapshot::decode(&written.encode().unwrap()).unwrap();
        let mut restored = Mirror::new();
        restored.restore(read.blocks, read.num_gpu_blocks);
        prop_assert_eq!(held(&restored), held(&mirror));
        prop_assert_eq!((restored.len(), restored.gpu_copies()), (mirror.len(), mirror.gpu_copies()));
        // Nothing of it is announced.
        prop_assert_eq!(restored.copy_part(restored.copy(), 1_000), (Vec::new(), None));
        // What goes without being announced leaves a trace of its order in one and not in the other.
        let _ = (mirror.take_net_change(), restored.take_net_change());
        // Nor is it kept of which blocks there may be more copies.
        mirror.set_partial();
        for op in &after {
            apply(&mut mirror, op);
            apply(&mut restored, op);
            prop_assert_eq!(restored.len(), mirror.len());
            prop_assert_eq!(restored.gpu_copies(), mirror.gpu_copies());
        }
        prop_assert_eq!(held(&restored), held(&mirror));
        prop_assert_eq!(restored.take_net_change(), mirror.take_net_change());
    }

    #[test]
    fn no_bytes_bring_it_down(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Snapshot::decode(&bytes).is_err());
    }
}

#[test]
fn what_the_process_before_published_is_not_written_down_as_the_next_one_s() {
    let name = ReplicaName { address: "10.0.0.1:8000".parse().unwrap(), rank: 0 };
    let now = Instant::now();
    let mut engine = Engine::new(Config::new(name), now, 1);
    engine.on_connected(now);
    let batch = |number: u64, time: u8| {
        vec![Vec::new(), number.to_be_bytes().to_vec(), vec![0x93, time, 0x91, 0x91, 0xa1, b'x', 0]]
    };
    let metrics = Metrics::parse("process_start_time_seconds 50\nvllm:num_requests_running 0\n", 0);
    engine.on_frames(batch(0, 40), now, 1).unwrap();
    engine.on_metrics(metrics, now, now, 1);
    assert_eq!(engine.position().unwrap().process_start, None);
    engine.on_frames(batch(1, 60), now, 1).unwrap();
    assert_eq!(engine.position().unwrap().process_start, Some(50.0));
}
