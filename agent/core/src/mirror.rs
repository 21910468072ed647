//! What one engine holds, and what of that has not been announced yet.
//!
//! vLLM keeps several physical copies of one block, announces each, and announces the end of each. So copies are
//! counted, per place and key, and a block is held while one is left. [`Copies`] says what to make of engines that do
//! otherwise.

mod doubt;
mod kept;
mod rename;

use std::collections::BTreeMap;

use doubt::Doubt;
pub use kept::Kept;
use kvpick_proto::{
    naming::BlockKey,
    words::{Place, Step, Tier},
};

use crate::{
    decode::{Removed, Stored},
    runs::{Runs, chained},
};

/// Groups of an engine, numbered from 0: far more than any model has. A bound for what comes over the network.
pub(crate) const MAX_GROUPS: u32 = 64;

/// Most blocks of one engine, at about 150 bytes: some ten times what eight large GPUs and their host's memory have. What
/// comes beyond is left out, which costs a miss.
const MAX_BLOCKS: usize = if cfg!(test) { 64 } else { 1 << 22 };

/// What an engine's stores and removals say of the copies of a block.
///
/// Where a removal comes with the number of copies left, that number holds, whatever is set here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Copies {
    /// Every copy is announced, and the end of every copy: they are counted. A report of what may be held already raises
    /// no count, and there are never more copies than the engine has blocks.
    #[default]
    Guarded,
    /// Every copy is announced, but of their ends only the last: a block is held from its store to its removal.
    Set,
}

/// The blocks of one engine.
///
/// Two views of it: what the engine holds now, and what was announced, which is what the last
/// [`Mirror::take_net_change`] made it. Copies for servers are made of the second, so that a copy and the changes
/// that follow it join exactly.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    blocks: BTreeMap<(Place, BlockKey), Block>,
    /// The same blocks in the order in which they came, which has parents before children.
    order: BTreeMap<u64, (Place, BlockKey)>,
    next: u64,
    /// Blocks that changed since the last announcement, in order of their first change.
    touched: Vec<(Place, BlockKey)>,
    /// Whether everything went since the last announcement.
    cleared: bool,
    /// Blocks held, and copies of them, on the GPU.
    gpu: Held,
    /// Blocks held in all places.
    held: usize,
    /// Physical blocks on the GPU; 0 when unknown.
    num_gpu_blocks: u64,
    policy: Copies,
    doubt: Doubt,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    copies: u32,
    order: u64,
    /// The block before it in its chain, where known.
    after: Option<BlockKey>,
    announced: bool,
    touched: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    blocks: u64,
    copies: u64,
}

/// What a mirror met that it had to settle by a rule.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Stores from the start of a prompt whose blocks may all have been held already: a second copy, or only a report.
    pub ambiguous_stores: u64,
    /// Removals of a block that was not held.
    pub unknown_removals: u64,
    /// Blocks stored without tokens that were not held in any other tier.
    pub unknown_placeholders: u64,
    /// Stores and removals in a group whose number no model has.
    pub unknown_groups: u64,
    /// Times that more copies were counted than the engine has blocks.
    pub cuts: u64,
    /// Blocks stored for which there was no room.
    pub no_room: u64,
}

/// A place in a full copy that is under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cursor {
    next: u64,
    end: u64,
}

impl Mirror {
    /// A mirror of an engine that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A mirror of an engine that holds nothing, and announces copies so.
    #[must_use]
    pub fn of(policy: Copies) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Physical blocks on the GPU, one of which is never used; 0 when unknown. A bound on the copies there.
    pub fn set_num_gpu_blocks(&mut self, blocks: u64) {
        self.num_gpu_blocks = blocks;
        self.cut();
    }

    /// Number of blocks held, each counted once in each of its places.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.held
    }

    /// Whether nothing is held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Number of copies on the GPU.
    #[must_use]
    pub const fn gpu_copies(&self) -> u64 {
        self.gpu.copies
    }

    /// What had to be settled by a rule so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// How many copies are held at that place.
    #[must_use]
    pub fn copies(&self, place: Place, key: BlockKey) -> u32 {
        self.blocks.get(&(place, key)).map_or(0, |it| it.copies)
    }

    /// What is held and in how many copies, in order of place and key.
    pub fn held(&self) -> impl Iterator<Item = (Place, BlockKey, u32)> + '_ {
        let held = self.blocks.iter().filter(|(_, block)| block.copies > 0);
        held.map(|((place, key), block)| (*place, *key, block.copies))
    }

    /// Blocks are held from now on.
    pub fn store(&mut self, stored: &Stored) {
        let Some(place) = self.place(stored.group, stored.tier) else { return };
        if stored.tokens.is_empty() {
            return self.store_placeholders(place, &stored.keys);
        }
        if self.policy == Copies::Guarded && stored.parent.is_none() && self.may_be_report(place, stored) {
            self.counts.ambiguous_stores += 1;
            return self.store_ambiguous(place, stored);
        }
        // A group that skips blocks does not say which, so that its parent may not be the block before the first.
        let parent = stored.parent.filter(|_| stored.is_dense());
        for (key, after) in chained(parent, &stored.keys) {
            self.gain(place, key, after);
        }
        self.cut();
    }

    /// Whether a store from the start of a prompt may be what `kv_cache_report_mode=full` says of blocks that are there
    /// already. It may not if one of them is certain not to be there.
    fn may_be_report(&self, place: Place, stored: &Stored) -> bool {
        let held = |key: &BlockKey| self.copies(place, *key) > 0;
        let keys = &stored.keys;
        keys.iter().any(held) && keys.iter().all(|it| held(it) || self.doubt.is_of(place, *it))
    }

    /// Either there is another copy of each, or only a report of what is there. To count a copy too few costs a miss; one
    /// too many, a block that never goes.
    fn store_ambiguous(&mut self, place: Place, stored: &Stored) {
        let parent = stored.parent.filter(|_| stored.is_dense());
        for (key, after) in chained(parent, &stored.keys) {
            if self.copies(place, key) > 0 {
                self.doubt.add(place, key);
            } else {
                self.gain(place, key, after);
            }
        }
        self.cut();
    }

    /// A connector that copies blocks to another tier may name them by hash alone: that is worth something only
    /// where the block is known.
    fn store_placeholders(&mut self, place: Place, keys: &[BlockKey]) {
        for key in keys {
            let elsewhere = [Tier::Gpu, Tier::Cpu, Tier::Storage].map(|tier| Place { tier, ..place });
            let known =
                elsewhere.iter().find_map(|it| self.blocks.get(&(*it, *key)).filter(|it| it.copies > 0));
            match known.copied() {
                Some(block) => self.gain(place, *key, block.after),
                None => self.counts.unknown_placeholders += 1,
            }
        }
        self.cut();
    }

    fn gain(&mut self, place: Place, key: BlockKey, after: Option<BlockKey>) {
        if self.blocks.len() >= MAX_BLOCKS && !self.blocks.contains_key(&(place, key)) {
            self.counts.no_room += 1;
            // It may be there from here on.
            return self.set_partial();
        }
        let next = self.next;
        let block = self.blocks.entry((place, key)).or_insert_with(|| {
            self.next += 1;
            self.order.insert(next, (place, key));
            Block { copies: 0, order: next, after, announced: false, touched: false }
        });
        let copies = block.copies.saturating_add(1);
        self.set_copies(place, key, copies);
    }

    /// One copy of each of these blocks went; or so many are left of each.
    pub fn remove(&mut self, removed: &Removed) {
        let Some(place) = self.place(removed.group, removed.tier) else { return };
        let told = removed.remaining.len() == removed.keys.len();
        for (i, key) in removed.keys.iter().enumerate() {
            let copies = self.copies(place, *key);
            let left = removed.remaining.get(i).filter(|_| told);
            if left.is_some() {
                self.doubt.settle(place, *key);
            }
            if copies == 0 {
                self.counts.unknown_removals += u64::from(!self.doubt.take(place, *key));
                continue;
            }
            self.set_copies(place, *key, left.copied().unwrap_or(copies - 1));
        }
        self.cut();
    }

    /// So many copies there are now of a block that the mirror has; of a set, one at most.
    fn set_copies(&mut self, place: Place, key: BlockKey, copies: u32) {
        let Some(block) = self.blocks.get_mut(&(place, key)) else { return };
        let copies = if self.policy == Copies::Set { copies.min(1) } else { copies };
        let before = std::mem::replace(&mut block.copies, copies);
        let (was, is) = (before > 0, copies > 0);
        if was != is && !std::mem::replace(&mut block.touched, true) {
            self.touched.push((place, key));
        }
        self.held = self.held + usize::from(is) - usize::from(was);
        if place.tier == Tier::Gpu {
            self.gpu.blocks = self.gpu.blocks + u64::from(is) - u64::from(was);
            self.gpu.copies = self.gpu.copies + u64::from(copies) - u64::from(before);
        }
    }

    /// Everything went, in whatever group and tier.
    pub fn clear(&mut self) {
        self.cleared |= !self.blocks.is_empty();
        self.blocks.clear();
        self.order.clear();
        self.touched.clear();
        self.held = 0;
        self.gpu = Held::default();
        self.doubt = Doubt::default();
    }

    /// The engine may hold blocks that the mirror has not.
    pub fn set_partial(&mut self) {
        self.doubt = Doubt::of_everything();
    }

    /// As [`Self::clear`], and announced as such also where nothing was held: it may be another engine now.
    pub fn start_anew(&mut self) {
        self.clear();
        self.cleared = true;
    }

    /// More copies than blocks can only be a miscount: each block then counts once.
    fn cut(&mut self) {
        let bound = self.num_gpu_blocks.saturating_sub(1);
        if self.num_gpu_blocks == 0 || self.gpu.copies <= bound || self.gpu.copies == self.gpu.blocks {
            return;
        }
        for ((place, _), block) in &mut self.blocks {
            if place.tier == Tier::Gpu {
                block.copies = block.copies.min(1);
            }
        }
        self.gpu.copies = self.gpu.blocks;
        self.counts.cuts += 1;
    }

    /// Whether something happened since the last announcement. It may have cancelled out.
    #[must_use]
    pub const fn is_touched(&self) -> bool {
        self.cleared || !self.touched.is_empty()
    }

    /// Whether everything went since the last announcement.
    #[must_use]
    pub const fn was_cleared(&self) -> bool {
        self.cleared
    }

    /// Announces that everything went, if it did, and nothing of what came since.
    pub const fn take_clear(&mut self) -> bool {
        std::mem::replace(&mut self.cleared, false)
    }

    /// What changed since the last call, in order of arrival; a store and a removal of one block cancel. From now on
    /// this is announced.
    #[must_use = "a change that is dropped is never announced again"]
    pub fn take_net_change(&mut self) -> Vec<Step> {
        let mut runs = Runs::default();
        if std::mem::take(&mut self.cleared) {
            runs.clear();
        }
        for at in std::mem::take(&mut self.touched) {
            let Some(block) = self.blocks.get_mut(&at) else { continue };
            block.touched = false;
            let (was, is) = (block.announced, block.copies > 0);
            block.announced = is;
            match (was, is) {
                (false, true) => runs.gain(at.0, at.1, block.after),
                (true, false) => runs.lose(at.0, at.1),
                (true, true) | (false, false) => (),
            }
            if !is {
                let order = block.order;
                self.order.remove(&order);
                self.blocks.remove(&at);
            }
        }
        runs.into_steps()
    }

    /// The start of a full copy of what is announced now. What is announced later is not part of it.
    #[must_use]
    pub const fn copy(&self) -> Cursor {
        Cursor { next: 0, end: self.next }
    }

    /// The copy's next steps, which take up at most as much as `max` keys, and where it goes on; `None` at its end.
    #[must_use]
    pub fn copy_part(&self, cursor: Cursor, max: usize) -> (Vec<Step>, Option<Cursor>) {
        let mut runs = Runs::default();
        for (order, at) in self.order.range(cursor.next..cursor.end) {
            let Some(block) = self.blocks.get(at).filter(|it| it.announced) else { continue };
            if runs.is_full(max) {
                return (runs.into_steps(), Some(Cursor { next: *order, ..cursor }));
            }
            runs.gain(at.0, at.1, block.after);
        }
        (runs.into_steps(), None)
    }

    /// vLLM before 0.10.2 named no medium and before 0.20 no group: there was one of each.
    fn place(&mut self, group: Option<u32>, tier: Option<Tier>) -> Option<Place> {
        let group = group.unwrap_or(0);
        if group >= MAX_GROUPS {
            self.counts.unknown_groups += 1;
            return None;
        }
        Some(Place { group, tier: tier.unwrap_or(Tier::Gpu) })
    }
}
