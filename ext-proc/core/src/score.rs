//! What it would cost to send a request to a replica, in prompt tokens that somebody must wait for.

use crate::busy::Estimate;

/// The prices in a score. Everything is expressed in prompt tokens of prefill work, the unit in which a cache hit
/// pays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Prefill speed of one replica, in tokens per second: how fast work in flight drains. A guess that is too low
    /// spreads requests wider, one that is too high lets them pile up on the holder of a prefix.
    pub prefill_rate: f64,
    /// For each request that runs there: it shares every step with this one.
    pub per_request: f64,
    /// For each request that queues there: its prefill comes first.
    pub per_waiting: f64,
    /// For each uncached token, times the share of the replica's cache that is filled: it pushes out another one's.
    pub per_eviction: f64,
    /// Added, times the square of the cache use beyond 80 %: a replica whose running requests fill its cache must
    /// preempt.
    pub when_full: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            prefill_rate: 10_000.0,
            per_request: 48.0,
            per_waiting: 512.0,
            per_eviction: 0.25,
            when_full: 100_000.0,
        }
    }
}

/// What one replica offers to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offer {
    /// Tokens of the request's prompts, all together.
    pub prompt_tokens: u64,
    /// Tokens that its cache saves, weighed by tier and by how far the knowledge is trusted.
    pub saved_tokens: f64,
    /// Share of its physical blocks that hold something, 0 to 1.
    pub fill: f64,
    /// Its load.
    pub load: Estimate,
}

impl Weights {
    /// The cost; less is better. Finite and not negative.
    #[must_use]
    pub fn cost(&self, offer: &Offer) -> f64 {
        let uncached = (offer.prompt_tokens as f64 - offer.saved_tokens).max(0.0);
        let crowding = f64::from(offer.load.cache_use - 0.8).max(0.0);
        uncached
            + uncached * offer.fill.clamp(0.0, 1.0) * self.per_eviction
            + offer.load.prefill_tokens
            + f64::from(offer.load.requests) * self.per_request
            + f64::from(offer.load.waiting) * self.per_waiting
            + crowding * crowding * self.when_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(saved_tokens: f64, requests: u32, prefill_tokens: f64) -> f64 {
        let load = Estimate { requests, prefill_tokens, ..Estimate::default() };
        Weights::default().cost(&Offer { prompt_tokens: 2_000, saved_tokens, fill: 0.5, load })
    }

    #[test]
    fn a_hit_is_worth_a_few_more_requests_but_not_any_number() {
        assert!(cost(1_600.0, 4, 0.0) < cost(0.0, 0, 0.0));
        assert!(cost(0.0, 0, 0.0) < cost(1_600.0, 60, 0.0));
    }

    #[test]
    fn a_short_shared_prefix_does_not_outweigh_a_queue() {
        assert!(cost(0.0, 0, 0.0) < cost(200.0, 8, 4_000.0));
    }

    #[test]
    fn with_nothing_cached_the_idle_one_is_cheaper() {
        assert!(cost(0.0, 0, 0.0) < cost(0.0, 1, 0.0));
    }
}
