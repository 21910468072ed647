//! How an engine is set up, and what is counted of it.

use kvpick_proto::words::{ReplicaName, Tier};

use crate::{decode::DecodeError, mirror::Copies};

/// What a hit in each tier is worth where nothing else is configured. From the CPU a block comes over PCIe some ten times
/// as fast as it is computed, and its transfer is one more thing to wait for. From a disk or over a network it comes
/// perhaps twice as fast.
pub const TIER_WEIGHTS: [(Tier, f32); 3] = [(Tier::Gpu, 1.0), (Tier::Cpu, 0.8), (Tier::Storage, 0.5)];

use crate::sequence::Why;

/// Which engine this is, and how its events are had.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Its name.
    pub name: ReplicaName,
    /// Whether its events are wanted.
    pub events: bool,
    /// Whether it has a replay socket.
    pub replay: bool,
    /// Whether requests reach its rank by a header, its address being that of other ranks too. Its events are then
    /// believed where they name that rank; else any rank is right that does not change.
    pub rank_by_header: bool,
    /// Roots to try beside the usual ones: values of `PYTHONHASHSEED`.
    pub roots: Vec<String>,
    /// What its stores and removals say of copies.
    pub copies: Copies,
    /// What a hit in each tier is worth, 0 to 1.
    pub tier_weights: [(Tier, f32); 3],
}

impl Config {
    /// An engine whose events are wanted, with no replay and all else as it usually is.
    #[must_use]
    pub fn new(name: ReplicaName) -> Self {
        Self {
            name,
            events: true,
            replay: false,
            rank_by_header: false,
            roots: Vec::new(),
            copies: Copies::default(),
            tier_weights: TIER_WEIGHTS,
        }
    }
}

/// What happened, in numbers since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "named by themselves")]
pub struct Counts {
    pub batches: u64,
    pub stored_events: u64,
    pub removed_events: u64,
    pub cleared_events: u64,
    pub cleared_by_sleep: u64,
    pub unknown_events: u64,
    pub undecodable: u64,
    /// What was wrong with the last message that could not be read.
    pub unreadable: Option<DecodeError>,
    pub replays: u64,
    pub failed_replays: u64,
    pub resets_restarted: u64,
    pub resets_lost: u64,
    pub resets_unproven: u64,
    pub naming_misfits: u64,
    pub hidden_keys: u64,
    pub long_texts: u64,
    pub stray_batches: u64,
}

impl Counts {
    pub(super) const fn undecodable(&mut self, error: DecodeError) {
        self.undecodable += 1;
        self.unreadable = Some(error);
    }
}

impl Counts {
    /// What was known was given up.
    pub(super) const fn count_reset(&mut self, why: Why) {
        match why {
            Why::Start => (),
            Why::Restarted => self.resets_restarted += 1,
            Why::Lost => self.resets_lost += 1,
            Why::Unproven => self.resets_unproven += 1,
        }
    }
}
