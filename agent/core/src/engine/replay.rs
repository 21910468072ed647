//! What an engine's replay socket says, and whose batches they are.

use std::time::Instant;

use super::Engine;
use crate::decode::{DecodeError, Message, Replayed};

impl Engine {
    /// A message came from its replay socket, in answer to the request of that id.
    ///
    /// # Errors
    ///
    /// Frames that are no such answer; the rest of the answer goes on.
    pub fn on_replay(
        &mut self,
        id: u64,
        frames: Vec<Vec<u8>>,
        now: Instant,
        unix_ms: u64,
    ) -> Result<(), DecodeError> {
        let replayed = Replayed::from_frames(frames).inspect_err(|it| self.counts.undecodable(*it))?;
        let is_asked_for = self.sequence.is_asking_for(id);
        match &replayed {
            Replayed::Message(message) if is_asked_for && self.is_stray(message, now) => {
                self.fail_replay(id, now, unix_ms);
                return Ok(());
            }
            Replayed::End if is_asked_for => {
                self.counts.replays += 1;
                self.checks.on_replayed();
                if self.ranks.are_right(now) {
                    self.portrait.on_heard();
                }
            }
            _ => (),
        }
        let outputs = self.sequence.on_replayed(id, replayed);
        self.follow(outputs, now, unix_ms);
        Ok(())
    }

    /// Its replay socket does not answer, or not any further.
    pub fn on_replay_failed(&mut self, id: u64, reason: &str, now: Instant, unix_ms: u64) {
        if !self.sequence.is_asking_for(id) {
            return;
        }
        self.fail_replay(id, now, unix_ms);
        if self.sequence.last().is_none() {
            self.on_events_failed(
                format!("its replay socket does not answer, or not to the end: {reason}"),
                "give the engine a replay_endpoint (`kvpick-agent engine-args` prints it), or leave `replay` out \
                 of the agent's configuration"
                    .to_owned(),
            );
        }
    }

    /// It is known by now whether the engine has a replay socket.
    pub fn set_replay(&mut self, replay: bool, now: Instant, unix_ms: u64) {
        self.config.replay = replay;
        let outputs = self.sequence.set_replay(replay);
        self.follow(outputs, now, unix_ms);
    }

    /// Whether a batch is another rank's, and to be left out. Says what follows for the events.
    pub(super) fn is_stray(&mut self, message: &Message, now: Instant) -> bool {
        match self.ranks.check(&message.payload, now) {
            Ok(()) if self.ranks.are_right(now) => self.portrait.on_heard(),
            Ok(()) => (),
            Err(stray) => {
                self.counts.stray_batches += 1;
                self.on_events_failed(stray.reason(), stray.remedy());
                return true;
            }
        }
        false
    }

    fn fail_replay(&mut self, id: u64, now: Instant, unix_ms: u64) {
        self.counts.failed_replays += 1;
        self.checks.on_failed(now);
        let outputs = self.sequence.on_replay_failed(id);
        self.follow(outputs, now, unix_ms);
    }
}
