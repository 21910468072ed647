//! What is being found out about a publisher, and what follows from the answers.

use super::{Output, ReplayRequest, Sequence, Why, recent::digest};
use crate::decode::{Message, Replayed};

/// How much earlier than it was a process may say that it started, in seconds: it counts from when the kernel did, and
/// that is told in whole seconds.
const START_EARLY: f64 = 1.0;

/// A question to the replay socket that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) id: u64,
    pub(super) from: u64,
    /// Digest of batch `from`, where that is known and has to be proved; else everything is asked for.
    pub(super) proof: Option<u64>,
    /// Whether what is known stands only if this is answered. Else it only looks for what may be missing.
    pub(super) urgent: bool,
    pub(super) answered: bool,
    pub(super) next_before: Option<u64>,
    /// Whether a batch waited already, so that the answer is all that there is before it.
    pub(super) had_waiting: bool,
}

/// Whether a batch that was published then is certainly not from before a process that started then. Both are Unix time
/// in seconds, by the engine's clock.
pub(crate) fn is_of(start: Option<f64>, published: Option<f64>) -> bool {
    start.zip(published).is_some_and(|(start, published)| start + START_EARLY <= published)
}

impl Sequence {
    /// An answer of the replay socket.
    pub fn on_replayed(&mut self, id: u64, replayed: Replayed) -> Vec<Output> {
        let mut outputs = Vec::new();
        let Some(asking) = self.asking.filter(|it| it.id == id) else { return outputs };
        match replayed {
            Replayed::Message(message) => self.replayed(asking, message, &mut outputs),
            Replayed::End => self.replay_ended(asking, &mut outputs),
        }
        outputs
    }

    /// The replay socket does not answer, or not any further.
    pub fn on_replay_failed(&mut self, id: u64) -> Vec<Output> {
        let mut outputs = Vec::new();
        let Some(asking) = self.asking.take_if(|it| it.id == id) else { return outputs };
        self.request = None;
        if asking.answered {
            // The batches that it did not come to may have been removals.
            outputs.push(self.forget(Why::Lost));
        } else if asking.urgent && self.last().is_some() {
            outputs.push(self.forget(Why::Unproven));
        } else if asking.urgent {
            // Nothing was known, and nothing is; what comes is a part.
            self.next = None;
        }
        self.whole |= asking.answered || asking.urgent;
        if let Some(message) = self.waiting.pop() {
            let before = outputs.len();
            self.live(message, true, &mut outputs);
            // What is given up for want of this answer can be had by a later one.
            self.whole |= matches!(outputs.get(before), Some(Output::Reset { .. }));
        }
        self.drain(false, &mut outputs);
        self.make_up(false, &mut outputs);
        outputs
    }

    pub(super) fn ask(&mut self, urgent: bool) {
        let last = self.recent.last().filter(|(number, _)| Some(*number) == self.last() && !self.whole);
        self.last_id += 1;
        self.unproven = false;
        let (from, proof) = last.map_or((0, None), |(number, digest)| (number, Some(digest)));
        let (next_before, had_waiting) = (self.next, !self.waiting.is_empty());
        let (id, urgent) = (self.last_id, urgent || self.restored.is_some());
        self.asking = Some(Asking { id, from, proof, urgent, answered: false, next_before, had_waiting });
        self.request = Some(ReplayRequest { id, from });
    }

    fn replayed(&mut self, asking: Asking, message: Message, outputs: &mut Vec<Output>) {
        let number = message.sequence;
        if !asking.answered {
            if number < asking.from {
                return;
            }
            self.asking = Some(Asking { answered: true, ..asking });
            match asking.proof {
                Some(proof) if number == asking.from => {
                    if digest(&message.payload) != proof {
                        self.restarted(outputs);
                    }
                    return;
                }
                // Its buffer does not go back that far.
                Some(_) => outputs.push(self.forget(Why::Lost)),
                None => outputs.push(self.forget_for(Why::Start, number == 0)),
            }
            return self.deliver(message, outputs);
        }
        match self.next {
            Some(next) if number < next => (),
            // A batch that the publisher itself could not send.
            Some(next) if number > next => {
                outputs.push(self.forget(Why::Lost));
                self.deliver(message, outputs);
            }
            Some(_) | None => self.deliver(message, outputs),
        }
    }

    fn replay_ended(&mut self, asking: Asking, outputs: &mut Vec<Output>) {
        if !asking.answered {
            if asking.proof.is_some() {
                // It has not sent what we know, so it is not who sent it.
                return self.restarted(outputs);
            }
            outputs.push(self.forget_for(Why::Start, true));
            self.next = Some(0);
        }
        self.asking = None;
        self.request = None;
        if self.restored.take().is_some() {
            outputs.push(Output::Proved);
        }
        self.whole = false;
        self.replayed_to = self.next.unwrap_or(0);
        self.drain(asking.had_waiting && asking.next_before == self.next, outputs);
        self.make_up(true, outputs);
    }

    /// It is another publisher: ask it for all it has.
    pub(super) fn restarted(&mut self, outputs: &mut Vec<Output>) {
        outputs.push(self.forget(Why::Restarted));
        self.ask(true);
    }
}
