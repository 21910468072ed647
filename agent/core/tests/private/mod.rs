//! Blocks of an engine whose names for them nobody else can make.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and may panic")]

pub(crate) mod wire;

use std::num::NonZeroU32;

use kvpick_agent_core::decode::Stored;
use kvpick_proto::naming::{Algorithm, BlockKey, DEFAULT_ROOT, ExtraKey, ExtraKeyShape, Hasher};

pub(crate) const SIZE: usize = 4;

/// A block as what leads to it: which of some contents each block of its chain has.
pub(crate) type Path = Vec<u8>;

/// The engine's own name of it, as good as Python's hash to anybody else.
pub(crate) fn private(path: &[u8]) -> BlockKey {
    let mix =
        |hash: u64, it: &u8| (hash ^ u64::from(*it)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    BlockKey::from_u64(path.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

pub(crate) fn tokens(path: &[u8]) -> Vec<u32> {
    path.iter().flat_map(|it| [u32::from(*it) + 7; SIZE]).collect()
}

/// The name that a server gives it.
pub(crate) fn canonical(path: &[u8], extra: impl FnMut(usize) -> Vec<ExtraKey>) -> BlockKey {
    let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, DEFAULT_ROOT, ExtraKeyShape::Tagged);
    let size = NonZeroU32::new(SIZE as u32).unwrap();
    *hasher.chain(size, &tokens(path), extra).last().unwrap()
}

pub(crate) fn plain(path: &[u8]) -> BlockKey {
    canonical(path, |_| Vec::new())
}

/// The last blocks of a path, from that depth on.
pub(crate) fn stored(path: &[u8], from: usize) -> Stored {
    Stored {
        keys: (from + 1..=path.len()).map(|to| private(&path[..to])).collect(),
        parent: (from > 0).then(|| private(&path[..from])),
        tokens: tokens(&path[from..]),
        block_size: SIZE as u32,
        ..Stored::default()
    }
}
