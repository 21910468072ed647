//! What the judgements of requests come to.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::Judged;

/// Judged requests that count, the latest ones.
const WINDOW: usize = 64;

/// Least evidence for a verdict. Below a few requests chance decides, and below a few blocks a hit would save nothing.
const ENOUGH: (usize, u32) = (32, 200);

/// The same for prompts that were wrong before.
const ENOUGH_ON_TRIAL: (usize, u32) = (16, 100);

/// Below this share of confirmed blocks the prompts are not the engines'. A part of wrong requests, or wrong ends of
/// prompts with right beginnings, stay above: the rest of the hits is worth having.
const LOST_BELOW: f64 = 0.1;

/// Above this share they are.
const BACK_ABOVE: f64 = 0.5;

/// What was lost is tried again after this time: its reason may lie in an engine that is another one by now, and where
/// the prompts come from elsewhere meanwhile nothing can be judged.
const LOST_FOR: Duration = Duration::from_secs(600);

/// Whether prompts are thought to be those of the engines.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Trust {
    /// Nothing speaks against it.
    #[default]
    Given,
    /// Almost nothing that was expected came.
    Lost {
        /// When that was seen.
        since: Instant,
    },
    /// It was lost, and is tried again: half the evidence is enough.
    OnTrial,
}

impl Trust {
    /// Whether the prompts are used.
    #[must_use]
    pub const fn is_good(self) -> bool {
        !matches!(self, Self::Lost { .. })
    }

    /// Label for people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Given => "trusted",
            Self::Lost { .. } => "distrusted",
            Self::OnTrial => "on_trial",
        }
    }
}

/// The latest judgements, summed up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Evidence {
    /// Requests judged.
    pub requests: usize,
    /// Blocks that came.
    pub confirmed: u32,
    /// Blocks that did not.
    pub missing: u32,
}

impl Evidence {
    /// Share of the blocks that came, 0 to 1; `None` where there was none to come.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let all = self.confirmed + self.missing;
        (0 < all).then(|| f64::from(self.confirmed) / f64::from(all))
    }

    const fn suffices(&self, (requests, blocks): (usize, u32)) -> bool {
        requests <= self.requests && blocks <= self.confirmed + self.missing
    }
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// Requests judged.
    pub requests: u64,
    /// Blocks that came.
    pub confirmed: u64,
    /// Blocks that did not.
    pub missing: u64,
}

/// What is known of one subject.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    trust: Trust,
    /// Blocks that came and that did not, of the latest requests.
    window: VecDeque<(u32, u32)>,
    evidence: Evidence,
    totals: Totals,
    /// Requests sent before do not count.
    begun: Option<Instant>,
}

impl Tally {
    /// Forgets what is known but for the sums. Requests sent before do not count from now on.
    pub(super) fn begin(&mut self, trust: Trust, now: Instant) {
        *self = Self { trust, totals: self.totals, begun: Some(now), ..Self::default() };
    }

    /// Whether the prompts are trusted.
    #[must_use]
    pub const fn trust(&self) -> Trust {
        self.trust
    }

    /// What that stands on.
    #[must_use]
    pub const fn evidence(&self) -> Evidence {
        self.evidence
    }

    /// All that was judged.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// Whether there is enough evidence for a verdict.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        self.evidence.suffices(ENOUGH)
    }

    /// Counts a judgement.
    pub(super) fn on_judged(&mut self, judged: &Judged, now: Instant) {
        if self.begun.is_some_and(|it| judged.sent < it) {
            return;
        }
        self.add((judged.confirmed, judged.missing));
        let Some(share) = self.evidence.share() else { return };
        let enough = if self.trust == Trust::OnTrial { ENOUGH_ON_TRIAL } else { ENOUGH };
        if self.evidence.suffices(enough) {
            match self.trust {
                Trust::Given | Trust::OnTrial if share < LOST_BELOW => {
                    self.trust = Trust::Lost { since: now };
                }
                Trust::Lost { .. } | Trust::OnTrial if BACK_ABOVE < share => self.trust = Trust::Given,
                Trust::Given | Trust::OnTrial | Trust::Lost { .. } => (),
            }
        }
    }

    /// Returns whether what was lost is tried again from now on.
    pub(super) fn on_time(&mut self, now: Instant) -> bool {
        let Trust::Lost { since } = self.trust else { return false };
        if now < since + LOST_FOR {
            return false;
        }
        self.begin(Trust::OnTrial, now);
        true
    }

    fn add(&mut self, (confirmed, missing): (u32, u32)) {
        let Self { evidence, totals, .. } = self;
        totals.requests += 1;
        totals.confirmed += u64::from(confirmed);
        totals.missing += u64::from(missing);
        self.window.push_back((confirmed, missing));
        evidence.confirmed += confirmed;
        evidence.missing += missing;
        if WINDOW < self.window.len()
            && let Some((confirmed, missing)) = self.window.pop_front()
        {
            evidence.confirmed -= confirmed;
            evidence.missing -= missing;
        }
        evidence.requests = self.window.len();
    }
}

#[cfg(test)]
mod tests {
    use kvpick_proto::words::KeyKind;

    use super::*;
    use crate::{
        parity::{Model, Subject},
        request::Api,
    };

    struct Rig {
        tally: Tally,
        now: Instant,
    }

    impl Rig {
        fn new() -> Self {
            Self { tally: Tally::default(), now: crate::testing::start() }
        }

        /// So many requests alike.
        fn judge(&mut self, n: usize, confirmed: u32, missing: u32) {
            let subject = Subject { model: Model::OTHER, api: Api::Completions, keys: KeyKind::Plain };
            for _ in 0..n {
                let judged = Judged { subject, sent: self.now, confirmed, missing };
                self.tally.on_judged(&judged, self.now);
            }
        }

        fn label(&self) -> &'static str {
            self.tally.trust().label()
        }
    }

    #[test]
    fn trust_is_lost_near_nothing_and_with_enough_evidence() {
        // (requests, confirmed and missing of each) -> whether it is lost.
        for (n, confirmed, missing, lost) in [
            (31, 0, 32, false),
            (32, 0, 32, true),
            (32, 0, 6, false),
            (34, 0, 6, true),
            (64, 1, 10, true),
            (64, 1, 9, false),
            (64, 3, 3, false),
            (640, 1, 0, false),
        ] {
            let mut rig = Rig::new();
            rig.judge(n, confirmed, missing);
            assert_eq!(rig.tally.trust().is_good(), !lost, "{n} requests of {confirmed} and {missing}");
        }
    }

    #[test]
    fn a_part_of_wrong_requests_is_no_reason() {
        let mut rig = Rig::new();
        for _ in 0..1_000 {
            rig.judge(3, 0, 32);
            rig.judge(1, 32, 0);
        }
        assert_eq!(rig.label(), "trusted");
        assert!(rig.tally.evidence().share().unwrap() < 0.3);
    }

    #[test]
    fn trust_comes_back_with_the_blocks() {
        let mut rig = Rig::new();
        rig.judge(64, 0, 10);
        rig.judge(32, 10, 0);
        assert_eq!(rig.label(), "distrusted", "half is not enough");
        rig.judge(1, 10, 0);
        assert_eq!(rig.label(), "trusted");
        rig.judge(64, 0, 10);
        assert_eq!(rig.label(), "distrusted");
    }

    #[test]
    fn what_was_lost_is_tried_again_and_falls_sooner() {
        let mut rig = Rig::new();
        rig.judge(32, 0, 10);
        rig.now += LOST_FOR - Duration::from_millis(1);
        assert!(!rig.tally.on_time(rig.now));
        rig.now += Duration::from_millis(1);
        assert!(rig.tally.on_time(rig.now));
        assert_eq!((rig.label(), rig.tally.evidence()), ("on_trial", Evidence::default()));
        assert!(!rig.tally.on_time(rig.now), "said once");
        rig.judge(15, 0, 10);
        assert_eq!(rig.label(), "on_trial");
        rig.judge(1, 0, 10);
        assert_eq!(rig.label(), "distrusted");
        rig.now += LOST_FOR;
        assert!(rig.tally.on_time(rig.now));
        rig.judge(16, 10, 0);
        assert_eq!((rig.label(), rig.tally.totals().requests), ("trusted", 64));
    }

    #[test]
    fn what_was_sent_before_a_reset_does_not_count() {
        let mut rig = Rig::new();
        rig.tally.begin(Trust::Given, rig.now + Duration::from_millis(1));
        rig.judge(64, 0, 10);
        assert_eq!((rig.label(), rig.tally.totals().requests), ("trusted", 0));
        rig.now += Duration::from_millis(1);
        rig.judge(64, 0, 10);
        assert_eq!((rig.label(), rig.tally.totals().requests), ("distrusted", 64));
    }
}
