//! A publisher's batches in order, with gaps, replays, restarts and lost connections.
//!
//! Batches are written as their number and one letter of content: `7a`.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

use std::time::{Duration, Instant};

use kvpick_agent_core::{
    decode::{Message, Replayed},
    sequence::{Output, ReplayRequest, Sequence},
};

fn message(text: &str) -> Message {
    let (number, content) = text.split_at(text.len() - 1);
    Message { sequence: number.parse().unwrap(), payload: content.as_bytes().to_vec() }
}

struct Publisher {
    sequence: Sequence,
    now: Instant,
    said: Vec<String>,
}

impl Publisher {
    fn new(replay: bool) -> Self {
        Self { sequence: Sequence::new(replay), now: Instant::now(), said: Vec::new() }
    }

    fn say(&mut self, outputs: Vec<Output>) -> &mut Self {
        self.said.extend(outputs.into_iter().map(|it| match it {
            Output::Deliver(it) => format!("{}{}", it.sequence, String::from_utf8(it.payload).unwrap()),
            Output::Reset { complete, why } => {
                let complete = if complete { "complete" } else { "partial" };
                format!("{why:?}/{complete}")
            }
        }));
        self
    }

    fn live(&mut self, batches: &str) -> &mut Self {
        for batch in batches.split_whitespace() {
            let outputs = self.sequence.on_live(message(batch));
            self.say(outputs);
        }
        self
    }

    /// Answers the request, which must be for batches from `from`; without an end if that is `...`.
    fn replay(&mut self, from: u64, batches: &str) -> &mut Self {
        let ReplayRequest { id, from: asked } = self.sequence.take_request().expect("nothing was asked for");
        assert_eq!(asked, from);
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

    fn fail(&mut self) -> &mut Self {
        let id = self.sequence.take_request().expect("nothing was asked for").id;
        let outputs = self.sequence.on_replay_failed(id);
        self.say(outputs)
    }

    fn connected(&mut self) -> &mut Self {
        self.sequence.on_connected();
        self
    }

    fn disconnected(&mut self) -> &mut Self {
        self.now += Duration::from_secs(1);
        let outputs = self.sequence.on_disconnected(self.now);
        self.say(outputs)
    }

    fn started(&mut self, at: Option<f64>) -> &mut Self {
        self.now += Duration::from_secs(1);
        let outputs = self.sequence.on_process_start(at, self.now);
        self.say(outputs)
    }

    #[track_caller]
    fn said(&mut self, want: &str) -> &mut Self {
        assert_eq!(self.said.join(" "), want);
        self.said.clear();
        self
    }

    #[track_caller]
    fn asks_nothing(&mut self) {
        assert_eq!(self.sequence.take_request(), None);
    }
}

#[test]
fn joined_from_the_first_batch_by_replay() {
    let mut it = Publisher::new(true);
    it.connected().live("3a 4a").said("");
    it.replay(0, "0a 1a 2a 3a").said("Start/complete 0a 1a 2a 3a 4a");
    it.live("5a").said("5a").asks_nothing();
}

#[test]
fn a_publisher_that_sent_nothing_yet_is_completely_known() {
    let mut it = Publisher::new(true);
    it.connected().replay(0, "").said("Start/complete");
    // A batch that was published before the subscription took hold.
    it.live("1a").said("").replay(0, "0a 1a").said("Start/complete 0a 1a");
}

#[test]
fn a_buffer_that_does_not_reach_back_to_the_first_batch() {
    let mut it = Publisher::new(true);
    it.connected().replay(0, "7a 8a").said("Start/partial 7a 8a");
}

#[test]
fn without_replay_only_the_first_batch_makes_it_complete() {
    Publisher::new(false).connected().live("0a 1a").said("Start/complete 0a 1a").asks_nothing();
    Publisher::new(false).connected().live("4a 5a").said("Start/partial 4a 5a").asks_nothing();
}

#[test]
fn a_replay_that_fails_at_the_start() {
    let mut it = Publisher::new(true);
    it.connected().live("4a 5a").fail().said("Start/partial 4a 5a");
    Publisher::new(true).connected().live("0a 1a").fail().said("Start/complete 0a 1a");
}

#[test]
fn a_message_may_be_quicker_than_the_news_of_its_connection() {
    let mut it = Publisher::new(true);
    it.live("2a").said("").connected().replay(0, "0a 1a 2a").said("Start/complete 0a 1a 2a");
    Publisher::new(true).live("0a 1a").said("Start/complete 0a 1a");
}

fn joined(replay: bool) -> Publisher {
    let mut it = Publisher::new(replay);
    it.connected();
    if replay {
        it.replay(0, "");
    }
    it.live("0a 1a 2a 3a").said("Start/complete 0a 1a 2a 3a");
    it
}

#[test]
fn what_was_published_before_the_subscription_took_hold_is_found_by_a_check() {
    let mut it = joined(true);
    it.sequence.check();
    it.replay(3, "3a 4a").said("4a").asks_nothing();
    let mut it = joined(false);
    it.sequence.check();
    it.asks_nothing();
}

#[test]
fn a_gap_is_filled_by_replay() {
    let mut it = joined(true);
    it.live("6a 7a").said("").replay(3, "3a 4a 5a 6a 7a").said("4a 5a 6a 7a");
    it.live("8a").said("8a").asks_nothing();
}

#[test]
fn a_gap_that_grew_during_the_replay_is_asked_for_again() {
    let mut it = joined(true);
    it.live("5a 8a").replay(3, "3a 4a 5a").said("4a 5a");
    it.replay(5, "5a 6a 7a 8a").said("6a 7a 8a");
}

#[test]
fn a_gap_that_no_replay_fills_loses_what_was_known() {
    let mut it = joined(true);
    it.live("6a").replay(3, "3a 5a 6a").said("Lost/partial 5a 6a");
    let mut it = joined(true);
    it.live("6a").replay(3, "3a").said("Lost/partial 6a").asks_nothing();
    let mut it = joined(true);
    it.live("6a").replay(3, "5a 6a").said("Lost/partial 5a 6a");
    let mut it = joined(true);
    it.live("6a").fail().said("Unproven/partial Start/partial 6a");
    it.live("7a").said("7a");
    let mut it = joined(false);
    it.live("6a 7a").said("Lost/partial 6a 7a").asks_nothing();
}

#[test]
fn a_gap_may_show_a_restart() {
    let mut it = joined(true);
    it.live("6b").replay(3, "3b 4b 5b 6b").said("Restarted/partial");
    it.replay(0, "0b 1b 2b 3b 4b 5b 6b").said("Start/complete 0b 1b 2b 3b 4b 5b 6b");
}

#[test]
fn duplicates_are_dropped_and_others_are_a_restart() {
    let mut it = joined(false);
    it.live("1a 3a 4a").said("4a");
    it.live("0b 1b").said("Restarted/complete 0b 1b");
    let mut it = joined(false);
    it.live("2b 3b").said("Restarted/partial 2b 3b");
    let mut it = joined(true);
    it.live("2b").said("Restarted/partial").replay(0, "0b 1b 2b").said("Start/complete 0b 1b 2b");
    it.live("3b").said("3b");
}

#[test]
fn live_copies_of_what_was_replayed_are_dropped_however_old() {
    let mut it = Publisher::new(true);
    let all: Vec<_> = (0..2_000).map(|number| format!("{number}a")).collect();
    let mut want = vec!["Start/complete".to_owned()];
    want.extend_from_slice(&all);
    it.connected().replay(0, &all.join(" ")).said(&want.join(" "));
    it.live("5a 1999a 2000a").said("2000a").asks_nothing();
    // On another connection there is no reason for one.
    it.disconnected().connected().replay(2_000, "2000a").said("");
    it.live("5a").said("").asks_nothing();
}

#[test]
fn upon_reconnection_the_last_batch_proves_the_publisher() {
    let mut it = joined(true);
    it.disconnected().connected().live("5a").said("").replay(3, "3a 4a 5a").said("4a 5a");
    // Nothing new.
    it.disconnected().connected().replay(5, "5a").said("");
    it.live("6a").said("6a").asks_nothing();
}

#[test]
fn upon_reconnection_another_last_batch_is_a_restart() {
    // It came as far as the old one.
    let mut it = joined(true);
    it.disconnected().connected().live("4b").replay(3, "3b 4b").said("Restarted/partial");
    it.replay(0, "0b 1b 2b 3b 4b").said("Start/complete 0b 1b 2b 3b 4b");
    // It has sent nothing yet.
    let mut it = joined(true);
    it.disconnected().connected().replay(3, "").said("Restarted/partial");
    it.replay(0, "").said("Start/complete");
    it.live("0b").said("0b").asks_nothing();
}

#[test]
fn upon_reconnection_no_answer_proves_nothing() {
    let mut it = joined(true);
    it.disconnected().connected().live("4a").fail().said("Unproven/partial Start/partial 4a");
}

#[test]
fn a_lost_connection_ends_a_replay() {
    let mut it = Publisher::new(true);
    it.connected().replay(0, "0a 1a ...").said("Start/complete 0a 1a");
    it.live("9a").disconnected().said("");
    it.connected().replay(1, "1a 2a").said("2a");
}

#[test]
fn answers_to_an_older_request_are_ignored() {
    let mut it = joined(true);
    it.disconnected().connected();
    let old = it.sequence.take_request().unwrap().id;
    it.disconnected().connected();
    assert_eq!(it.sequence.on_replayed(old, Replayed::Message(message("3b"))), vec![]);
    assert_eq!(it.sequence.on_replay_failed(old), vec![]);
    it.replay(3, "3a").said("");
}

#[test]
fn without_replay_a_lost_connection_needs_the_start_time() {
    let mut it = joined(false);
    it.disconnected().said("Unproven/partial");
    it.connected().live("4a").said("Start/partial 4a");

    let mut it = joined(false);
    it.started(Some(1.0)).disconnected().connected().live("4a").said("");
    it.started(Some(1.0)).said("4a");
    it.disconnected().connected().live("0b 1b").started(Some(2.0));
    it.said("Restarted/partial Start/complete 0b 1b");
    it.disconnected().connected().live("7b").started(None).said("Unproven/partial Start/partial 7b");
}

#[test]
fn a_start_time_from_before_the_disconnection_proves_nothing() {
    let mut it = joined(false);
    it.started(Some(1.0)).said("");
    let before = it.now;
    it.disconnected().live("4b");
    let outputs = it.sequence.on_process_start(Some(1.0), before);
    it.say(outputs).said("");
    it.started(Some(2.0)).said("Restarted/partial Start/partial 4b");
}

#[test]
fn a_new_start_time_alone_is_a_restart_or_asks_for_proof() {
    joined(false).started(Some(1.0)).started(Some(2.0)).said("Restarted/partial");
    let mut it = joined(true);
    it.started(Some(1.0)).started(Some(2.0)).said("").replay(3, "3a").said("");
}

#[test]
fn what_is_held_back_is_bounded() {
    let mut it = Publisher::new(true);
    it.connected();
    for number in 0..10_000 {
        it.live(&format!("{number}a"));
    }
    let all: Vec<_> = (0..20).map(|number| format!("{number}a")).collect();
    it.replay(0, &all.join(" "));
    assert_eq!(it.sequence.last(), Some(4_095));
    // The rest is asked for as soon as the next one shows the gap.
    it.live("10000a");
    assert!(it.sequence.is_asking());
}
