//! A mirror's blocks as they are written down, and a mirror made of them.

use kvpick_proto::{naming::BlockKey, words::Place};

use super::Mirror;

/// A block that is held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Kept {
    /// Where.
    pub place: Place,
    /// Which.
    pub key: BlockKey,
    /// The block before it in its chain, where known.
    pub after: Option<BlockKey>,
    /// How many copies; at least 1.
    pub copies: u32,
    /// Smaller for what came before.
    pub order: u64,
}

impl Mirror {
    /// Physical blocks on the GPU; 0 when unknown.
    #[must_use]
    pub const fn num_gpu_blocks(&self) -> u64 {
        self.num_gpu_blocks
    }

    /// What is held, whether announced or not, in no order that matters. This is one pass over one table, as it is
    /// done under a lock; the sorting is done elsewhere.
    #[must_use]
    pub fn kept(&self) -> Vec<Kept> {
        let mut all = Vec::new();
        self.kept_into(&mut all);
        all
    }

    /// As [`Self::kept`], into a list that may be one from before: to fill new memory takes as long as all else.
    pub fn kept_into(&self, all: &mut Vec<Kept>) {
        all.clear();
        all.reserve(self.held);
        let held = self.blocks.iter().filter(|(_, it)| it.copies > 0);
        all.extend(held.map(|((place, key), it)| Kept {
            place: *place,
            key: *key,
            after: it.after,
            copies: it.copies,
            order: it.order,
        }));
    }

    /// Holds these from now on, and nothing else; none of them is announced.
    pub fn restore(&mut self, mut all: Vec<Kept>, num_gpu_blocks: u64) {
        *self = Self { policy: self.policy, counts: self.counts, ..Self::default() };
        all.sort_unstable_by_key(|it| it.order);
        for Kept { place, key, after, copies, .. } in all {
            if self.copies(place, key) > 0 || copies == 0 {
                continue;
            }
            self.gain(place, key, after);
            self.set_copies(place, key, copies);
        }
        // Of which there were more copies is not kept.
        self.set_partial();
        self.set_num_gpu_blocks(num_gpu_blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode::{Removed, Stored},
        mirror::MAX_BLOCKS,
    };

    #[test]
    fn there_is_room_for_so_many_blocks_and_no_more() {
        let mut mirror = Mirror::new();
        let store = |keys: std::ops::Range<u64>| {
            let keys: Vec<_> = keys.map(BlockKey::from_u64).collect();
            Stored { tokens: vec![1; keys.len()], keys, block_size: 1, ..Stored::default() }
        };
        let most = MAX_BLOCKS as u64;
        mirror.store(&store(0..most + 3));
        assert_eq!((mirror.len(), mirror.kept().len(), mirror.counts().no_room), (MAX_BLOCKS, MAX_BLOCKS, 3));
        // What is known is counted on, and what goes makes room.
        mirror.remove(&Removed { keys: vec![BlockKey::from_u64(0)], ..Removed::default() });
        drop(mirror.take_net_change());
        mirror.store(&store(most..most + 1));
        assert_eq!((mirror.len(), mirror.copies(Place::GPU, BlockKey::from_u64(most))), (MAX_BLOCKS, 1));
    }
}
