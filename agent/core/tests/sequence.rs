//! A publisher's batches in order, with gaps, replays, restarts and lost connections.
//!
//! Batches are written as their number and one letter of content: `7a`.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod publisher;

use std::time::Duration;

use kvpick_agent_core::decode::Replayed;
use publisher::{Publisher, message};

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

#[test]
fn a_message_that_is_quicker_than_the_news_of_its_connection_may_be_another_publishers() {
    let mut it = joined(true);
    it.disconnected()
        .live("4b")
        .said("")
        .connected()
        .live("5b")
        .replay(3, "3b 4b 5b")
        .said("Restarted/partial");
    it.replay(0, "0b 1b 2b 3b 4b 5b").said("Start/complete 0b 1b 2b 3b 4b 5b");
    let mut it = joined(true);
    it.disconnected().live("4a").replay(3, "3a 4a").said("4a").live("5a").said("5a").asks_nothing();
}

#[test]
fn what_waits_when_a_connection_is_made_may_be_left_of_another() {
    // A publisher that connects while the connection of the one before is still there.
    let mut it = joined(true);
    it.checked().live("4a 5a 6a").connected().replay(3, "3b 4b").said("Restarted/partial");
    it.replay(0, "0b 1b 2b 3b 4b").said("Start/complete 0b 1b 2b 3b 4b").asks_nothing();
}

#[test]
fn a_gap_after_a_check_was_answered_is_asked_for() {
    let mut it = joined(true);
    it.checked().live("6a").replay(3, "3a").said("").replay(3, "3a 4a 5a 6a").said("4a 5a 6a").asks_nothing();
}

#[test]
fn a_gap_that_a_failed_check_could_not_fill_is_asked_for_from_the_first_batch() {
    let mut it = joined(true);
    it.checked().live("6a").fail().said("Lost/partial 6a");
    it.checked().replay(0, "0a 1a 2a 3a 4a 5a 6a").said("Start/complete 0a 1a 2a 3a 4a 5a 6a");
}

#[test]
fn without_replay_a_start_time_is_news_of_what_is_heard_after_a_lost_connection() {
    let mut it = Publisher::new(false);
    it.started(Some(1.0)).connected().disconnected().connected().live("0b").started(Some(2.0));
    it.said("Start/complete 0b");
    let mut it = joined(false);
    it.started(Some(1.0)).disconnected().live("4a").disconnected().said("Unproven/partial");
    it.connected().live("0b").started(Some(2.0)).said("Start/complete 0b");
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
    it.checked().replay(3, "3a 4a").said("4a").asks_nothing();
    joined(false).checked().asks_nothing();
}

#[test]
fn a_check_that_fails_takes_nothing_away() {
    let mut it = joined(true);
    it.checked().live("4a").fail().said("4a");
    it.live("5a").said("5a").asks_nothing();
    // Unless what came meanwhile shows that something is missing, or another process.
    joined(true).checked().live("6a").fail().said("Lost/partial 6a");
    let mut it = joined(true);
    it.started(Some(1.0)).checked().started(Some(2.0)).fail().said("Unproven/partial");
    // Only one at a time.
    let mut it = joined(true);
    it.checked();
    assert!(!it.sequence.check());
}

#[test]
fn a_replay_that_stops_halfway_is_no_knowledge_until_one_comes_to_its_end() {
    let mut it = Publisher::new(true);
    it.connected().replay(0, "0a 1a ...").said("Start/complete 0a 1a").stops().said("Lost/partial");
    it.live("4a").said("").fail().said("Start/partial 4a");
    it.checked().live("5a").replay(0, "0a 1a 2a 3a 4a").said("Start/complete 0a 1a 2a 3a 4a 5a");
    // What was proved and only not completed, too.
    it.live("8a").replay(5, "5a 6a ...").said("6a").stops().said("Lost/partial Start/partial 8a");
    it.checked().replay(0, "7a 8a").said("Start/partial 7a 8a");
    it.checked().replay(8, "8a").said("");
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
    it.live("9a").disconnected().said("Lost/partial");
    it.connected().replay(0, "0a 1a 2a").said("Start/complete 0a 1a 2a");
    // What was known before it stays.
    it.live("5a").replay(2, "2a 3a ...").said("3a").disconnected().said("");
    it.connected().replay(3, "3a 4a 5a").said("4a 5a");
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
fn without_replay_a_start_time_that_does_not_come_proves_nothing() {
    let mut it = joined(false);
    it.started(Some(1.0)).disconnected().connected().live("0b 1b").waited(4).said("");
    assert_eq!(it.sequence.due(), Some(it.now + Duration::from_secs(1)));
    it.waited(1).said("Unproven/partial Start/complete 0b 1b");
    assert_eq!(it.sequence.due(), None);
    // It is that of the publisher heard since.
    it.started(Some(2.0)).live("2b").said("2b");
}

#[test]
fn what_waited_for_a_start_time_and_went_lost_is_missed() {
    let mut it = joined(false);
    it.started(Some(1.0)).disconnected().connected().live("4a").disconnected().said("Unproven/partial");
    let mut it = joined(false);
    it.started(Some(1.0)).disconnected().disconnected().started(Some(1.0)).said("");
    let mut it = joined(false);
    it.started(Some(1.0)).disconnected();
    it.flood(4);
    it.started(Some(1.0));
    assert_eq!(it.said.last().unwrap(), "Lost/partial");
}

#[test]
fn what_is_left_of_an_old_connection_is_not_the_new_process() {
    let mut it = joined(false);
    it.published = 1.9;
    it.started(Some(1.0)).live("4a").started(Some(2.0)).said("4a Restarted/partial");
    // The old one's last batches, which the new one's start time would prove.
    it.live("5a 6a").said("Start/partial 5a 6a").disconnected().said("");
    it.connected().live("0b").started(Some(2.0)).said("Unproven/partial Start/complete 0b");
    it.published = 9.0;
    it.disconnected().started(Some(2.0)).said("");
    // Also where all of it was left.
    let mut it = Publisher::new(false);
    it.published = 1.9;
    it.started(Some(1.0)).connected().started(Some(2.0)).live("0a 1a").said("Start/complete 0a 1a");
    it.disconnected().started(Some(2.0)).said("Unproven/partial");
}

#[test]
fn a_process_that_started_later_did_not_publish_what_is_known() {
    // The first start time that is heard may be that of the next process already.
    let mut it = joined(false);
    it.published = 2.5;
    it.started(Some(2.0)).disconnected().connected().live("4b").started(Some(2.0));
    it.said("Unproven/partial Start/partial 4b");
    let mut it = joined(false);
    it.published = 3.0;
    it.started(Some(2.0)).disconnected().connected().live("4a").started(Some(2.0)).said("4a");
}

#[test]
fn a_start_time_from_before_the_disconnection_proves_nothing() {
    let mut it = joined(false);
    it.started(Some(1.0)).said("");
    let before = it.now;
    it.disconnected().live("4b");
    let outputs = it.sequence.on_process_start(Some(1.0), before, it.published());
    it.say(outputs).said("");
    it.started(Some(2.0)).said("Restarted/partial Start/partial 4b");
}

#[test]
fn batches_that_were_quicker_than_the_news_of_their_process_are_kept() {
    // Two connections for a moment, so that no loss is heard of.
    let mut it = joined(false);
    it.started(Some(1.0)).live("0b").said("Restarted/complete 0b");
    it.first = Some(3.5);
    it.started(Some(2.5)).said("").live("1b").said("1b");
    // What was first may be of the process before; of one that can't be told nothing is believed.
    let mut it = joined(false);
    it.first = Some(3.4);
    it.started(Some(1.0)).started(Some(2.5)).said("Restarted/partial");
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
    it.flood(0);
    let all: Vec<_> = (0..20).map(|number| format!("{number}a")).collect();
    it.replay(0, &all.join(" "));
    assert_eq!(it.sequence.last(), Some(4_095));
    // The rest is asked for at once, as there may be no next one that would show the gap.
    let rest: Vec<_> = (4_095..10_000).map(|number| format!("{number}a")).collect();
    it.replay(4_095, &rest.join(" ")).asks_nothing();
    assert_eq!(it.sequence.last(), Some(9_999));
    // Without a replay that ends, what was known is not known any more.
    let mut it = joined(true);
    it.checked();
    it.flood(4);
    it.fail();
    assert_eq!(it.said.last().unwrap(), "Lost/partial");
}
