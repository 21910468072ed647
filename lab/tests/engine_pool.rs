//! The pool and its sequences against a naive model that only hears the events.

use std::{collections::BTreeMap, num::NonZeroU32};

use kvpick_lab::engine::{
    announce::{Event, Stored},
    attention::{Attention, Hit},
    limits::Limits,
    pool::{BlockId, Pool},
    sequence::{Origin, Sequence},
    version::Version,
};
use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, Digest, ExtraKeyShape, Hasher};
use proptest::prelude::*;

const BLOCK_SIZE: u32 = 4;
const NUM_BLOCKS: u32 = 40;
/// Three blocks cover all but one of these tokens.
const WINDOW: u32 = 10;
const BLOCKS_OF_WINDOW: usize = 3;

fn limits(attention: Attention, version: Version) -> Limits {
    Limits {
        block_size: const { NonZeroU32::new(BLOCK_SIZE).unwrap() },
        num_blocks: NUM_BLOCKS,
        max_num_batched_tokens: 64,
        max_num_seqs: 8,
        max_model_len: 100,
        attention,
        version,
    }
}

const HYBRID: Attention = Attention::Hybrid { window: NonZeroU32::new(WINDOW).unwrap() };

/// What is done to the pool; numbers choose among what there is at that time.
#[derive(Clone, Debug)]
enum Step {
    Admit { family: u8, blocks: u8, tail: u8, own: bool, salted: bool, reads_cache: bool, chunk: u8 },
    Generate { which: u8, count: u8 },
    Release { which: u8 },
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let admit = (0u8..3, 0u8..9, 0u8..5, any::<bool>(), any::<bool>(), any::<bool>(), 1u8..40).prop_map(
        |(family, blocks, tail, own, salted, reads_cache, chunk)| Step::Admit {
            family,
            blocks,
            tail,
            own,
            salted,
            reads_cache,
            chunk,
        },
    );
    let step = prop_oneof![
        6 => admit,
        4 => (any::<u8>(), 1u8..10).prop_map(|(which, count)| Step::Generate { which, count }),
        5 => any::<u8>().prop_map(|which| Step::Release { which }),
        1 => Just(Step::Reset),
    ];
    prop::collection::vec(step, 1..80)
}

/// Knows of the pool only what it announced.
struct Listener {
    groups: Vec<BTreeMap<Digest, usize>>,
}

impl Listener {
    fn hear(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Stored(stored) => {
                    assert_eq!(stored.extra.len(), stored.hashes.len());
                    check_chain(&stored);
                    for hash in stored.hashes {
                        *self.groups[stored.group].entry(hash).or_default() += 1;
                    }
                }
                Event::Removed(removed) => {
                    let group = &mut self.groups[removed.group];
                    let copies = group.get_mut(&removed.hash).expect("only what is held is removed");
                    *copies -= 1;
                    if *copies == 0 {
                        group.remove(&removed.hash);
                    }
                }
                Event::Cleared => self.groups.iter_mut().for_each(BTreeMap::clear),
            }
        }
    }

    fn blocks(&self) -> usize {
        self.groups.iter().flat_map(BTreeMap::values).sum()
    }

    /// The most leading blocks that all groups hold, as far as they need them.
    fn hit(&self, attention: Attention, hashes: &[Digest], most: usize) -> usize {
        let holds = |group: usize, from: usize, to: usize| {
            hashes[from..to].iter().all(|hash| self.groups[group].contains_key(hash))
        };
        let fits = |to: &usize| match attention {
            Attention::Full => holds(0, 0, *to),
            Attention::Hybrid { .. } => {
                holds(1, 0, *to) && holds(0, to.saturating_sub(BLOCKS_OF_WINDOW), *to)
            }
        };
        (0..=most).rev().find(fits).unwrap_or(0)
    }
}

/// Anyone can recompute the hashes from what the event says, if it says all of them.
fn check_chain(stored: &Stored) {
    if stored.tokens.len() != stored.hashes.len() * BLOCK_SIZE as usize {
        assert!(
            stored.window().is_some() && stored.hashes.len() * (BLOCK_SIZE as usize) < stored.tokens.len()
        );
        return;
    }
    let mut hasher = hasher();
    let mut before = stored.parent.unwrap_or_else(|| hasher.root());
    let blocks = stored.tokens.chunks(BLOCK_SIZE as usize).zip(&stored.extra);
    for (hash, (tokens, extra)) in stored.hashes.iter().zip(blocks) {
        before = hasher.next(&before, tokens, extra);
        assert_eq!(*hash, before);
    }
}

fn hasher() -> Hasher {
    Hasher::with_root(Algorithm::Sha256Cbor, DEFAULT_ROOT, ExtraKeyShape::Tagged)
}

struct World {
    limits: Limits,
    pool: Pool,
    hasher: Hasher,
    live: Vec<Sequence>,
    listener: Listener,
    next_own: u32,
}

impl World {
    fn new(attention: Attention, version: Version) -> Self {
        let groups = attention.groups().iter().map(|_| BTreeMap::new()).collect();
        Self {
            limits: limits(attention, version),
            pool: Pool::new(NUM_BLOCKS),
            hasher: hasher(),
            live: Vec::new(),
            listener: Listener { groups },
            next_own: 1_000,
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Admit { family, blocks, tail, own, salted, reads_cache, chunk } => {
                let shared = u32::from(blocks) * BLOCK_SIZE;
                let mut prompt: Vec<u32> = (0..shared).map(|i| u32::from(family) * 100 + i).collect();
                if own {
                    self.next_own += 1;
                    prompt.push(self.next_own);
                }
                prompt.extend((0..u32::from(tail)).map(|i| u32::from(family) * 100 + 50 + i));
                if !prompt.is_empty() {
                    self.admit(prompt, salted.then(|| "salt".to_owned()), reads_cache, usize::from(chunk));
                }
            }
            Step::Generate { which, count } => {
                if let Some(which) = choose(self.live.len(), which) {
                    for _ in 0..count {
                        let sequence = &mut self.live[which];
                        // The last token is computed only when the next one is wanted.
                        if !sequence.extend(&mut self.pool, &Hit::default(), 1) {
                            break;
                        }
                        sequence.advance(1);
                        sequence.push(7, &mut self.hasher);
                    }
                }
            }
            Step::Release { which } => {
                if let Some(which) = choose(self.live.len(), which) {
                    self.live.remove(which).release(&mut self.pool);
                }
            }
            Step::Reset => {
                assert_eq!(self.pool.reset(), self.live.is_empty());
            }
        }
    }

    fn admit(&mut self, prompt: Vec<u32>, salt: Option<String>, reads_cache: bool, chunk: usize) {
        let origin = Origin { salt, ..Origin::default() };
        let mut sequence = Sequence::new(prompt, origin, self.limits, &mut self.hasher);
        let hit = if reads_cache { sequence.find_hit(&self.pool) } else { Hit::default() };
        let most = (sequence.tokens().len() - 1) / BLOCK_SIZE as usize;
        if reads_cache {
            let want = self.listener.hit(self.limits.attention, sequence.hashes(), most);
            assert_eq!(hit.blocks, want);
        }
        let length = sequence.tokens().len();
        let fits = sequence.fits(&self.pool, &hit);
        if !fits {
            return;
        }
        let first = chunk.min(length - hit.blocks * BLOCK_SIZE as usize);
        // Room for all of it is room for its beginning, and nobody else takes any in between.
        assert!(sequence.extend(&mut self.pool, &hit, first));
        sequence.advance(first);
        assert_eq!(sequence.computed(), hit.blocks * BLOCK_SIZE as usize + first);
        while sequence.computed() < length {
            let next = chunk.min(length - sequence.computed());
            assert!(sequence.extend(&mut self.pool, &Hit::default(), next));
            sequence.advance(next);
        }
        sequence.push(7, &mut self.hasher);
        self.live.push(sequence);
    }

    fn check(&mut self) {
        let events = self.pool.take_events();
        self.listener.hear(events);
        for (number, group) in self.listener.groups.iter().enumerate() {
            assert_eq!(self.pool.copies(number), *group, "what is announced is what is held");
        }
        assert!(self.listener.blocks() <= self.pool.usable());

        let mut used: BTreeMap<BlockId, usize> = BTreeMap::new();
        for block in self.live.iter().flat_map(Sequence::blocks) {
            *used.entry(block).or_default() += 1;
        }
        assert_eq!(used.len() + self.pool.free_blocks(), self.pool.usable(), "every block is used or free");
        assert!(!used.keys().any(|block| self.pool.is_free(*block)), "a used block is never free");
        let full = self.listener.groups.len() - 1;
        for sequence in &self.live {
            // The last token is not computed, so a block that it completes is not held on this sequence's account.
            let blocks = (sequence.tokens().len() - 1) / BLOCK_SIZE as usize;
            let held = |hash| self.listener.groups[full].contains_key(hash);
            assert!(sequence.hashes()[..blocks].iter().all(held), "a live sequence's full blocks are held");
        }
    }
}

fn choose(len: usize, which: u8) -> Option<usize> {
    usize::from(which).checked_rem(len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_announced_is_what_is_held(
        steps in steps(),
        attention in prop_oneof![Just(Attention::Full), Just(HYBRID)],
        version in prop_oneof![
            Just(Version::V0_16),
            Just(Version::V0_23),
            Just(Version::V0_24),
            Just(Version::V0_32)
        ],
    ) {
        let mut world = World::new(attention, version);
        for step in &steps {
            world.run(step);
            world.check();
        }
        // All of it can be had back.
        for mut sequence in std::mem::take(&mut world.live) {
            sequence.release(&mut world.pool);
        }
        prop_assert_eq!(world.pool.free_blocks(), world.pool.usable());
        prop_assert!(world.pool.allocate(world.pool.usable()).is_some());
        world.listener.hear(world.pool.take_events());
        prop_assert_eq!(world.listener.blocks(), 0, "each copy that was stored is removed once");
    }
}

#[test]
fn a_prompt_of_whole_blocks_computes_its_last_block_again() {
    let mut world = World::new(Attention::Full, Version::V0_32);
    let prompt: Vec<u32> = (0..BLOCK_SIZE * 3).collect();
    for copies in [1, 2] {
        world.admit(prompt.clone(), None, true, 64);
        world.check();
        let hashes = world.live[0].hashes();
        assert_eq!(world.listener.groups[0][&hashes[1]], 1);
        assert_eq!(world.listener.groups[0][&hashes[2]], copies);
    }
}

#[test]
fn a_salt_keeps_prompts_apart() {
    let mut world = World::new(Attention::Full, Version::V0_32);
    let prompt: Vec<u32> = (0..BLOCK_SIZE * 3 + 1).collect();
    for (salt, held) in [(None, 3), (Some("a"), 6), (Some("b"), 9), (Some("a"), 9)] {
        world.admit(prompt.clone(), salt.map(str::to_owned), true, 64);
        world.check();
        assert_eq!(world.listener.groups[0].len(), held);
    }
}

#[test]
fn a_window_keeps_what_a_later_prompt_can_resume_at() {
    let prompt: Vec<u32> = (0..BLOCK_SIZE * 8 + 1).collect();
    // 0.24 registers every block, 0.32 only the window before the prompt's end.
    for (version, windowed) in [(Version::V0_24, 8), (Version::V0_32, BLOCKS_OF_WINDOW)] {
        let mut world = World::new(HYBRID, version);
        world.admit(prompt.clone(), None, true, 64);
        world.check();
        assert_eq!([0, 1].map(|group| world.listener.groups[group].len()), [windowed, 8], "{version:?}");
    }
}

#[test]
fn a_branch_is_kept_once_it_was_seen() {
    let mut world = World::new(HYBRID, Version::V0_32);
    let branch = |own: u32| -> Vec<u32> {
        (0..BLOCK_SIZE * 5).chain((0..BLOCK_SIZE * 3 + 1).map(|i| own * 100 + i)).collect()
    };
    // The second prompt shares five blocks with the first, but the window holds none of them; it computes them again,
    // and keeps the window before the branch. So the third one hits.
    for (own, blocks) in [(1, 0), (2, 0), (3, 5)] {
        let sequence = Sequence::new(branch(own), Origin::default(), world.limits, &mut world.hasher);
        assert_eq!(sequence.find_hit(&world.pool).blocks, blocks, "{own}");
        world.admit(branch(own), None, true, 64);
        world.check();
    }
}

#[test]
fn blocks_that_a_window_has_passed_are_freed_before_the_next_are_taken() {
    let mut world = World::new(HYBRID, Version::V0_32);
    world.admit((0..BLOCK_SIZE).collect(), None, true, 64);
    for _ in 0..BLOCK_SIZE * 8 {
        world.run(&Step::Generate { which: 0, count: 1 });
        world.check();
        let tokens = world.live[0].tokens().len();
        let (all, windowed) = (tokens.div_ceil(BLOCK_SIZE as usize), BLOCKS_OF_WINDOW + 1);
        assert!(world.live[0].blocks().count() <= all + windowed);
    }
}
