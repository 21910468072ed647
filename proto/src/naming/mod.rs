//! How vLLM names a KV cache block, reproduced to the byte.
//!
//! A full block of tokens is named by `H(serialize((parent, tokens, extra keys)))`, where the parent of the first
//! block is the hash of a root string. On the wire, and here, the low 64 bits stand for the whole: [`BlockKey`].
//! The rules are vLLM's `v1/core/kv_cache_utils.py` (`hash_block_tokens`, `init_none_hash`), versions 0.10.2 to 0.32.

mod cbor;
mod chain;
mod extra;
mod pickle;

pub use chain::{Digest, Hasher};
pub use extra::{ExtraKey, ExtraKeyShape};

/// A block's name: the low 64 bits of the engine's own chained hash of it.
///
/// Only comparable within one [`Domain`]. 64 bits are what vLLM publishes by default; the index keeps keys apart by
/// replica, so a collision costs one wrong lookup and nothing more.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BlockKey(u64);

impl BlockKey {
    /// A key from the integer form of a published hash.
    #[must_use]
    pub const fn from_u64(value: u64) -> Self {
        Self(value)
    }

    /// A key from a published digest: its last eight bytes, big-endian. `None` for fewer than eight.
    ///
    /// vLLM before 0.24 announced a coarse group's block as its fine digests one after the other; the last eight
    /// bytes are those of the last fine block, as in later versions.
    #[must_use]
    pub fn from_digest(bytes: &[u8]) -> Option<Self> {
        let tail: &[u8; 8] = bytes.last_chunk()?;
        Some(Self(u64::from_be_bytes(*tail)))
    }

    /// The integer form.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for BlockKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// vLLM's `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Algorithm {
    /// `sha256_cbor`: SHA-256 over canonical CBOR.
    Sha256Cbor,
    /// `sha256`, the default of vLLM: SHA-256 over a Python pickle, protocol 5.
    Sha256Pickle,
    /// `xxhash_cbor`: XXH3 of 128 bits over canonical CBOR.
    Xxh3Cbor,
    /// `xxhash`: XXH3 of 128 bits over a Python pickle.
    Xxh3Pickle,
}

impl Algorithm {
    /// All of them, those that vLLM's documentation names for use across languages first.
    pub const ALL: [Self; 4] = [Self::Sha256Cbor, Self::Sha256Pickle, Self::Xxh3Cbor, Self::Xxh3Pickle];

    /// The value of vLLM's `--prefix-caching-hash-algo`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256Cbor => "sha256_cbor",
            Self::Sha256Pickle => "sha256",
            Self::Xxh3Cbor => "xxhash_cbor",
            Self::Xxh3Pickle => "xxhash",
        }
    }

    /// The algorithm of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// Tells which chains two replicas may share: equal domains give equal prompts equal keys.
///
/// An adapter's path is part of the key where [`ExtraKeyShape::Tagged`] is in use; it travels with the replica's
/// adapters, since it differs by adapter and not by engine.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Domain {
    /// How a block is hashed.
    pub algorithm: Algorithm,
    /// The string whose hash is the parent of a first block: `PYTHONHASHSEED`, or vLLM's own since 0.29.
    pub root: String,
    /// Tokens in a hashed block.
    pub block_size: std::num::NonZeroU32,
    /// How adapters, salts and media enter the hash.
    pub extra_keys: ExtraKeyShape,
}

/// The root string of vLLM 0.29 and later when `PYTHONHASHSEED` is unset (SHA-256 only).
pub const DEFAULT_ROOT: &str = "vllm-none-hash";
