//! The block pool, with the semantics of vLLM's `v1/core/block_pool.py` (0.32).
//!
//! - Only full blocks are registered, under the number of their cache group and their chained hash. The same hash may
//!   be registered for several physical blocks; each copy is announced when it is registered and when it goes.
//! - A block that nobody uses keeps its hash and its content until it is allocated again; only then is it
//!   [`Event::Removed`]. Freeing announces nothing.
//! - Free blocks are taken least recently used first. Blocks without a hash hold nothing worth keeping and go first,
//!   but in old versions of vLLM ([`Reuse`]).
//! - Block 0 is a placeholder that is never allocated: one block less than the pool has can be used.

use std::collections::{BTreeMap, HashMap};

use kvpick_proto::naming::Digest;

pub use super::announce::{Event, Removed, Stored};
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

/// When freed blocks are reused that hold nothing. Those that hold something always come after all that are free.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reuse {
    /// Before all that are free.
    EmptyFirst,
    /// After all that are free, among the others.
    Queued,
}

/// Physical blocks, who uses them, and what they hold.
#[derive(Clone, Debug)]
pub struct Pool {
    blocks: Vec<Block>,
    free: FreeQueue,
    /// Copies of each group's hashes in the order in which they were registered; a hit takes the first.
    held: HashMap<Key, Vec<BlockId>>,
    events: Vec<Event>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    users: u32,
    key: Option<Key>,
}

/// A group's number and a hash.
type Key = (usize, Digest);

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

    /// A block that a group holds under that hash: the copy that was registered first.
    #[must_use]
    pub fn get(&self, group: usize, hash: &Digest) -> Option<BlockId> {
        self.held.get(&(group, *hash))?.first().copied()
    }

    /// Whether nobody uses that block, so that using it takes it out of the free ones.
    #[must_use]
    pub fn is_free(&self, block: BlockId) -> bool {
        self.free.contains(block)
    }

    /// Uses a block that holds something: it can't be given away until freed.
    pub fn touch(&mut self, block: BlockId) {
        if self.blocks[block.index()].users == 0 {
            self.free.remove(block);
        }
        self.blocks[block.index()].users += 1;
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

    /// Registers used blocks under the hashes that the announcement names, and makes it. `blocks` and `stored.hashes`
    /// run in parallel; both may be empty.
    pub fn register(&mut self, blocks: &[BlockId], stored: Stored) {
        debug_assert_eq!(blocks.len(), stored.hashes.len(), "one hash per block");
        for (&block, &hash) in blocks.iter().zip(&stored.hashes) {
            let key = (stored.group, hash);
            debug_assert!(self.blocks[block.index()].key.is_none(), "{block:?} holds something already");
            self.blocks[block.index()].key = Some(key);
            self.held.entry(key).or_default().push(block);
        }
        self.announce(stored);
    }

    /// Announces blocks that are held already.
    pub fn announce(&mut self, stored: Stored) {
        self.events.push(Event::Stored(stored));
    }

    /// Ends one use of each of a sequence's blocks, given in the sequence's order.
    ///
    /// They are queued from the tail of the sequence, so that its end is given away before its beginning, which other
    /// sequences are more likely to share.
    pub fn free(&mut self, blocks: impl DoubleEndedIterator<Item = BlockId>, reuse: Reuse) {
        let mut empty = Vec::new();
        for block in blocks.rev() {
            let it = &mut self.blocks[block.index()];
            debug_assert!(0 < it.users, "{block:?} is used by nobody");
            it.users -= 1;
            if it.users == 0 {
                if it.key.is_none() && reuse == Reuse::EmptyFirst {
                    empty.push(block);
                } else {
                    self.free.push_tail(block);
                }
            }
        }
        // The first of them ends up at the head.
        for block in empty.into_iter().rev() {
            self.free.push_head(block);
        }
    }

    /// Forgets every registered block; refused, with `false`, while any block is used.
    pub fn reset(&mut self) -> bool {
        if self.free.len() != self.usable() {
            return false;
        }
        self.held.clear();
        for block in &mut self.blocks {
            block.key = None;
        }
        self.events.push(Event::Cleared);
        true
    }

    /// What happened since the last call, in order.
    #[must_use = "an event that is dropped is never announced"]
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// How many copies of each hash a group holds.
    #[must_use]
    pub fn copies(&self, group: usize) -> BTreeMap<Digest, usize> {
        let of_group = self.held.iter().filter(|((it, _), _)| *it == group);
        of_group.map(|((_, hash), blocks)| (*hash, blocks.len())).collect()
    }

    /// What the free blocks hold, in the order in which they are given away: group, hash, and how many copies of that
    /// block were registered before this one. Two idle pools in which it is equal behave the same from then on.
    #[must_use]
    pub fn eviction_order(&self) -> Vec<Option<(usize, Digest, usize)>> {
        let holds = |block: BlockId| {
            let key = self.blocks[block.index()].key?;
            let copy = self.held.get(&key)?.iter().position(|it| *it == block)?;
            Some((key.0, key.1, copy))
        };
        self.free.iter().map(holds).collect()
    }

    fn evict(&mut self, block: BlockId) {
        let Some(key) = self.blocks[block.index()].key.take() else { return };
        if let Some(copies) = self.held.get_mut(&key) {
            copies.retain(|copy| *copy != block);
            if copies.is_empty() {
                self.held.remove(&key);
            }
        }
        let (group, hash) = key;
        self.events.push(Event::Removed(Removed { group, hash }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::attention::Group;

    fn hash(n: u8) -> Digest {
        Digest::from_bytes(&[n; 32]).unwrap()
    }

    fn stored(hashes: &[Digest]) -> Stored {
        let extra = vec![vec![]; hashes.len()];
        Stored::new(0, Group::Full, hashes.to_vec(), None, vec![], extra)
    }

    fn removed(n: u8) -> Event {
        Event::Removed(Removed { group: 0, hash: hash(n) })
    }

    /// A pool in which one sequence registered these hashes and was freed.
    fn pool_with(num_blocks: u32, hashes: &[Digest]) -> Pool {
        let mut pool = Pool::new(num_blocks);
        let blocks = pool.allocate(hashes.len()).unwrap();
        pool.register(&blocks, stored(hashes));
        pool.free(blocks.into_iter(), Reuse::EmptyFirst);
        let _ = pool.take_events();
        pool
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
        assert!([1, 2, 3].iter().all(|n| pool.get(0, &hash(*n)).is_some()));
        pool.allocate(2).unwrap();
        assert_eq!(pool.take_events(), [removed(3), removed(2)]);
        assert_eq!([1, 2, 3].map(|n| pool.get(0, &hash(n)).is_some()), [true, false, false]);
    }

    #[test]
    fn blocks_that_hold_nothing_go_first_but_in_old_versions() {
        for (reuse, evicted) in [(Reuse::EmptyFirst, vec![]), (Reuse::Queued, vec![removed(1)])] {
            let mut pool = pool_with(4, &[hash(1)]);
            let empty = pool.allocate(2).unwrap();
            pool.free(empty.into_iter(), reuse);
            pool.allocate(2).unwrap();
            assert_eq!(pool.take_events(), evicted, "{reuse:?}");
        }
    }

    #[test]
    fn a_hit_saves_a_block_from_being_given_away() {
        let mut pool = pool_with(3, &[hash(1), hash(2)]);
        let hit = pool.get(0, &hash(2)).unwrap();
        assert!(pool.is_free(hit));
        pool.touch(hit);
        assert!(!pool.is_free(hit));
        pool.allocate(1).unwrap();
        assert_eq!(pool.take_events(), [removed(1)]);
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
        assert_eq!(pool.get(0, &hash(1)), Some(first[0]));

        pool.free(first.into_iter(), Reuse::EmptyFirst);
        pool.allocate(1).unwrap();
        assert_eq!(pool.take_events(), [removed(1)]);
        assert_eq!(pool.get(0, &hash(1)), Some(second[0]));
    }

    #[test]
    fn groups_hold_the_same_hash_apart() {
        let mut pool = pool_with(4, &[hash(1)]);
        assert_eq!(pool.get(1, &hash(1)), None);
        let other = pool.allocate(1).unwrap();
        pool.register(&other, Stored { group: 1, ..stored(&[hash(1)]) });
        assert_eq!(pool.get(1, &hash(1)), Some(other[0]));
        let _ = pool.take_events();
        // The never used one, and the one of group 0.
        pool.allocate(2).unwrap();
        assert_eq!(pool.take_events(), [removed(1)]);
        assert_eq!((pool.copies(0).len(), pool.copies(1).len()), (0, 1));
    }

    #[test]
    fn a_reset_needs_an_idle_pool() {
        let mut pool = pool_with(3, &[hash(1)]);
        let used = pool.get(0, &hash(1)).unwrap();
        pool.touch(used);
        assert!(!pool.reset());
        pool.free([used].into_iter(), Reuse::EmptyFirst);
        assert!(pool.reset());
        assert_eq!(pool.take_events(), [Event::Cleared]);
        assert!(pool.copies(0).is_empty());
        pool.allocate(2).unwrap();
        assert_eq!(pool.take_events(), []);
    }
}
