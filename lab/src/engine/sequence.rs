//! One sequence's tokens, the hashes of its full blocks, and the physical blocks that hold it (vLLM's
//! `v1/core/kv_cache_manager.py`).

use std::num::NonZeroU32;

use kvpick_proto::naming::{Digest, ExtraKey, Hasher};

use super::pool::{BlockId, Pool, Stored};

/// A prompt and what was generated after it.
#[derive(Clone, Debug)]
pub struct Sequence {
    block_size: usize,
    tokens: Vec<u32>,
    prompt_len: usize,
    salt: Option<String>,
    /// Of each full block of `tokens`.
    hashes: Vec<Digest>,
    table: Vec<BlockId>,
    /// Leading blocks of the table that are registered, by this sequence or by the one it hit.
    registered: usize,
    /// Tokens whose keys and values are in the table.
    computed: usize,
}

impl Sequence {
    /// A sequence that holds no blocks yet. The prompt must have at least one token.
    pub fn new(prompt: Vec<u32>, salt: Option<String>, block_size: NonZeroU32, hasher: &mut Hasher) -> Self {
        debug_assert!(!prompt.is_empty(), "a sequence begins with a token");
        let mut it = Self {
            block_size: block_size.get() as usize,
            prompt_len: prompt.len(),
            tokens: prompt,
            salt,
            hashes: Vec::new(),
            table: Vec::new(),
            registered: 0,
            computed: 0,
        };
        it.hash_full_blocks(hasher);
        it
    }

    /// Prompt and generated tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of the prompt.
    #[must_use]
    pub const fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Tokens generated so far.
    #[must_use]
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Tokens whose keys and values are computed, those of a hit included.
    #[must_use]
    pub const fn computed(&self) -> usize {
        self.computed
    }

    /// Hashes of the full blocks.
    #[must_use]
    pub fn hashes(&self) -> &[Digest] {
        &self.hashes
    }

    /// The physical blocks in use.
    #[must_use]
    pub fn table(&self) -> &[BlockId] {
        &self.table
    }

    /// Appends a generated token.
    pub fn push(&mut self, token: u32, hasher: &mut Hasher) {
        self.tokens.push(token);
        self.hash_full_blocks(hasher);
    }

    /// The blocks that need not be computed: leading ones that are held, but never the one with the last token, since
    /// the model must run on at least one token to say the next.
    #[must_use]
    pub fn find_hit(&self, pool: &Pool) -> Vec<BlockId> {
        let most = (self.tokens.len() - 1) / self.block_size;
        pool.longest_run(&self.hashes[..most.min(self.hashes.len())])
    }

    /// Whether the whole sequence would fit into the pool beside what is in use, given that hit.
    #[must_use]
    pub fn fits(&self, pool: &Pool, hit: &[BlockId]) -> bool {
        self.tokens.len().div_ceil(self.block_size) - hit.len() + pool.count_free(hit) <= pool.free_blocks()
    }

    /// Takes the blocks that the next `count` tokens need, after those of `hit` where the sequence holds none yet,
    /// and registers those that become full. `false`, and nothing done, where the pool has too few.
    ///
    /// Blocks are registered before their content is computed, as vLLM does: sequences that are scheduled together
    /// already share them.
    pub fn extend(&mut self, pool: &mut Pool, hit: &[BlockId], count: usize) -> bool {
        debug_assert!(hit.is_empty() || self.table.is_empty(), "only a sequence without blocks can hit");
        let hit_tokens = hit.len() * self.block_size;
        let end = self.computed + hit_tokens + count;
        debug_assert!(end <= self.tokens.len(), "only tokens that exist can be computed");
        let wanted = end.div_ceil(self.block_size).saturating_sub(self.table.len() + hit.len());
        if pool.free_blocks() < wanted + pool.count_free(hit) {
            return false;
        }
        pool.touch(hit);
        let Some(taken) = pool.allocate(wanted) else {
            pool.free(hit);
            return false;
        };
        self.table.extend_from_slice(hit);
        self.table.extend(taken);
        self.registered += hit.len();
        self.computed += hit_tokens;
        self.register_up_to(pool, end / self.block_size);
        true
    }

    /// Says that `count` more tokens are computed.
    pub fn advance(&mut self, count: usize) {
        self.computed += count;
        debug_assert!(self.computed <= self.table.len() * self.block_size, "computed without blocks");
    }

    /// Frees all blocks; the tokens stay, so the sequence can be computed again.
    pub fn release(&mut self, pool: &mut Pool) {
        pool.free(&self.table);
        self.table.clear();
        self.registered = 0;
        self.computed = 0;
    }

    fn register_up_to(&mut self, pool: &mut Pool, full: usize) {
        if full <= self.registered {
            return;
        }
        let new = self.registered..full;
        let stored = Stored {
            hashes: self.hashes[new.clone()].to_vec(),
            parent: new.start.checked_sub(1).map(|before| self.hashes[before]),
            tokens: self.tokens[new.start * self.block_size..new.end * self.block_size].to_vec(),
            extra: new.clone().map(|block| self.extra(block)).collect(),
        };
        pool.register(&self.table[new], stored);
        self.registered = full;
    }

    fn hash_full_blocks(&mut self, hasher: &mut Hasher) {
        while (self.hashes.len() + 1) * self.block_size <= self.tokens.len() {
            let block = self.hashes.len();
            let parent = self.hashes.last().copied().unwrap_or_else(|| hasher.root());
            let tokens = &self.tokens[block * self.block_size..(block + 1) * self.block_size];
            self.hashes.push(hasher.next(&parent, tokens, &self.extra(block)));
        }
    }

    /// A salt enters the first block only; the others inherit it through their parent.
    fn extra(&self, block: usize) -> Vec<ExtraKey> {
        match &self.salt {
            Some(salt) if block == 0 => vec![ExtraKey::Salt(salt.clone())],
            _ => Vec::new(),
        }
    }
}
