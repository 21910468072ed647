//! One engine process: the simulated scheduler, and a publisher that numbers its batches and keeps the last ones.

use std::{collections::BTreeSet, num::NonZeroU32, rc::Rc, time::Instant};

use kvpick_lab::{
    engine::{
        attention::Attention,
        cost::StepCost,
        generate::Generator,
        pool::Event,
        scheduler::{Limits, NewRequest, Scheduler},
        wire::Encoder,
    },
    seeded::Seeded,
};
use kvpick_proto::naming::{Algorithm, BlockKey, ExtraKeyShape, Hasher};

use super::plan::{Plan, Replay};

const BLOCK: u32 = 4;

/// A block in a cache group.
pub(crate) type Held = (u32, BlockKey);

/// What a batch says, as the test reads it: taken from the pool, not from the wire.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Stored { group: u32, is_root: bool, keys: Vec<BlockKey> },
    Removed(Held),
    Cleared,
}

impl Said {
    /// Adds the blocks that it stores.
    pub(crate) fn name(&self, to: &mut BTreeSet<Held>) {
        if let Self::Stored { group, keys, .. } = self {
            to.extend(keys.iter().map(|key| (*group, *key)));
        }
    }
}

/// One numbered batch.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) said: Vec<Said>,
    pub(crate) payload: Rc<Vec<u8>>,
    /// Whether it was never sent, nor kept: its encoding failed, and its number is consumed.
    pub(crate) is_lost: bool,
}

/// From its start to its death.
pub(crate) struct Process {
    pub(crate) number: u32,
    /// As its metrics tell it.
    pub(crate) start: f64,
    pub(crate) scheduler: Scheduler,
    encoder: Encoder,
    pub(crate) batches: Vec<Batch>,
    kept: Vec<u64>,
    most_kept: usize,
    /// Encodings that will fail.
    pub(crate) fails: usize,
    /// Whether everything went and no step has announced it yet.
    pub(crate) is_reset: bool,
    pub(crate) stepping: bool,
    asked: usize,
    is_dense: bool,
}

impl Process {
    pub(crate) fn new(plan: &Plan, number: u32, start: f64) -> Self {
        let limits = Limits {
            block_size: NonZeroU32::new(BLOCK).unwrap(),
            num_blocks: plan.num_blocks,
            max_num_batched_tokens: 24,
            max_num_seqs: 4,
            max_model_len: 56,
            attention: plan.attention,
            version: plan.version,
        };
        let generator = Generator::new(1, (0..7).map(|id| (id, format!(" w{id}"))).collect()).unwrap();
        let hasher = Hasher::with_root(Algorithm::Sha256Cbor, "0", ExtraKeyShape::Tagged);
        Self {
            number,
            start,
            scheduler: Scheduler::new(limits, StepCost::default(), generator, hasher),
            encoder: Encoder {
                encoding: plan.version.encoding(),
                hashes: plan.hashes,
                block_size: BLOCK,
                rank: 0,
            },
            batches: Vec::new(),
            kept: Vec::new(),
            most_kept: match plan.replay {
                Replay::Off => 0,
                Replay::Whole => 100_000,
                Replay::Short(most) => most,
            },
            fails: 0,
            is_reset: false,
            stepping: false,
            asked: 0,
            is_dense: plan.attention == Attention::Full,
        }
    }

    /// A prompt that shares its beginning with others.
    pub(crate) fn ask(&mut self, rng: &mut Seeded, now: Instant) {
        let blocks = 1 + rng.below(9);
        let document = rng.below(4);
        let shared = rng.below(blocks + 1);
        let mut prompt = Vec::new();
        for block in 0..blocks {
            let tail = if block < shared { 0 } else { rng.below(3) + 1 };
            let seed = (document * 1_000 + block * 10 + tail) as u32;
            prompt.extend((0..BLOCK).map(|token| seed * 4 + token));
        }
        if rng.below(3) == 0 {
            prompt.extend((0..1 + rng.below(3)).map(|token| token as u32));
        }
        // Of groups with a window the engine would report what it does not hold.
        let reports_hit = rng.below(5) == 0 && self.is_dense;
        let request = NewRequest {
            max_tokens: Some(1 + u32::try_from(rng.below(9)).unwrap()),
            reports_hit,
            reads_cache: rng.below(6) > 0,
            sample: u32::try_from(rng.below(3)).unwrap(),
            ..NewRequest::new(prompt)
        };
        self.scheduler.add(request, now).unwrap();
        self.asked += 1;
    }

    /// A prompt that nobody asked before, so that it announces something.
    pub(crate) fn ask_new(&mut self, nonce: u64, now: Instant) {
        let tokens = (0..8).map(|token| 100_000 + u32::try_from(nonce % 1_000_000).unwrap() * 8 + token);
        let request = NewRequest { max_tokens: Some(1), ..NewRequest::new(tokens.collect()) };
        self.scheduler.add(request, now).unwrap();
        self.asked += 1;
    }

    /// Requests that there ever were.
    pub(crate) const fn asked(&self) -> usize {
        self.asked
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.stepping && self.scheduler.running() + self.scheduler.waiting() == 0
    }

    /// Ends the step; returns the number of the batch that it published, if it published one.
    pub(crate) fn end_step(&mut self, now: Instant, time: f64) -> Option<u64> {
        self.stepping = false;
        let events = self.scheduler.end_step(now).events;
        if events.is_empty() {
            return None;
        }
        self.is_reset = false;
        let is_lost = self.fails > 0;
        self.fails = self.fails.saturating_sub(1);
        let payload = Rc::new(self.encoder.batch(time, &events));
        let number = self.batches.len() as u64;
        self.batches.push(Batch { said: events.iter().map(said).collect(), payload, is_lost });
        if !is_lost {
            self.kept.push(number);
            if self.kept.len() > self.most_kept {
                self.kept.remove(0);
            }
        }
        Some(number)
    }

    /// Numbers that a replay from there has.
    pub(crate) fn replay(&self, from: u64) -> Vec<u64> {
        self.kept.iter().copied().filter(|it| *it >= from).collect()
    }

    /// Whether everything since its start can be replayed.
    pub(crate) fn keeps_all(&self) -> bool {
        self.kept.len() == self.batches.len()
    }

    /// What it holds, by its own pool.
    pub(crate) fn held(&self, groups: usize) -> BTreeSet<Held> {
        let of = |group: usize| {
            let copies = self.scheduler.pool().copies(group);
            copies.into_keys().map(move |it| (group as u32, it.key()))
        };
        (0..groups).flat_map(of).collect()
    }
}

fn said(event: &Event) -> Said {
    match event {
        Event::Stored(it) => Said::Stored {
            group: it.group as u32,
            is_root: it.parent.is_none(),
            keys: it.hashes.iter().map(|hash| hash.key()).collect(),
        },
        Event::Removed(it) => Said::Removed((it.group as u32, it.hash.key())),
        Event::Cleared => Said::Cleared,
    }
}
