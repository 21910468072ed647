//! One sequence's tokens, the hashes of its full blocks, and the physical blocks that hold it (vLLM's
//! `v1/core/kv_cache_manager.py`).

use std::sync::Arc;

use kvpick_proto::naming::{Digest, ExtraKey, Hasher};

use super::{
    announce::{Adapter, Stored},
    attention::{Group, Hit, longest_hit},
    limits::Limits,
    pool::{BlockId, Pool},
};

/// What keeps a sequence's blocks apart from others of the same tokens, and what is said when they are announced.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The request's `cache_salt`.
    pub salt: Option<String>,
    /// The adapter that computes it.
    pub adapter: Option<Arc<Adapter>>,
    /// The request's session, where announcements tell it.
    pub session: Option<Arc<str>>,
}

/// A prompt and what was generated after it.
#[derive(Clone, Debug)]
pub struct Sequence {
    limits: Limits,
    origin: Origin,
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Of each full block of `tokens`.
    hashes: Vec<Digest>,
    /// What each cache group holds of it.
    groups: Vec<Holding>,
    /// Tokens whose keys and values are in all tables.
    computed: usize,
    /// Tokens that the sequence was found to have in common with another one in some group, but not in all; 0 where
    /// there are none. The groups that lag behind keep the blocks before that place.
    junction: usize,
}

/// One group's part of a sequence.
#[derive(Clone, Debug)]
struct Holding {
    kind: Group,
    /// `None` for blocks that nobody attends to any more.
    table: Vec<Option<BlockId>>,
    /// Leading blocks of the table that were announced, by this sequence or by the one it hit, or that never will be.
    registered: usize,
}

impl Sequence {
    /// A sequence that holds no blocks yet. The prompt must have at least one token.
    pub fn new(prompt: Vec<u32>, origin: Origin, limits: Limits, hasher: &mut Hasher) -> Self {
        debug_assert!(!prompt.is_empty(), "a sequence begins with a token");
        let groups = limits.attention.groups().into_iter();
        let mut it = Self {
            limits,
            origin,
            prompt_len: prompt.len(),
            tokens: prompt,
            hashes: Vec::new(),
            groups: groups.map(|kind| Holding { kind, table: Vec::new(), registered: 0 }).collect(),
            computed: 0,
            junction: 0,
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

    /// The adapter that computes it.
    #[must_use]
    pub fn adapter(&self) -> Option<&Adapter> {
        self.origin.adapter.as_deref()
    }

    /// Hashes of the full blocks.
    #[must_use]
    pub fn hashes(&self) -> &[Digest] {
        &self.hashes
    }

    /// The physical blocks in use, one group's after the other's.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.groups.iter().flat_map(|group| group.table.iter().flatten().copied())
    }

    /// Appends a generated token.
    pub fn push(&mut self, token: u32, hasher: &mut Hasher) {
        self.tokens.push(token);
        self.hash_full_blocks(hasher);
    }

    /// The blocks that need not be computed: leading ones that are held, but never the one with the last token, since
    /// the model must run on at least one token to say the next.
    #[must_use]
    pub fn find_hit(&self, pool: &Pool) -> Hit {
        let most = (self.tokens.len() - 1) / self.block_size();
        let hashes = &self.hashes[..most.min(self.hashes.len())];
        longest_hit(pool, self.limits.attention, hashes, self.block_size())
    }

    /// Announces the blocks of a hit again, in each group from the first one on, whether it holds them or not.
    pub fn report(&self, pool: &mut Pool, hit: &Hit) {
        for (number, blocks) in hit.by_group.iter().enumerate() {
            if !blocks.is_empty() {
                pool.announce(self.announcement(number, 0..blocks.len(), |_| true));
            }
        }
    }

    /// Whether the whole sequence would fit into the pool beside what is in use, given that hit.
    #[must_use]
    pub fn fits(&self, pool: &Pool, hit: &Hit) -> bool {
        let wanted = |group: &Holding| {
            let all = self.tokens.len().div_ceil(self.block_size());
            let (in_flight, longest) = (self.limits.max_num_batched_tokens, self.limits.max_model_len);
            group.kind.most_blocks(in_flight, longest, self.block_size()).map_or(all, |most| all.min(most))
        };
        self.demand(pool, hit, wanted) <= pool.free_blocks()
    }

    /// Takes the blocks that the next `count` tokens need, after those of `hit` where the sequence holds none yet,
    /// and registers those that become full. `false` where the pool has too few; then nothing is done, but that blocks
    /// are freed to which the next token does not attend any more.
    ///
    /// Blocks are registered before their content is computed, as vLLM does: sequences that are scheduled together
    /// already share them.
    pub fn extend(&mut self, pool: &mut Pool, hit: &Hit, count: usize) -> bool {
        let begins = self.groups.iter().all(|group| group.table.is_empty());
        debug_assert!(hit.blocks == 0 || begins, "only a sequence without blocks can hit");
        let start = self.computed + hit.blocks * self.block_size();
        let end = start + count;
        debug_assert!(end <= self.tokens.len(), "only tokens that exist can be computed");
        self.leave_behind(pool, start);
        let wanted = end.div_ceil(self.block_size());
        if pool.free_blocks() < self.demand(pool, hit, |_| wanted) {
            return false;
        }
        if begins {
            self.adopt(pool, hit, start);
        }
        for group in &mut self.groups {
            let more = wanted.saturating_sub(group.table.len());
            let taken = pool.allocate(more).expect("there are enough free blocks: they were counted");
            group.table.extend(taken.into_iter().map(Some));
        }
        self.computed = start;
        self.register_up_to(pool, end / self.block_size());
        true
    }

    /// Says that `count` more tokens are computed.
    pub fn advance(&mut self, count: usize) {
        self.computed += count;
        debug_assert!(
            self.groups.iter().all(|group| self.computed <= group.table.len() * self.block_size()),
            "computed without blocks"
        );
    }

    /// Frees all blocks; the tokens stay, so the sequence can be computed again.
    pub fn release(&mut self, pool: &mut Pool) {
        for group in &mut self.groups {
            pool.free(group.table.drain(..).flatten(), self.limits.version.reuse(group.kind));
            group.registered = 0;
        }
        self.computed = 0;
    }

    const fn block_size(&self) -> usize {
        self.limits.block_tokens()
    }

    /// How many free blocks it takes to adopt the hit and then hold as many as `wanted` says, group by group.
    fn demand(&self, pool: &Pool, hit: &Hit, wanted: impl Fn(&Holding) -> usize) -> usize {
        let start = self.computed + hit.blocks * self.block_size();
        let of_group = |(number, group): (usize, &Holding)| {
            let behind = group.kind.blocks_left_behind(start, self.block_size());
            let found: &[Option<BlockId>] = hit.by_group.get(number).map_or(&[], Vec::as_slice);
            let held = (group.table.len() + found.len()).max(behind);
            // A block that nobody uses is taken out of the free ones by adopting it.
            let adopted = found.iter().skip(behind).flatten().filter(|block| pool.is_free(**block)).count();
            wanted(group).saturating_sub(held) + adopted
        };
        self.groups.iter().enumerate().map(of_group).sum()
    }

    /// Uses the blocks of a hit that ends at token `start`, in all groups before any group takes free blocks.
    fn adopt(&mut self, pool: &mut Pool, hit: &Hit, start: usize) {
        let block_size = self.block_size();
        for (group, blocks) in self.groups.iter_mut().zip(&hit.by_group) {
            let behind = group.kind.blocks_left_behind(start, block_size);
            group.table.extend(blocks.iter().enumerate().map(|(i, block)| block.filter(|_| behind <= i)));
            group.table.iter().flatten().for_each(|block| pool.touch(*block));
            group.registered = group.table.len();
        }
        self.junction = if hit.blocks < hit.longest { hit.longest * block_size } else { 0 };
    }

    /// Frees the blocks that the token after `computed` tokens does not attend to any more.
    fn leave_behind(&mut self, pool: &mut Pool, computed: usize) {
        let block_size = self.block_size();
        for group in &mut self.groups {
            let behind = group.kind.blocks_left_behind(computed, block_size).min(group.table.len());
            let left: Vec<BlockId> = group.table[..behind].iter_mut().filter_map(Option::take).collect();
            pool.free(left.into_iter(), self.limits.version.reuse(group.kind));
        }
    }

    fn register_up_to(&mut self, pool: &mut Pool, full: usize) {
        let ends = [self.prompt_len - 1, self.junction];
        let sparse = self.limits.version.keeps_window_ends_only();
        for number in 0..self.groups.len() {
            let group = &self.groups[number];
            let new = group.registered..full;
            if new.is_empty() {
                continue;
            }
            let kept = |block: usize| {
                group.table[block].is_some() && (!sparse || group.kind.keeps(block, &ends, self.block_size()))
            };
            let blocks: Vec<BlockId> =
                new.clone().filter(|block| kept(*block)).filter_map(|block| group.table[block]).collect();
            pool.register(&blocks, self.announcement(number, new, kept));
            self.groups[number].registered = full;
        }
    }

    /// What is announced of those of a group's blocks that are kept.
    fn announcement(
        &self,
        group: usize,
        blocks: std::ops::Range<usize>,
        kept: impl Fn(usize) -> bool,
    ) -> Stored {
        let kept: Vec<usize> = blocks.clone().filter(|block| kept(*block)).collect();
        Stored {
            group,
            kind: self.groups[group].kind,
            hashes: kept.iter().map(|block| self.hashes[*block]).collect(),
            parent: blocks.start.checked_sub(1).map(|before| self.hashes[before]),
            tokens: self.tokens[blocks.start * self.block_size()..blocks.end * self.block_size()].to_vec(),
            extra: kept.iter().map(|block| self.extra(*block)).collect(),
            adapter: self.origin.adapter.clone(),
            session: self.origin.session.clone(),
        }
    }

    fn hash_full_blocks(&mut self, hasher: &mut Hasher) {
        let block_size = self.block_size();
        while (self.hashes.len() + 1) * block_size <= self.tokens.len() {
            let block = self.hashes.len();
            let parent = self.hashes.last().copied().unwrap_or_else(|| hasher.root());
            let tokens = &self.tokens[block * block_size..(block + 1) * block_size];
            self.hashes.push(hasher.next(&parent, tokens, &self.extra(block)));
        }
    }

    /// An adapter enters every block. A salt enters the first one only; the others inherit it through their parent.
    fn extra(&self, block: usize) -> Vec<ExtraKey> {
        let adapter = self.origin.adapter.iter();
        let adapter = adapter.map(|it| ExtraKey::Adapter { name: it.name.clone(), path: it.path.clone() });
        let salt = self.origin.salt.iter().filter(|_| block == 0).cloned().map(ExtraKey::Salt);
        adapter.chain(salt).collect()
    }
}
