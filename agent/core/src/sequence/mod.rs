//! Puts one publisher's batches in order, finds what is missing, and notices when it is another publisher.
//!
//! vLLM numbers its batches from 0 and says nothing of itself: no name, no heartbeat, no sign of a restart. What is
//! known of an engine is therefore given up unless it is certain that nothing was missed: what is missing may have
//! been removals. A publisher's replay socket, where there is one, gives the missing batches, and proves by the last
//! batch that we know (its time and content, to the byte) that it is still the same publisher.

mod asking;
mod offered;
mod output;
mod recent;
mod restored;
mod waiting;

use std::time::{Duration, Instant};

use asking::Asking;
pub(crate) use asking::is_of;
pub use output::{Output, ReplayRequest, Why};
use recent::{Recent, digest};
pub use restored::Position;
use restored::Restored;
use waiting::Waiting;

use crate::decode::Message;

/// How long a process start time may prove after a lost connection that the publisher is the same. An engine that does
/// not say it for so long may not say it for hours, and what is known of it may be another's.
const DOUBT: Duration = Duration::from_secs(5);

/// When batches were published, Unix time in seconds by the engine's clock; `None` for none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Published {
    /// The first of those by which something is known.
    pub first: Option<f64>,
    /// The last one delivered.
    pub last: Option<f64>,
}

impl Published {
    /// One more was delivered.
    pub(crate) fn add(&mut self, time: f64) {
        self.first.get_or_insert(time);
        self.last = Some(time);
    }
}

/// The batches of one rank's publisher.
#[derive(Debug)]
pub struct Sequence {
    /// Whether the engine has a replay socket.
    replay: bool,
    /// Number of the batch that comes next; `None` while nothing is known of the publisher.
    next: Option<u64>,
    recent: Recent,
    /// Batches below this were replayed on this connection, so that live copies of them may still come.
    replayed_to: u64,
    /// Whether the next replay has to give everything, as the last one did not come to its end.
    whole: bool,
    asking: Option<Asking>,
    request: Option<ReplayRequest>,
    last_id: u64,
    /// Whether the connection was lost and nothing was asked since, so that what comes may be another publisher's.
    unproven: bool,
    waiting: Waiting,
    /// Since when the connection is lost with no replay to prove anything, but a process start time that may.
    doubt: Option<Instant>,
    process_start: Option<f64>,
    /// While what is known is an earlier run's, and not proved.
    restored: Option<Restored>,
}

impl Sequence {
    /// A publisher of which nothing is known. `replay` says whether it has a replay socket.
    #[must_use]
    pub const fn new(replay: bool) -> Self {
        Self {
            replay,
            next: None,
            recent: Recent::new(),
            replayed_to: 0,
            whole: false,
            asking: None,
            request: None,
            last_id: 0,
            unproven: false,
            waiting: Waiting::new(),
            doubt: None,
            process_start: None,
            restored: None,
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

    /// Whether what was delivered is as much as can be known at once: nothing is being asked for, or it is certain that
    /// the answer only adds to it.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.asking.is_none_or(|it| it.answered && it.proof.is_some() && self.restored.is_none())
    }

    /// Whether a history is being delivered from its start, and has not come to its end: up to there it has blocks that
    /// went long ago.
    #[must_use]
    pub fn is_rebuilding(&self) -> bool {
        self.asking.is_some_and(|it| it.answered && it.proof.is_none())
    }

    /// Whether that request is the one under way.
    #[must_use]
    pub fn is_asking_for(&self, id: u64) -> bool {
        self.asking.is_some_and(|it| it.id == id)
    }

    /// What to ask the replay socket for, once.
    #[must_use]
    pub const fn take_request(&mut self) -> Option<ReplayRequest> {
        self.request.take()
    }

    /// The subscription has a connection now.
    pub fn on_connected(&mut self, now: Instant) {
        self.restored = self.restored.map(|_| Restored::connected(now));
        if self.replay {
            // What waited may be left of another publisher. What is this one's is in its answer.
            self.waiting.clear();
            self.ask(true);
        }
    }

    /// Asks whether there is something that did not come by subscription: what is published between the connection
    /// and the arrival of the subscription at the publisher is missing, and shows only when the next batch comes.
    /// Returns `false`, nothing done, while something else is being asked.
    pub fn check(&mut self) -> bool {
        let free = self.asking.is_none();
        if free && self.replay {
            self.ask(false);
        }
        free
    }

    /// The subscription's connection is lost: from here on it may be another publisher.
    pub fn on_disconnected(&mut self, now: Instant) -> Vec<Output> {
        self.replayed_to = 0;
        self.request = None;
        let was_rebuilding = self.is_rebuilding();
        self.asking = None;
        let were_waiting = !self.waiting.is_empty();
        self.waiting.clear();
        if was_rebuilding {
            // The first half of a history has blocks that the second half removes.
            return vec![self.forget(Why::Lost)];
        }
        if self.restored.is_some() {
            // Another connection may prove it.
            self.restored = Some(Restored::default());
            return Vec::new();
        }
        if self.replay {
            // The replay upon the next connection tells.
            self.unproven = self.next.is_some();
            return Vec::new();
        }
        if self.next.is_none() {
            // What is heard next may be another process's, which the next start time is news of, not a change.
            self.process_start = None;
            return Vec::new();
        }
        // What waited for a proof is gone, and nothing would show that.
        let lost = self.doubt.take().is_some() && were_waiting;
        if self.process_start.is_some() && !lost {
            self.doubt = Some(now);
            return Vec::new();
        }
        self.process_start = None;
        vec![self.forget(Why::Unproven)]
    }

    /// The engine's process start time, from metrics that were asked for at `asked`; `None` if they have none.
    /// A batch from before a process started is not of that process.
    pub fn on_process_start(
        &mut self,
        start: Option<f64>,
        asked: Instant,
        published: Published,
    ) -> Vec<Output> {
        if self.restored.is_some() && !self.replay {
            return self.on_process_start_restored(start, asked);
        }
        if self.doubt.is_some_and(|since| asked < since) {
            return Vec::new();
        }
        #[expect(clippy::float_cmp, reason = "the same text gives the same number")]
        let changed = matches!((self.process_start, start), (Some(was), Some(is)) if was != is);
        let mut outputs = Vec::new();
        if self.doubt.take().is_some() {
            if changed || !is_of(start, published.last) {
                let why = if changed { Why::Restarted } else { Why::Unproven };
                outputs.push(self.forget(why));
            }
            self.drain(false, &mut outputs);
            self.make_up(false, &mut outputs);
        } else if changed {
            match &mut self.asking {
                Some(asking) => asking.urgent = true,
                None if self.next.is_none() => (),
                None if self.replay => self.ask(true),
                // Its batches were quicker than the news of its start: all that is known is of this very process.
                None if is_of(start, published.first) => (),
                None => outputs.push(self.forget(Why::Restarted)),
            }
        }
        self.process_start = start.or(self.process_start);
        outputs
    }

    /// A batch came by subscription.
    pub fn on_live(&mut self, message: Message) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.restored.is_some() {
            self.live_restored(message, &mut outputs);
            return outputs;
        }
        if self.asking.is_none() && self.doubt.is_none() && !self.unproven {
            self.live(message, false, &mut outputs);
            return outputs;
        }
        self.waiting.push(message);
        if self.unproven {
            // It was quicker than the news of its connection.
            self.ask(true);
        }
        outputs
    }

    /// When [`Self::on_time`] has something to do.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.doubt.map(|since| since + DOUBT)
    }

    /// Does what is due by time alone.
    pub fn on_time(&mut self, now: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.doubt.take_if(|since| *since + DOUBT <= now).is_some() {
            // The next one is news of the publisher heard from here on, not a change.
            self.process_start = None;
            outputs.push(self.forget(Why::Unproven));
            self.drain(false, &mut outputs);
            self.make_up(false, &mut outputs);
        }
        outputs
    }

    /// A live batch with no replay under way. `fruitless`: a replay was just asked for because of it and gave nothing
    /// new, so that asking again would go on for ever.
    fn live(&mut self, message: Message, fruitless: bool, outputs: &mut Vec<Output>) {
        let number = message.sequence;
        let Some(next) = self.next else {
            // Also where the message was quicker than the news of its connection.
            if self.replay && !fruitless && number != 0 {
                self.waiting.push_front(message);
                return self.ask(true);
            }
            outputs.push(self.forget_for(Why::Start, number == 0));
            return self.deliver(message, outputs);
        };
        if number == next {
            return self.deliver(message, outputs);
        }
        if number > next {
            if self.replay && !fruitless {
                self.waiting.push_front(message);
                return self.ask(true);
            }
            outputs.push(self.forget(Why::Lost));
            return self.deliver(message, outputs);
        }
        let known = self.recent.digest(number);
        if known.map_or(number < self.replayed_to, |known| known == digest(&message.payload)) {
            return;
        }
        if self.replay && number != 0 {
            self.waiting.push_front(message);
            return self.restarted(outputs);
        }
        outputs.push(self.forget_for(Why::Restarted, number == 0));
        self.deliver(message, outputs);
    }

    fn deliver(&mut self, message: Message, outputs: &mut Vec<Output>) {
        self.next = message.sequence.checked_add(1);
        self.recent.push(&message);
        outputs.push(Output::Deliver(message));
    }

    /// Goes on with the live batches that had to wait.
    fn drain(&mut self, mut fruitless: bool, outputs: &mut Vec<Output>) {
        while self.asking.is_none()
            && let Some(message) = self.waiting.pop()
        {
            self.live(message, fruitless, outputs);
            fruitless = false;
        }
    }

    /// Live batches that were left out are missing now: asks for them, or gives up what they may have removed.
    fn make_up(&mut self, can_ask: bool, outputs: &mut Vec<Output>) {
        if self.asking.is_some() || !self.waiting.take_left_out() {
            return;
        }
        if can_ask {
            return self.ask(true);
        }
        self.whole = true;
        outputs.push(self.forget(Why::Lost));
    }

    fn forget(&mut self, why: Why) -> Output {
        self.forget_for(why, false)
    }

    fn forget_for(&mut self, why: Why, complete: bool) -> Output {
        self.next = None;
        self.restored = None;
        self.recent.clear();
        self.replayed_to = 0;
        Output::Reset { complete, why }
    }
}
