//! What is written down of an engine, and going on from it after a restart of the agent.

use std::time::Instant;

use kvpick_proto::words::Completeness;

use super::{Engine, SETTLE};
use crate::{
    mirror::Kept,
    sequence::{Position, Why, is_of},
    snapshot::Snapshot,
};

/// What came of a snapshot that an engine was given.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Restored {
    /// Blocks in it.
    pub blocks: usize,
    /// Where its proof stands.
    pub outcome: Outcome,
}

/// Whether what an earlier run knew still holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Nothing proves or disproves it yet, and no server is told of it.
    Awaited,
    /// It does, and servers are told.
    Proved,
    /// It was given up: the engine is another process, batches are missing, or nothing proves it.
    Refused(Why),
}

/// What a snapshot depends on: batches, and that an engine drops its cache with none when it goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Revision {
    position: Position,
    cleared_by_sleep: u64,
}

impl Engine {
    /// How far the engine's batches are known; `None` while there is nothing that a later run could go on from.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        // A block that was given a name goes by the engine's own, and a later run could not tell which is whose.
        let position = self.sequence.position().filter(|_| !self.renaming.is_on())?;
        // Else it may be that of the process after the one that published.
        let process_start = position.process_start.filter(|it| is_of(Some(*it), self.published.last));
        Some(Position { process_start, ..position })
    }

    /// While this stays the same, so does a snapshot; `None` as for [`Self::position`].
    #[must_use]
    pub fn revision(&self) -> Option<Revision> {
        let position = self.position()?;
        Some(Revision { position, cleared_by_sleep: self.counts.cleared_by_sleep })
    }

    /// What a later run of the agent needs to go on; `None` as for [`Self::position`]. Costs one pass over the blocks:
    /// two or three milliseconds for 100,000. `room` is a list from before, if there is one, so that no new memory has
    /// to be filled.
    #[must_use]
    pub fn snapshot(&self, mut room: Vec<Kept>) -> Option<Snapshot> {
        let position = self.position()?;
        self.mirror.kept_into(&mut room);
        let description = self.portrait.description();
        Some(Snapshot {
            name: self.config.name.to_string(),
            position,
            completeness: if self.is_whole { Completeness::Complete } else { description.completeness },
            num_gpu_blocks: self.mirror.num_gpu_blocks(),
            learnt: self.learnt(),
            groups: description.groups.clone(),
            blocks: room,
        })
    }

    /// Goes on from what an earlier run knew, before anything was heard of the engine. No server is told of its blocks
    /// until it is proved that the publisher is the same and that nothing of it is missing; for two seconds servers
    /// are not told that there are none, either.
    pub fn restore(&mut self, snapshot: Snapshot, now: Instant, unix_ms: u64) {
        let blocks = snapshot.blocks.len();
        let is_ours = self.config.events && snapshot.name == self.config.name.to_string();
        if !is_ours || !self.sequence.restore(snapshot.position) {
            self.restored = Some(Restored { blocks, outcome: Outcome::Refused(Why::Unproven) });
            return;
        }
        self.restored = Some(Restored { blocks, outcome: Outcome::Awaited });
        self.mirror.restore(snapshot.blocks, snapshot.num_gpu_blocks);
        self.applied = Some(snapshot.position.last);
        // When it began is not written down, so it is as old as can be.
        self.published.first = Some(0.0);
        self.settled_at = Some(now + SETTLE);
        self.is_whole = snapshot.completeness == Completeness::Complete;
        // Until the proof servers have none of it.
        self.portrait.set_completeness(match snapshot.completeness {
            Completeness::Complete => Completeness::PartialSince { unix_ms },
            partial @ Completeness::PartialSince { .. } => partial,
        });
        self.portrait.set_groups(snapshot.groups);
        // Known at once: servers that have the naming keep what they expect of the engine.
        if let Some(learnt) = snapshot.learnt {
            self.recall_naming(learnt);
        }
    }

    /// What came of the snapshot that it was given; `None` if there was none.
    #[must_use]
    pub const fn restored(&self) -> Option<Restored> {
        self.restored
    }

    /// Whether what is known is an earlier run's, and not proved yet.
    #[must_use]
    pub const fn is_restoring(&self) -> bool {
        self.sequence.is_restoring()
    }

    /// Blocks that it holds as far as that is known; none of those that are not proved yet.
    #[must_use]
    pub const fn held(&self) -> usize {
        if self.is_restoring() { 0 } else { self.mirror.len() }
    }

    /// Whether a copy of what is announced is worth sending: servers drop what a copy does not name. What is known
    /// first is announced in a moment, and is in no copy before.
    pub(crate) fn is_copyable(&self, now: Instant) -> bool {
        let announces = self.announced.is_none() && self.flush_due().is_some();
        self.is_settled(now) && !announces
    }

    /// Whether what is in the mirror is not to be announced yet.
    pub(super) fn holds_back(&self) -> bool {
        self.sequence.is_rebuilding() || self.sequence.is_restoring()
    }

    pub(super) const fn on_proved(&mut self) {
        self.end_restore(Outcome::Proved);
    }

    pub(super) const fn end_restore(&mut self, outcome: Outcome) {
        if let Some(it) = &mut self.restored
            && matches!(it.outcome, Outcome::Awaited)
        {
            it.outcome = outcome;
            self.settled_at = None;
        }
    }
}
