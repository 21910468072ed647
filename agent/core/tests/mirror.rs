//! The mirror's rules one by one, and its law: whoever has a copy and the changes that follow holds what it holds.

use std::collections::{BTreeMap, BTreeSet};

use kvpick_agent_core::{
    decode::{Removed, Stored},
    mirror::{Cursor, Mirror},
    pending::Pending,
};
use kvpick_proto::{
    naming::BlockKey,
    words::{Change, Place, Step, Tier},
};
use proptest::prelude::*;

const CPU: Place = Place { group: 0, tier: Tier::Cpu };

fn key(value: u64) -> BlockKey {
    BlockKey::from_u64(value)
}

fn keys(values: &[u64]) -> Vec<BlockKey> {
    values.iter().copied().map(key).collect()
}

fn store(parent: Option<u64>, values: &[u64]) -> Stored {
    Stored {
        keys: keys(values),
        parent: parent.map(key),
        tokens: vec![0; values.len()],
        block_size: 1,
        ..Stored::default()
    }
}

fn removal(values: &[u64]) -> Removed {
    Removed { keys: keys(values), ..Removed::default() }
}

fn gained(parent: Option<u64>, values: &[u64]) -> Step {
    Step::Gained { place: Place::GPU, parent: parent.map(key), keys: keys(values) }
}

fn lost(values: &[u64]) -> Step {
    Step::Lost { place: Place::GPU, keys: keys(values) }
}

#[test]
fn a_chain_is_one_step_with_its_parent() {
    let mut mirror = Mirror::new();
    mirror.store(&store(None, &[1, 2]));
    mirror.store(&store(Some(2), &[3]));
    mirror.store(&store(Some(1), &[9]));
    assert_eq!(mirror.take_net_change(), vec![gained(None, &[1, 2, 3]), gained(Some(1), &[9])]);
    assert_eq!(mirror.take_net_change(), vec![]);
}

#[test]
fn store_and_removal_cancel_both_ways() {
    let mut mirror = Mirror::new();
    mirror.store(&store(None, &[1]));
    mirror.remove(&removal(&[1]));
    assert!(mirror.is_touched());
    assert_eq!(mirror.take_net_change(), vec![]);

    mirror.store(&store(None, &[1]));
    assert_eq!(mirror.take_net_change(), vec![gained(None, &[1])]);
    mirror.remove(&removal(&[1]));
    mirror.store(&store(None, &[1]));
    assert_eq!(mirror.take_net_change(), vec![]);
    assert_eq!(mirror.len(), 1);
}

#[test]
fn every_copy_counts() {
    let mut mirror = Mirror::new();
    mirror.store(&store(None, &[1, 2]));
    // The last block of a prompt sent twice is computed and stored again.
    mirror.store(&store(Some(1), &[2]));
    mirror.remove(&removal(&[2]));
    assert_eq!(mirror.take_net_change(), vec![gained(None, &[1, 2])]);
    mirror.remove(&removal(&[2]));
    assert_eq!(mirror.take_net_change(), vec![lost(&[2])]);
}

#[test]
fn a_report_of_what_is_held_from_the_start_is_no_copy() {
    let mut mirror = Mirror::new();
    mirror.store(&store(None, &[1, 2]));
    mirror.store(&store(None, &[1, 2]));
    mirror.store(&store(None, &[1]));
    assert_eq!(mirror.copies(Place::GPU, key(1)), 1);
    assert_eq!(mirror.counts().ambiguous_stores, 2);
    // With a new block in it, it is a store.
    mirror.store(&store(None, &[1, 2, 3]));
    assert_eq!(mirror.copies(Place::GPU, key(1)), 2);
}

#[test]
fn more_copies_than_blocks_are_cut_to_one_each() {
    let mut mirror = Mirror::new();
    mirror.set_num_gpu_blocks(4);
    mirror.store(&store(None, &[1, 2]));
    mirror.store(&store(Some(1), &[2]));
    assert_eq!((mirror.gpu_copies(), mirror.counts().cuts), (3, 0));
    mirror.store(&store(Some(1), &[2]));
    assert_eq!((mirror.gpu_copies(), mirror.counts().cuts), (2, 1));
    mirror.remove(&removal(&[2]));
    assert_eq!(mirror.copies(Place::GPU, key(2)), 0);
    // Other tiers have no such bound.
    let on_cpu = |from| Stored { tier: Some(Tier::Cpu), ..store(Some(from), &[from + 1]) };
    (10..20).for_each(|from| mirror.store(&on_cpu(from)));
    assert_eq!(mirror.counts().cuts, 1);
}

#[test]
fn blocks_without_tokens_only_move_known_ones() {
    let placeholder =
        |value| Stored { keys: keys(&[value]), tier: Some(Tier::Cpu), group: Some(0), ..Stored::default() };
    let mut mirror = Mirror::new();
    mirror.store(&store(None, &[1, 2]));
    mirror.store(&placeholder(2));
    mirror.store(&placeholder(7));
    assert_eq!((mirror.copies(CPU, key(2)), mirror.copies(CPU, key(7))), (1, 0));
    assert_eq!(mirror.counts().unknown_placeholders, 1);
    let on_cpu = Step::Gained { place: CPU, parent: Some(key(1)), keys: keys(&[2]) };
    assert_eq!(mirror.take_net_change(), vec![gained(None, &[1, 2]), on_cpu]);
    // Its copy on the CPU outlives the one on the GPU, and is still a known block then.
    mirror.remove(&removal(&[2]));
    mirror.store(&placeholder(2));
    assert_eq!(mirror.copies(CPU, key(2)), 2);
    assert_eq!(mirror.take_net_change(), vec![lost(&[2])]);
    mirror.remove(&Removed { tier: Some(Tier::Cpu), ..removal(&[2, 2]) });
    mirror.store(&placeholder(2));
    assert_eq!((mirror.copies(CPU, key(2)), mirror.counts().unknown_placeholders), (0, 2));
}

#[test]
fn a_clear_empties_every_group_and_tier() {
    let mut mirror = Mirror::new();
    mirror.store(&store(None, &[1]));
    mirror.store(&Stored { tier: Some(Tier::Cpu), group: Some(3), ..store(None, &[2]) });
    let _announced = mirror.take_net_change();
    mirror.store(&store(Some(1), &[5]));
    mirror.clear();
    mirror.store(&store(None, &[1]));
    assert_eq!(mirror.take_net_change(), vec![Step::Cleared, gained(None, &[1])]);
    assert_eq!((mirror.len(), mirror.gpu_copies()), (1, 1));
}

#[test]
fn removals_of_unknown_blocks_are_counted_and_change_nothing() {
    let mut mirror = Mirror::new();
    mirror.remove(&removal(&[1]));
    mirror.store(&store(None, &[1]));
    mirror.remove(&Removed { tier: Some(Tier::Cpu), ..removal(&[1]) });
    assert_eq!(mirror.counts().unknown_removals, 2);
    assert_eq!(mirror.take_net_change(), vec![gained(None, &[1])]);
}

#[test]
fn a_sparse_group_claims_no_parent() {
    let mut mirror = Mirror::new();
    let sparse = Stored { tokens: vec![0; 5], ..store(Some(1), &[4]) };
    mirror.store(&sparse);
    assert_eq!(mirror.take_net_change(), vec![gained(None, &[4])]);
}

#[test]
fn parts_of_a_change_name_the_applied_batch_last() {
    let mut pending = Pending::default();
    pending.fold(&Change { steps: vec![gained(None, &[1, 2, 3])], applied: Some(7) }, true);
    // A step counts as three keys.
    assert_eq!(pending.take(8), Some(Change { steps: vec![gained(None, &[1, 2])], applied: None }));
    assert_eq!(pending.take(8), Some(Change { steps: vec![gained(Some(2), &[3])], applied: Some(7) }));
    assert_eq!(pending.take(8), None);
    pending.fold(&Change { steps: vec![], applied: Some(8) }, true);
    assert_eq!(pending.take(8), Some(Change { steps: vec![], applied: Some(8) }));
}

#[test]
fn a_clear_takes_back_what_was_told_as_applied() {
    let cleared = |applied| Change { steps: vec![Step::Cleared], applied };
    let mut pending = Pending::default();
    pending.fold(&Change { steps: vec![gained(None, &[1])], applied: Some(7) }, true);
    pending.fold(&cleared(None), true);
    assert_eq!(pending.take(100), Some(cleared(None)));
    pending.fold(&Change { steps: vec![], applied: Some(8) }, true);
    pending.fold(&cleared(Some(2)), true);
    assert_eq!(pending.take(100), Some(cleared(Some(2))));
}

#[test]
fn to_start_anew_is_told_also_where_nothing_was_held() {
    let mut mirror = Mirror::new();
    mirror.clear();
    assert_eq!(mirror.take_net_change(), vec![]);
    mirror.start_anew();
    assert!(mirror.is_touched());
    assert_eq!(mirror.take_net_change(), vec![Step::Cleared]);
}

#[test]
fn a_group_that_no_model_has_is_ignored() {
    let mut mirror = Mirror::new();
    let group = |group| Stored { group: Some(group), ..store(None, &[1]) };
    mirror.store(&group(63));
    mirror.store(&group(64));
    mirror.store(&Stored { tokens: Vec::new(), ..group(u32::MAX) });
    mirror.remove(&Removed { group: Some(64), ..removal(&[1]) });
    let place = Place { group: 63, tier: Tier::Gpu };
    assert_eq!(mirror.take_net_change(), vec![Step::Gained { place, parent: None, keys: keys(&[1]) }]);
    let counts = mirror.counts();
    assert_eq!((counts.unknown_groups, counts.unknown_removals), (3, 0));
}

type Set = BTreeSet<(Place, BlockKey)>;

fn apply(set: &mut Set, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Gained { place, keys, .. } => set.extend(keys.iter().map(|key| (*place, *key))),
            Step::Lost { place, keys } => keys.iter().for_each(|key| {
                set.remove(&(*place, *key));
            }),
            Step::Cleared => set.clear(),
        }
    }
}

/// A server as it should be: a copy replaces what it held, at its end.
#[derive(Default)]
struct Server {
    held: Set,
    copy: Option<(Cursor, Set)>,
    pending: Pending,
    told: bool,
}

impl Server {
    fn step(&mut self, mirror: &Mirror, max: usize) {
        if !self.told {
            self.told = true;
            self.pending = Pending::default();
            self.copy = Some((mirror.copy(), Set::new()));
        }
        if let Some((cursor, mut named)) = self.copy.take() {
            let (steps, next) = mirror.copy_part(cursor, max);
            apply(&mut named, &steps);
            match next {
                Some(next) => self.copy = Some((next, named)),
                None => self.held = named,
            }
        } else if let Some(change) = self.pending.take(max) {
            apply(&mut self.held, &change.steps);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Blocks `from..to` of a chain.
    Store {
        chain: u64,
        from: u64,
        len: u64,
        tier: Tier,
    },
    Remove {
        chain: u64,
        at: u64,
        tier: Tier,
    },
    Clear,
    Announce,
    /// A server takes a message of that size, if it is in step or being brought into it.
    Message {
        server: usize,
        max: usize,
    },
    /// A server asks for a copy.
    Forget {
        server: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let tier = || prop_oneof![4 => Just(Tier::Gpu), 1 => Just(Tier::Cpu)];
    prop_oneof![
        8 => (0_u64..4, 0_u64..6, 1_u64..5, tier())
            .prop_map(|(chain, from, len, tier)| Op::Store { chain, from, len, tier }),
        8 => (0_u64..4, 0_u64..9, tier()).prop_map(|(chain, at, tier)| Op::Remove { chain, at, tier }),
        1 => Just(Op::Clear),
        5 => Just(Op::Announce),
        8 => (0_usize..2, 1_usize..6).prop_map(|(server, max)| Op::Message { server, max }),
        1 => (0_usize..2).prop_map(|server| Op::Forget { server }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn copies_and_changes_give_what_is_held(ops in proptest::collection::vec(op(), 0..120)) {
        let mut mirror = Mirror::new();
        let mut model: BTreeMap<(Place, BlockKey), u32> = BTreeMap::new();
        // Copies that there may be beside those.
        let mut more: BTreeMap<(Place, BlockKey), u32> = BTreeMap::new();
        let mut announced = Set::new();
        let mut servers = [Server::default(), Server::default()];
        let name = |chain: u64, at: u64| key(chain * 100 + at);
        let announce = |mirror: &mut Mirror, announced: &mut Set, servers: &mut [Server]| {
            let steps = mirror.take_net_change();
            for step in &steps {
                if let Step::Gained { place, parent: Some(parent), .. } = step
                {
                    // Parents are held before their children, if they are held at all.
                    let later = steps.iter().skip_while(|it| *it != step).any(|it| {
                        matches!(it, Step::Gained { place: at, keys, .. } if at == place && keys.contains(parent))
                    });
                    prop_assert!(!later, "{parent} comes after its child in {steps:?}");
                }
            }
            apply(announced, &steps);
            for server in servers {
                let change = Change { steps: steps.clone(), applied: None };
                if server.told {
                    server.pending.fold(&change, server.copy.is_none());
                }
            }
            Ok(())
        };
        for op in ops {
            match op {
                Op::Store { chain, from, len, tier } => {
                    let parent = from.checked_sub(1).map(|it| name(chain, it));
                    let keys: Vec<_> = (from..from + len).map(|it| name(chain, it)).collect();
                    let place = Place { group: 0, tier };
                    // An engine stores a block only after the block before it.
                    if parent.is_some_and(|it| !model.contains_key(&(place, it))) {
                        continue;
                    }
                    let held = |key: &BlockKey| model.contains_key(&(place, *key));
                    let may_be = |key: &BlockKey| held(key) || more.contains_key(&(place, *key));
                    let is_ambiguous = parent.is_none() && keys.iter().any(held) && keys.iter().all(may_be);
                    for key in &keys {
                        let copies = model.entry((place, *key)).or_default();
                        if !is_ambiguous || *copies == 0 {
                            *copies += 1;
                        } else {
                            *more.entry((place, *key)).or_default() += 1;
                        }
                    }
                    let tokens = vec![0; keys.len()];
                    mirror.store(&Stored { keys, parent, tokens, block_size: 1, tier: Some(tier), ..Stored::default() });
                }
                Op::Remove { chain, at, tier } => {
                    let at = (Place { group: 0, tier }, name(chain, at));
                    if let Some(count) = model.get_mut(&at) {
                        *count -= 1;
                        if *count == 0 {
                            model.remove(&at);
                        }
                    } else if let Some(count) = more.get_mut(&at) {
                        *count -= 1;
                        if *count == 0 {
                            more.remove(&at);
                        }
                    }
                    mirror.remove(&Removed { keys: vec![at.1], tier: Some(tier), group: None, ..Removed::default() });
                }
                Op::Clear => {
                    model.clear();
                    more.clear();
                    mirror.clear();
                }
                Op::Announce => announce(&mut mirror, &mut announced, &mut servers)?,
                Op::Message { server, max } => servers[server].step(&mirror, 3 * max),
                Op::Forget { server } => servers[server].told = false,
            }
            prop_assert_eq!(mirror.len(), model.len());
        }
        announce(&mut mirror, &mut announced, &mut servers)?;
        prop_assert_eq!(&announced, &model.keys().copied().collect::<Set>());
        for server in &mut servers {
            for _ in 0..1_000 {
                server.step(&mirror, 6);
            }
            prop_assert_eq!(&server.held, &announced);
        }
    }
}
