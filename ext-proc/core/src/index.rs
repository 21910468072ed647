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

/// A set of places of one replica, a bit each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PlaceSet(u64);

impl PlaceSet {
    const NONE: Self = Self(0);

    const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Bits in a [`PlaceSet`].
const MOST_PLACES: usize = 64;

/// The places that a replica has spoken of, in order of appearance; at most [`MOST_PLACES`]. No engine has more, and what
/// lies in others is left out, which costs hits and invents none.
#[derive(Clone, Debug, Default)]
struct Places(Vec<Place>);

impl Places {
    fn bit(&mut self, place: Place) -> PlaceSet {
        if let Some(at) = self.0.iter().position(|it| *it == place) {
            return PlaceSet(1 << at);
        }
        if self.0.len() == MOST_PLACES {
            return PlaceSet::NONE;
        }
        self.0.push(place);
        PlaceSet(1 << (self.0.len() - 1))
    }
}

/// GPU blocks at full weight, and no others.
pub const GPU_ONLY: &[(Tier, f32)] = &[(Tier::Gpu, 1.0)];

/// What a block is worth by the places of one group, or of all, that hold it: as much as in the best of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scale([(PlaceSet, f32); 3]);

impl Scale {
    /// 0 to 1.
    #[must_use]
    pub fn of(&self, held: PlaceSet) -> f32 {
        self.0.iter().find(|(places, _)| held.meets(*places)).map_or(0.0, |(_, worth)| *worth)
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
                    for key in keys.iter().filter(|_| !bit.is_empty()) {
                        let places = self.blocks.entry(*key).or_default();
                        *places = places.and(bit);
                        changed(Told::Gained(*key));
                    }
                }
                Step::Lost { place, keys } => {
                    let bit = self.places.bit(*place);
                    for key in keys {
                        if let Some(places) = self.blocks.get_mut(key) {
                            *places = places.without(bit);
                            if places.is_empty() {
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
                for key in keys.iter().filter(|_| !bit.is_empty()) {
                    let places = copy.entry(*key).or_default();
                    *places = places.and(bit);
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

    /// Whether a block is held anywhere.
    #[must_use]
    pub fn holds(&self, key: BlockKey) -> bool {
        self.blocks.contains_key(&key)
    }

    /// Whether a full copy is under way.
    #[must_use]
    pub const fn is_copying(&self) -> bool {
        self.copy.is_some()
    }

    /// The places that hold a block.
    #[must_use]
    pub fn places(&self, key: BlockKey) -> PlaceSet {
        self.blocks.get(&key).copied().unwrap_or(PlaceSet::NONE)
    }

    /// How to weigh what a group, or any group, holds in tiers of these weights, 0 to 1; a tier that is not named is
    /// worth nothing.
    #[must_use]
    pub fn scale(&self, tiers: &[(Tier, f32)], group: Option<u32>) -> Scale {
        let mut scale = [Tier::Gpu, Tier::Cpu, Tier::Storage].map(|tier| {
            let weight = tiers.iter().find(|it| it.0 == tier).map_or(0.0, |it| it.1);
            let here = self
                .places
                .0
                .iter()
                .zip(0_u32..)
                .filter(|(it, _)| it.tier == tier && group.is_none_or(|group| it.group == group));
            // What is no number is worth nothing.
            let weight = if weight.is_nan() { 0.0 } else { weight.clamp(0.0, 1.0) };
            (PlaceSet(here.map(|(_, at)| 1 << at).sum()), weight)
        });
        scale.sort_by(|a, b| b.1.total_cmp(&a.1));
        Scale(scale)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PLACES: [Place; 3] =
        [Place::GPU, Place { group: 1, tier: Tier::Gpu }, Place { group: 0, tier: Tier::Cpu }];
    const TIERS: &[(Tier, f32)] = &[(Tier::Cpu, 0.5), (Tier::Gpu, 1.0)];

    fn worth(holdings: &Holdings, group: Option<u32>, key: BlockKey) -> f32 {
        holdings.scale(TIERS, group).of(holdings.places(key))
    }

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
                for (i, group) in (0..12).flat_map(|i| [None, Some(0), Some(1), Some(2)].map(|group| (i, group))) {
                    let here = |p: &Place| group.is_none_or(|group| p.group == group);
                    let held = naive.iter().filter(|(p, k)| *k == key(i) && here(p));
                    let weigh = |tier| if tier == Tier::Gpu { 1.0 } else { 0.5 };
                    let want = held.map(|(p, _)| weigh(p.tier)).fold(0.0, f32::max);
                    prop_assert_eq!(worth(&holdings, group, key(i)), want);
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
        assert_eq!([1, 2].map(|i| worth(&holdings, None, key(i))), [1.0, 0.0]);
        assert!(holdings.apply_copy(false, true, &gained(3)));
        assert_eq!([1, 2, 3].map(|i| worth(&holdings, None, key(i))), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn places_beyond_those_of_any_engine_are_left_out() {
        let mut holdings = Holdings::default();
        for group in 0..100 {
            let place = Place { group, tier: Tier::Gpu };
            holdings.apply(&[Step::Gained { place, parent: None, keys: vec![key(group as u8)] }], |_| ());
        }
        assert_eq!(holdings.len(), MOST_PLACES);
        assert_eq!([63, 64].map(|i| worth(&holdings, None, key(i))), [1.0, 0.0]);
    }

    #[test]
    fn a_part_of_no_copy_is_refused() {
        assert!(!Holdings::default().apply_copy(false, true, &[]));
    }

    #[test]
    fn weights_that_are_no_weights_do_no_harm() {
        let mut holdings = Holdings::default();
        holdings.apply(&[Step::Gained { place: Place::GPU, parent: None, keys: vec![key(1)] }], |_| ());
        for (weight, want) in [(f32::NAN, 0.0), (-1.0, 0.0), (7.0, 1.0), (f32::INFINITY, 1.0), (0.5, 0.5)] {
            let scale = holdings.scale(&[(Tier::Gpu, weight)], None);
            assert_eq!(scale.of(holdings.places(key(1))), want, "{weight}");
        }
        assert_eq!(holdings.scale(&[], None).of(holdings.places(key(1))), 0.0);
    }
}
