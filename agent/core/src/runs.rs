//! Blocks one by one, gathered into steps of a change.

use kvpick_proto::{
    naming::BlockKey,
    words::{Place, Step},
};

/// What a step takes up in a message beside its keys, in keys: its kind, place, parent and lengths are at most 23 bytes,
/// a key is 8.
const STEP: usize = 3;

/// Builds steps in which neighbours of one chain stand together.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    steps: Vec<Step>,
    /// In keys.
    size: usize,
}

impl Runs {
    /// Everything went.
    pub(crate) fn clear(&mut self) {
        self.size += STEP;
        self.steps.push(Step::Cleared);
    }

    /// `it` is held, and is the block after `after` where that is known.
    pub(crate) fn gain(&mut self, at: Place, it: BlockKey, after: Option<BlockKey>) {
        self.size += 1;
        if let Some(Step::Gained { place, keys, .. }) = self.steps.last_mut()
            && *place == at
            && after.is_some()
            && keys.last().copied() == after
        {
            keys.push(it);
            return;
        }
        self.size += STEP;
        self.steps.push(Step::Gained { place: at, parent: after, keys: vec![it] });
    }

    /// `it` is held no more.
    pub(crate) fn lose(&mut self, at: Place, it: BlockKey) {
        self.size += 1;
        if let Some(Step::Lost { place, keys }) = self.steps.last_mut()
            && *place == at
        {
            keys.push(it);
            return;
        }
        self.size += STEP;
        self.steps.push(Step::Lost { place: at, keys: vec![it] });
    }

    /// Whether another block might be too much for a message of the size of `max` keys. One block always has room.
    pub(crate) fn is_full(&self, max: usize) -> bool {
        self.has_blocks() && self.size + STEP + 1 > max
    }

    fn has_blocks(&self) -> bool {
        self.steps.last().is_some_and(|it| *it != Step::Cleared)
    }

    pub(crate) fn into_steps(self) -> Vec<Step> {
        self.steps
    }
}

/// For each key of a gaining step, the block that it comes after.
pub(crate) fn chained(
    parent: Option<BlockKey>,
    keys: &[BlockKey],
) -> impl Iterator<Item = (BlockKey, Option<BlockKey>)> {
    let before = std::iter::once(parent).chain(keys.iter().copied().map(Some));
    keys.iter().copied().zip(before)
}
