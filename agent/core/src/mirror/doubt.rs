//! Copies that an engine may have beside those that are counted.

use std::collections::BTreeMap;

use kvpick_proto::{naming::BlockKey, words::Place};

/// Blocks that are remembered one by one. Past that, any block may have more copies.
const MOST: usize = 65_536;

/// Of which blocks there may be more copies than are counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubt {
    /// Whether it may be any: what the engine held before it was heard is not known.
    any: bool,
    /// By how many, where that is known.
    more: BTreeMap<(Place, BlockKey), u32>,
}

impl Doubt {
    /// There may be any block.
    pub(super) const fn of_everything() -> Self {
        Self { any: true, more: BTreeMap::new() }
    }

    /// Whether there may be a copy that is not counted.
    pub(super) fn is_of(&self, place: Place, key: BlockKey) -> bool {
        self.any || self.more.contains_key(&(place, key))
    }

    /// There may be one more than there might have been.
    pub(super) fn add(&mut self, place: Place, key: BlockKey) {
        if self.any {
            return;
        }
        let more = self.more.entry((place, key)).or_default();
        *more = more.saturating_add(1);
        if self.more.len() > MOST {
            *self = Self::of_everything();
        }
    }

    /// A copy went that was not counted. Returns whether it was known that there might be one.
    pub(super) fn take(&mut self, place: Place, key: BlockKey) -> bool {
        let Some(more) = self.more.get_mut(&(place, key)) else { return false };
        *more -= 1;
        if *more == 0 {
            self.more.remove(&(place, key));
        }
        true
    }

    /// How many copies there are is known.
    pub(super) fn settle(&mut self, place: Place, key: BlockKey) {
        self.more.remove(&(place, key));
    }

    /// The same where blocks go by other names: those that are not held have none yet.
    pub(super) fn renamed(self) -> Self {
        if self.any || !self.more.is_empty() { Self::of_everything() } else { Self::default() }
    }
}
