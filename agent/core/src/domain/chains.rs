//! Whole digests of blocks whose chain is known from a prompt's first token on: events name a parent by 64 bits only.

use std::collections::{BTreeMap, VecDeque};

use kvpick_proto::naming::{BlockKey, Digest};

/// Digests kept per engine; the oldest go first. About 7 MB at most.
const MAX_DIGESTS: usize = 65_536;

/// One chain in so many is watched for ever, and all of its blocks.
const ONE_IN: u64 = 8;

/// A block whose digest was recomputed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) digest: Digest,
    /// Whether its chain is one of those that are watched.
    pub(super) is_watched: bool,
}

/// The digests that were recomputed last.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    links: BTreeMap<BlockKey, Link>,
    order: VecDeque<BlockKey>,
}

/// Whether the chain that begins with this block, or this store where it fits nothing, is one of those watched. Always
/// the same for the same block.
pub(super) const fn is_watched(first: BlockKey) -> bool {
    first.as_u64().is_multiple_of(ONE_IN)
}

impl Chains {
    pub(super) fn get(&self, key: BlockKey) -> Option<Link> {
        self.links.get(&key).copied()
    }

    pub(super) fn insert(&mut self, key: BlockKey, link: Link) {
        if self.links.insert(key, link).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_DIGESTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.links.remove(&oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        self.links.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_the_oldest_go_first() {
        let mut chains = Chains::default();
        let digest = Digest::from_bytes(&[1; 16]).expect("16 bytes");
        for key in 0..=MAX_DIGESTS as u64 {
            (0..2).for_each(|_| chains.insert(BlockKey::from_u64(key), Link { digest, is_watched: false }));
        }
        assert_eq!((chains.links.len(), chains.order.len()), (MAX_DIGESTS, MAX_DIGESTS));
        assert!(chains.get(BlockKey::from_u64(0)).is_none());
        assert!(chains.get(BlockKey::from_u64(1)).is_some());
    }
}
