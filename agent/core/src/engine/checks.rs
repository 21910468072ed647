//! When an engine that can replay is asked whether something went lost that no later batch shows.

use std::time::{Duration, Instant};

use crate::sequence::Sequence;

/// After connecting, a second look for what was published before the subscription took hold.
const CHECK_AFTER: Duration = Duration::from_secs(1);

/// Between two looks for what went lost with no later batch to show it.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// After a replay that failed the next one is tried so much later, doubling up to the second: while one is under way,
/// live batches wait.
const REPLAY_AGAIN: Duration = Duration::from_secs(5);
const MAX_REPLAY_AGAIN: Duration = Duration::from_secs(600);

/// The next look, while there is a connection.
#[derive(Debug, Default)]
pub(super) struct Checks {
    at: Option<Instant>,
    /// Replays that failed since the last one that did not.
    failures: u32,
}

impl Checks {
    pub(super) fn on_connected(&mut self, can_replay: bool, now: Instant) {
        self.at = can_replay.then(|| now + CHECK_AFTER);
    }

    pub(super) const fn on_disconnected(&mut self) {
        self.at = None;
    }

    pub(super) const fn on_replayed(&mut self) {
        self.failures = 0;
    }

    pub(super) fn on_failed(&mut self, now: Instant) {
        let again = REPLAY_AGAIN.saturating_mul(1 << self.failures.min(16)).min(MAX_REPLAY_AGAIN);
        self.failures = self.failures.saturating_add(1);
        self.at = self.at.map(|_| now + again);
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.at
    }

    pub(super) fn on_time(&mut self, sequence: &mut Sequence, now: Instant) {
        if self.at.is_some_and(|at| at <= now) {
            let asked = sequence.check();
            self.at = Some(now + if asked { CHECK_EVERY } else { CHECK_AFTER });
        }
    }
}
