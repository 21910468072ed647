//! Sizes, limits and kind of an engine.

use std::num::NonZeroU32;

use super::{attention::Attention, version::Version};

/// Sizes, limits and kind of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens in a block, in every cache group.
    pub block_size: NonZeroU32,
    /// Physical blocks of all groups together, the placeholder included.
    pub num_blocks: u32,
    /// Most tokens computed in one step.
    pub max_num_batched_tokens: usize,
    /// Most requests that run at once.
    pub max_num_seqs: usize,
    /// Most tokens of prompt and answer together.
    pub max_model_len: usize,
    /// What the model's layers attend to.
    pub attention: Attention,
    /// The version of vLLM whose rules hold.
    pub version: Version,
}

impl Limits {
    /// Tokens in a block.
    #[must_use]
    pub const fn block_tokens(&self) -> usize {
        self.block_size.get() as usize
    }
}
