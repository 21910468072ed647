//! The way to a server of prompts: its breaker and its bound.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts somewhere in time"
)]

use std::time::{Duration, Instant};

use kvpick_core::remote::{Breaker, Ending, Failure, Gate};
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn end(gate: &mut Gate, ending: Ending, now: Instant) {
    let pass = gate.enter(now).unwrap();
    gate.leave(pass, ending, now);
}

fn opened(now: Instant) -> Gate {
    let mut gate = Gate::new(4);
    for _ in 0..5 {
        end(&mut gate, Ending::Failed, now);
    }
    gate
}

#[test]
fn failures_in_a_row_open_it_and_others_do_not() {
    let (mut gate, now) = (Gate::new(4), Instant::now());
    for _ in 0..3 {
        for _ in 0..4 {
            end(&mut gate, Ending::Failed, now);
        }
        end(&mut gate, Ending::Well, now);
    }
    for _ in 0..4 {
        end(&mut gate, Ending::Failed, now);
        end(&mut gate, Ending::Abandoned, now);
    }
    assert_eq!(gate.breaker().label(), "closed");
    end(&mut gate, Ending::Failed, now);
    assert_eq!(gate.enter(now).unwrap_err(), Failure::Resting);
}

#[test]
fn one_probe_decides_and_each_failed_one_doubles_the_rest() {
    let start = Instant::now();
    let mut gate = opened(start);
    let mut now = start;
    for seconds in [1, 2, 4, 8, 16, 30, 30] {
        let almost = now + seconds * SECOND - Duration::from_millis(1);
        assert_eq!(gate.enter(almost).unwrap_err(), Failure::Resting, "{seconds} s");
        now += seconds * SECOND;
        let probe = gate.enter(now).unwrap();
        assert_eq!(gate.enter(now).unwrap_err(), Failure::Resting, "one at a time");
        gate.leave(probe, Ending::Failed, now);
    }
    now += 30 * SECOND;
    let probe = gate.enter(now).unwrap();
    gate.leave(probe, Ending::Well, now);
    assert_eq!(gate.breaker(), Breaker::Closed(0));
}

#[test]
fn a_probe_that_nobody_waited_for_makes_room_for_another() {
    let start = Instant::now();
    let mut gate = opened(start);
    end(&mut gate, Ending::Abandoned, start + SECOND);
    end(&mut gate, Ending::Well, start + SECOND);
    assert_eq!(gate.breaker(), Breaker::Closed(0));
}

#[test]
fn what_began_before_it_opened_changes_nothing() {
    let now = Instant::now();
    let mut gate = Gate::new(10);
    let early: Vec<_> = (0..3).map(|_| gate.enter(now).unwrap()).collect();
    for _ in 0..5 {
        end(&mut gate, Ending::Failed, now);
    }
    let opened = gate.breaker();
    for (pass, ending) in early.into_iter().zip([Ending::Well, Ending::Failed, Ending::Abandoned]) {
        gate.leave(pass, ending, now + SECOND / 2);
        assert_eq!(gate.breaker(), opened);
    }
    assert_eq!(gate.in_flight(), 0);
}

#[test]
fn no_more_than_allowed_are_inside() {
    let (mut gate, now) = (Gate::new(2), Instant::now());
    let first = gate.enter(now).unwrap();
    let second = gate.enter(now).unwrap();
    assert_eq!(gate.enter(now).unwrap_err(), Failure::Overloaded);
    gate.leave(first, Ending::Well, now);
    let third = gate.enter(now).unwrap();
    gate.leave(second, Ending::Well, now);
    gate.leave(third, Ending::Well, now);
    assert_eq!(gate.in_flight(), 0);
}

proptest! {
    #[test]
    fn counts_hold_whatever_happens(steps in prop::collection::vec((0_u8..5, 0_u64..40_000), 0..200)) {
        let (mut gate, mut now) = (Gate::new(3), Instant::now());
        let mut inside = Vec::new();
        for (what, millis) in steps {
            match what {
                0 | 1 => match gate.enter(now) {
                    Ok(pass) => inside.push(pass),
                    Err(Failure::Overloaded) => prop_assert_eq!(inside.len(), 3),
                    Err(failure) => {
                        prop_assert_eq!(failure, Failure::Resting);
                        prop_assert_ne!(gate.breaker().label(), "closed");
                    }
                },
                2 => now += Duration::from_millis(millis),
                _ => if let Some(pass) = inside.pop() {
                    gate.leave(pass, if what == 3 { Ending::Failed } else { Ending::Well }, now);
                },
            }
            prop_assert_eq!(gate.in_flight(), inside.len());
            prop_assert!(inside.len() <= 3);
        }
        // It is never shut for good.
        for pass in inside {
            gate.leave(pass, Ending::Abandoned, now);
        }
        prop_assert!(gate.enter(now + 31 * SECOND).is_ok());
    }
}
