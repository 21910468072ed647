//! What decisions are weighed by: time, prices and memory.

use std::time::Duration;

use kvpick_core::{replicas::Memory, score::Weights};
use serde::{Deserialize, Serialize};

/// How long a decision may take before the request goes by load: at most
/// `base_ms + share_of_prefill x (estimated prefill time of the prompt)`, at most `max_ms`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetConfig {
    /// In milliseconds, for any prompt.
    pub base_ms: u64,
    /// Share of the time that the engine would need to prefill the whole prompt: what a hit can save at most.
    pub share_of_prefill: f64,
    /// In milliseconds. Keep it below half of the filter's `message_timeout`.
    pub max_ms: u64,
    /// In milliseconds; in place of `max_ms` in `FULL_DUPLEX_STREAMED`, where Envoy has no clock of its own.
    pub full_duplex_ms: u64,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self { base_ms: 20, share_of_prefill: 0.1, max_ms: 300, full_duplex_ms: 500 }
    }
}

/// How cache hits are weighed against load; see `kvpick_core::score`. All prices are in prompt tokens.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoreConfig {
    /// Prefill speed of one replica, in tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Price of each request that runs on a replica.
    pub per_request: f64,
    /// Price of each request that queues there.
    pub per_waiting: f64,
    /// Price of each uncached token, times the share of the replica's cache that is filled.
    pub per_eviction: f64,
    /// Price of a cache that running requests fill beyond 80 %, times the square of what is beyond.
    pub when_full: f64,
}

impl Default for ScoreConfig {
    fn default() -> Self {
        let Weights { prefill_rate, per_request, per_waiting, per_eviction, when_full } = Weights::default();
        Self { prefill_tokens_per_second: prefill_rate, per_request, per_waiting, per_eviction, when_full }
    }
}

impl From<ScoreConfig> for Weights {
    fn from(it: ScoreConfig) -> Self {
        Self {
            prefill_rate: it.prefill_tokens_per_second,
            per_request: it.per_request,
            per_waiting: it.per_waiting,
            per_eviction: it.per_eviction,
            when_full: it.when_full,
        }
    }
}

/// How long it is remembered what was sent where.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// In seconds: for replicas whose events do not tell all.
    pub routed_expiry_s: u64,
    /// In seconds: for blocks that events should soon confirm.
    pub expected_expiry_s: u64,
    /// Most blocks remembered per replica, about 60 bytes each.
    pub blocks_per_replica: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        let Memory { routed_expiry, expected_expiry, bound } = Memory::default();
        Self {
            routed_expiry_s: routed_expiry.as_secs(),
            expected_expiry_s: expected_expiry.as_secs(),
            blocks_per_replica: bound,
        }
    }
}

impl From<MemoryConfig> for Memory {
    fn from(it: MemoryConfig) -> Self {
        Self {
            routed_expiry: Duration::from_secs(it.routed_expiry_s),
            expected_expiry: Duration::from_secs(it.expected_expiry_s),
            bound: it.blocks_per_replica,
        }
    }
}
