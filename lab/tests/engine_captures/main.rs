//! The pure engine against recordings of real ones: asked the same, it announces the same and finds the same cached.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod recording;
mod replay;
mod truth;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use kvpick_agent_core::recording::Run;
use kvpick_lab::engine::scheduler::NewRequest;
use kvpick_proto::naming::ExtraKey;
use recording::{Asked, Frame, Happening, Recording};
use replay::{Arrival, Replay};
use truth::Differ;

/// With `kv_cache_report_mode=full` the hit is announced again, which reads as no hit.
const REPORTED: &str = "chat-report-full";

/// The hybrid model's group with a sliding window.
const WINDOWED: u32 = 0;

#[test]
fn v0_16_arrays_bytes_and_adapters() {
    Checked::of("v0.16-sha256cbor-bytes-bs16", None, &[]).mirror_is(Differ::default());
}

#[test]
fn v0_32_maps_and_ints_and_then_a_restart() {
    let dups = Checked::of("v0.32-sha256cbor-int-bs16-dups", None, &[REPORTED]);
    dups.mirror_is(Differ::default());
    // The same process: its sequence numbers go on.
    let restart = Checked::of("v0.32-restart-sha256cbor-int-bs16", Some(dups), &[]);
    restart.mirror_is(Differ::default());
}

#[test]
fn v0_32_xxhash_and_blocks_of_32() {
    Checked::of("v0.32-xxhashcbor-bytes-bs32", None, &[REPORTED]).mirror_is(Differ::default());
}

#[test]
fn v0_32_sliding_window_and_full_attention() {
    // A report names every block of the hit in every group, also those that the window's group gave up. On the wire it is
    // what the engine says where it computes the prompt again, as it does whenever the window's blocks went first.
    let report = Differ {
        phantoms: (70, 5),
        too_many: (70, 5),
        phantom_groups: BTreeSet::from([WINDOWED]),
        since: Some(REPORTED.to_owned()),
        ..Differ::default()
    };
    Checked::of("v0.32-hybrid-swa-llama-sha256cbor-bytes-bs16", None, &[REPORTED]).mirror_is(report);
}

/// An engine and an agent that have come to the end of a recording.
struct Checked {
    /// The engine as it can be then.
    replays: Vec<Replay>,
    agent: Run,
    differ: Differ,
}

impl Checked {
    /// Replays a recording, which may go on where another ended, and has an agent hear it. `untold` are the requests
    /// whose hit the recording does not tell.
    fn of(name: &str, before: Option<Self>, untold: &[&str]) -> Self {
        let recording = Recording::load(name);
        let (mut replays, mut agent) = match before {
            Some(it) => (it.replays, it.agent),
            None => (vec![Replay::new(&recording)], truth::agent(&recording, Instant::now())),
        };
        replays.iter_mut().for_each(|it| it.truth.clear());
        let replays = check(name, &recording, replays, untold);
        let differ = truth::compare(&recording, &mut agent, &replays[0].truth);
        for other in &replays[1..] {
            assert_eq!(other.truth, replays[0].truth, "{name}: what was held is known");
        }
        Self { replays, agent, differ }
    }

    fn mirror_is(&self, want: Differ) {
        assert!(self.differ.compared > 500, "{:?}", self.differ);
        assert_eq!(self.differ, Differ { compared: self.differ.compared, ..want });
    }
}

/// Replays a recording, and returns the engine as it can be then.
fn check(name: &str, recording: &Recording, mut replays: Vec<Replay>, untold: &[&str]) -> Vec<Replay> {
    let mut compared = 0;
    let mut wrong = BTreeMap::new();
    for happening in &recording.happenings {
        match happening {
            Happening::Reset => {
                assert!(replays.iter_mut().all(|replay| replay.scheduler.reset_prefix_cache()));
            }
            Happening::Restarted => {
                let truth = replays.swap_remove(0).truth;
                replays = vec![Replay::new(recording)];
                replays[0].truth = truth;
            }
            Happening::Asked(together) => {
                let (first, frames) = (&together[0].name, together[0].frames.clone());
                assert_eq!(frames.start, compared, "{name}: {first}: frames that belong to no request");
                compared = frames.end;
                let ways = follow(&replays, &arrivals(together), &recording.frames[frames])
                    .unwrap_or_else(|why| panic!("{name}: {first}: {why}"));
                if let [alone] = together.as_slice() {
                    // However it was, the hits must be right.
                    wrong.extend(ways.iter().flat_map(|(_, found)| wrong_hits(recording, alone, found)));
                }
                replays = ways.into_iter().map(|(replay, _)| replay).collect();
            }
        }
    }
    assert_eq!(compared, recording.frames.len(), "{name}: frames after the last request");
    let names: BTreeSet<&str> = wrong.keys().map(String::as_str).collect();
    assert_eq!(names, untold.iter().copied().collect(), "{name}: {wrong:?}");
    replays.retain(|replay| replay.scheduler.totals() == recording.totals());
    assert!(!replays.is_empty(), "{name}: the real engine counted {:?}", recording.totals());
    replays
}

/// Runs the requests on each engine; the engines that announce these frames, once for each different state.
fn follow(
    replays: &[Replay],
    arrivals: &[Arrival],
    frames: &[Frame],
) -> Result<Vec<(Replay, Vec<usize>)>, String> {
    let mut ways = BTreeMap::new();
    let mut error = String::new();
    for replay in replays {
        match replay.run(arrivals, frames) {
            Ok(found) => ways.extend(found.into_iter().map(|way| (way.0.state(), way))),
            Err(why) => error = why,
        }
    }
    if ways.is_empty() { Err(error) } else { Ok(ways.into_values().collect()) }
}

fn arrivals(together: &[Asked]) -> Vec<Arrival> {
    let each = together.iter().flat_map(|asked| asked.requests.iter().map(move |request| (asked, request)));
    each.enumerate()
        .map(|(number, (asked, request))| Arrival {
            request: request.clone(),
            number,
            left_after: asked.left_after,
        })
        .collect()
}

/// For each different prompt whose hit is not what the recording tells: the request's name, and both in blocks.
fn wrong_hits(recording: &Recording, asked: &Asked, found: &[usize]) -> Vec<(String, String)> {
    let block_size = recording.limits.block_size;
    let mut by_prompt: BTreeMap<&[u32], (&NewRequest, usize)> = BTreeMap::new();
    for (request, cached) in asked.requests.iter().zip(found) {
        // Of several with the same prompt, the first one to run is the one whose blocks were stored.
        let first = by_prompt.entry(&request.prompt).or_insert((request, *cached));
        first.1 = first.1.min(*cached);
    }
    let mut wrong = Vec::new();
    for (prompt, (request, cached)) in by_prompt {
        let keys = recording.hasher.clone().chain(block_size, prompt, |block| extra(request, block));
        let want = recording.hit(&keys, prompt.len(), asked.frames.clone());
        let got = cached / block_size.get() as usize;
        if got != want {
            wrong.push((asked.name.clone(), format!("want {want} blocks, got {got}")));
        }
    }
    wrong
}

fn extra(request: &NewRequest, block: usize) -> Vec<ExtraKey> {
    let adapter = request.adapter.iter();
    let adapter = adapter.map(|it| ExtraKey::Adapter { name: it.name.clone(), path: it.path.clone() });
    let salt = request.salt.iter().filter(|_| block == 0).cloned().map(ExtraKey::Salt);
    adapter.chain(salt).collect()
}
