//! Names the blocks of an engine whose own names can't be reproduced.
//!
//! A block gets the name that it has in the canonical domain (`sha256_cbor`, the root of vLLM 0.29, extra keys tagged,
//! the engine's block size), chained from the tokens that its events carry. An engine's name of a block stands for one
//! content, so that within a group the new names are as good as the old ones: each has one, and no two share one.
//!
//! What can't be named is left out, with all that follows it in its chain: blocks with extra keys that events do not
//! tell, blocks of groups that do not keep every block, blocks without tokens. A block whose parent is not known yet is
//! kept aside as long as there is room, and named once its parent is.
//!
//! Memory: at most [`MAX_BLOCKS`] names at about 250 bytes, and 24 MiB of blocks kept aside; the oldest go first.

mod names;
mod orphans;

use std::num::NonZeroU32;

use kvpick_proto::{
    naming::{BlockKey, Digest, ExtraKey, ExtraKeyShape, Hasher},
    words::{Adapter, Place},
};

use crate::{
    decode::{Removed, Stored},
    domain::{canonical, extra::Extras},
    mirror::MAX_GROUPS,
};
use names::{Names, Taken};
use orphans::Orphans;

/// Blocks whose names are kept.
pub const MAX_BLOCKS: usize = 1 << 19;

/// Kinds of group whose blocks depend on nothing but the tokens up to their end, and are all kept.
const DENSE: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Whether that kind of group keeps every block; vLLM before 0.22 does not say.
pub(crate) fn is_dense_kind(kind: &str) -> bool {
    kind.is_empty() || DENSE.contains(&kind)
}

/// Whether a store is of a group that keeps every block.
pub(crate) fn is_of_dense_group(stored: &Stored) -> bool {
    stored.kind.as_deref().is_none_or(is_dense_kind)
}

/// What to do to a mirror that holds blocks by their new names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output {
    /// These are held.
    Store(Stored),
    /// A copy of each of these went.
    Remove(Removed),
    /// No copy of that block counts any more, in whatever tier.
    Forget {
        /// Its group.
        group: u32,
        /// Its new name.
        key: BlockKey,
    },
}

/// What became of blocks so far, but for [`Self::orphans`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Blocks stored that got a name.
    pub translated: u64,
    /// Blocks kept aside now.
    pub orphans: u64,
    /// Blocks kept aside for which there was no room any more.
    pub dropped: u64,
    /// Left out: they, or what they follow, have extra keys that events do not tell.
    pub left_out_extra_keys: u64,
    /// Left out: their group skips blocks, or has blocks of another size.
    pub left_out_groups: u64,
    /// Left out: stored without tokens, and not known.
    pub left_out_placeholders: u64,
    /// Left out: the engine has two names for what their events tell, or they follow such a block.
    pub left_out_hidden_keys: u64,
}

/// How an engine's events are to be read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// Tokens in a block.
    pub block_size: NonZeroU32,
    /// How its events show extra keys.
    pub shape: ExtraKeyShape,
    /// The adapters that it serves.
    pub adapters: &'a [Adapter],
}

/// Gives the blocks of one engine new names.
#[derive(Clone, Debug)]
pub struct Translator {
    hasher: Hasher,
    names: Names,
    orphans: Orphans,
    counts: Counts,
}

impl Default for Translator {
    fn default() -> Self {
        // The block size enters no hash.
        let domain = canonical(NonZeroU32::MIN);
        Self {
            hasher: Hasher::new(&domain),
            names: Names::default(),
            orphans: Orphans::default(),
            counts: Counts::default(),
        }
    }
}

/// A store whose parent's digest is known.
struct Placed {
    stored: Stored,
    parent: Digest,
    /// Whether each block is still held.
    held: Vec<bool>,
}

impl Translator {
    /// What became of blocks so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { orphans: self.orphans.len() as u64, ..self.counts }
    }

    /// The new name of a block.
    #[must_use]
    pub fn name(&self, group: u32, key: BlockKey) -> Option<BlockKey> {
        self.names.digest(group, key).map(|it| it.key())
    }

    /// The engine's name of a block.
    #[must_use]
    pub fn engine_name(&self, group: u32, name: BlockKey) -> Option<BlockKey> {
        self.names.engine_key(group, name)
    }

    /// How many copies of a block are kept aside until their parent is known.
    #[must_use]
    pub fn waiting(&self, place: Place, key: BlockKey) -> u32 {
        self.orphans.copies(place, key)
    }

    /// One of the copies went that are kept aside.
    pub fn remove_waiting(&mut self, place: Place, key: BlockKey) {
        self.orphans.remove(place.group, Some(place.tier), key);
    }

    /// Everything went.
    pub fn clear(&mut self) {
        self.names.clear();
        self.orphans.clear();
    }

    /// Blocks are held from now on.
    pub fn on_stored(&mut self, stored: &Stored, reading: &Reading<'_>) -> Vec<Output> {
        let mut outputs = Vec::new();
        let group = stored.group.unwrap_or(0);
        let blocks = stored.keys.len() as u64;
        if blocks == 0 || group >= MAX_GROUPS {
            return outputs;
        }
        if stored.tokens.is_empty() {
            let keys: Vec<_> = stored.keys.iter().filter_map(|it| self.name(group, *it)).collect();
            self.counts.left_out_placeholders += blocks - keys.len() as u64;
            if !keys.is_empty() {
                outputs.push(Output::Store(Stored { keys, parent: None, ..stored.clone() }));
            }
            return outputs;
        }
        let is_usual = stored.is_dense() && stored.block_size == reading.block_size.get();
        if !is_usual || !is_of_dense_group(stored) {
            self.counts.left_out_groups += blocks;
            return outputs;
        }
        let parent = match stored.parent {
            None => self.hasher.root(),
            Some(parent) => match self.names.get(group, parent) {
                Some(Taken::Named(digest)) => digest,
                Some(Taken::LeftOut) => {
                    self.leave_out(group, Some(parent), &stored.keys, &mut outputs);
                    self.counts.left_out_extra_keys += blocks;
                    return outputs;
                }
                None => {
                    self.counts.dropped += self.orphans.keep(group, parent, stored.clone());
                    return outputs;
                }
            },
        };
        let held = vec![true; stored.keys.len()];
        self.place(Placed { stored: stored.clone(), parent, held }, reading, &mut outputs);
        outputs
    }

    /// A copy of each of these blocks went. What is not held any more has to be forgotten then, by [`Self::forget`].
    pub fn on_removed(&mut self, removed: &Removed) -> Vec<Output> {
        let group = removed.group.unwrap_or(0);
        let mut keys = Vec::with_capacity(removed.keys.len());
        // Only where it is told of each block; of those without a name it is left out too.
        let told = removed.remaining.len() == removed.keys.len();
        let mut remaining = Vec::new();
        for (at, key) in removed.keys.iter().enumerate() {
            match self.names.get(group, *key) {
                Some(Taken::Named(digest)) => {
                    keys.push(digest.key());
                    remaining.extend(removed.remaining.get(at).filter(|_| told));
                }
                // How many copies there are is not known; one that is stored again is left out again.
                Some(Taken::LeftOut) => self.names.remove(group, *key),
                None => self.orphans.remove(group, removed.tier, *key),
            }
        }
        if keys.is_empty() {
            return Vec::new();
        }
        vec![Output::Remove(Removed { keys, remaining, tier: removed.tier, group: removed.group })]
    }

    /// That block, by the engine's name, is held in no tier any more.
    pub fn forget(&mut self, group: u32, key: BlockKey) {
        if matches!(self.names.get(group, key), Some(Taken::Named(_))) {
            self.names.remove(group, key);
        }
    }

    /// Names the blocks of a store, and of all that waited for them.
    fn place(&mut self, first: Placed, reading: &Reading<'_>, outputs: &mut Vec<Output>) {
        let mut all = std::collections::VecDeque::from([first]);
        while let Some(mut placed) = all.pop_front() {
            let group = placed.stored.group.unwrap_or(0);
            let digests = self.name_all(&placed, reading, outputs);
            // Of a store with more blocks than there is room for the first have lost their names again.
            for (held, key) in placed.held.iter_mut().zip(&placed.stored.keys) {
                *held &= self.names.digest(group, *key).is_some();
            }
            let parent = placed.stored.parent.map(|_| placed.parent.key());
            store_held(&placed, parent, &digests, outputs);
            for (at, key) in placed.stored.keys.iter().enumerate() {
                for (stored, held) in self.orphans.take(group, *key) {
                    match digests.get(at) {
                        Some(digest) => all.push_back(Placed { stored, parent: *digest, held }),
                        None => {
                            self.counts.left_out_extra_keys += stored.keys.len() as u64;
                            // What waits for it in turn is left out by the same way.
                            self.abandon(group, stored, outputs);
                        }
                    }
                }
            }
        }
    }

    /// The digests of the first blocks of a store, up to the first that is left out.
    fn name_all(&mut self, placed: &Placed, reading: &Reading<'_>, outputs: &mut Vec<Output>) -> Vec<Digest> {
        let stored = &placed.stored;
        let group = stored.group.unwrap_or(0);
        let mut digests = Vec::with_capacity(stored.keys.len());
        let size = reading.block_size.get() as usize;
        let (mut digest, mut before) = (placed.parent, stored.parent);
        // An adapter's path enters the new name whether or not it entered the old one.
        let extras = Extras::of(stored, ExtraKeyShape::Tagged, reading.adapters).ok();
        for (at, (tokens, key)) in stored.tokens.chunks_exact(size).zip(&stored.keys).enumerate() {
            let rest = (stored.keys.len() - at) as u64;
            let Some(extra) = extras.as_ref().and_then(|it| told(it, at, reading.shape)) else {
                self.counts.left_out_extra_keys += rest;
                self.leave_out(group, before, &stored.keys[at..], outputs);
                return digests;
            };
            digest = self.hasher.next(&digest, tokens, &extra);
            // One that went before it was placed needs no name; another store may bring it yet.
            let is_new = self.names.get(group, *key).is_none();
            if !self.names.insert(group, *key, before, digest, outputs) {
                self.counts.left_out_hidden_keys += rest;
                self.leave_out(group, before, &stored.keys[at..], outputs);
                return digests;
            }
            if is_new && !placed.held[at] {
                self.names.remove(group, *key);
            }
            digests.push(digest);
            before = Some(*key);
        }
        self.counts.translated += digests.len() as u64;
        digests
    }

    fn leave_out(
        &mut self,
        group: u32,
        parent: Option<BlockKey>,
        keys: &[BlockKey],
        outputs: &mut Vec<Output>,
    ) {
        let before = std::iter::once(parent).chain(keys.iter().copied().map(Some));
        for (key, before) in keys.iter().zip(before) {
            self.names.leave_out(group, *key, before, outputs);
        }
    }

    /// An orphan turned out to follow what is left out.
    fn abandon(&mut self, group: u32, orphan: Stored, outputs: &mut Vec<Output>) {
        let mut all = vec![orphan];
        while let Some(stored) = all.pop() {
            self.leave_out(group, stored.parent, &stored.keys, outputs);
            for key in &stored.keys {
                all.extend(self.orphans.take(group, *key).into_iter().map(|(it, _)| it));
            }
        }
    }
}

/// The extra keys of one block in the form of the canonical domain, if events tell them.
fn told(extras: &Extras<'_>, block: usize, shape: ExtraKeyShape) -> Option<Vec<ExtraKey>> {
    let it = extras.block(block, shape).ok()?;
    let lacks_offset = |key: &ExtraKey| shape == ExtraKeyShape::Bare && matches!(key, ExtraKey::Media { .. });
    (!it.is_vague && !it.keys.iter().any(lacks_offset)).then_some(it.keys)
}

/// The blocks of a placed store that are held, in runs.
fn store_held(placed: &Placed, parent: Option<BlockKey>, digests: &[Digest], outputs: &mut Vec<Output>) {
    let size = placed.stored.block_size as usize;
    let mut at = 0;
    while at < digests.len() {
        let run = placed.held[at..digests.len()].iter().take_while(|it| **it).count();
        if run > 0 {
            let before = if at == 0 { parent } else { Some(digests[at - 1].key()) };
            outputs.push(Output::Store(Stored {
                keys: digests[at..at + run].iter().map(Digest::key).collect(),
                parent: before,
                tokens: placed.stored.tokens[at * size..(at + run) * size].to_vec(),
                extra_keys: Vec::new(),
                ..placed.stored.clone()
            }));
        }
        at += run.max(1);
    }
}
