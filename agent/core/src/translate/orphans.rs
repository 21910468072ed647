//! Stores whose parent is not known yet.

use std::collections::{BTreeMap, BTreeSet};

use kvpick_proto::{
    naming::BlockKey,
    words::{Place, Tier},
};

use crate::decode::{ExtraItem, Stored};

/// Blocks kept aside.
const MAX_BLOCKS: usize = 65_536;

/// Bytes of their tokens, keys and texts.
const MAX_BYTES: usize = 16 << 20;

#[derive(Clone, Debug)]
struct Orphan {
    stored: Stored,
    parent: (u32, BlockKey),
    /// Whether each block is still held, and how many are.
    held: Vec<bool>,
    left: usize,
    bytes: usize,
}

/// Stores kept aside, by the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Orphans {
    all: BTreeMap<u64, Orphan>,
    next: u64,
    /// Group and parent, and which store waits for it.
    waiting: BTreeSet<(u32, BlockKey, u64)>,
    /// Tier, group and block, and which store holds it at which place: what one removal costs must not depend on how many
    /// do.
    keys: BTreeSet<(Tier, u32, BlockKey, u64, usize)>,
    /// How many places there are for each.
    copies: BTreeMap<(Tier, u32, BlockKey), u32>,
    blocks: usize,
    bytes: usize,
}

impl Orphans {
    /// Blocks kept aside.
    pub(super) const fn len(&self) -> usize {
        self.blocks
    }

    pub(super) fn clear(&mut self) {
        *self = Self { next: self.next, ..Self::default() };
    }

    /// Keeps a store aside. Returns for how many blocks there was no room.
    pub(super) fn keep(&mut self, group: u32, parent: BlockKey, stored: Stored) -> u64 {
        let id = self.next;
        self.next += 1;
        self.waiting.insert((group, parent, id));
        let tier = tier_of(&stored);
        self.keys.extend(stored.keys.iter().enumerate().map(|(at, it)| (tier, group, *it, id, at)));
        for key in &stored.keys {
            *self.copies.entry((tier, group, *key)).or_default() += 1;
        }
        self.blocks += stored.keys.len();
        let bytes = size(&stored);
        self.bytes += bytes;
        let (held, left) = (vec![true; stored.keys.len()], stored.keys.len());
        self.all.insert(id, Orphan { stored, parent: (group, parent), held, left, bytes });
        let mut dropped = 0;
        while (self.blocks > MAX_BLOCKS || self.bytes > MAX_BYTES)
            && let Some(oldest) = self.all.first_key_value().map(|(id, _)| *id)
        {
            dropped += self.take_one(oldest).map_or(0, |(it, _)| it.keys.len() as u64);
        }
        dropped
    }

    /// Takes the stores that wait for that block, in order, each with which of its blocks are still held.
    pub(super) fn take(&mut self, group: u32, parent: BlockKey) -> Vec<(Stored, Vec<bool>)> {
        let range = (group, parent, 0)..=(group, parent, u64::MAX);
        let ids: Vec<_> = self.waiting.range(range).map(|(_, _, id)| *id).collect();
        ids.into_iter().filter_map(|id| self.take_one(id)).collect()
    }

    /// Copies of that block that are held.
    pub(super) fn copies(&self, Place { group, tier }: Place, key: BlockKey) -> u32 {
        self.copies.get(&(tier, group, key)).copied().unwrap_or(0)
    }

    /// A copy of that block went.
    pub(super) fn remove(&mut self, group: u32, tier: Option<Tier>, key: BlockKey) {
        let tier = tier.unwrap_or(Tier::Gpu);
        let range = (tier, group, key, 0, 0)..=(tier, group, key, u64::MAX, usize::MAX);
        let Some(first) = self.keys.range(range).next().copied() else { return };
        self.forget(first);
        let (.., id, at) = first;
        let Some(orphan) = self.all.get_mut(&id) else { return };
        orphan.held[at] = false;
        orphan.left -= 1;
        if orphan.left == 0 {
            self.take_one(id);
        }
    }

    fn forget(&mut self, place: (Tier, u32, BlockKey, u64, usize)) {
        let (tier, group, key, ..) = place;
        if !self.keys.remove(&place) {
            return;
        }
        if let Some(copies) = self.copies.get_mut(&(tier, group, key)) {
            *copies -= 1;
            if *copies == 0 {
                self.copies.remove(&(tier, group, key));
            }
        }
    }

    fn take_one(&mut self, id: u64) -> Option<(Stored, Vec<bool>)> {
        let Orphan { stored, parent: (group, parent), held, bytes, .. } = self.all.remove(&id)?;
        self.waiting.remove(&(group, parent, id));
        let tier = tier_of(&stored);
        for (at, key) in stored.keys.iter().enumerate() {
            self.forget((tier, group, *key, id, at));
        }
        self.blocks -= stored.keys.len();
        self.bytes -= bytes;
        Some((stored, held))
    }
}

fn tier_of(stored: &Stored) -> Tier {
    stored.tier.unwrap_or(Tier::Gpu)
}

/// About what a store takes up beside its keys' places in the tables.
fn size(stored: &Stored) -> usize {
    let item = |it: &ExtraItem| match it {
        ExtraItem::Text(text) | ExtraItem::Media { identifier: text, .. } => text.len(),
        ExtraItem::Bytes(bytes) => bytes.len(),
        ExtraItem::Other => 0,
    };
    let extra = stored.extra_keys.iter().flat_map(|(_, items)| items).map(|it| 64 + item(it));
    256 + stored.tokens.len() * 4 + stored.keys.len() * 8 + extra.sum::<usize>()
}
