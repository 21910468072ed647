//! How an engine's naming is looked for, and how long: each way that is tried costs as much as the engine's own hashing,
//! there are dozens, and which stores it comes to is the engine's choice.

use std::num::NonZeroU32;

use kvpick_proto::words::KeyKind;

use super::{
    Naming, Scheme,
    candidates::{Question, gcd},
};

/// Stores of one process on which every way is tried; after these it is one in so many.
const FREELY: u64 = 64;
const ONE_IN: u64 = 64;

/// Times that a naming may be found after it was given up: with each, all blocks are renamed twice.
const MAX_RETURNS: u32 = 4;

/// What was spent on one process of an engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Effort {
    searches: u64,
    returns: u32,
}

impl Effort {
    /// Another store of which the known way does not give the hashes. Returns whether to try all others.
    pub(super) const fn search(&mut self) -> bool {
        self.searches += 1;
        self.searches <= FREELY || self.searches.is_multiple_of(ONE_IN)
    }

    /// A naming was found though it had been given up.
    pub(super) const fn came_back(&mut self) {
        self.returns = self.returns.saturating_add(1);
    }

    /// Whether it has to stay given up, should it be given up once more.
    pub(super) const fn is_spent(&self) -> bool {
        self.returns >= MAX_RETURNS
    }
}

impl Naming {
    /// The ways to try, the known one first.
    pub(super) fn schemes(&self, question: &Question<'_>, watched: bool) -> Vec<Scheme> {
        let stored = question.stored;
        let divides = |size: &NonZeroU32| stored.block_size.is_multiple_of(size.get());
        let mut all: Vec<_> = self.found.into_iter().filter(|it| divides(&it.block_size)).collect();
        // Hidden keys fit nothing, so that there is nothing to look for.
        let hides = stored.hides_extra_keys && self.verified.contains(&KeyKind::Plain);
        if question.parent.is_some() || (hides && !watched) {
            return all;
        }
        let gcd = self.sizes.iter().copied().reduce(gcd);
        let own = NonZeroU32::new(stored.block_size);
        let shown = [own, self.hash_block_size, self.block_size, gcd].into_iter().flatten();
        let mut sizes = Vec::new();
        for size in shown.chain(self.sizes.iter().copied()).filter(divides) {
            if !sizes.contains(&size) {
                sizes.push(size);
            }
        }
        for block_size in sizes {
            let others = (0..self.candidates.len()).map(|candidate| Scheme { candidate, block_size });
            all.extend(others.filter(|it| Some(*it) != self.found));
        }
        all
    }
}
