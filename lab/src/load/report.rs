//! What a run amounted to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::client::Record;

/// Figures of a run. Tokens and times are of the requests that succeeded.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Report {
    /// Requests sent.
    pub requests: u64,
    /// Of those, failed.
    pub failures: u64,
    /// Cached prompt tokens by all prompt tokens, 0 to 1.
    pub hit_rate: f64,
    /// Sum of prompt tokens.
    pub prompt_tokens: u64,
    /// Sum of prompt tokens that were cached.
    pub cached_tokens: u64,
    /// Sum of generated tokens.
    pub completion_tokens: u64,
    /// Time to the first piece of text, in milliseconds: half of the requests were at most that slow.
    pub ttft_p50_ms: f64,
    /// Likewise nine in ten.
    pub ttft_p90_ms: f64,
    /// Likewise 99 in a hundred.
    pub ttft_p99_ms: f64,
    /// Requests that each engine answered, by what it calls itself.
    pub requests_per_engine: BTreeMap<String, u64>,
    /// Failures by what went wrong.
    pub errors: BTreeMap<String, u64>,
    /// From the first request to the end of the last, in seconds.
    pub duration_s: f64,
}

impl Report {
    /// The figures of these requests.
    #[must_use]
    pub fn of(records: &[Record], duration_s: f64) -> Self {
        let mut it = Self { requests: records.len() as u64, duration_s, ..Self::default() };
        let mut times = Vec::new();
        for record in records {
            if let Some(engine) = record.engine() {
                *it.requests_per_engine.entry(engine.to_owned()).or_default() += 1;
            }
            if let Some(error) = &record.error {
                it.failures += 1;
                *it.errors.entry(error.clone()).or_default() += 1;
                continue;
            }
            it.prompt_tokens += record.prompt_tokens;
            it.cached_tokens += record.cached_tokens;
            it.completion_tokens += record.completion_tokens;
            times.extend(record.ttft_ms);
        }
        times.sort_by(f64::total_cmp);
        it.hit_rate = it.cached_tokens as f64 / it.prompt_tokens.max(1) as f64;
        it.ttft_p50_ms = percentile(&times, 50);
        it.ttft_p90_ms = percentile(&times, 90);
        it.ttft_p99_ms = percentile(&times, 99);
        it
    }
}

/// The smallest value that at least `percent` of a hundred do not exceed; 0 of nothing.
#[must_use]
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!([50, 90, 99].map(|percent| percentile(&values, percent)), [5.0, 9.0, 10.0]);
        assert_eq!(percentile(&[], 50), 0.0);
        assert_eq!(percentile(&[3.0], 1), 3.0);
    }

    #[test]
    fn failures_count_as_requests_and_nothing_else() {
        let good = Record {
            prompt_tokens: 100,
            cached_tokens: 80,
            ttft_ms: Some(5.0),
            headers: BTreeMap::from([("x-lab-engine".to_owned(), "a".to_owned())]),
            ..Record::default()
        };
        let bad = Record { error: Some("gone".to_owned()), ttft_ms: Some(900.0), ..good.clone() };
        let report = Report::of(&[good, bad], 1.0);
        assert_eq!((report.requests, report.failures, report.prompt_tokens), (2, 1, 100));
        assert!((report.hit_rate - 0.8).abs() < 1e-9);
        assert_eq!(report.ttft_p99_ms, 5.0);
        assert_eq!(report.requests_per_engine["a"], 2);
        assert_eq!(report.errors["gone"], 1);
    }
}
