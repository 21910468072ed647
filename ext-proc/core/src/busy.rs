//! How busy a replica is: what its agent sampled, corrected by what was sent since.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use kvpick_proto::words::{InFlight, Load};

/// Starts and ends of requests are remembered for this long, to tell which of them a sample has seen.
const MEMORY: Duration = Duration::from_secs(5);

/// A sample older than this tells nothing.
const SAMPLE_HOLDS: Duration = Duration::from_secs(5);

/// How busy one replica is.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// Requests sent by this server and not ended.
    own: u32,
    /// Prefill work sent by this server, less what the engine should have done since. In tokens, as of `drained_at`.
    backlog: f64,
    drained_at: Option<Instant>,
    starts: VecDeque<Instant>,
    ends: VecDeque<Instant>,
    sample: Option<(Load, Instant)>,
    delivered: Delivered,
    others: InFlight,
    /// What `others` was when the sample was taken.
    others_at_sample: u32,
}

/// Tokens that a replica's engine looked up in its prefix cache, by its own count, since it was first heard of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Delivered {
    /// Looked up.
    pub queries: u64,
    /// Of those, found.
    pub hits: u64,
}

/// Estimate of a replica's load, in the units of the score.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Requests running or queued there, whoever sent them.
    pub requests: u32,
    /// Requests queued there at the last sample.
    pub waiting: u32,
    /// Prompt tokens sent there that are probably not prefilled yet.
    pub prefill_tokens: f64,
    /// Share of its blocks in use by running requests, 0 to 1.
    pub cache_use: f32,
}

/// From so many queued requests on a replica is saturated, and from that cache use on: another request would wait there,
/// or have others evicted. They are llm-d's usual bounds.
const SATURATED_WAITING: u32 = 5;
const SATURATED_CACHE_USE: f32 = 0.8;

impl Estimate {
    /// Whether what gives way should not go there. A replica of which no agent speaks is not.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        SATURATED_WAITING <= self.waiting || SATURATED_CACHE_USE <= self.cache_use
    }
}

impl Busy {
    /// A request is on its way there, with so many prompt tokens to prefill.
    pub fn on_start(&mut self, prefill_tokens: u64, rate: f64, now: Instant) {
        self.drain(rate, now);
        self.backlog += prefill_tokens as f64;
        self.own += 1;
        push(&mut self.starts, now);
    }

    /// A request that was sent there has ended, however.
    pub fn on_end(&mut self, now: Instant) {
        self.own = self.own.saturating_sub(1);
        if self.own == 0 {
            self.backlog = 0.0;
        }
        push(&mut self.ends, now);
    }

    /// The agent's sample.
    pub fn on_sample(&mut self, load: Load, now: Instant) {
        // An age from the other side that does not fit this clock is none.
        let taken = now.checked_sub(load.age).unwrap_or(now);
        if let Some((before, _)) = &self.sample {
            self.delivered.on_counts(before, &load);
        }
        self.others_at_sample = self.others.requests;
        self.sample = Some((load, taken));
    }

    /// The other servers' requests there.
    pub fn on_others(&mut self, others: InFlight) {
        self.others = others;
    }

    /// The agent is gone: its words hold no longer.
    pub fn forget_agent(&mut self) {
        self.sample = None;
        self.others = InFlight::default();
        self.others_at_sample = 0;
    }

    /// The engine is another one now: what was on its way to the old one is not here.
    pub fn on_restart(&mut self) {
        self.backlog = 0.0;
        self.forget_agent();
    }

    /// What this server has in flight there.
    #[must_use]
    pub fn own(&self, rate: f64, now: Instant) -> InFlight {
        InFlight { requests: self.own, uncached_prefill_tokens: self.backlog_at(rate, now) as u64 }
    }

    /// The last sample, if it still tells something.
    #[must_use]
    pub fn sample(&self, now: Instant) -> Option<&Load> {
        self.sample.as_ref().filter(|(_, taken)| now <= *taken + SAMPLE_HOLDS).map(|(load, _)| load)
    }

    /// What its cache has delivered; to be compared with what was predicted.
    #[must_use]
    pub const fn delivered(&self) -> Delivered {
        self.delivered
    }

    /// Whether a sample that was taken at that time or later, and still tells something, saw an empty queue.
    #[must_use]
    pub fn none_waited_since(&self, since: Instant, now: Instant) -> bool {
        let sample =
            self.sample.as_ref().filter(|(_, taken)| since <= *taken && now <= *taken + SAMPLE_HOLDS);
        sample.is_some_and(|(load, _)| load.waiting == 0)
    }

    /// The load there now, `rate` being the prefill speed of the engine in tokens per second.
    #[must_use]
    pub fn estimate(&self, rate: f64, now: Instant) -> Estimate {
        let known = self.own.saturating_add(self.others.requests);
        let prefill_tokens = self.backlog_at(rate, now) + self.others.uncached_prefill_tokens as f64;
        let Some((load, taken)) = self.sample.as_ref().filter(|(_, taken)| now <= *taken + SAMPLE_HOLDS)
        else {
            return Estimate { requests: known, prefill_tokens, ..Estimate::default() };
        };
        // Of what the sample counted, the part that no kvpick server sent: somebody else's, and still there.
        let since =
            |times: &VecDeque<Instant>| times.iter().rev().take_while(|it| *taken < **it).count() as u32;
        let own_then = self.own.saturating_add(since(&self.ends)).saturating_sub(since(&self.starts));
        let foreign = load
            .running
            .saturating_add(load.waiting)
            .saturating_sub(own_then.saturating_add(self.others_at_sample));
        Estimate {
            requests: known.saturating_add(foreign),
            waiting: load.waiting,
            prefill_tokens,
            cache_use: load.cache_use.clamp(0.0, 1.0),
        }
    }

    fn drain(&mut self, rate: f64, now: Instant) {
        self.backlog = self.backlog_at(rate, now);
        self.drained_at = Some(now);
    }

    fn backlog_at(&self, rate: f64, now: Instant) -> f64 {
        let elapsed = self.drained_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        (self.backlog - rate * elapsed.as_secs_f64()).max(0.0)
    }
}

impl Delivered {
    /// Counts that go back are those of another engine, of which this is where they begin.
    const fn on_counts(&mut self, before: &Load, now: &Load) {
        let queries = now.prefix_queries.checked_sub(before.prefix_queries);
        let hits = now.prefix_hits.checked_sub(before.prefix_hits);
        if let (Some(queries), Some(hits)) = (queries, hits) {
            self.queries = self.queries.saturating_add(queries);
            self.hits = self.hits.saturating_add(hits);
        }
    }
}

fn push(times: &mut VecDeque<Instant>, now: Instant) {
    times.push_back(now);
    while times.front().is_some_and(|it| *it + MEMORY < now) {
        times.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 1_000.0;

    fn load(running: u32, age_ms: u64) -> Load {
        Load { running, age: Duration::from_millis(age_ms), ..Load::default() }
    }

    #[test]
    fn what_was_sent_before_the_sample_is_not_counted_twice() {
        let start = crate::testing::start();
        let at = |ms| start + Duration::from_millis(ms);
        let mut busy = Busy::default();
        busy.on_start(100, RATE, at(0));
        busy.on_start(100, RATE, at(100));
        // Taken at 200: both of ours and two of somebody else.
        busy.on_sample(load(4, 50), at(250));
        assert_eq!(busy.estimate(RATE, at(260)).requests, 4);
        busy.on_start(100, RATE, at(300));
        assert_eq!(busy.estimate(RATE, at(300)).requests, 5);
        busy.on_end(at(350));
        busy.on_end(at(360));
        assert_eq!(busy.estimate(RATE, at(400)).requests, 3, "one of ours, two of somebody else");
    }

    #[test]
    fn a_sample_of_any_size_is_no_harm() {
        let now = crate::testing::start();
        let mut busy = Busy::default();
        busy.on_start(u64::MAX, RATE, now);
        busy.on_sample(Load { running: u32::MAX, waiting: u32::MAX, cache_use: f32::NAN, ..load(0, 0) }, now);
        let all = u32::MAX;
        busy.on_others(InFlight { requests: all, uncached_prefill_tokens: u64::MAX });
        assert_eq!(busy.estimate(RATE, now).requests, all);
    }

    #[test]
    fn what_a_cache_delivers_is_the_growth_of_its_counts() {
        let now = crate::testing::start();
        let mut busy = Busy::default();
        let count = |busy: &mut Busy, prefix_queries, prefix_hits| {
            busy.on_sample(Load { prefix_queries, prefix_hits, ..Load::default() }, now);
            let Delivered { queries, hits } = busy.delivered();
            (queries, hits)
        };
        assert_eq!(count(&mut busy, 1_000, 500), (0, 0), "before this server was there");
        assert_eq!(count(&mut busy, 1_300, 600), (300, 100));
        assert_eq!(count(&mut busy, 200, 50), (300, 100), "another engine");
        assert_eq!(count(&mut busy, 250, 60), (350, 110));
        busy.on_restart();
        assert_eq!(count(&mut busy, 900, 900), (350, 110));
        assert_eq!(count(&mut busy, u64::MAX, u64::MAX).0, u64::MAX - 900 + 350);
    }

    #[test]
    fn an_old_sample_is_no_word() {
        let start = crate::testing::start();
        let mut busy = Busy::default();
        busy.on_sample(load(9, 0), start);
        assert_eq!(busy.estimate(RATE, start + Duration::from_secs(5)).requests, 9);
        assert_eq!(busy.estimate(RATE, start + Duration::from_secs(6)).requests, 0);
    }

    #[test]
    fn prefill_work_drains_and_never_goes_below_nothing() {
        let start = crate::testing::start();
        let mut busy = Busy::default();
        busy.on_start(1_500, RATE, start);
        let left = |busy: &Busy, ms| busy.estimate(RATE, start + Duration::from_millis(ms)).prefill_tokens;
        assert!((left(&busy, 500) - 1_000.0).abs() < 1e-6);
        assert!(left(&busy, 60_000) < 1e-6);
        busy.on_end(start + Duration::from_millis(100));
        assert!(left(&busy, 100) < 1e-6, "nothing of ours is there");
    }
}
