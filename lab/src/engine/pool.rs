//! The block pool, with the semantics of vLLM's `v1/core/block_pool.py` (0.32).
//!
//! - Only full blocks are registered, under their chained hash. The same hash may be registered for several physical
//!   blocks; each copy is announced when it is registered and when it goes.
//! - A block that nobody uses keeps its hash and its content until it is allocated again; only then is it
//!   [`Event::Removed`]. Freeing announces nothing.
//! - Free blocks are taken least recently used first. Blocks without a hash hold nothing worth keeping and go first.
//! - Block 0 is a placeholder that is never allocated: one block less than the pool has can be used.

use std::collections::{BTreeMap, HashMap};

use kvpick_proto::naming::{Digest, ExtraKey};

use super::free_queue::FreeQueue;

/// Number of a physical block.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BlockId(u32);

impl BlockId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a pool has fewer than 2^32 blocks"))
    }
}

/// What an engine announces about its blocks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Consecutive full blocks of one sequence were registered.
    Stored(Stored),
    /// One physical copy of this block was given to somebody else.
    Removed(Digest),
    /// Every registered block was forgotten.
    Cleared,
}

/// Consecutive full blocks of one sequence.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored {
    /// One per block.
    pub hashes: Vec<Digest>,
    /// The block before the first; `None` where the first begins the sequence.
    pub parent: Option<Digest>,
    /// The blocks' tokens: as many as the block size for each hash.
    pub tokens: Vec<u32>,
    /// What entered each block's hash besides tokens; one list per block.
    pub extra: Vec<Vec<ExtraKey>>,
}

/// Physical blocks, who uses them, and what they hold.
#[derive(Clone, Debug)]
pub struct Pool {
    blocks: Vec<Block>,
    free: FreeQueue,
    /// Copies of each hash in the order in which they were registered; a hit takes the first.
    held: HashMap<Digest, Vec<BlockId>>,
    events: Vec<Event>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    users: u32,
    hash: Option<Digest>,
}

impl Pool {
    /// A pool of `num_blocks` physical blocks, the placeholder included. At least 2, or nothing can ever be allocated.
    #[must_use]
    pub fn new(num_blocks: u32) -> Self {
        let mut free = FreeQueue::new(num_blocks);
        for block in 1..num_blocks {
            free.push_tail(BlockId(block));
        }
        Self {
            blocks: vec![Block::default(); num_blocks as usize],
            free,
            held: HashMap::new(),
            events: Vec::new(),
        }
    }

    /// Blocks that can be allocated in all.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.blocks.len().saturating_sub(1)
    }

    /// Blocks that nobody uses, whether they hold something or not.
    #[must_use]
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Share of the usable blocks that somebody uses, 0 to 1.
    #[must_use]
    pub fn usage(&self) -> f64 {
        let usable = self.usable().max(1) as f64;
        (usable - self.free.len() as f64) / usable
    }

    /// The longest run of leading `hashes` that are held, one copy of each.
    #[must_use]
    pub fn longest_run(&self, hashes: &[Digest]) -> Vec<BlockId> {
        hashes.iter().map_while(|hash| self.held.get(hash)?.first().copied()).collect()
    }

    /// How many of these blocks lie in the free queue, and so would leave it when used.
    #[must_use]
    pub fn count_free(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|block| self.free.contains(**block)).count()
    }

    /// Uses blocks that hold something: they can't be given away until freed.
    pub fn touch(&mut self, blocks: &[BlockId]) {
        for &block in blocks {
            if self.blocks[block.index()].users == 0 {
                self.free.remove(block);
            }
            self.blocks[block.index()].users += 1;
        }
    }

    /// Takes `count` free blocks, announcing what they held; `None`, and nothing done, where there are fewer.
    pub fn allocate(&mut self, count: usize) -> Option<Vec<BlockId>> {
        if self.free.len() < count {
            return None;
        }
        let mut taken = Vec::with_capacity(count);
        for _ in 0..count {
            let block = self.free.pop()?;
            self.evict(block);
            self.blocks[block.index()].users = 1;
            taken.push(block);
        }
        Some(taken)
    }

    /// Registers used blocks under their hashes and announces it. `blocks` and `stored.hashes` run in parallel.
    pub fn register(&mut self, blocks: &[BlockId], stored: Stored) {
        debug_assert_eq!(blocks.len(), stored.hashes.len(), "one hash per block");
        for (&block, &hash) in blocks.iter().zip(&stored.hashes) {
            debug_assert_eq!(self.blocks[block.index()].hash, None, "{block:?} holds something already");
            self.blocks[block.index()].hash = Some(hash);
            self.held.entry(hash).or_default().push(block);
        }
        self.events.push(Event::Stored(stored));
    }

    /// Ends one use of each of a sequence's blocks, given in the sequence's order.
    ///
    /// They are queued from the tail of the sequence, so that its end is given away before its beginning, which other
    /// sequences are more likely to share.
    pub fn free(&mut self, blocks: &[BlockId]) {
        for &block in blocks.iter().rev() {
            let it = &mut self.blocks[block.index()];
            debug_assert!(0 < it.users, "{block:?} is used by nobody");
            it.users -= 1;
            if it.users == 0 {
                if it.hash.is_some() { self.free.push_tail(block) } else { self.free.push_head(block) }
            }
        }
    }

    /// Forgets every registered block; refused, with `false`, while any block is used.
    pub fn reset(&mut self) -> bool {
        if self.free.len() != self.usable() {
            return false;
        }
        self.held.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
        self.events.push(Event::Cleared);
        true
    }

    /// What happened since the last call, in order.
    #[must_use = "an event that is dropped is never announced"]
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// How many copies of each hash are held.
    #[must_use]
    pub fn copies(&self) -> BTreeMap<Digest, usize> {
        self.held.iter().map(|(hash, blocks)| (*hash, blocks.len())).collect()
    }

    fn evict(&mut self, block: BlockId) {
        let Some(hash) = self.blocks[block.index()].hash.take() else { return };
        if let Some(copies) = self.held.get_mut(&hash) {
            copies.retain(|copy| *copy != block);
            if copies.is_empty() {
                self.held.remove(&hash);
            }
        }
        self.events.push(Event::Removed(hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u8) -> Digest {
        Digest::from_bytes(&[n; 32]).unwrap()
    }

    fn stored(hashes: &[Digest]) -> Stored {
        Stored { hashes: hashes.to_vec(), parent: None, tokens: vec![], extra: vec![vec![]; hashes.len()] }
    }

    /// A pool in which one sequence registered these hashes and was freed.
    fn pool_with(num_blocks: u32, hashes: &[Digest]) -> Pool {
        let mut pool = Pool::new(num_blocks);
        hold(&mut pool, hashes);
        pool
    }

    fn hold(pool: &mut Pool, hashes: &[Digest]) {
        let blocks = pool.allocate(hashes.len()).unwrap();
        pool.register(&blocks, stored(hashes));
        pool.free(&blocks);
        let _ = pool.take_events();
    }

    #[test]
    fn one_block_is_never_allocated() {
        let mut pool = Pool::new(4);
        assert_eq!(pool.usable(), 3);
        assert!(pool.allocate(4).is_none());
        assert!(!pool.allocate(3).unwrap().contains(&BlockId(0)));
        assert!((pool.usage() - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_freed_block_is_held_until_it_is_allocated_again_tail_first() {
        let mut pool = pool_with(4, &[hash(1), hash(2), hash(3)]);
        assert_eq!(pool.longest_run(&[hash(1), hash(2), hash(3)]).len(), 3);
        pool.allocate(2).unwrap();
        assert_eq!(pool.take_events(), [Event::Removed(hash(3)), Event::Removed(hash(2))]);
        assert_eq!(pool.longest_run(&[hash(1), hash(2), hash(3)]).len(), 1);
    }

    #[test]
    fn blocks_that_hold_nothing_go_first() {
        let mut pool = pool_with(4, &[hash(1)]);
        let empty = pool.allocate(2).unwrap();
        pool.free(&empty);
        let again = pool.allocate(2).unwrap();
        assert_eq!(pool.take_events(), []);
        assert!(again.iter().all(|block| empty.contains(block)));
    }

    #[test]
    fn a_hit_saves_a_block_from_being_given_away() {
        let mut pool = pool_with(3, &[hash(1), hash(2)]);
        let run = pool.longest_run(&[hash(1), hash(2)]);
        assert_eq!(pool.count_free(&run), 2);
        pool.touch(&run[1..]);
        pool.allocate(1).unwrap();
        assert_eq!(pool.take_events(), [Event::Removed(hash(1))]);
        assert!(pool.allocate(1).is_none());
    }

    #[test]
    fn each_copy_is_announced_for_itself() {
        let mut pool = Pool::new(3);
        let first = pool.allocate(1).unwrap();
        pool.register(&first, stored(&[hash(1)]));
        let second = pool.allocate(1).unwrap();
        pool.register(&second, stored(&[hash(1)]));
        assert_eq!(pool.take_events().len(), 2);
        assert_eq!(pool.longest_run(&[hash(1)]), first);

        pool.free(&first);
        pool.allocate(1).unwrap();
        assert_eq!(pool.take_events(), [Event::Removed(hash(1))]);
        assert_eq!(pool.longest_run(&[hash(1)]), second);
    }

    #[test]
    fn a_reset_needs_an_idle_pool() {
        let mut pool = pool_with(3, &[hash(1)]);
        let used = pool.longest_run(&[hash(1)]);
        pool.touch(&used);
        assert!(!pool.reset());
        pool.free(&used);
        assert!(pool.reset());
        assert_eq!(pool.take_events(), [Event::Cleared]);
        assert!(pool.copies().is_empty());
        pool.allocate(2).unwrap();
        assert_eq!(pool.take_events(), []);
    }
}
