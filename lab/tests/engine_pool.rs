//! The pool and its sequences against a naive model that only hears the events.

use std::{collections::BTreeMap, num::NonZeroU32};

use kvpick_lab::engine::{
    pool::{BlockId, Event, Pool},
    sequence::Sequence,
};
use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, Digest, ExtraKeyShape, Hasher};
use proptest::prelude::*;

const BLOCK_SIZE: u32 = 4;
const NUM_BLOCKS: u32 = 24;

/// What is done to the pool; numbers choose among what there is at that time.
#[derive(Clone, Debug)]
enum Step {
    Admit { family: u8, blocks: u8, tail: u8, own: bool, salted: bool, reads_cache: bool },
    Generate { which: u8, count: u8 },
    Release { which: u8 },
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let admit = (0u8..3, 0u8..6, 0u8..5, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(family, blocks, tail, own, salted, reads_cache)| Step::Admit {
            family,
            blocks,
            tail,
            own,
            salted,
            reads_cache,
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
#[derive(Default)]
struct Listener {
    copies: BTreeMap<Digest, usize>,
}

impl Listener {
    fn hear(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Stored(stored) => {
                    assert_eq!(stored.tokens.len(), stored.hashes.len() * BLOCK_SIZE as usize);
                    assert_eq!(stored.extra.len(), stored.hashes.len());
                    self.check_chain(&stored.hashes, stored.parent, &stored.tokens, &stored.extra);
                    for hash in stored.hashes {
                        *self.copies.entry(hash).or_default() += 1;
                    }
                }
                Event::Removed(hash) => {
                    let copies = self.copies.get_mut(&hash).expect("only what is held is removed");
                    *copies -= 1;
                    if *copies == 0 {
                        self.copies.remove(&hash);
                    }
                }
                Event::Cleared => self.copies.clear(),
            }
        }
    }

    /// Anyone can recompute a hash from what the event says.
    fn check_chain(
        &self,
        hashes: &[Digest],
        parent: Option<Digest>,
        tokens: &[u32],
        extra: &[Vec<kvpick_proto::naming::ExtraKey>],
    ) {
        let mut hasher = hasher();
        let mut before = parent.unwrap_or_else(|| hasher.root());
        for ((hash, tokens), extra) in hashes.iter().zip(tokens.chunks(BLOCK_SIZE as usize)).zip(extra) {
            before = hasher.next(&before, tokens, extra);
            assert_eq!(*hash, before);
        }
    }

    fn longest_run(&self, hashes: &[Digest]) -> usize {
        hashes.iter().take_while(|hash| self.copies.contains_key(hash)).count()
    }
}

fn hasher() -> Hasher {
    Hasher::with_root(Algorithm::Sha256Cbor, DEFAULT_ROOT, ExtraKeyShape::Tagged)
}

struct World {
    pool: Pool,
    hasher: Hasher,
    live: Vec<Sequence>,
    listener: Listener,
    next_own: u32,
}

impl World {
    fn new() -> Self {
        let (pool, hasher) = (Pool::new(NUM_BLOCKS), hasher());
        Self { pool, hasher, live: Vec::new(), listener: Listener::default(), next_own: 1_000 }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Admit { family, blocks, tail, own, salted, reads_cache } => {
                let shared = u32::from(blocks) * BLOCK_SIZE;
                let mut prompt: Vec<u32> = (0..shared).map(|i| u32::from(family) * 100 + i).collect();
                if own {
                    self.next_own += 1;
                    prompt.push(self.next_own);
                }
                prompt.extend((0..u32::from(tail)).map(|i| u32::from(family) * 100 + 50 + i));
                if !prompt.is_empty() {
                    self.admit(prompt, salted.then(|| "salt".to_owned()), reads_cache);
                }
            }
            Step::Generate { which, count } => {
                if let Some(which) = choose(self.live.len(), which) {
                    for _ in 0..count {
                        let sequence = &mut self.live[which];
                        // The last token is computed only when the next one is wanted.
                        if !sequence.extend(&mut self.pool, &[], 1) {
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

    fn admit(&mut self, prompt: Vec<u32>, salt: Option<String>, reads_cache: bool) {
        let block_size = const { NonZeroU32::new(BLOCK_SIZE).unwrap() };
        let mut sequence = Sequence::new(prompt, salt, block_size, &mut self.hasher);
        let hit = if reads_cache { sequence.find_hit(&self.pool) } else { Vec::new() };
        let most = (sequence.tokens().len() - 1) / BLOCK_SIZE as usize;
        if reads_cache {
            assert_eq!(hit.len(), self.listener.longest_run(sequence.hashes()).min(most));
        }
        let rest = sequence.tokens().len() - hit.len() * BLOCK_SIZE as usize;
        let fits = sequence.fits(&self.pool, &hit);
        assert_eq!(sequence.extend(&mut self.pool, &hit, rest), fits);
        if fits {
            assert_eq!(sequence.table()[..hit.len()], hit);
            sequence.advance(rest);
            sequence.push(7, &mut self.hasher);
            self.live.push(sequence);
        }
    }

    fn check(&mut self) {
        let events = self.pool.take_events();
        self.listener.hear(events);
        assert_eq!(self.pool.copies(), self.listener.copies, "what is announced is what is held");
        assert!(self.listener.copies.values().sum::<usize>() <= self.pool.usable());

        let mut used: BTreeMap<BlockId, usize> = BTreeMap::new();
        for block in self.live.iter().flat_map(|sequence| sequence.table()) {
            *used.entry(*block).or_default() += 1;
        }
        assert_eq!(used.len() + self.pool.free_blocks(), self.pool.usable(), "every block is used or free");
        for sequence in &self.live {
            assert_eq!(self.pool.count_free(sequence.table()), 0, "a used block is never free");
            // The last token is not computed, so a block that it completes is not held on this sequence's account.
            let full = (sequence.tokens().len() - 1) / BLOCK_SIZE as usize;
            assert!(
                full <= self.listener.longest_run(sequence.hashes()),
                "a live sequence's full blocks are held"
            );
        }
    }
}

fn choose(len: usize, which: u8) -> Option<usize> {
    usize::from(which).checked_rem(len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_announced_is_what_is_held(steps in steps()) {
        let mut world = World::new();
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
        prop_assert!(world.listener.copies.is_empty(), "each copy that was stored is removed once");
    }
}

#[test]
fn a_prompt_of_whole_blocks_computes_its_last_block_again() {
    let mut world = World::new();
    let prompt: Vec<u32> = (0..BLOCK_SIZE * 3).collect();
    for copies in [1, 2] {
        world.admit(prompt.clone(), None, true);
        world.check();
        let hashes = world.live[0].hashes();
        assert_eq!(world.listener.copies[&hashes[1]], 1);
        assert_eq!(world.listener.copies[&hashes[2]], copies);
    }
}

#[test]
fn a_salt_keeps_prompts_apart() {
    let mut world = World::new();
    let prompt: Vec<u32> = (0..BLOCK_SIZE * 3 + 1).collect();
    for (salt, held) in [(None, 3), (Some("a"), 6), (Some("b"), 9), (Some("a"), 9)] {
        world.admit(prompt.clone(), salt.map(str::to_owned), true);
        world.check();
        assert_eq!(world.listener.copies.len(), held);
    }
}
