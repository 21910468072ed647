//! Which replica holds which block. The engines' own word, as their agents pass it on; nothing else gets in here.
//!
//! Exact: for every replica the index answers as a set of (place, key) would, to which the same steps were applied.

use std::hash::{BuildHasherDefault, Hasher};

use kvpick_proto::{
    naming::BlockKey,
    words::{Place, Step, Tier},
};

/// Keys are uniform already; one multiplication spreads those that a client could have chosen (XXH3 is no
/// cryptographic hash).
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(26) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

/// A map by block with a fixed hasher. Never iterate over it where order can be seen.
#[expect(clippy::disallowed_types, reason = "fixed hasher, and no order leaves this crate")]
pub(crate) type BlockMap<V> = std::collections::HashMap<BlockKey, V, BuildHasherDefault<KeyHasher>>;

/// A set of places of one replica, a bit each; see [`Places`].
type PlaceSet = u32;

/// Bits in a [`PlaceSet`].
const MOST_PLACES: usize = 32;

/// The places that a replica has spoken of, in order of appearance; at most [`MOST_PLACES`]. No engine has more, and what
/// lies in others is left out, which costs hits and invents none.
#[derive(Clone, Debug, Default)]
struct Places(Vec<Place>);

impl Places {
    fn bit(&mut self, place: Place) -> PlaceSet {
        if let Some(at) = self.0.iter().position(|it| *it == place) {
            return 1 << at;
        }
        if self.0.len() == MOST_PLACES {
            return 0;
        }
        self.0.push(place);
        1 << (self.0.len() - 1)
    }

    /// The places of a tier that has this weight, restricted to groups that decide a hit.
    fn weights(&self, worth: &Worth<'_>) -> Vec<(PlaceSet, f32)> {
        let weigh = |(at, place): (usize, &Place)| (1 << at, worth.of(*place));
        self.0.iter().enumerate().map(weigh).collect()
    }
}

/// What a block in some place is worth to a prefix hit.
#[derive(Clone, Copy, Debug)]
pub struct Worth<'a> {
    /// Weight by tier; a tier that is not named is worth nothing.
    pub tiers: &'a [(Tier, f32)],
    /// Groups that decide a hit; empty for all.
    pub groups: &'a [u32],
}

impl Worth<'_> {
    /// GPU blocks of any group, at full weight.
    pub const GPU: Worth<'static> = Worth { tiers: &[(Tier::Gpu, 1.0)], groups: &[] };

    fn of(&self, place: Place) -> f32 {
        if !self.groups.is_empty() && !self.groups.contains(&place.group) {
            return 0.0;
        }
        self.tiers.iter().find(|(tier, _)| *tier == place.tier).map_or(0.0, |(_, weight)| *weight)
    }
}

/// What one replica holds.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    places: Places,
    blocks: BlockMap<PlaceSet>,
    /// A full copy under way; takes the place of `blocks` when its last part is in.
    copy: Option<BlockMap<PlaceSet>>,
}

impl Holdings {
    /// Applies changes in their order. `changed` hears of every key whose state was told, for those who keep
    /// expectations beside the facts.
    pub fn apply(&mut self, steps: &[Step], mut changed: impl FnMut(Told)) {
        for step in steps {
            match step {
                Step::Gained { place, keys, .. } => {
                    let bit = self.places.bit(*place);
                    for key in keys.iter().filter(|_| bit != 0) {
                        *self.blocks.entry(*key).or_insert(0) |= bit;
                        changed(Told::Gained(*key));
                    }
                }
                Step::Lost { place, keys } => {
                    let bit = self.places.bit(*place);
                    for key in keys {
                        if let Some(places) = self.blocks.get_mut(key) {
                            *places &= !bit;
                            if *places == 0 {
                                self.blocks.remove(key);
                            }
                        }
                        changed(Told::Lost(*key));
                    }
                }
                Step::Cleared => {
                    self.blocks.clear();
                    changed(Told::Cleared);
                }
            }
        }
    }

    /// Takes a part of a full copy. What was known stands until the last part; then only what the copy named is
    /// known. A part that continues no copy is ignored, and false returned: the sender must begin again.
    #[must_use]
    pub fn apply_copy(&mut self, first: bool, last: bool, steps: &[Step]) -> bool {
        if first {
            self.copy = Some(BlockMap::default());
        }
        let Some(copy) = &mut self.copy else { return false };
        for step in steps {
            if let Step::Gained { place, keys, .. } = step {
                let bit = self.places.bit(*place);
                for key in keys.iter().filter(|_| bit != 0) {
                    *copy.entry(*key).or_insert(0) |= bit;
                }
            }
        }
        if last && let Some(copy) = self.copy.take() {
            self.blocks = copy;
        }
        true
    }

    /// Forgets a copy that will not be finished.
    pub fn abandon_copy(&mut self) {
        self.copy = None;
    }

    /// Nothing is known any more. A copy that is under way goes on.
    pub fn clear_blocks(&mut self) {
        self.blocks.clear();
    }

    /// Number of blocks held, each once however many places hold it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Prepares for lookups under that worth.
    #[must_use]
    pub fn view(&self, worth: &Worth<'_>) -> View<'_> {
        View { holdings: self, weights: self.places.weights(worth) }
    }
}

/// What a replica's agent said of one block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Told {
    /// It is held.
    Gained(BlockKey),
    /// It is held no more, in one place at least.
    Lost(BlockKey),
    /// Nothing is held.
    Cleared,
}

/// Holdings with the worth of each place worked out.
#[derive(Debug)]
pub struct View<'a> {
    holdings: &'a Holdings,
    weights: Vec<(PlaceSet, f32)>,
}

impl View<'_> {
    /// What this block is worth to a hit, 0 to 1: that of the best place that holds it.
    #[must_use]
    pub fn worth(&self, key: BlockKey) -> f32 {
        let Some(places) = self.holdings.blocks.get(&key) else { return 0.0 };
        let held = self.weights.iter().filter(|(bit, _)| places & bit != 0);
        held.map(|(_, weight)| *weight).fold(0.0, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PLACES: [Place; 3] =
        [Place::GPU, Place { group: 1, tier: Tier::Gpu }, Place { group: 0, tier: Tier::Cpu }];
    const ALL: Worth<'_> = Worth { tiers: &[(Tier::Gpu, 1.0), (Tier::Cpu, 0.5)], groups: &[] };

    fn key(i: u8) -> BlockKey {
        BlockKey::from_u64(u64::from(i))
    }

    fn a_step() -> impl Strategy<Value = Step> {
        let keys = || prop::collection::vec((0_u8..12).prop_map(key), 0..5);
        let place = || (0..PLACES.len()).prop_map(|i| PLACES[i]);
        prop_oneof![
            6 => (place(), keys()).prop_map(|(place, keys)| Step::Gained { place, parent: None, keys }),
            4 => (place(), keys()).prop_map(|(place, keys)| Step::Lost { place, keys }),
            1 => Just(Step::Cleared),
        ]
    }

    #[derive(Clone, Debug)]
    enum Op {
        Steps(Vec<Step>),
        Copy(Vec<Step>, bool),
    }

    proptest! {
        #[test]
        fn answers_as_a_plain_set_would(ops in prop::collection::vec(prop_oneof![
            prop::collection::vec(a_step(), 0..4).prop_map(Op::Steps),
            (prop::collection::vec(a_step(), 0..4), any::<bool>()).prop_map(|(steps, ends)| Op::Copy(steps, ends)),
        ], 0..20)) {
            let mut holdings = Holdings::default();
            let mut naive = BTreeSet::new();
            for op in ops {
                match op {
                    Op::Steps(steps) => {
                        holdings.apply(&steps, |_| ());
                        for step in steps {
                            match step {
                                Step::Gained { place, keys, .. } => naive.extend(keys.iter().map(|it| (place, *it))),
                                Step::Lost { place, keys } => naive.retain(|(p, k)| *p != place || !keys.contains(k)),
                                Step::Cleared => naive.clear(),
                            }
                        }
                    }
                    Op::Copy(steps, ends) => {
                        prop_assert!(holdings.apply_copy(true, false, &steps));
                        if ends {
                            prop_assert!(holdings.apply_copy(false, true, &[]));
                            naive.clear();
                            for step in steps {
                                if let Step::Gained { place, keys, .. } = step {
                                    naive.extend(keys.iter().map(|it| (place, *it)));
                                }
                            }
                        } else {
                            holdings.abandon_copy();
                        }
                    }
                }
                let view = holdings.view(&ALL);
                for i in 0..12 {
                    let want = naive.iter().filter(|(_, k)| *k == key(i)).map(|(p, _)| ALL.of(*p)).fold(0.0, f32::max);
                    prop_assert_eq!(view.worth(key(i)), want);
                }
                let keys: BTreeSet<_> = naive.iter().map(|(_, k)| *k).collect();
                prop_assert_eq!(holdings.len(), keys.len());
            }
        }
    }

    #[test]
    fn a_copy_stands_aside_until_its_last_part() {
        let mut holdings = Holdings::default();
        let gained = |i| [Step::Gained { place: Place::GPU, parent: None, keys: vec![key(i)] }];
        holdings.apply(&gained(1), |_| ());
        assert!(holdings.apply_copy(true, false, &gained(2)));
        assert_eq!(holdings.view(&Worth::GPU).worth(key(1)), 1.0);
        assert_eq!(holdings.view(&Worth::GPU).worth(key(2)), 0.0);
        assert!(holdings.apply_copy(false, true, &gained(3)));
        let held = |i| holdings.view(&Worth::GPU).worth(key(i));
        assert_eq!([held(1), held(2), held(3)], [0.0, 1.0, 1.0]);
    }

    #[test]
    fn places_beyond_those_of_any_engine_are_left_out() {
        let mut holdings = Holdings::default();
        for group in 0..100 {
            let place = Place { group, tier: Tier::Gpu };
            holdings.apply(&[Step::Gained { place, parent: None, keys: vec![key(group as u8)] }], |_| ());
        }
        assert_eq!(holdings.len(), MOST_PLACES);
        assert_eq!(holdings.view(&Worth::GPU).worth(key(31)), 1.0);
        assert_eq!(holdings.view(&Worth::GPU).worth(key(32)), 0.0);
    }

    #[test]
    fn a_part_of_no_copy_is_refused() {
        assert!(!Holdings::default().apply_copy(false, true, &[]));
    }

    #[test]
    fn groups_that_do_not_decide_are_worth_nothing() {
        let mut holdings = Holdings::default();
        let place = Place { group: 1, tier: Tier::Gpu };
        holdings.apply(&[Step::Gained { place, parent: None, keys: vec![key(1)] }], |_| ());
        let worth = |groups| Worth { groups, ..Worth::GPU };
        assert_eq!(holdings.view(&worth(&[0])).worth(key(1)), 0.0);
        assert_eq!(holdings.view(&worth(&[1])).worth(key(1)), 1.0);
    }
}
