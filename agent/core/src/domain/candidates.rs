//! The ways of naming blocks that are tried on an engine.

use std::num::NonZeroU32;

use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, Digest, ExtraKey, ExtraKeyShape, Hasher};

use super::extra::{Extras, Untold};
use crate::decode::Stored;

/// Roots that are tried on every engine: vLLM's own since 0.29, and what people set `PYTHONHASHSEED` to.
const ROOTS: [&str; 3] = [DEFAULT_ROOT, "0", "42"];

/// The shapes of extra keys, newest first.
pub(super) const SHAPES: [ExtraKeyShape; 3] =
    [ExtraKeyShape::Tagged, ExtraKeyShape::BareWithOffset, ExtraKeyShape::Bare];

/// One algorithm with one root.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) algorithm: Algorithm,
    pub(super) root: String,
    /// For each of [`SHAPES`].
    hashers: [Hasher; 3],
}

/// A store, as far as its hashes are to be recomputed.
pub(super) struct Question<'a> {
    pub(super) stored: &'a Stored,
    /// Digest of the block before it; `None` where it begins a prompt.
    pub(super) parent: Option<Digest>,
    /// Blocks of it to look at.
    pub(super) blocks: usize,
}

impl Candidate {
    fn new(algorithm: Algorithm, root: &str) -> Self {
        let hashers = SHAPES.map(|shape| Hasher::with_root(algorithm, root, shape));
        Self { algorithm, root: root.to_owned(), hashers }
    }

    /// The digests of the store's first blocks, as long as they are those published.
    ///
    /// # Errors
    ///
    /// No hashed block of that size and shape can be told from what the store carries.
    pub(super) fn recompute(
        &mut self,
        it: &Question<'_>,
        size: usize,
        shape: ExtraKeyShape,
        extras: &Extras<'_>,
    ) -> Result<Vec<Digest>, Untold> {
        let hasher = &mut self.hashers[SHAPES.iter().position(|it| *it == shape).unwrap_or_default()];
        let mut parent = it.parent.unwrap_or_else(|| hasher.root());
        let coarse = it.stored.block_size as usize;
        let mut digests = Vec::with_capacity(it.blocks);
        let blocks = it.stored.tokens.chunks_exact(coarse).zip(&it.stored.keys).take(it.blocks);
        for (index, (tokens, key)) in blocks.enumerate() {
            let keys = extras.block(index, shape)?;
            for (at, tokens) in tokens.chunks_exact(size).enumerate() {
                let fine: Vec<ExtraKey>;
                let extra = if size == coarse {
                    &keys.keys
                } else {
                    fine = extras.fine(&keys, at)?;
                    &fine
                };
                parent = hasher.next(&parent, tokens, extra);
            }
            if parent.key() != *key {
                break;
            }
            digests.push(parent);
        }
        Ok(digests)
    }
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Candidates(Vec<Candidate>);

impl Candidates {
    /// Every algorithm with every usual root, and with these.
    pub(super) fn new(roots: &[String]) -> Self {
        let mut it = Self(Vec::new());
        ROOTS.iter().copied().chain(roots.iter().map(String::as_str)).for_each(|root| it.add_root(root));
        it
    }

    fn add_root(&mut self, root: &str) {
        for algorithm in Algorithm::ALL {
            self.index(algorithm, root);
        }
    }

    /// Where that one is, which it is from now on if it was not yet.
    pub(super) fn index(&mut self, algorithm: Algorithm, root: &str) -> usize {
        let found = self.0.iter().position(|it| it.algorithm == algorithm && it.root == root);
        found.unwrap_or_else(|| {
            self.0.push(Candidate::new(algorithm, root));
            self.0.len() - 1
        })
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }
}

impl std::ops::Index<usize> for Candidates {
    type Output = Candidate;

    fn index(&self, index: usize) -> &Candidate {
        &self.0[index]
    }
}

impl std::ops::IndexMut<usize> for Candidates {
    fn index_mut(&mut self, index: usize) -> &mut Candidate {
        &mut self.0[index]
    }
}

/// The largest size that divides both.
pub(super) fn gcd(a: NonZeroU32, b: NonZeroU32) -> NonZeroU32 {
    match NonZeroU32::new(a.get() % b) {
        Some(rest) => gcd(b, rest),
        None => b,
    }
}
