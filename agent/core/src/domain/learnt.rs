//! What an agent writes down of an engine's naming, so that it can go on after its own restart.

use std::num::NonZeroU32;

use kvpick_proto::{
    naming::{Algorithm, ExtraKeyShape},
    words::KeyKind,
};

/// How an engine names its blocks, as far as published hashes were recomputed. It is true of one process of the engine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Learnt {
    /// How a block is hashed.
    pub algorithm: Algorithm,
    /// The string whose hash is the parent of a first block.
    pub root: String,
    /// Tokens in a hashed block.
    pub block_size: NonZeroU32,
    /// How adapters, salts and media enter the hash.
    pub extra_keys: ExtraKeyShape,
    /// Kinds of key that were recomputed, in order.
    pub kinds: Vec<KeyKind>,
}
