//! A publisher, and what is made of what it says.
//!
//! Batches are written as their number and one letter of content: `7a`.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::time::{Duration, Instant};

use kvpick_agent_core::{
    decode::{Message, Replayed},
    sequence::{Output, Published, ReplayRequest, Sequence},
};

pub(crate) fn message(text: &str) -> Message {
    let (number, content) = text.split_at(text.len() - 1);
    Message { sequence: number.parse().unwrap(), payload: content.as_bytes().to_vec() }
}

pub(crate) struct Publisher {
    pub(crate) sequence: Sequence,
    pub(crate) now: Instant,
    pub(crate) said: Vec<String>,
    /// When its last batch was published.
    pub(crate) published: f64,
    /// When the first of those was published by which something is known; `None` where it is as old as can be.
    pub(crate) first: Option<f64>,
    /// The last request answered.
    id: u64,
}

impl Publisher {
    pub(crate) fn new(replay: bool) -> Self {
        Self {
            sequence: Sequence::new(replay),
            now: Instant::now(),
            said: Vec::new(),
            published: 1e9,
            first: None,
            id: 0,
        }
    }

    /// The agent begins anew, and goes on from what it had written down.
    pub(crate) fn agent_restarts(&mut self, replay: bool) -> &mut Self {
        let position = self.sequence.position().expect("nothing to go on from");
        *self = Self::new(replay);
        assert!(self.sequence.restore(position));
        assert_eq!(self.sequence.position(), None, "it is not proved");
        self
    }

    pub(crate) fn say(&mut self, outputs: Vec<Output>) -> &mut Self {
        self.said.extend(outputs.into_iter().map(|it| match it {
            Output::Deliver(it) => format!("{}{}", it.sequence, String::from_utf8(it.payload).unwrap()),
            Output::Proved => "Proved".to_owned(),
            Output::Reset { complete, why } => {
                let complete = if complete { "complete" } else { "partial" };
                format!("{why:?}/{complete}")
            }
        }));
        self
    }

    pub(crate) fn live(&mut self, batches: &str) -> &mut Self {
        for batch in batches.split_whitespace() {
            let outputs = self.sequence.on_live(message(batch));
            self.say(outputs);
        }
        self
    }

    /// Batches from that one on, to 9,999.
    pub(crate) fn flood(&mut self, from: u64) {
        for number in from..10_000 {
            self.live(&format!("{number}a"));
        }
    }

    /// Answers the request, which must be for batches from `from`; without an end if that is `...`.
    pub(crate) fn replay(&mut self, from: u64, batches: &str) -> &mut Self {
        let ReplayRequest { id, from: asked } = self.sequence.take_request().expect("nothing was asked for");
        assert_eq!(asked, from);
        self.id = id;
        for batch in batches.split_whitespace() {
            let outputs = match batch {
                "..." => return self,
                batch => self.sequence.on_replayed(id, Replayed::Message(message(batch))),
            };
            self.say(outputs);
        }
        let outputs = self.sequence.on_replayed(id, Replayed::End);
        self.say(outputs)
    }

    pub(crate) fn fail(&mut self) -> &mut Self {
        let id = self.sequence.take_request().expect("nothing was asked for").id;
        let outputs = self.sequence.on_replay_failed(id);
        self.say(outputs)
    }

    /// The replay that was answered last goes no further.
    pub(crate) fn stops(&mut self) -> &mut Self {
        let outputs = self.sequence.on_replay_failed(self.id);
        self.say(outputs)
    }

    pub(crate) fn checked(&mut self) -> &mut Self {
        assert!(self.sequence.check());
        self
    }

    pub(crate) fn waited(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        let outputs = self.sequence.on_time(self.now);
        self.say(outputs)
    }

    pub(crate) fn connected(&mut self) -> &mut Self {
        self.sequence.on_connected(self.now);
        self
    }

    pub(crate) fn disconnected(&mut self) -> &mut Self {
        self.now += Duration::from_secs(1);
        let outputs = self.sequence.on_disconnected(self.now);
        self.say(outputs)
    }

    pub(crate) fn published(&self) -> Published {
        Published { first: self.first, last: Some(self.published) }
    }

    pub(crate) fn started(&mut self, at: Option<f64>) -> &mut Self {
        self.now += Duration::from_secs(1);
        let outputs = self.sequence.on_process_start(at, self.now, self.published());
        self.say(outputs)
    }

    #[track_caller]
    pub(crate) fn said(&mut self, want: &str) -> &mut Self {
        assert_eq!(self.said.join(" "), want);
        self.said.clear();
        self
    }

    #[track_caller]
    pub(crate) fn asks_nothing(&mut self) {
        assert_eq!(self.sequence.take_request(), None);
    }
}
