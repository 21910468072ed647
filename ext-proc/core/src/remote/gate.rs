//! Who may ask a server now: a bound on how many do at a time, and a breaker that gives a failing one rest.

use std::time::{Duration, Instant};

use super::Failure;

/// Failures in a row after which a server is left alone.
const MOST_FAILURES: u32 = 5;

/// How long it is left alone at first. Each failed probe doubles it.
const FIRST_REST: Duration = Duration::from_secs(1);

/// How long at most.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// How an ask ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The server answered as it should, be it with a refusal.
    Well,
    /// It did not.
    Failed,
    /// Nobody waited for the end.
    Abandoned,
}

/// A circuit breaker.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Breaker {
    /// All may ask. The number is of failures in a row.
    Closed(u32),
    /// Nobody may, until then.
    Open {
        /// When one may try.
        until: Instant,
        /// How long the rest is.
        rest: Duration,
    },
    /// One is trying, the others wait for what becomes of it.
    HalfOpen {
        /// How long the rest was.
        rest: Duration,
    },
}

impl Breaker {
    /// Label in metrics and status.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Closed(_) => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen { .. } => "half_open",
        }
    }
}

/// The way to one server.
#[derive(Clone, Debug)]
pub struct Gate {
    breaker: Breaker,
    in_flight: usize,
    most: usize,
}

/// Leave to ask; to be handed back by [`Gate::leave`].
#[derive(Debug, Eq, PartialEq)]
#[must_use = "who does not leave stays in flight for ever"]
pub struct Pass {
    is_probe: bool,
}

impl Gate {
    /// A gate that `most` may be behind at a time.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { breaker: Breaker::Closed(0), in_flight: 0, most }
    }

    /// The breaker as it stands.
    #[must_use]
    pub const fn breaker(&self) -> Breaker {
        self.breaker
    }

    /// How many ask at present.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Lets one in.
    ///
    /// # Errors
    /// [`Failure::Resting`] while the breaker is open, [`Failure::Overloaded`] where as many as allowed are inside.
    pub fn enter(&mut self, now: Instant) -> Result<Pass, Failure> {
        let rest = match self.breaker {
            Breaker::Closed(_) => None,
            Breaker::Open { until, rest } if until <= now => Some(rest),
            Breaker::Open { .. } | Breaker::HalfOpen { .. } => return Err(Failure::Resting),
        };
        if self.most <= self.in_flight {
            return Err(Failure::Overloaded);
        }
        self.in_flight += 1;
        if let Some(rest) = rest {
            self.breaker = Breaker::HalfOpen { rest };
        }
        Ok(Pass { is_probe: rest.is_some() })
    }

    /// One has come back. What an ask found that had begun before the breaker opened changes nothing any more.
    pub fn leave(&mut self, pass: Pass, ending: Ending, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.breaker = match (self.breaker, pass.is_probe, ending) {
            (Breaker::Closed(_), _, Ending::Well) | (Breaker::HalfOpen { .. }, true, Ending::Well) => {
                Breaker::Closed(0)
            }
            (Breaker::Closed(failures), _, Ending::Failed) if failures + 1 < MOST_FAILURES => {
                Breaker::Closed(failures + 1)
            }
            (Breaker::Closed(_), _, Ending::Failed) => {
                Breaker::Open { until: now + FIRST_REST, rest: FIRST_REST }
            }
            (Breaker::HalfOpen { rest }, true, Ending::Failed) => {
                let rest = (rest * 2).min(LONGEST_REST);
                Breaker::Open { until: now + rest, rest }
            }
            // Nothing was learnt; the next one may try.
            (Breaker::HalfOpen { rest }, true, Ending::Abandoned) => Breaker::Open { until: now, rest },
            (unchanged, _, _) => unchanged,
        };
    }
}
