//! Going on from where an earlier run of the agent was: what it knew stands once it is proved that the publisher is
//! the same, and that nothing it published since is missing.
//!
//! With a replay socket both come from a replay from the last batch on. Without one the engine's process start time,
//! asked for on a connection, tells the publisher, and a first batch that follows the last one known tells the rest.

use std::time::Instant;

use super::{Output, Recent, Sequence, Why};
use crate::decode::Message;

/// Where a publisher's batches are known up to, and what tells that publisher from another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// Last batch delivered.
    pub last: u64,
    /// Its time and content: XXH3 64 of its payload.
    pub digest: u64,
    /// When the engine's process began, Unix time in seconds, where that is known of this very publisher.
    pub process_start: Option<f64>,
}

/// How far the proof without a replay is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restored {
    /// Since when there is a connection. A process start time from before may be that of a process before.
    connected: Option<Instant>,
    /// Whether the process at the other end of the connection is the one that is known.
    same: bool,
}

impl Restored {
    pub(super) const fn connected(now: Instant) -> Self {
        Self { connected: Some(now), same: false }
    }
}

impl Sequence {
    /// How far its batches are known, for a later run of the agent; `None` while nothing is, or what is known is not
    /// proved or will be asked for anew.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        // What a replay left unfinished is asked for anew anyway, from the start.
        if self.restored.is_some() || self.is_rebuilding() || (self.replay && self.whole) {
            return None;
        }
        let (last, digest) = self.recent.last().filter(|(number, _)| Some(*number) == self.last())?;
        Some(Position { last, digest, process_start: self.process_start })
    }

    /// Goes on from there, before anything was heard of the publisher. [`Output::Proved`] or [`Output::Reset`] follows;
    /// what is delivered before is not proved either.
    ///
    /// Returns whether there is anything that can be proved; if not, nothing was done.
    pub fn restore(&mut self, position: Position) -> bool {
        let can_be_proved = self.replay || position.process_start.is_some();
        if let Some(next) = position.last.checked_add(1).filter(|_| can_be_proved) {
            self.next = Some(next);
            self.recent = Recent::new();
            self.recent.push_digest(position.last, position.digest);
            self.process_start = position.process_start;
            self.restored = Some(Restored::default());
        }
        self.restored.is_some()
    }

    /// Whether what is known was restored and is not proved yet.
    #[must_use]
    pub const fn is_restoring(&self) -> bool {
        self.restored.is_some()
    }

    /// A batch came, and what is before it is not proved.
    pub(super) fn live_restored(&mut self, message: Message, outputs: &mut Vec<Output>) {
        self.waiting.push(message);
        if !self.replay {
            self.join(outputs);
        } else if self.asking.is_none() {
            // It was quicker than the news of its connection.
            self.ask(true);
        }
    }

    /// The process start time, where nothing else can tell the publisher.
    pub(super) fn on_process_start_restored(&mut self, start: Option<f64>, asked: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        let is_same = start.is_some() && start == self.process_start;
        if let Some(restored) = self.restored.as_mut().filter(|_| is_same) {
            restored.same |= restored.connected.is_some_and(|since| since <= asked);
            self.join(&mut outputs);
            return outputs;
        }
        self.process_start = start;
        let why = if start.is_some() { Why::Restarted } else { Why::Unproven };
        outputs.push(self.forget(why));
        self.drain(false, &mut outputs);
        self.make_up(false, &mut outputs);
        outputs
    }

    /// Whether the first batch heard follows the last one known: then none between was missed.
    fn join(&mut self, outputs: &mut Vec<Output>) {
        if !self.restored.is_some_and(|it| it.same) {
            return;
        }
        let Some(first) = self.waiting.pop() else { return };
        outputs.push(match self.next {
            Some(next) if next == first.sequence => {
                self.restored = None;
                Output::Proved
            }
            Some(next) if next < first.sequence => self.forget(Why::Lost),
            Some(_) | None => self.forget(Why::Restarted),
        });
        self.waiting.push_front(first);
        self.drain(false, outputs);
        self.make_up(false, outputs);
    }
}
