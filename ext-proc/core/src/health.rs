//! Replicas that fail are left out for a while, and come back when they answer.

use std::time::{Duration, Instant};

/// How long a replica is left out after a first failure; doubles with each failed probe.
pub const FIRST_OUT: Duration = Duration::from_secs(1);

/// Longest time between two probes of a replica that is out. One that fails again within this time of its return goes
/// on where it was: its `/health` says more than it keeps.
pub const LONGEST_OUT: Duration = Duration::from_secs(30);

/// So many requests that lose their connection one after the other, within [`LOST_WITHIN`] and with no good answer in
/// between, put a replica out. A single one proves nothing: an engine closes on a bad request too.
pub const LOST_IN_A_ROW: usize = 3;

/// See [`LOST_IN_A_ROW`].
pub const LOST_WITHIN: Duration = Duration::from_secs(10);

/// Whether a replica may be picked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Health {
    out: Option<Out>,
    /// When requests lost their connection, the latest first.
    lost: [Option<Instant>; LOST_IN_A_ROW - 1],
    /// When it last came back, and how long it would have been left alone next.
    returned: Option<(Instant, Duration)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Out {
    why: Failure,
    /// When it is to be probed next.
    probe_at: Instant,
    /// How long after that probe the next one follows, should it fail.
    then_for: Duration,
}

/// How a replica was seen to fail.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Failure {
    /// Envoy could not connect, or lost one connection after the other.
    Connection,
    /// Its agent can't reach it, or says that it sleeps.
    Agent,
}

impl Failure {
    /// Label in metrics and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Agent => "agent",
        }
    }
}

impl Health {
    /// Whether it may be picked.
    #[must_use]
    pub const fn is_in(&self) -> bool {
        self.out.is_none()
    }

    /// Why it may not be picked, if it may not.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.out.map(|it| it.why)
    }

    /// It failed. Returns whether that is news.
    pub fn on_failure(&mut self, why: Failure, now: Instant) -> bool {
        if self.out.is_some() {
            return false;
        }
        let again = self.returned.filter(|(at, _)| now < *at + LONGEST_OUT);
        let gap = again.map_or(FIRST_OUT, |(_, gap)| gap);
        self.out = Some(Out { why, probe_at: now + gap, then_for: (gap * 2).min(LONGEST_OUT) });
        self.on_good_answer();
        true
    }

    /// A request lost its connection to it. Returns whether that puts it out, which is news.
    pub fn on_lost(&mut self, now: Instant) -> bool {
        if self.out.is_some() {
            return false;
        }
        let first = self.lost[LOST_IN_A_ROW - 2];
        self.lost.rotate_right(1);
        self.lost[0] = Some(now);
        first.is_some_and(|it| now <= it + LOST_WITHIN) && self.on_failure(Failure::Connection, now)
    }

    /// It answered a request well.
    pub const fn on_good_answer(&mut self) {
        self.lost = [None; LOST_IN_A_ROW - 1];
    }

    /// Its agent reaches it again: no need to wait for the next probe's turn.
    pub const fn on_good_news(&mut self, now: Instant) {
        if let Some(out) = &mut self.out {
            out.probe_at = now;
        }
    }

    /// Whether it is to be probed now; the caller does so.
    #[must_use]
    pub fn take_probe(&mut self, now: Instant) -> bool {
        let Some(out) = &mut self.out else { return false };
        if now < out.probe_at {
            return false;
        }
        out.probe_at = now + out.then_for;
        out.then_for = (out.then_for * 2).min(LONGEST_OUT);
        true
    }

    /// It answered a probe. Returns whether it came back.
    pub fn on_answer(&mut self, now: Instant) -> bool {
        let Some(out) = self.out.take() else { return false };
        // `then_for` was doubled when the probe that is answered was sent.
        self.returned = Some((now, out.then_for / 2));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(it: u64) -> Duration {
        Duration::from_secs(it)
    }

    /// Seconds until each of the next `n` probes.
    fn gaps(health: &mut Health, mut now: Instant, n: usize) -> Vec<u64> {
        let mut gaps = Vec::new();
        for _ in 0..n {
            let start = now;
            while !health.take_probe(now) {
                now += Duration::from_millis(100);
            }
            gaps.push((now - start).as_secs());
        }
        gaps
    }

    #[test]
    fn is_left_alone_for_longer_and_longer_until_it_answers() {
        let start = crate::testing::start();
        let mut health = Health::default();
        assert!(health.on_failure(Failure::Connection, start));
        assert!(!health.on_failure(Failure::Connection, start), "known already");
        assert_eq!(gaps(&mut health, start, 7), [1, 2, 4, 8, 16, 30, 30]);
        assert!(health.on_answer(start));
        assert!(!health.on_answer(start), "known already");
        assert!(health.is_in() && !health.take_probe(start + seconds(1_000)));
    }

    #[test]
    fn one_that_fails_again_soon_is_left_alone_for_longer() {
        let start = crate::testing::start();
        let mut health = Health::default();
        let mut waits = Vec::new();
        let mut now = start;
        for _ in 0..4 {
            health.on_failure(Failure::Connection, now);
            let wait = gaps(&mut health, now, 1)[0];
            waits.push(wait);
            now += seconds(wait);
            health.on_answer(now);
        }
        assert_eq!(waits, [1, 2, 4, 8]);
        now += LONGEST_OUT;
        health.on_failure(Failure::Connection, now);
        assert_eq!(gaps(&mut health, now, 1), [1], "long ago");
    }

    #[test]
    fn lost_connections_count_together_alone() {
        let start = crate::testing::start();
        let mut health = Health::default();
        assert!(!health.on_lost(start) && !health.on_lost(start));
        health.on_good_answer();
        assert!(!health.on_lost(start) && !health.on_lost(start + seconds(6)), "one answered in between");
        assert!(!health.on_lost(start + seconds(11)), "the first was long ago");
        assert!(health.is_in() && health.on_lost(start + seconds(16)));
        assert!(!health.is_in() && !health.on_lost(start + seconds(16)), "known already");
        health.on_answer(start + seconds(17));
        assert!(!health.on_lost(start + seconds(17)), "counts anew");
    }

    #[test]
    fn good_news_bring_the_probe_forward_and_no_more() {
        let start = crate::testing::start();
        let mut health = Health::default();
        health.on_good_news(start);
        assert!(health.is_in());
        health.on_failure(Failure::Agent, start);
        health.on_good_news(start + Duration::from_millis(300));
        assert!(!health.is_in() && !health.take_probe(start + Duration::from_millis(299)));
        assert!(health.take_probe(start + Duration::from_millis(300)));
    }
}
