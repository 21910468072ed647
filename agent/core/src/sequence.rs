//! Puts one publisher's batches in order, finds what is missing, and notices when it is another publisher.
//!
//! vLLM numbers its batches from 0 and says nothing of itself: no name, no heartbeat, no sign of a restart. What is
//! known of an engine is therefore given up unless it is certain that nothing was missed: what is missing may have
//! been removals. A publisher's replay socket, where there is one, gives the missing batches, and proves by the last
//! batch that we know (its time and content, to the byte) that it is still the same publisher.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hasher as _},
    time::Instant,
};

use crate::decode::{Message, Replayed};

/// Batches whose content is remembered, to tell a late duplicate from another publisher's batch of that number.
const RECENT: usize = 1_024;

/// Live batches kept while a replay is under way; past either bound they are left out, and asked for later.
const HELD: usize = 4_096;
const HELD_BYTES: usize = 64 << 20;

/// The batches of one rank's publisher.
#[derive(Debug)]
pub struct Sequence {
    /// Whether the engine has a replay socket.
    replay: bool,
    /// Number of the batch that comes next; `None` while nothing is known of the publisher.
    next: Option<u64>,
    /// The last batches' numbers and digests.
    recent: VecDeque<(u64, u64)>,
    /// Batches below this were replayed on this connection, so that live copies of them may still come.
    replayed_to: u64,
    asking: Option<Asking>,
    request: Option<ReplayRequest>,
    last_id: u64,
    held: VecDeque<Message>,
    held_bytes: usize,
    /// Since when the connection is lost with no replay to prove anything, but a process start time that may.
    doubt: Option<Instant>,
    process_start: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Asking {
    id: u64,
    from: u64,
    /// Digest of batch `from`, where that is known and has to be proved; else everything is asked for.
    proof: Option<u64>,
    answered: bool,
    next_before: Option<u64>,
}

/// What to ask the publisher's replay socket for. A later request replaces an earlier one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReplayRequest {
    /// Goes with the answers.
    pub id: u64,
    /// First batch wanted.
    pub from: u64,
}

/// What follows from an input, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output {
    /// The next batch.
    Deliver(Message),
    /// Whatever was known of the engine is not known any more. What is delivered from here on is all that it holds
    /// if `complete`, else a part of it.
    Reset {
        /// Whether batches are delivered from the publisher's first.
        complete: bool,
        /// What happened.
        why: Why,
    },
}

/// Why knowledge was given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Why {
    /// There was none yet.
    Start,
    /// It is another publisher now.
    Restarted,
    /// Batches are missing and can't be had.
    Lost,
    /// The connection was lost, and nothing proves that it is still the same publisher.
    Unproven,
}

impl Sequence {
    /// A publisher of which nothing is known. `replay` says whether it has a replay socket.
    #[must_use]
    pub const fn new(replay: bool) -> Self {
        Self {
            replay,
            next: None,
            recent: VecDeque::new(),
            replayed_to: 0,
            asking: None,
            request: None,
            last_id: 0,
            held: VecDeque::new(),
            held_bytes: 0,
            doubt: None,
            process_start: None,
        }
    }

    /// Last batch delivered.
    #[must_use]
    pub const fn last(&self) -> Option<u64> {
        match self.next {
            Some(next) => next.checked_sub(1),
            None => None,
        }
    }

    /// Whether batches are being asked for, so that what is known now is about to change at once.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// What to ask the replay socket for, once.
    #[must_use]
    pub const fn take_request(&mut self) -> Option<ReplayRequest> {
        self.request.take()
    }

    /// The subscription has a connection now.
    pub fn on_connected(&mut self) {
        if self.replay {
            self.ask();
        }
    }

    /// Asks whether there is something that did not come by subscription: what is published between the connection
    /// and the arrival of the subscription at the publisher is missing, and shows only when the next batch comes.
    pub fn check(&mut self) {
        if self.replay && self.asking.is_none() {
            self.ask();
        }
    }

    /// The subscription's connection is lost: from here on it may be another publisher.
    pub fn on_disconnected(&mut self, now: Instant) -> Vec<Output> {
        self.replayed_to = 0;
        self.asking = None;
        self.request = None;
        self.release();
        if self.replay || self.next.is_none() {
            // The replay upon the next connection tells.
            return Vec::new();
        }
        if self.process_start.is_some() {
            self.doubt = Some(now);
            return Vec::new();
        }
        vec![self.forget(Why::Unproven)]
    }

    /// The engine's process start time, from metrics that were asked for at `asked`; `None` if they have none.
    pub fn on_process_start(&mut self, start: Option<f64>, asked: Instant) -> Vec<Output> {
        if self.doubt.is_some_and(|since| asked < since) {
            return Vec::new();
        }
        #[expect(clippy::float_cmp, reason = "the same text gives the same number")]
        let changed = matches!((self.process_start, start), (Some(was), Some(is)) if was != is);
        let mut outputs = Vec::new();
        if self.doubt.take().is_some() {
            if changed || start.is_none() {
                let why = if changed { Why::Restarted } else { Why::Unproven };
                outputs.push(self.forget(why));
            }
            self.drain(false, &mut outputs);
        } else if changed && self.next.is_some() {
            if !self.replay {
                outputs.push(self.forget(Why::Restarted));
            } else if self.asking.is_none() {
                self.ask();
            }
        }
        self.process_start = start.or(self.process_start);
        outputs
    }

    /// A batch came by subscription.
    pub fn on_live(&mut self, message: Message) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.asking.is_none() && self.doubt.is_none() {
            self.live(message, false, &mut outputs);
        } else if self.held.len() < HELD && self.held_bytes + message.payload.len() <= HELD_BYTES {
            self.held_bytes += message.payload.len();
            self.held.push_back(message);
        }
        outputs
    }

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
        if asking.proof.is_some() && !asking.answered {
            outputs.push(self.forget(Why::Unproven));
        } else if !asking.answered {
            // Nothing was known, and nothing is; what comes is a part.
            self.next = None;
        }
        self.drain(true, &mut outputs);
        outputs
    }

    fn ask(&mut self) {
        let last = self.recent.back().copied().filter(|(number, _)| Some(*number) == self.last());
        self.last_id += 1;
        let (from, proof) = last.map_or((0, None), |(number, digest)| (number, Some(digest)));
        let next_before = self.next;
        self.asking = Some(Asking { id: self.last_id, from, proof, answered: false, next_before });
        self.request = Some(ReplayRequest { id: self.last_id, from });
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
        self.replayed_to = self.next.unwrap_or(0);
        self.drain(asking.next_before == self.next, outputs);
    }

    /// It is another publisher: ask it for all it has.
    fn restarted(&mut self, outputs: &mut Vec<Output>) {
        outputs.push(self.forget(Why::Restarted));
        self.ask();
    }

    /// A live batch with no replay under way. `fruitless`: a replay was just asked for and gave nothing new, so that
    /// asking again would go on for ever.
    fn live(&mut self, message: Message, fruitless: bool, outputs: &mut Vec<Output>) {
        let number = message.sequence;
        let Some(next) = self.next else {
            // Also where the message was quicker than the news of its connection.
            if self.replay && !fruitless && number != 0 {
                self.hold_first(message);
                return self.ask();
            }
            outputs.push(self.forget_for(Why::Start, number == 0));
            return self.deliver(message, outputs);
        };
        if number == next {
            return self.deliver(message, outputs);
        }
        if number > next {
            if self.replay && !fruitless {
                self.hold_first(message);
                return self.ask();
            }
            outputs.push(self.forget(Why::Lost));
            return self.deliver(message, outputs);
        }
        let known = self.recent.iter().find(|(known, _)| *known == number).map(|(_, digest)| *digest);
        if known.map_or(number < self.replayed_to, |known| known == digest(&message.payload)) {
            return;
        }
        if self.replay && number != 0 {
            self.hold_first(message);
            return self.restarted(outputs);
        }
        outputs.push(self.forget_for(Why::Restarted, number == 0));
        self.deliver(message, outputs);
    }

    fn deliver(&mut self, message: Message, outputs: &mut Vec<Output>) {
        self.next = message.sequence.checked_add(1);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((message.sequence, digest(&message.payload)));
        outputs.push(Output::Deliver(message));
    }

    fn hold_first(&mut self, message: Message) {
        self.held_bytes += message.payload.len();
        self.held.push_front(message);
    }

    /// Goes on with the live batches that had to wait.
    fn drain(&mut self, mut fruitless: bool, outputs: &mut Vec<Output>) {
        while self.asking.is_none()
            && let Some(message) = self.held.pop_front()
        {
            self.held_bytes -= message.payload.len();
            self.live(message, fruitless, outputs);
            fruitless = false;
        }
    }

    fn release(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
    }

    fn forget(&mut self, why: Why) -> Output {
        self.forget_for(why, false)
    }

    fn forget_for(&mut self, why: Why, complete: bool) -> Output {
        self.next = None;
        self.recent.clear();
        self.replayed_to = 0;
        Output::Reset { complete, why }
    }
}

/// Time and content of a batch in one number. The hasher's keys are constants, so it is the same in every run.
fn digest(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}
