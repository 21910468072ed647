//! The order in which free blocks are taken: a list threaded through the block numbers, so that a block in its middle
//! can be taken out at once when a request hits it.

use super::pool::BlockId;

/// Free blocks, first to be taken at the head.
#[derive(Clone, Debug)]
pub(super) struct FreeQueue {
    /// Neighbours of each block, and at the end of the vector those of the ring's anchor.
    links: Vec<Option<Links>>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: usize,
    after: usize,
}

impl FreeQueue {
    /// An empty queue for blocks with numbers below `num_blocks`.
    pub(super) fn new(num_blocks: u32) -> Self {
        let anchor = num_blocks as usize;
        let mut links = vec![None; anchor + 1];
        links[anchor] = Some(Links { before: anchor, after: anchor });
        Self { links, len: 0 }
    }

    /// How many blocks are free.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The free blocks, the one that is taken next first.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockId> {
        let after = |at: usize| (at != self.anchor()).then_some(at);
        let first = after(self.at(self.anchor()).after);
        std::iter::successors(first, move |at| after(self.at(*at).after)).map(BlockId::from_index)
    }

    /// Whether that block is free.
    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.links[block.index()].is_some()
    }

    /// Takes the block at the head.
    pub(super) fn pop(&mut self) -> Option<BlockId> {
        let head = self.at(self.anchor()).after;
        if head == self.anchor() {
            return None;
        }
        let block = BlockId::from_index(head);
        self.remove(block);
        Some(block)
    }

    /// Takes that block out, wherever it is. It must be in the queue.
    pub(super) fn remove(&mut self, block: BlockId) {
        let Links { before, after } = self.at(block.index());
        self.links[block.index()] = None;
        self.at_mut(before).after = after;
        self.at_mut(after).before = before;
        self.len -= 1;
    }

    /// Adds a block at the tail: it is taken last.
    pub(super) fn push_tail(&mut self, block: BlockId) {
        let last = self.at(self.anchor()).before;
        self.insert_after(last, block);
    }

    /// Adds a block at the head: it is taken next.
    pub(super) fn push_head(&mut self, block: BlockId) {
        self.insert_after(self.anchor(), block);
    }

    fn insert_after(&mut self, before: usize, block: BlockId) {
        let index = block.index();
        debug_assert!(self.links[index].is_none(), "{block:?} is free already");
        let after = self.at(before).after;
        self.links[index] = Some(Links { before, after });
        self.at_mut(before).after = index;
        self.at_mut(after).before = index;
        self.len += 1;
    }

    fn anchor(&self) -> usize {
        self.links.len() - 1
    }

    fn at(&self, index: usize) -> Links {
        self.links[index].expect("neighbours of a queued block are queued")
    }

    fn at_mut(&mut self, index: usize) -> &mut Links {
        self.links[index].as_mut().expect("neighbours of a queued block are queued")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> BlockId {
        BlockId::from_index(n)
    }

    #[test]
    fn takes_from_the_head_and_out_of_the_middle() {
        let mut queue = FreeQueue::new(6);
        for n in 1..6 {
            queue.push_tail(id(n));
        }
        queue.remove(id(3));
        queue.push_head(id(3));
        assert!(queue.contains(id(3)) && !queue.contains(id(0)));
        assert_eq!(queue.iter().collect::<Vec<_>>(), [3, 1, 2, 4, 5].map(id));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [3, 1, 2, 4, 5].map(id));
        assert_eq!(queue.len(), 0);
    }
}
