//! The pure engine against vLLM's own scheduler and cache manager under random workloads: several requests at once,
//! chunked prompts, preemption, windows, resets and aborts, step by step.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    num::NonZeroU32,
    time::Instant,
};

use flate2::read::GzDecoder;
use kvpick_lab::engine::{
    announce::Event,
    attention::Attention,
    cost::StepCost,
    generate::Generator,
    scheduler::{Limits, NewRequest, RequestId, Scheduler, Totals},
    version::Version,
};
use kvpick_proto::naming::{Algorithm, Digest, Hasher};
use serde::Deserialize;
use serde_json::{Value, json};

/// What was done to vLLM, and what it did.
#[derive(Deserialize)]
struct Workload {
    version: String,
    seed: u64,
    config: Config,
    ops: Vec<Op>,
    totals: Counted,
}

#[derive(Deserialize)]
struct Config {
    block_size: NonZeroU32,
    window: Option<NonZeroU32>,
    num_blocks: u32,
    max_num_seqs: usize,
    budget: usize,
    max_model_len: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Add(Added),
    Step(Stepped),
    /// Whether it was done.
    Reset(bool),
    /// Requests are numbered in the order in which they were added.
    Abort(RequestId),
}

#[derive(Deserialize)]
struct Added {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    salt: Option<String>,
    #[serde(default)]
    report: bool,
    #[serde(default = "yes")]
    reads: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct Stepped {
    /// The requests that got a token.
    produced: Vec<RequestId>,
    events: Vec<Value>,
}

#[derive(Deserialize)]
struct Counted {
    queries: u64,
    hits: u64,
    generated: u64,
    preemptions: u64,
}

#[test]
fn v0_11() {
    check("0.11", Version::V0_11);
}

#[test]
fn v0_16() {
    check("0.16", Version::V0_16);
}

#[test]
fn v0_23() {
    check("0.23", Version::V0_23);
}

#[test]
fn v0_24() {
    check("0.24", Version::V0_24);
}

#[test]
fn v0_32() {
    check("0.32", Version::V0_32);
}

/// Each step must announce and produce what vLLM's did.
fn check(name: &str, version: Version) {
    let path = format!("{}/../testdata/workloads/v{name}.jsonl.gz", env!("CARGO_MANIFEST_DIR"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let workloads = BufReader::new(GzDecoder::new(file)).lines();
    let (mut compared, mut hits, mut preemptions) = (0, 0, 0);
    for line in workloads {
        let workload: Workload = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(workload.version, name);
        run(&workload, version);
        compared += 1;
        hits += workload.totals.hits;
        preemptions += workload.totals.preemptions;
    }
    assert_eq!(compared, 40);
    assert!(0 < hits && 0 < preemptions, "{name}: the workloads leave something out");
}

fn run(workload: &Workload, version: Version) {
    let config = &workload.config;
    let limits = Limits {
        block_size: config.block_size,
        num_blocks: config.num_blocks,
        max_num_batched_tokens: config.budget,
        max_num_seqs: config.max_num_seqs,
        max_model_len: config.max_model_len,
        attention: config.window.map_or(Attention::Full, |window| Attention::Hybrid { window }),
        version,
    };
    let generator = Generator::new(0, vec![(0, String::new())]).unwrap();
    let hasher = Hasher::with_root(Algorithm::Sha256Cbor, "0", limits.version.extra_keys());
    let mut scheduler = Scheduler::new(limits, StepCost::default(), generator, hasher);
    let mut now = Instant::now();
    for (i, op) in workload.ops.iter().enumerate() {
        let place = || format!("{}, seed {}, operation {i}", workload.version, workload.seed);
        match op {
            Op::Add(added) => {
                let new = NewRequest {
                    salt: added.salt.clone(),
                    reports_hit: added.report,
                    max_tokens: Some(u32::try_from(added.answer.len()).unwrap()),
                    reads_cache: added.reads,
                    answer: added.answer.clone(),
                    ..NewRequest::new(added.prompt.clone())
                };
                scheduler.add(new, now).unwrap_or_else(|refusal| panic!("{}: {refusal}", place()));
            }
            Op::Step(step) => {
                now = scheduler.start_step(now).unwrap_or_else(|| panic!("{}: nothing to do", place()));
                let outcome = scheduler.end_step(now);
                let events: Vec<Value> = outcome.events.iter().map(event).collect();
                assert_eq!(events, step.events, "{}", place());
                let produced: Vec<RequestId> = outcome.produced.iter().map(|it| it.request).collect();
                assert_eq!(produced, step.produced, "{}", place());
            }
            Op::Reset(done) => assert_eq!(scheduler.reset_prefix_cache(), *done, "{}", place()),
            Op::Abort(id) => scheduler.abort(*id),
        }
    }
    assert!(scheduler.start_step(now).is_none(), "seed {}: there is more to do", workload.seed);
    let Counted { queries, hits, generated, preemptions } = workload.totals;
    let want = Totals { prefix_queries: queries, prefix_hits: hits, generated, preemptions };
    assert_eq!(scheduler.totals(), want, "{}, seed {}", workload.version, workload.seed);
}

fn event(event: &Event) -> Value {
    match event {
        Event::Stored(stored) => {
            let hashes: Vec<String> = stored.hashes.iter().map(tail).collect();
            json!(["S", stored.group, hashes, stored.parent.as_ref().map(tail), stored.tokens.len()])
        }
        Event::Removed(removed) => json!(["R", removed.group, tail(&removed.hash)]),
        Event::Cleared => json!(["C"]),
    }
}

/// The low 64 bits.
fn tail(hash: &Digest) -> String {
    hash.key().to_string()
}
