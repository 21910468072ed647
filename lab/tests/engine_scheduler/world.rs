//! An engine and a clock.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use kvpick_lab::engine::{
    attention::Attention,
    cost::StepCost,
    generate::Generator,
    pool::Event,
    scheduler::{Limits, NewRequest, Produced, RequestId, Scheduler},
    version::Version,
};
use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, ExtraKeyShape, Hasher};

/// An engine and a clock.
pub(crate) struct World {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Instant,
    pub(crate) produced: BTreeMap<RequestId, Vec<Produced>>,
    pub(crate) batches: Vec<Vec<Event>>,
}

pub(crate) const LIMITS: Limits = Limits {
    block_size: NonZeroU32::new(4).unwrap(),
    num_blocks: 101,
    max_num_batched_tokens: 64,
    max_num_seqs: 8,
    max_model_len: 400,
    attention: Attention::Full,
    version: Version::V0_32,
};

impl World {
    pub(crate) fn new(limits: Limits) -> Self {
        let generator = Generator::new(1, (0..100).map(|id| (id, format!(" w{id}"))).collect()).unwrap();
        let hasher = Hasher::with_root(Algorithm::Sha256Cbor, DEFAULT_ROOT, ExtraKeyShape::Tagged);
        Self {
            scheduler: Scheduler::new(limits, StepCost::default(), generator, hasher),
            now: Instant::now(),
            produced: BTreeMap::new(),
            batches: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, prompt: &[u32], max_tokens: u32) -> RequestId {
        self.scheduler.add(request(prompt, Some(max_tokens)), self.now).unwrap()
    }

    /// Runs one step; how long it took, or `None` where there was nothing to do.
    pub(crate) fn step(&mut self) -> Option<Duration> {
        let end = self.scheduler.start_step(self.now)?;
        let took = end - self.now;
        self.now = end;
        let outcome = self.scheduler.end_step(end);
        for produced in outcome.produced {
            self.produced.entry(produced.request).or_default().push(produced);
        }
        if !outcome.events.is_empty() {
            self.batches.push(outcome.events);
        }
        Some(took)
    }

    pub(crate) fn run(&mut self) {
        for _ in 0..10_000 {
            if self.step().is_none() {
                return;
            }
        }
        panic!("the engine still has work after 10,000 steps");
    }

    /// When its first token came, after its arrival.
    pub(crate) fn time_to_first(&self, id: RequestId) -> Duration {
        self.produced[&id][0].time_to_first.unwrap()
    }

    /// Hashes that each batch stored, event by event.
    pub(crate) fn stored(&self) -> Vec<Vec<usize>> {
        let hashes = |event: &Event| match event {
            Event::Stored(stored) => Some(stored.hashes.len()),
            _ => None,
        };
        self.batches.iter().map(|batch| batch.iter().filter_map(hashes).collect()).collect()
    }

    pub(crate) fn cached(&self, id: RequestId) -> usize {
        self.produced[&id][0].cached_tokens
    }

    pub(crate) fn tokens(&self, id: RequestId) -> Vec<u32> {
        self.produced[&id].iter().map(|produced| produced.token).collect()
    }
}

pub(crate) fn request(prompt: &[u32], max_tokens: Option<u32>) -> NewRequest {
    NewRequest { max_tokens, ..NewRequest::new(prompt.to_vec()) }
}

pub(crate) fn prompt(from: u32, len: u32) -> Vec<u32> {
    (from..from + len).collect()
}
