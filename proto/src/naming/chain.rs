//! Chaining tokens into block hashes.

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use super::{Algorithm, BlockKey, Domain, ExtraKey, ExtraKeyShape, cbor, pickle};

/// A whole block hash: 32 bytes of SHA-256 or 16 of XXH3.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Digest {
    bytes: [u8; 32],
    len: u8,
}

impl Digest {
    /// A digest from its bytes; `None` unless there are 16 or 32.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut it = Self { bytes: [0; 32], len: u8::try_from(bytes.len()).ok()? };
        if it.len != 16 && it.len != 32 {
            return None;
        }
        it.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(it)
    }

    /// The digest's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The low 64 bits.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        let tail = usize::from(self.len);
        let mut low = [0; 8];
        low.copy_from_slice(&self.bytes[tail - 8..tail]);
        BlockKey::from_u64(u64::from_be_bytes(low))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Hashes the blocks of one domain; keeps its root and a buffer, so it is worth keeping.
#[derive(Clone, Debug)]
pub struct Hasher {
    algorithm: Algorithm,
    extra_keys: ExtraKeyShape,
    root: Digest,
    preimage: Vec<u8>,
}

impl Hasher {
    /// A hasher of that domain.
    #[must_use]
    pub fn new(domain: &Domain) -> Self {
        Self::with_root(domain.algorithm, &domain.root, domain.extra_keys)
    }

    /// As [`Self::new`], where the block size is not known yet.
    #[must_use]
    pub fn with_root(algorithm: Algorithm, root: &str, extra_keys: ExtraKeyShape) -> Self {
        let mut preimage = Vec::with_capacity(256);
        match algorithm {
            Algorithm::Sha256Cbor | Algorithm::Xxh3Cbor => cbor::root(&mut preimage, root),
            Algorithm::Sha256Pickle | Algorithm::Xxh3Pickle => pickle::root(&mut preimage, root),
        }
        let root = digest(algorithm, &preimage);
        Self { algorithm, extra_keys, root, preimage }
    }

    /// The parent of every first block (vLLM's `NONE_HASH`).
    #[must_use]
    pub const fn root(&self) -> Digest {
        self.root
    }

    /// The hash of the block after `parent`. `tokens` must be one full block.
    pub fn next(&mut self, parent: &Digest, tokens: &[u32], extra: &[ExtraKey]) -> Digest {
        self.preimage.clear();
        let items = self.extra_keys.items(extra);
        match self.algorithm {
            Algorithm::Sha256Cbor | Algorithm::Xxh3Cbor => {
                cbor::block(&mut self.preimage, parent.as_bytes(), tokens, &items);
            }
            Algorithm::Sha256Pickle | Algorithm::Xxh3Pickle => {
                pickle::block(&mut self.preimage, parent.as_bytes(), tokens, &items);
            }
        }
        digest(self.algorithm, &self.preimage)
    }

    /// The keys of the full blocks of a prompt; `extra(i)` gives the extra keys of block `i`. A tail shorter than
    /// `block_size` has no key.
    pub fn chain(
        &mut self,
        block_size: std::num::NonZeroU32,
        tokens: &[u32],
        mut extra: impl FnMut(usize) -> Vec<ExtraKey>,
    ) -> Vec<BlockKey> {
        let mut parent = self.root;
        tokens
            .chunks_exact(block_size.get() as usize)
            .enumerate()
            .map(|(i, block)| {
                parent = self.next(&parent, block, &extra(i));
                parent.key()
            })
            .collect()
    }
}

fn digest(algorithm: Algorithm, preimage: &[u8]) -> Digest {
    let mut it = Digest { bytes: [0; 32], len: 32 };
    match algorithm {
        Algorithm::Sha256Cbor | Algorithm::Sha256Pickle => {
            it.bytes.copy_from_slice(&Sha256::digest(preimage));
        }
        Algorithm::Xxh3Cbor | Algorithm::Xxh3Pickle => {
            it.bytes[..16].copy_from_slice(&xxh3_128(preimage).to_be_bytes());
            it.len = 16;
        }
    }
    it
}
