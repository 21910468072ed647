//! The new names of an engine's blocks, both ways.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvpick_proto::naming::{BlockKey, Digest};

use super::{MAX_BLOCKS, Output};

/// As [`MAX_BLOCKS`], but for a test that fills it.
const ROOM: usize = if cfg!(test) { 64 } else { MAX_BLOCKS };

/// Names that stand for two blocks that are remembered.
const MAX_SHARED: usize = 65_536;

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Taken {
    Named(Digest),
    LeftOut,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    taken: Taken,
    parent: Option<BlockKey>,
    age: u64,
}

/// By the engine's key in its group.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    blocks: BTreeMap<(u32, BlockKey), Block>,
    ages: BTreeMap<u64, (u32, BlockKey)>,
    next: u64,
    /// Group and new name to the engine's key.
    engine_keys: BTreeMap<(u32, BlockKey), BlockKey>,
    /// Group, engine's key of a parent, engine's key of a child.
    children: BTreeSet<(u32, BlockKey, BlockKey)>,
    /// New names that would stand for two blocks of the engine.
    shared: BTreeSet<(u32, BlockKey)>,
    shared_order: VecDeque<(u32, BlockKey)>,
}

impl Names {
    pub(super) fn get(&self, group: u32, key: BlockKey) -> Option<Taken> {
        self.blocks.get(&(group, key)).map(|it| it.taken)
    }

    pub(super) fn digest(&self, group: u32, key: BlockKey) -> Option<Digest> {
        match self.get(group, key)? {
            Taken::Named(digest) => Some(digest),
            Taken::LeftOut => None,
        }
    }

    pub(super) fn engine_key(&self, group: u32, name: BlockKey) -> Option<BlockKey> {
        self.engine_keys.get(&(group, name)).copied()
    }

    /// Nothing is known any more, but which names stand for two blocks: that is so whatever is held.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.ages.clear();
        self.engine_keys.clear();
        self.children.clear();
    }

    /// Names a block; `false` where it has to be left out. Where its name is that of another block, the other is left
    /// out from now on as well.
    pub(super) fn insert(
        &mut self,
        group: u32,
        key: BlockKey,
        parent: Option<BlockKey>,
        digest: Digest,
        outputs: &mut Vec<Output>,
    ) -> bool {
        match self.get(group, key) {
            Some(Taken::Named(it)) if it.key() == digest.key() => return true,
            Some(Taken::Named(_)) => {
                // One name for two contents: 64 bits that are the same by chance, or by intent.
                self.leave_out(group, key, parent, outputs);
                return false;
            }
            Some(Taken::LeftOut) => return false,
            None => (),
        }
        let name = (group, digest.key());
        if self.shared.contains(&name) {
            return false;
        }
        if let Some(other) = self.engine_keys.get(&name).copied() {
            self.share(name);
            self.leave_out(group, other, None, outputs);
            return false;
        }
        self.engine_keys.insert(name, key);
        self.put(group, key, parent, Taken::Named(digest), outputs);
        true
    }

    /// That block has no name, nor does any that follows it.
    pub(super) fn leave_out(
        &mut self,
        group: u32,
        key: BlockKey,
        parent: Option<BlockKey>,
        outputs: &mut Vec<Output>,
    ) {
        let mut all = vec![(key, parent)];
        while let Some((key, parent)) = all.pop() {
            match self.blocks.get_mut(&(group, key)) {
                None => self.put(group, key, parent, Taken::LeftOut, outputs),
                Some(Block { taken: Taken::LeftOut, .. }) => continue,
                Some(block) => {
                    let before = std::mem::replace(&mut block.taken, Taken::LeftOut);
                    self.unname(group, before, outputs);
                }
            }
            let from = (group, key, BlockKey::from_u64(0));
            let to = (group, key, BlockKey::from_u64(u64::MAX));
            all.extend(self.children.range(from..=to).map(|(_, _, child)| (*child, Some(key))));
        }
    }

    /// That block is of no interest any more.
    pub(super) fn remove(&mut self, group: u32, key: BlockKey) {
        let Some(block) = self.blocks.remove(&(group, key)) else { return };
        self.ages.remove(&block.age);
        if let Some(parent) = block.parent {
            self.children.remove(&(group, parent, key));
        }
        if let Taken::Named(digest) = block.taken {
            self.engine_keys.remove(&(group, digest.key()));
        }
    }

    fn put(
        &mut self,
        group: u32,
        key: BlockKey,
        parent: Option<BlockKey>,
        taken: Taken,
        outputs: &mut Vec<Output>,
    ) {
        let age = self.next;
        self.next += 1;
        self.blocks.insert((group, key), Block { taken, parent, age });
        self.ages.insert(age, (group, key));
        if let Some(parent) = parent {
            self.children.insert((group, parent, key));
        }
        if self.blocks.len() > ROOM
            && let Some((_, (group, key))) = self.ages.first_key_value()
        {
            let (group, key) = (*group, *key);
            let oldest = self.digest(group, key);
            self.remove(group, key);
            outputs.extend(oldest.map(|it| Output::Forget { group, key: it.key() }));
        }
    }

    fn unname(&mut self, group: u32, before: Taken, outputs: &mut Vec<Output>) {
        if let Taken::Named(digest) = before {
            self.engine_keys.remove(&(group, digest.key()));
            outputs.push(Output::Forget { group, key: digest.key() });
        }
    }

    fn share(&mut self, name: (u32, BlockKey)) {
        if self.shared.insert(name) {
            self.shared_order.push_back(name);
        }
        if self.shared_order.len() > MAX_SHARED
            && let Some(oldest) = self.shared_order.pop_front()
        {
            self.shared.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lose_their_names_and_leave_nothing_behind() {
        let mut names = Names::default();
        let mut outputs = Vec::new();
        let key = BlockKey::from_u64;
        let digest = |at: u64| {
            let bytes: Vec<u8> = [at + 1_000, at + 1_000].iter().flat_map(|it| it.to_be_bytes()).collect();
            Digest::from_bytes(&bytes).expect("16 bytes")
        };
        let rounds = ROOM as u64 + 10;
        for at in 0..rounds {
            let parent = at.checked_sub(1).map(key);
            assert!(names.insert(0, key(at), parent, digest(at), &mut outputs));
        }
        let forgotten: Vec<_> =
            (0..10).map(|at| Output::Forget { group: 0, key: digest(at).key() }).collect();
        assert_eq!(outputs, forgotten);
        assert_eq!((names.blocks.len(), names.ages.len(), names.engine_keys.len()), (ROOM, ROOM, ROOM));
        assert_eq!(names.engine_key(0, digest(10).key()), Some(key(10)));
        (0..rounds).for_each(|at| names.remove(0, key(at)));
        let left = (names.blocks.len(), names.ages.len(), names.engine_keys.len(), names.children.len());
        assert_eq!(left, (0, 0, 0, 0));
    }
}
