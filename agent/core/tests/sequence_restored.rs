//! An agent that goes on from where an earlier run of it was: what proves that, and what does not.
//!
//! Batches are written as their number and one letter of content: `7a`.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod publisher;

use std::time::Duration;

use kvpick_agent_core::sequence::Published;
use publisher::Publisher;

/// Batches up to 3 are known, and the process is the one that started at 1.
fn restored(replay: bool) -> Publisher {
    let mut it = Publisher::new(replay);
    it.connected();
    if replay {
        it.replay(0, "");
    }
    it.started(Some(1.0)).live("0a 1a 2a 3a").said("Start/complete 0a 1a 2a 3a");
    it.agent_restarts(replay);
    it
}

#[test]
fn a_replay_proves_the_publisher_and_closes_the_hole() {
    let mut it = restored(true);
    it.connected().live("6a").said("").replay(3, "3a 4a 5a ...").said("4a 5a");
    assert!(it.sequence.is_restoring() && !it.sequence.is_settled());
    let mut it = restored(true);
    it.connected().live("6a").replay(3, "3a 4a 5a").said("4a 5a Proved 6a").asks_nothing();
    assert!(!it.sequence.is_restoring());
    // Nothing was published meanwhile.
    let mut it = restored(true);
    it.connected().replay(3, "3a").said("Proved").live("4a").said("4a");
    assert_eq!(it.sequence.position().unwrap().last, 4);
}

#[test]
fn a_message_may_be_quicker_than_the_news_of_its_connection() {
    let mut it = restored(true);
    it.live("4a").said("").connected().replay(3, "3a 4a").said("4a Proved").asks_nothing();
    restored(true).live("4b").said("").replay(3, "3b 4b").said("Restarted/partial");
    let mut it = restored(false);
    it.live("4a").said("").connected().said("").started(Some(1.0)).said("Proved 4a");
}

#[test]
fn a_replay_may_show_another_publisher() {
    let mut it = restored(true);
    it.connected().replay(3, "3b 4b").said("Restarted/partial");
    it.replay(0, "0b 1b 2b 3b 4b").said("Start/complete 0b 1b 2b 3b 4b");
    // One that has not come so far.
    restored(true)
        .connected()
        .replay(3, "")
        .said("Restarted/partial")
        .replay(0, "0b")
        .said("Start/complete 0b");
    // One whose process tells it first.
    let mut it = restored(true);
    it.connected().started(Some(2.0)).said("").replay(3, "3b").said("Restarted/partial");
}

#[test]
fn a_replay_that_does_not_reach_back_or_does_not_end_proves_nothing() {
    restored(true).connected().replay(3, "5a 6a").said("Lost/partial 5a 6a");
    restored(true).connected().live("6a").fail().said("Unproven/partial Start/partial 6a");
    restored(true).connected().replay(3, "3a 4a ...").stops().said("4a Lost/partial");
}

#[test]
fn a_replay_that_a_lost_connection_ends_is_asked_for_again() {
    let mut it = restored(true);
    it.connected().replay(3, "3a 4a ...").said("4a").disconnected().said("");
    it.connected().replay(4, "4a 5a").said("5a Proved");
    let mut it = restored(true);
    it.connected()
        .replay(3, "3a 4a ...")
        .disconnected()
        .connected()
        .replay(4, "4b")
        .said("4a Restarted/partial");
}

#[test]
fn without_replay_the_process_and_the_next_batch_prove_it() {
    restored(false).connected().started(Some(1.0)).said("").live("4a 5a").said("Proved 4a 5a");
    restored(false).connected().live("4a 5a").said("").started(Some(1.0)).said("Proved 4a 5a");
    let mut it = restored(false);
    it.connected().started(Some(1.0)).started(Some(1.0)).waited(600).said("").live("4a").said("Proved 4a");
}

#[test]
fn without_replay_one_of_them_is_no_proof() {
    // Another process that happens to be as far.
    restored(false).connected().live("4b").started(Some(2.0)).said("Restarted/partial Start/partial 4b");
    restored(false).connected().live("0b").started(Some(2.0)).said("Restarted/partial Start/complete 0b");
    restored(false).connected().started(Some(2.0)).live("4b").said("Restarted/partial Start/partial 4b");
    // The same, and something was missed.
    restored(false).connected().started(Some(1.0)).live("5a 6a").said("Lost/partial Start/partial 5a 6a");
    restored(false).connected().live("5a").started(Some(1.0)).said("Lost/partial Start/partial 5a");
    // Numbers do not go back.
    restored(false).connected().started(Some(1.0)).live("3a").said("Restarted/partial Start/partial 3a");
    // Nobody says which process it is.
    restored(false).connected().live("4a").started(None).said("Unproven/partial Start/partial 4a");
}

#[test]
fn a_process_start_time_counts_for_the_connection_on_which_it_was_asked_for() {
    // Asked for before there was a connection: the next one may be to another process.
    let mut it = restored(false);
    it.started(Some(1.0)).connected().live("4b").said("").started(Some(2.0));
    it.said("Restarted/partial Start/partial 4b");
    let mut it = restored(false);
    it.connected().started(Some(1.0)).disconnected().connected().live("4b").said("");
    it.started(Some(2.0)).said("Restarted/partial Start/partial 4b");
    // What waited went lost with its connection, and shows as missing.
    let mut it = restored(false);
    it.connected().live("4a").disconnected().connected().started(Some(1.0)).live("5a");
    it.said("Lost/partial Start/partial 5a");
    // An answer that was on its way when the connection came.
    let mut it = restored(false);
    let before = it.now;
    it.now += Duration::from_secs(1);
    it.connected().live("4b");
    let outputs = it.sequence.on_process_start(Some(1.0), before, Published::default());
    it.say(outputs).said("");
}

#[test]
fn what_cannot_be_proved_is_not_taken() {
    let mut it = Publisher::new(false);
    it.connected().live("0a");
    let position = it.sequence.position().unwrap();
    assert_eq!(position.process_start, None);
    assert!(!Publisher::new(false).sequence.restore(position));
    assert!(Publisher::new(true).sequence.restore(position));
    it.agent_restarts(true).connected().replay(0, "0a 1a").said("1a Proved");
}

#[test]
fn there_is_nothing_to_write_down_while_a_history_is_read() {
    let mut it = Publisher::new(true);
    assert_eq!(it.sequence.position(), None);
    it.connected().replay(0, "0a 1a ...");
    assert_eq!(it.sequence.position(), None);
    it.stops();
    assert_eq!(it.sequence.position(), None);
}

#[test]
fn what_waits_for_the_proof_is_bounded() {
    let mut it = restored(false);
    it.connected();
    it.flood(4);
    it.started(Some(1.0));
    assert_eq!(it.said.first().unwrap(), "Proved");
    assert_eq!(it.said.last().unwrap(), "Lost/partial");
}
