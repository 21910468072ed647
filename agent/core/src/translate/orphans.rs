//! Stores whose parent is not known yet.

use std::collections::{BTreeMap, BTreeSet};

use kvpick_proto::{naming::BlockKey, words::Tier};

use crate::decode::{ExtraItem, Stored};

/// Blocks kept aside.
const MAX_BLOCKS: usize = 65_536;

/// Bytes of their tokens, keys and texts.
const MAX_BYTES: usize = 16 << 20;

#[derive(Clone, Debug)]
struct Orphan {
    stored: Stored,
    parent: (u32, BlockKey),
    /// Whether each block is still held.
    held: Vec<bool>,
    bytes: usize,
}

/// Stores kept aside, by the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Orphans {
    all: BTreeMap<u64, Orphan>,
    next: u64,
    /// Group and parent, and which store waits for it.
    waiting: BTreeSet<(u32, BlockKey, u64)>,
    /// Group and block, and which store has it.
    keys: BTreeSet<(u32, BlockKey, u64)>,
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
        self.keys.extend(stored.keys.iter().map(|it| (group, *it, id)));
        self.blocks += stored.keys.len();
        let bytes = size(&stored);
        self.bytes += bytes;
        let held = vec![true; stored.keys.len()];
        self.all.insert(id, Orphan { stored, parent: (group, parent), held, bytes });
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

    /// A copy of that block went.
    pub(super) fn remove(&mut self, group: u32, tier: Option<Tier>, key: BlockKey) {
        let tier = tier.unwrap_or(Tier::Gpu);
        let range = (group, key, 0)..=(group, key, u64::MAX);
        let mut emptied = None;
        for (_, _, id) in self.keys.range(range) {
            let Some(orphan) = self.all.get_mut(id) else { continue };
            let at = orphan.stored.keys.iter().zip(&orphan.held).position(|(it, held)| *it == key && *held);
            let Some(at) = at.filter(|_| orphan.stored.tier.unwrap_or(Tier::Gpu) == tier) else { continue };
            orphan.held[at] = false;
            emptied = orphan.held.iter().all(|it| !it).then_some(*id);
            break;
        }
        emptied.map(|id| self.take_one(id));
    }

    fn take_one(&mut self, id: u64) -> Option<(Stored, Vec<bool>)> {
        let Orphan { stored, parent: (group, parent), held, bytes } = self.all.remove(&id)?;
        self.waiting.remove(&(group, parent, id));
        for key in &stored.keys {
            self.keys.remove(&(group, *key, id));
        }
        self.blocks -= stored.keys.len();
        self.bytes -= bytes;
        Some((stored, held))
    }
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
