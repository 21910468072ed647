//! Which tokens are computed in which step: continuous batching as in vLLM's `v1/core/sched/scheduler.py` (0.32,
//! synchronous, first come first served).
//!
//! A step first continues the running requests, then admits waiting ones, within a budget of tokens and of requests.
//! A long prompt is computed in chunks. When a running request needs a block and none is free, the one that was
//! admitted last loses all of its blocks and waits again, in front of the others.
//!
//! Time is an argument: [`Scheduler::start_step`] says when the step ends, and the caller comes back then.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use kvpick_proto::naming::Hasher;

use super::{
    announce::Event,
    attention::Hit,
    cost::{StepCost, StepWork},
    generate::{Answer, Generator},
    pool::Pool,
    sequence::{Origin, Sequence},
};
pub use super::{
    limits::Limits,
    request::{FinishReason, NewRequest, Produced, Refusal, RequestId},
};

/// What a step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Announcements since the last step, in order: one batch.
    pub events: Vec<Event>,
    /// A token for each request whose prompt is computed.
    pub produced: Vec<Produced>,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// Tokens of admitted prompts that may be found in the cache.
    pub prefix_queries: u64,
    /// Of those, found in the cache.
    pub prefix_hits: u64,
    /// Tokens generated.
    pub generated: u64,
    /// Times that a running request lost its blocks.
    pub preemptions: u64,
}

/// What is running, waiting and held.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    cost: StepCost,
    generator: Generator,
    hasher: Hasher,
    pool: Pool,
    next_id: RequestId,
    requests: BTreeMap<RequestId, Request>,
    /// In order of admission.
    running: Vec<RequestId>,
    waiting: VecDeque<RequestId>,
    /// Tokens that the current step computes, by request.
    step: Option<Vec<(RequestId, usize)>>,
    totals: Totals,
}

#[derive(Clone, Debug)]
struct Request {
    arrived: Instant,
    sequence: Sequence,
    /// How the answer begins.
    given: std::vec::IntoIter<u32>,
    /// How it goes on.
    answer: Answer,
    /// Tokens after which the answer ends, and why it ends there.
    end: (usize, FinishReason),
    reads_cache: bool,
    reports_hit: bool,
    /// Set when first admitted; what is found after a preemption is the request's own work.
    cached_tokens: Option<usize>,
}

impl Scheduler {
    /// An idle engine with nothing held.
    #[must_use]
    pub fn new(limits: Limits, cost: StepCost, generator: Generator, hasher: Hasher) -> Self {
        Self {
            limits,
            cost,
            generator,
            hasher,
            pool: Pool::new(limits.num_blocks),
            next_id: 0,
            requests: BTreeMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            step: None,
            totals: Totals::default(),
        }
    }

    /// Queues a request that arrived at `now`.
    pub fn add(&mut self, new: NewRequest, now: Instant) -> Result<RequestId, Refusal> {
        let room = self.limits.max_model_len.saturating_sub(new.prompt.len());
        let asked = new.max_tokens.map(|max| max as usize);
        if new.prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if asked == Some(0) {
            return Err(Refusal::NoTokens);
        }
        if room < asked.unwrap_or(1) {
            let (max, prompt) = (self.limits.max_model_len, new.prompt.len());
            return Err(Refusal::TooLong { max, prompt, output: asked.unwrap_or(1) });
        }
        let answer = self.generator.answer(&new.prompt, new.sample);
        let end = match asked {
            Some(asked) => (asked, FinishReason::Length),
            None => match self.generator.natural_length(answer) {
                length if length <= room => (length, FinishReason::Stop),
                _ => (room, FinishReason::Length),
            },
        };
        let session = new.session.filter(|_| self.limits.version.tells_sessions());
        let origin = Origin { salt: new.salt, adapter: new.adapter, session };
        let request = Request {
            arrived: now,
            sequence: Sequence::new(new.prompt, origin, self.limits, &mut self.hasher),
            given: new.answer.into_iter(),
            answer,
            end,
            reads_cache: new.reads_cache,
            reports_hit: new.reports_hit && self.limits.version.reports_hits(),
            cached_tokens: None,
        };
        let id = self.next_id;
        self.next_id += 1;
        self.requests.insert(id, request);
        self.waiting.push_back(id);
        Ok(id)
    }

    /// Ends a request at once, wherever it is. Its blocks stay held; nothing is announced.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(mut request) = self.requests.remove(&id) {
            request.sequence.release(&mut self.pool);
            self.running.retain(|it| *it != id);
            self.waiting.retain(|it| *it != id);
        }
    }

    /// Forgets every held block; refused, with `false`, while blocks are in use. The announcement goes out with the
    /// next step, which may be a long time after.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// Hashes blocks in another way from now on; those that are hashed already keep their hashes.
    pub fn set_hasher(&mut self, hasher: Hasher) {
        self.hasher = hasher;
    }

    /// Decides what the next step computes, and when it ends; `None` where there is nothing to do.
    ///
    /// A step must be ended before the next one starts.
    pub fn start_step(&mut self, now: Instant) -> Option<Instant> {
        debug_assert!(self.step.is_none(), "the last step was not ended");
        let mut step = Step { budget: self.limits.max_num_batched_tokens, ..Step::default() };
        let preempted = self.continue_running(&mut step);
        // Who was just preempted would be the first to be admitted, and take the blocks away again.
        if !preempted {
            self.admit_waiting(&mut step);
        }
        if step.work.is_empty() {
            return None;
        }
        self.step = Some(step.scheduled);
        Some(now + self.cost.duration(step.work))
    }

    /// Ends the step: says what was announced and generated. Without a step it does nothing.
    pub fn end_step(&mut self, now: Instant) -> StepOutcome {
        let Some(scheduled) = self.step.take() else { return StepOutcome::default() };
        let mut produced = Vec::new();
        for (id, count) in scheduled {
            // Aborted while the step ran.
            let Some(request) = self.requests.get_mut(&id) else { continue };
            request.sequence.advance(count);
            if request.sequence.computed() < request.sequence.tokens().len() {
                continue;
            }
            let token = request.given.next().unwrap_or_else(|| self.generator.next(&mut request.answer));
            let first = request.sequence.generated() == 0;
            request.sequence.push(token, &mut self.hasher);
            self.totals.generated += 1;
            let (length, reason) = request.end;
            let finish = (request.sequence.generated() == length).then_some(reason);
            produced.push(Produced {
                request: id,
                token,
                time_to_first: first.then(|| now.saturating_duration_since(request.arrived)),
                finish,
                cached_tokens: request.cached_tokens.unwrap_or(0),
            });
            if finish.is_some() {
                self.abort(id);
            }
        }
        StepOutcome { events: self.pool.take_events(), produced }
    }

    /// How many tokens a request's whole answer has; 0 for one that is not here.
    #[must_use]
    pub fn answer_length(&self, id: RequestId) -> usize {
        self.requests.get(&id).map_or(0, |request| request.end.0)
    }

    /// Requests in the running batch.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that are queued.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Names of the adapters that running and that waiting requests want, in order, each once.
    #[must_use]
    pub fn adapters(&self) -> [BTreeSet<&str>; 2] {
        let name = |id: &RequestId| Some(self.requests.get(id)?.sequence.adapter()?.name.as_str());
        [self.running.iter().filter_map(name).collect(), self.waiting.iter().filter_map(name).collect()]
    }

    /// The blocks.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Sums since the start.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// Says what the tokens mean.
    #[must_use]
    pub const fn generator(&self) -> &Generator {
        &self.generator
    }

    /// Whether anybody was preempted.
    fn continue_running(&mut self, step: &mut Step) -> bool {
        let mut preempted = false;
        let mut next = 0;
        while next < self.running.len() && 0 < step.budget {
            let id = self.running[next];
            if self.schedule(id, &Hit::default(), step) {
                next += 1;
                continue;
            }
            // The last one makes room, even if that is the one that needs it.
            if let Some(last) = self.running.pop() {
                self.preempt(last);
                preempted = true;
            }
        }
        preempted
    }

    fn admit_waiting(&mut self, step: &mut Step) {
        while let Some(&id) = self.waiting.front() {
            let Some(request) = self.requests.get(&id) else { break };
            if step.budget == 0 || self.limits.max_num_seqs <= self.running.len() {
                break;
            }
            let sequence = &request.sequence;
            let hit = if request.reads_cache { sequence.find_hit(&self.pool) } else { Hit::default() };
            if request.reports_hit && 0 < hit.blocks {
                // Again whenever its admission is tried.
                sequence.report(&mut self.pool, &hit);
            }
            if self.limits.version.counts_every_lookup() {
                self.count_lookup(id, &hit);
            }
            if !self.fits(id, &hit) || !self.schedule(id, &hit, step) {
                break;
            }
            self.waiting.pop_front();
            self.running.push(id);
            if !self.limits.version.counts_every_lookup() {
                self.count_lookup(id, &hit);
            }
            let cached = hit.blocks * self.limits.block_tokens();
            if let Some(request) = self.requests.get_mut(&id) {
                request.cached_tokens.get_or_insert(cached);
            }
        }
    }

    /// Whether a whole prompt fits, not just its first chunk: else prompts would starve each other halfway.
    fn fits(&self, id: RequestId, hit: &Hit) -> bool {
        let fits = |request: &Request| request.sequence.fits(&self.pool, hit);
        !self.limits.version.reserves_whole_prompts() || self.requests.get(&id).is_some_and(fits)
    }

    /// What was found after a preemption is the request's own work, and does not count. Neither does who may not look:
    /// that is no miss.
    fn count_lookup(&mut self, id: RequestId, hit: &Hit) {
        let Some(request) = self.requests.get(&id) else { return };
        if request.reads_cache && request.cached_tokens.is_none() {
            self.totals.prefix_queries += request.sequence.tokens().len() as u64;
            self.totals.prefix_hits += (hit.blocks * self.limits.block_tokens()) as u64;
        }
    }

    /// Puts as much of a request into the step as the budget allows; `false`, and nothing done, where blocks lack.
    fn schedule(&mut self, id: RequestId, hit: &Hit, step: &mut Step) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        let sequence = &mut request.sequence;
        let before = sequence.computed() + hit.blocks * self.limits.block_tokens();
        let count = (sequence.tokens().len() - before).min(step.budget);
        if !sequence.extend(&mut self.pool, hit, count) {
            return false;
        }
        step.budget -= count;
        step.work.add(before, count, count == 1 && sequence.prompt_len() <= before);
        step.scheduled.push((id, count));
        true
    }

    fn preempt(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.sequence.release(&mut self.pool);
            self.waiting.push_front(id);
            self.totals.preemptions += 1;
        }
    }
}

/// A step as it is put together.
#[derive(Debug, Default)]
struct Step {
    budget: usize,
    work: StepWork,
    scheduled: Vec<(RequestId, usize)>,
}
