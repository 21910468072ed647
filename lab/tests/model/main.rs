//! The flow of knowledge on virtual time: simulated engines, the agent's core driven as its shell drives it, two
//! servers, and links that lose, delay and cut.
//!
//! Everything is decided by a seed. A run goes wrong for a while, then rests until all is delivered, and so on. What
//! has to hold at rest:
//!
//! 1. A server never holds a block that the engine does not, except between a reset of an idle engine and its next step.
//! 2. Where replay covers what was missed, or nothing was missed, a server's view is the fold of all that the process
//!    ever announced, and says so.
//! 3. Else it is the fold of what was announced since the last thing that was missed, and says that it is a part.
//!
//! What was missed is known by the test itself, from what was published and what the agent was given (`reference`). At
//! every moment: nothing panics or loops, a server's index is the fold of what it was sent, the applied batch grows
//! unless everything went, and answers to a question that was given up change nothing.
//!
//! A run that fails is run again with its steps written down; they are shown with the command that runs it.
//!
//! What is accepted, by name:
//!
//! * *Ambiguous copies*: a store from the start of a prompt that may be a report of what is there does not raise the count
//!   of what is held, so that fewer blocks may be known than there are. The fold does the same.
//! * *Reports of groups with a window*: asked to report a hit, an engine names all of its blocks in every group, held or
//!   not. Nobody can tell; requests to hybrid engines ask for no report here.
//! * *A loss at the end*: a batch that nobody got and after which none came shows with the next batch, or with the next
//!   look of an agent that can ask for a replay. A rest lets one or the other happen.
//! * *An unseen restart*: without replay, where the loss of the connection was not seen because the new process's was
//!   there before, where metrics never told the agent when the old process began, and where the first batch that is
//!   heard of the new one has the very number that comes next. Nothing proves it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod chaos;
mod engine;
mod feed;
mod link;
mod plan;
mod reference;
mod replay;
mod rest;
mod shadow;
mod sim;

use std::{panic::AssertUnwindSafe, time::Instant};

use kvpick_lab::seeded::Seeded;

use plan::Replay;
use sim::{Sim, Trace};

/// Seeds of each kind of run, unless `KVPICK_SEEDS` says otherwise.
const SEEDS: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "which runs are wanted")]
    std::env::var(name).ok()?.parse().ok()
}

fn one(kind: u64, seed: u64, replay: fn(&mut Seeded) -> Replay, base: Instant, trace: Trace) -> u64 {
    let mut sim = Sim::new(Seeded::new(&[kind, seed]), replay, base, trace);
    sim.run();
    sim.accepted
}

fn check(test: &str, kind: u64, replay: fn(&mut Seeded) -> Replay) {
    let base = Instant::now();
    let seeds = match number("KVPICK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVPICK_SEEDS").unwrap_or(SEEDS),
    };
    let total = seeds.end - seeds.start;
    let mut accepted = 0;
    for seed in seeds {
        let run = |trace| std::panic::catch_unwind(AssertUnwindSafe(|| one(kind, seed, replay, base, trace)));
        match run(Trace::default()) {
            Ok(it) => accepted += it,
            Err(_) => {
                let trace = Trace::shown();
                let again = run(trace.clone());
                let again = again.map_or("it fails again", |_| "it did NOT fail again");
                panic!(
                    "seed {seed}: {again}; the last steps:\n{}\nKVPICK_SEED={seed} cargo test --profile quick -p \
                     kvpick-lab --test model {test}",
                    trace.text()
                );
            }
        }
    }
    // Restarts that nothing could show are a corner of the plan, not a way out of the checks.
    assert!(accepted <= 5 + total / 20, "{accepted} rests of {total} runs were not looked at");
}

#[test]
fn without_replay() {
    check("without_replay", 0, |_| Replay::Off);
}

#[test]
fn with_replay_of_everything() {
    check("with_replay_of_everything", 1, |_| Replay::Whole);
}

#[test]
fn with_a_replay_that_is_too_short() {
    check("with_a_replay_that_is_too_short", 2, |rng| Replay::Short(1 + rng.below(30)));
}
