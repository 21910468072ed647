//! What one run is like: its engine's version, how its events are had, and what goes wrong how often.

use std::num::NonZeroU32;

use kvpick_lab::{
    engine::{attention::Attention, version::Version, wire::HashForm},
    seeded::Seeded,
};

/// Whether an engine replays, and how far back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Replay {
    Off,
    /// As far as any run goes.
    Whole,
    /// So many batches: shorter than many gaps.
    Short(usize),
}

/// Chosen by the seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) replay: Replay,
    /// Whether metrics tell when the process began.
    pub(crate) start_times: bool,
    /// Whether the agent listens and engines connect to it, so that two processes may be connected at a time.
    pub(crate) listens: bool,
    pub(crate) version: Version,
    pub(crate) hashes: HashForm,
    pub(crate) attention: Attention,
    pub(crate) num_blocks: u32,
    pub(crate) engines: usize,
    /// Keys in a message of the feed.
    pub(crate) max_keys: usize,
    /// Messages under way on a stream before the agent has to wait.
    pub(crate) room: usize,
    /// Of a thousand batches, so many are dropped for a subscriber all the same.
    pub(crate) lossy: usize,
    /// Whether anything goes wrong at all.
    pub(crate) faults: bool,
}

const VERSIONS: [Version; 5] =
    [Version::V0_11, Version::V0_16, Version::V0_23, Version::V0_24, Version::V0_32];

impl Plan {
    pub(crate) fn of(rng: &mut Seeded, replay: fn(&mut Seeded) -> Replay) -> Self {
        let version = VERSIONS[rng.below(VERSIONS.len() + 2).min(VERSIONS.len() - 1)];
        // Older versions name no groups.
        let is_hybrid = version >= Version::V0_23 && rng.below(4) == 0;
        let window = const { NonZeroU32::new(9).unwrap() };
        Self {
            replay: replay(rng),
            start_times: rng.below(3) > 0,
            listens: rng.below(3) == 0,
            version,
            hashes: if rng.below(2) == 0 { HashForm::Int } else { HashForm::Bytes },
            attention: if is_hybrid { Attention::Hybrid { window } } else { Attention::Full },
            // Room for the longest request.
            num_blocks: if is_hybrid { 32 } else { 17 } + u32::try_from(rng.below(40)).unwrap(),
            engines: 1 + rng.below(4) / 3,
            max_keys: [5, 12, 40, 8_000][rng.below(4)],
            room: 1 + rng.below(6),
            lossy: [0, 0, 10, 60][rng.below(4)],
            faults: rng.below(10) > 0,
        }
    }
}
