//! The last batches that were delivered, by what tells a batch from another publisher's of the same number.

use std::collections::VecDeque;

use xxhash_rust::xxh3::xxh3_64;

use crate::decode::Message;

/// Batches whose content is remembered, to tell a late duplicate from another publisher's batch of that number.
const MOST: usize = 1_024;

/// Numbers and digests, oldest first.
#[derive(Debug)]
pub(super) struct Recent(VecDeque<(u64, u64)>);

impl Recent {
    pub(super) const fn new() -> Self {
        Self(VecDeque::new())
    }

    pub(super) fn push(&mut self, message: &Message) {
        self.push_digest(message.sequence, digest(&message.payload));
    }

    pub(super) fn push_digest(&mut self, number: u64, digest: u64) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((number, digest));
    }

    pub(super) fn last(&self) -> Option<(u64, u64)> {
        self.0.back().copied()
    }

    /// The digest of the batch of that number, if it is remembered.
    pub(super) fn digest(&self, number: u64) -> Option<u64> {
        self.0.iter().find(|(known, _)| *known == number).map(|(_, digest)| *digest)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Time and content of a batch in one number. It is written down, so it is the same in every version of this program.
pub(super) fn digest(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}
