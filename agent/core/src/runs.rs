//! Blocks one by one, gathered into steps of a change.

use kvpick_proto::{
    naming::BlockKey,
    words::{Place, Step},
};

/// Builds steps in which neighbours of one chain stand together.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    steps: Vec<Step>,
    keys: usize,
}

impl Runs {
    /// Everything went.
    pub(crate) fn clear(&mut self) {
        self.steps.push(Step::Cleared);
    }

    /// `it` is held, and is the block after `after` where that is known.
    pub(crate) fn gain(&mut self, at: Place, it: BlockKey, after: Option<BlockKey>) {
        self.keys += 1;
        if let Some(Step::Gained { place, keys, .. }) = self.steps.last_mut()
            && *place == at
            && after.is_some()
            && keys.last().copied() == after
        {
            keys.push(it);
            return;
        }
        self.steps.push(Step::Gained { place: at, parent: after, keys: vec![it] });
    }

    /// `it` is held no more.
    pub(crate) fn lose(&mut self, at: Place, it: BlockKey) {
        self.keys += 1;
        if let Some(Step::Lost { place, keys }) = self.steps.last_mut()
            && *place == at
        {
            keys.push(it);
            return;
        }
        self.steps.push(Step::Lost { place: at, keys: vec![it] });
    }

    /// Number of keys in all steps.
    pub(crate) const fn keys(&self) -> usize {
        self.keys
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
