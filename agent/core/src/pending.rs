//! What one server has still to be told of one engine's blocks.

use std::collections::BTreeMap;

use kvpick_proto::{
    naming::BlockKey,
    words::{Change, Place, Step},
};

use crate::runs::{Runs, chained};

/// Changes folded into one: the last state of each block, in order of first change.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// Whether everything went before what follows.
    cleared: bool,
    blocks: BTreeMap<(Place, BlockKey), State>,
    order: BTreeMap<u64, (Place, BlockKey)>,
    next: u64,
    /// Last engine batch accounted for, if not told yet.
    applied: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    held: bool,
    after: Option<BlockKey>,
    order: u64,
    /// Whether the server is known to believe the opposite, so that going back to it cancels.
    sure: bool,
}

impl Pending {
    /// Number of blocks whose state has to be told.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.cleared && self.blocks.is_empty() && self.applied.is_none()
    }

    /// Takes a later change in. `sure` says whether the server has been told everything before it; while a copy is
    /// under way it has not, and then nothing cancels.
    pub fn fold(&mut self, change: &Change, sure: bool) {
        for step in &change.steps {
            match step {
                Step::Gained { place, parent, keys } => {
                    for (key, after) in chained(*parent, keys) {
                        self.set((*place, key), true, after, sure);
                    }
                }
                Step::Lost { place, keys } => {
                    for key in keys {
                        self.set((*place, *key), false, None, sure);
                    }
                }
                Step::Cleared => {
                    self.blocks.clear();
                    self.order.clear();
                    self.cleared = true;
                    // What the server was told as applied goes with the blocks.
                    self.applied = None;
                }
            }
        }
        self.applied = change.applied.or(self.applied);
    }

    fn set(&mut self, at: (Place, BlockKey), held: bool, after: Option<BlockKey>, sure: bool) {
        if let Some(state) = self.blocks.get_mut(&at) {
            if state.held == held {
                return;
            }
            if state.sure {
                let order = state.order;
                self.blocks.remove(&at);
                self.order.remove(&order);
                return;
            }
            (state.held, state.after) = (held, after);
            return;
        }
        let order = self.next;
        self.next += 1;
        self.order.insert(order, at);
        // After a clear the server holds nothing, whatever it held before.
        self.blocks.insert(at, State { held, after, order, sure: sure || self.cleared });
    }

    /// The next message's worth: at most as much as `max` keys take up. The applied batch is named by the last part only.
    #[must_use = "what is taken is not told again"]
    pub fn take(&mut self, max: usize) -> Option<Change> {
        if self.is_empty() {
            return None;
        }
        let mut runs = Runs::default();
        if std::mem::take(&mut self.cleared) {
            runs.clear();
        }
        while !runs.is_full(max)
            && let Some((_, at)) = self.order.pop_first()
        {
            match self.blocks.remove(&at) {
                Some(State { held: true, after, .. }) => runs.gain(at.0, at.1, after),
                Some(State { held: false, .. }) => runs.lose(at.0, at.1),
                None => (),
            }
        }
        let applied = if self.blocks.is_empty() { self.applied.take() } else { None };
        Some(Change { steps: runs.into_steps(), applied })
    }
}
