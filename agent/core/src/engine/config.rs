//! How an engine is set up, and what is counted of it.

use kvpick_proto::words::ReplicaName;

/// Which engine this is, and how its events are had.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// Its name.
    pub name: ReplicaName,
    /// Whether its events are wanted.
    pub events: bool,
    /// Whether it has a replay socket.
    pub replay: bool,
    /// Whether requests reach its rank by a header, its address being that of other ranks too.
    pub rank_by_header: bool,
    /// Roots to try beside the usual ones: values of `PYTHONHASHSEED`.
    pub roots: Vec<String>,
}

/// What happened, in numbers since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "named by themselves")]
pub struct Counts {
    pub batches: u64,
    pub stored_events: u64,
    pub removed_events: u64,
    pub cleared_events: u64,
    pub unknown_events: u64,
    pub undecodable: u64,
    pub replays: u64,
    pub failed_replays: u64,
    pub resets_restarted: u64,
    pub resets_lost: u64,
    pub resets_unproven: u64,
    pub naming_misfits: u64,
    pub long_texts: u64,
}
