//! Asks the simulated engine what a recorded one was asked, and compares batch after batch, byte for byte.
//!
//! A recording does not tell in which order, and in which step of the engine, requests arrived that were sent together.
//! So every way is tried that gives the recorded batches. Where several do, and leave the engine in different states,
//! all of these are followed until later batches tell which it was.

use std::{collections::BTreeMap, time::Instant};

use kvpick_agent_core::decode::Batch;
use kvpick_lab::engine::{
    cost::StepCost,
    generate::Generator,
    scheduler::{NewRequest, RequestId, Scheduler},
    wire::Encoder,
};

use crate::{
    recording::{Frame, Recording},
    truth::{Copies, of_pool},
};

/// The simulated engine on virtual time, with what its requests found cached.
#[derive(Clone)]
pub(crate) struct Replay {
    pub(crate) scheduler: Scheduler,
    encoder: Encoder,
    now: Instant,
    /// What its pool held after each frame.
    pub(crate) truth: Vec<Copies>,
    groups: usize,
}

/// A request of the engine that has not arrived yet.
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) request: NewRequest,
    /// Where in the list of those that were sent together it is.
    pub(crate) number: usize,
    pub(crate) left_after: Option<usize>,
}

/// Requests on their way.
#[derive(Clone)]
struct Attempt {
    replay: Replay,
    expected: Vec<Arrival>,
    arrived: BTreeMap<RequestId, Running>,
    /// Frames that came already.
    seen: usize,
    /// Cached tokens by number.
    cached: BTreeMap<usize, usize>,
}

#[derive(Clone, Copy)]
struct Running {
    number: usize,
    left_after: Option<usize>,
    produced: usize,
}

impl Replay {
    pub(crate) fn new(recording: &Recording) -> Self {
        let generator = Generator::new(0, vec![(0, String::new())]).unwrap();
        let hasher = recording.hasher.clone();
        let scheduler = Scheduler::new(recording.limits, StepCost::default(), generator, hasher);
        let groups = recording.limits.attention.groups().len();
        Self { scheduler, encoder: recording.encoder, now: Instant::now(), truth: Vec::new(), groups }
    }

    /// Runs these requests together; the engine and what each of them found cached, in tokens, in every way in which it
    /// can have been. The message of an error says how far the best try went.
    pub(crate) fn run(
        &self,
        arrivals: &[Arrival],
        frames: &[Frame],
    ) -> Result<Vec<(Self, Vec<usize>)>, String> {
        let attempt = Attempt {
            replay: self.clone(),
            expected: arrivals.to_vec(),
            arrived: BTreeMap::new(),
            seen: 0,
            cached: BTreeMap::new(),
        };
        let mut search = Search { frames, steps: 0, farthest: (0, String::new()), found: BTreeMap::new() };
        search.go(attempt);
        if search.found.is_empty() {
            let (seen, why) = &search.farthest;
            return Err(format!(
                "{seen} of {} frames equal, after {} steps tried: {why}",
                frames.len(),
                search.steps
            ));
        }
        Ok(search.found.into_values().collect())
    }

    /// Equal for idle engines that have counted the same and will do the same.
    pub(crate) fn state(&self) -> String {
        format!("{:?} {:?}", self.scheduler.totals(), self.scheduler.pool().eviction_order())
    }
}

struct Search<'a> {
    frames: &'a [Frame],
    steps: usize,
    farthest: (usize, String),
    /// By the state in which the engine is left.
    found: BTreeMap<String, (Replay, Vec<usize>)>,
}

impl Search<'_> {
    fn go(&mut self, attempt: Attempt) {
        let mut attempt = attempt;
        // Without anybody to come there is one way only.
        while attempt.expected.is_empty() {
            match self.step(&mut attempt) {
                Stepped::On => (),
                Stepped::Idle if attempt.seen == self.frames.len() => {
                    let Attempt { replay, cached, .. } = attempt;
                    self.found.insert(replay.state(), (replay, cached.into_values().collect()));
                    return;
                }
                Stepped::Idle => return self.note(&attempt, || "the real engine announced more".to_owned()),
                Stepped::Wrong => return,
            }
        }
        for coming in orders(&attempt.expected) {
            if coming.is_empty() && attempt.arrived.is_empty() {
                continue;
            }
            if MOST_STEPS < self.steps || MOST_STATES < self.found.len() {
                return;
            }
            let mut next = attempt.clone();
            next.arrive(&coming);
            if matches!(self.step(&mut next), Stepped::On) {
                self.go(next);
            }
        }
    }

    fn step(&mut self, attempt: &mut Attempt) -> Stepped {
        self.steps += 1;
        let replay = &mut attempt.replay;
        let Some(end) = replay.scheduler.start_step(replay.now) else { return Stepped::Idle };
        replay.now = end;
        let outcome = replay.scheduler.end_step(end);
        for produced in outcome.produced {
            let Some(running) = attempt.arrived.get_mut(&produced.request) else { continue };
            running.produced += 1;
            attempt.cached.insert(running.number, produced.cached_tokens);
            if running.left_after == Some(running.produced) {
                replay.scheduler.abort(produced.request);
            } else if produced.finish.is_none() {
                continue;
            }
            attempt.arrived.remove(&produced.request);
        }
        if outcome.events.is_empty() {
            return Stepped::On;
        }
        let Some(frame) = self.frames.get(attempt.seen) else {
            self.note(attempt, || format!("the real engine announced less than {:?}", outcome.events));
            return Stepped::Wrong;
        };
        let payload = attempt.replay.encoder.batch(frame.batch.time, &outcome.events);
        if payload != frame.payload {
            self.note(attempt, || difference(&frame.batch, &Batch::decode(&payload).unwrap()));
            return Stepped::Wrong;
        }
        attempt.seen += 1;
        let replay = &mut attempt.replay;
        replay.truth.push(of_pool(replay.scheduler.pool(), replay.groups));
        Stepped::On
    }

    fn note(&mut self, attempt: &Attempt, why: impl FnOnce() -> String) {
        if self.farthest.1.is_empty() || self.farthest.0 < attempt.seen {
            self.farthest = (attempt.seen, why());
        }
    }
}

enum Stepped {
    On,
    Idle,
    Wrong,
}

impl Attempt {
    fn arrive(&mut self, coming: &[usize]) {
        for &at in coming {
            let Arrival { request, number, left_after } = self.expected[at].clone();
            let id = self.replay.scheduler.add(request, self.replay.now).unwrap();
            self.arrived.insert(id, Running { number, left_after, produced: 0 });
        }
        let mut at = 0;
        self.expected.retain(|_| {
            at += 1;
            !coming.contains(&(at - 1))
        });
    }
}

/// All ways in which some of these may arrive now, as indices: those with most of them first, in their own order
/// first. Of equal ones only the first can come.
fn orders(expected: &[Arrival]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    let mut from = 0;
    while from < all.len() {
        let so_far: Vec<usize> = all[from].clone();
        from += 1;
        let mut tried: Vec<&NewRequest> = Vec::new();
        for (i, arrival) in expected.iter().enumerate() {
            let same =
                |it: &&NewRequest| it.prompt == arrival.request.prompt && it.answer == arrival.request.answer;
            if !so_far.contains(&i) && !tried.iter().any(same) {
                tried.push(&arrival.request);
                all.push([so_far.as_slice(), &[i]].concat());
            }
        }
    }
    all.sort_by_key(|it| std::cmp::Reverse(it.len()));
    all
}

fn difference(want: &Batch, got: &Batch) -> String {
    let lengths = (want.events.len(), got.events.len());
    let differs = |at: &usize| want.events.get(*at) != got.events.get(*at);
    match (0..lengths.0.max(lengths.1)).find(differs) {
        Some(at) => {
            let (want, got) = (want.events.get(at), got.events.get(at));
            format!("event {at} of {}: want {want:?}, got {got:?} of {}", lengths.0, lengths.1)
        }
        None => "equal events in other bytes".to_owned(),
    }
}

/// Steps of the engine that are tried for requests that were sent together.
const MOST_STEPS: usize = 200_000;

/// States that are followed.
const MOST_STATES: usize = 64;
