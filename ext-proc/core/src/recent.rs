//! What this server sent where, for a while: blocks that a replica probably has or will soon have.
//!
//! Kept apart from the facts, forgotten by age and by bound, and corrected by what the engines say.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use kvpick_proto::naming::BlockKey;

use crate::index::BlockMap;

/// Blocks with the time at which they were last sent to one replica.
#[derive(Clone, Debug)]
pub struct Recent {
    expiry: Duration,
    bound: usize,
    sent: BlockMap<Instant>,
    /// In order of time; an entry whose block was sent again later is void.
    order: VecDeque<(Instant, BlockKey)>,
}

impl Recent {
    /// Remembers at most `bound` sendings, each for `expiry`. Memory is at most `bound` times about 60 bytes.
    #[must_use]
    pub fn new(expiry: Duration, bound: usize) -> Self {
        Self { expiry, bound, sent: BlockMap::default(), order: VecDeque::new() }
    }

    /// These blocks were sent there now. `now` must not go back.
    pub fn record(&mut self, keys: impl IntoIterator<Item = BlockKey>, now: Instant) {
        for key in keys {
            self.sent.insert(key, now);
            self.order.push_back((now, key));
        }
        while let Some((at, key)) = self.order.front()
            && (self.bound < self.order.len() || *at + self.expiry < now)
        {
            if self.sent.get(key) == Some(at) {
                self.sent.remove(key);
            }
            self.order.pop_front();
        }
    }

    /// Whether this block was sent there within the expiry.
    #[must_use]
    pub fn has(&self, key: BlockKey, now: Instant) -> bool {
        self.sent.get(&key).is_some_and(|at| now <= *at + self.expiry)
    }

    /// The engine itself has spoken of this block.
    pub fn forget(&mut self, key: BlockKey) {
        self.sent.remove(&key);
    }

    /// The engine has lost everything.
    pub fn clear(&mut self) {
        self.sent.clear();
        self.order.clear();
    }

    /// Number of blocks remembered, expired ones included until the next sending.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(i: u64) -> BlockKey {
        BlockKey::from_u64(i)
    }

    #[test]
    fn forgets_by_age() {
        let start = crate::testing::start();
        let mut recent = Recent::new(Duration::from_secs(10), 100);
        recent.record([key(1)], start);
        assert!(recent.has(key(1), start + Duration::from_secs(10)));
        assert!(!recent.has(key(1), start + Duration::from_secs(11)));
        recent.record([key(2)], start + Duration::from_secs(11));
        assert_eq!(recent.len(), 1);
    }

    #[test]
    fn sending_again_renews() {
        let start = crate::testing::start();
        let mut recent = Recent::new(Duration::from_secs(10), 100);
        recent.record([key(1)], start);
        recent.record([key(1)], start + Duration::from_secs(9));
        recent.record([key(2)], start + Duration::from_secs(15));
        assert!(recent.has(key(1), start + Duration::from_secs(15)));
    }

    #[test]
    fn is_bounded_whatever_is_sent() {
        let now = crate::testing::start();
        let mut recent = Recent::new(Duration::from_secs(10), 8);
        for i in 0..1_000 {
            recent.record([key(i), key(i % 3)], now);
            assert!(recent.len() <= 8 && recent.order.len() <= 8);
        }
        assert!(recent.has(key(999), now));
        assert!(!recent.has(key(500), now));
    }
}
