//! Replicas that fail are left out for a while, and come back when they answer.

use std::time::{Duration, Instant};

/// How long a replica is left out after a first failure; doubles with each failed probe.
pub const FIRST_OUT: Duration = Duration::from_secs(1);

/// Longest time between two probes of a replica that is out.
pub const LONGEST_OUT: Duration = Duration::from_secs(30);

/// Whether a replica may be picked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Health {
    /// It may.
    #[default]
    In,
    /// It failed.
    Out {
        /// When.
        since: Instant,
        /// When it is to be probed next.
        probe_at: Instant,
        /// How long after that probe the next one follows, should it fail.
        then_for: Duration,
        /// How it was seen to fail, for people.
        why: Failure,
    },
}

/// How a replica was seen to fail.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Failure {
    /// Envoy could not connect, or lost the connection.
    Connection,
    /// Its agent can't reach it, or says that it sleeps.
    Agent,
    /// A probe of its `/health` failed.
    Probe,
}

impl Failure {
    /// Label in metrics and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Agent => "agent",
            Self::Probe => "probe",
        }
    }
}

impl Health {
    /// Whether it may be picked.
    #[must_use]
    pub const fn is_in(&self) -> bool {
        matches!(self, Self::In)
    }

    /// It failed. Returns whether that is news.
    pub fn on_failure(&mut self, why: Failure, now: Instant) -> bool {
        let news = self.is_in();
        if news {
            *self = Self::Out { since: now, probe_at: now + FIRST_OUT, then_for: FIRST_OUT * 2, why };
        }
        news
    }

    /// Its agent reaches it again: no need to wait for the next probe's turn.
    pub const fn on_good_news(&mut self, now: Instant) {
        if let Self::Out { probe_at, .. } = self {
            *probe_at = now;
        }
    }

    /// Whether it is to be probed now; the caller does so.
    #[must_use]
    pub fn take_probe(&mut self, now: Instant) -> bool {
        let Self::Out { probe_at, then_for, .. } = self else { return false };
        if now < *probe_at {
            return false;
        }
        *probe_at = now + *then_for;
        *then_for = (*then_for * 2).min(LONGEST_OUT);
        true
    }

    /// It answered a probe. Returns whether it came back.
    pub const fn on_answer(&mut self) -> bool {
        let news = !self.is_in();
        *self = Self::In;
        news
    }

    /// When it is to be probed, if at all.
    #[must_use]
    pub const fn probe_at(&self) -> Option<Instant> {
        match self {
            Self::In => None,
            Self::Out { probe_at, .. } => Some(*probe_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_news_bring_the_probe_forward_and_no_more() {
        let start = crate::testing::start();
        let mut health = Health::In;
        health.on_good_news(start);
        assert!(health.is_in());
        health.on_failure(Failure::Agent, start);
        let later = start + Duration::from_millis(300);
        health.on_good_news(later);
        assert_eq!((health.is_in(), health.probe_at()), (false, Some(later)));
    }

    #[test]
    fn is_left_alone_for_longer_and_longer_until_it_answers() {
        let start = crate::testing::start();
        let mut health = Health::In;
        assert!(health.on_failure(Failure::Connection, start));
        assert!(!health.on_failure(Failure::Connection, start), "known already");
        let mut now = start;
        let mut gaps = Vec::new();
        while gaps.len() < 7 {
            let at = health.probe_at().unwrap();
            assert!(!health.take_probe(at - Duration::from_millis(1)));
            assert!(health.take_probe(at));
            gaps.push((at - now).as_secs());
            now = at;
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 30, 30]);
        assert!(health.on_answer());
        assert!(!health.on_answer(), "known already");
        assert!(health.is_in() && health.probe_at().is_none());
    }
}
