//! The demo's figures, as a table for people and as JSON.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Serialize;

use crate::load::{client::Record, report};

/// All figures of a demo.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// What everything followed from.
    pub(super) seed: u64,
    /// Distinct blocks of the workload by all blocks of the fleet.
    pub(super) demand: f64,
    pub(super) serial: Serial,
    pub(super) round_robin: Phase,
    pub(super) kvpick: Phase,
}

/// One request at a time: does the engine find in its cache what kvpick said that it would?
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Serial {
    pub(super) requests: u64,
    /// Share of requests for which predicted and delivered tokens were equal.
    pub(super) exact_share: f64,
    exact: u64,
    predicted_tokens: u64,
    cached_tokens: u64,
    prompt_tokens: u64,
}

impl Serial {
    pub(super) fn add(&mut self, record: &Record, predicted: Option<u64>) {
        self.requests += 1;
        self.exact += u64::from(predicted == Some(record.cached_tokens));
        self.predicted_tokens += predicted.unwrap_or(0);
        self.cached_tokens += record.cached_tokens;
        self.prompt_tokens += record.prompt_tokens;
        self.exact_share = self.exact as f64 / self.requests as f64;
    }
}

/// All at once.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Phase {
    /// Cached prompt tokens by all prompt tokens, as the engines count them.
    pub(super) hit_rate: f64,
    pub(super) ttft_p50_ms: f64,
    pub(super) ttft_p90_ms: f64,
    pub(super) ttft_p99_ms: f64,
    pub(super) requests_per_replica: BTreeMap<String, u64>,
    /// Requests by what the choice was based on.
    pub(super) decisions: BTreeMap<String, u64>,
    /// Prompt tokens that kvpick expected in the cache of the replica that it chose.
    pub(super) predicted_tokens: u64,
    /// Prompt tokens that were there.
    pub(super) cached_tokens: u64,
    requests: u64,
    prompt_tokens: u64,
    duration_s: f64,
}

impl Phase {
    pub(super) fn new(
        report: report::Report,
        decisions: BTreeMap<String, u64>,
        records: &[Record],
        predicted: impl Fn(&Record) -> Option<u64>,
    ) -> Self {
        Self {
            hit_rate: report.hit_rate,
            ttft_p50_ms: report.ttft_p50_ms,
            ttft_p90_ms: report.ttft_p90_ms,
            ttft_p99_ms: report.ttft_p99_ms,
            requests_per_replica: report.requests_per_engine,
            decisions,
            predicted_tokens: records.iter().filter_map(predicted).sum(),
            cached_tokens: report.cached_tokens,
            requests: report.requests,
            prompt_tokens: report.prompt_tokens,
            duration_s: report.duration_s,
        }
    }
}

impl Report {
    /// The table that ends a demo.
    pub(super) fn table(&self) -> String {
        let (a, b) = (&self.round_robin, &self.kvpick);
        let mut out = format!("\n{:<26}{:>18}{:>18}{:>10}\n", "", "round robin", "kvpick", "ratio");
        let rows: [(&str, f64, f64, &str); 4] = [
            ("prefix hit rate", 100.0 * a.hit_rate, 100.0 * b.hit_rate, "%"),
            ("time to first token p50", a.ttft_p50_ms, b.ttft_p50_ms, "ms"),
            ("                    p90", a.ttft_p90_ms, b.ttft_p90_ms, "ms"),
            ("                    p99", a.ttft_p99_ms, b.ttft_p99_ms, "ms"),
        ];
        for (what, a, b, unit) in rows {
            let cell = |it: f64| format!("{it:.1} {unit}");
            row(&mut out, what, &cell(a), &cell(b), &format!("{:.2}", b / a.max(f64::MIN_POSITIVE)));
        }
        let spread = |it: &Phase| {
            let counts: Vec<_> = it.requests_per_replica.values().map(u64::to_string).collect();
            counts.join("/")
        };
        row(&mut out, "requests per replica", &spread(a), &spread(b), "");
        for (tier, n) in &b.decisions {
            row(&mut out, &format!("decisions: {tier}"), "-", &n.to_string(), "");
        }
        row(&mut out, "predicted cached tokens", "-", &b.predicted_tokens.to_string(), "");
        row(
            &mut out,
            "delivered cached tokens",
            &a.cached_tokens.to_string(),
            &b.cached_tokens.to_string(),
            "",
        );
        let serial = &self.serial;
        let _ = write!(
            out,
            "\none at a time: in {:.1} % of {} requests the engine found exactly what kvpick had predicted ({} and {} \
             tokens in all)\n",
            100.0 * serial.exact_share,
            serial.requests,
            serial.cached_tokens,
            serial.predicted_tokens,
        );
        out
    }
}

fn row(out: &mut String, what: &str, a: &str, b: &str, ratio: &str) {
    // Writing to a string can't fail.
    let _ = writeln!(out, "{what:<26}{a:>18}{b:>18}{ratio:>10}");
}

/// Tells whoever watches.
#[expect(clippy::print_stdout, reason = "a command's answer")]
pub(super) fn say(text: &str) {
    println!("{text}");
}
