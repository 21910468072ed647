//! Counters. Every request ends in exactly one `(tier, reason)`.

use kvpick_core::health::Failure;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::Collector,
};

use crate::answers::Answers;

/// All metrics of the server.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Decisions by `tier` and `reason`.
    pub decisions: IntCounterVec,
    /// Seconds from the last byte of a request to its decision.
    pub decision_seconds: Histogram,
    /// Picks by `replica`.
    pub picks: IntCounterVec,
    /// Prompt tokens of requests whose prompt was made here.
    pub prompt_tokens: IntCounter,
    /// Of those, tokens that the picked replica's cache was expected to save.
    pub predicted_tokens: IntCounter,
    /// The same by `replica`.
    pub predicted_by_replica: IntCounterVec,
    /// Prompt tokens that a replica's engine found in its cache by its own count, whoever sent them, by `replica`.
    pub delivered_by_replica: IntCounterVec,
    /// Requests decided and not ended.
    pub in_flight: IntGauge,
    /// Failures of replicas that put them out, by `replica` and `how`.
    pub outs: IntCounterVec,
    /// Replicas that came back, by `replica`.
    pub returns: IntCounterVec,
    /// Agents' streams that ended, by `reason`.
    pub feed_closed: IntCounterVec,
    /// Descriptions of replicas that were refused, by `node`; `unknown` for nodes that have no replica here.
    pub feed_refused: IntCounterVec,
    /// Requests by `objective` (a configured name, `other` or `none`) and `tier`.
    pub objectives: IntCounterVec,
    /// Full copies applied, by `replica`.
    pub feed_copies: IntCounterVec,
    /// Whether a `model` makes prompts (1) or not (0).
    pub models_ready: IntGaugeVec,
    /// Reloads by `result`: `ok`, `failed` (of a model) or `refused` (the configuration).
    pub reloads: IntCounterVec,
    /// Blocks that requests should have left at their replicas, by `model`, `path`, `keys` and `result`.
    pub parity_blocks: IntCounterVec,
    /// Requests of which that was judged, by `model`, `path` and `keys`.
    pub parity_requests: IntCounterVec,
    /// Share of the blocks that came, of the latest requests, by the same.
    pub parity_share: GaugeVec,
    /// 1 where prompts are not thought to be those of the engines, by the same.
    pub parity_distrusted: IntGaugeVec,
    /// Requests whose prompt was wanted of another server, by `model` and `result`.
    pub remote_requests: IntCounterVec,
    /// Seconds until such a server has answered, or failed.
    pub remote_seconds: Histogram,
    /// Servers of prompts that failed too often and are left alone for a while, by `model`.
    pub remote_resting: IntGaugeVec,
    /// Streams with Envoy that ended with an error of ours or of the protocol.
    pub stream_errors: IntCounter,
    /// What came of decided requests.
    pub answers: Answers,
    /// Replicas that are pods, by `state`: `ready`, or `away`.
    pub members: IntGaugeVec,
    /// 1 while the API server can't be followed, or says something that makes no sense.
    pub kubernetes_problem: IntGauge,
}

impl Metrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// When a name is taken already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let reg = Registrar(registry);
        // From a memoized short prompt (0.2 ms) to the hard limit of a decision (0.5 s), a factor of about 2 apart.
        let buckets = prometheus::exponential_buckets(0.000_25, 2.0, 12)?;
        Ok(Self {
            answers: Answers::new(registry)?,
            members: reg.add(IntGaugeVec::new(
                Opts::new("kvpick_members", "Replicas that are pods, by whether they may be picked."),
                &["state"],
            )?)?,
            kubernetes_problem: reg.add(IntGauge::new(
                "kvpick_kubernetes_problem",
                "1 while the Kubernetes API server can't be followed; what was known stands.",
            )?)?,
            decisions: reg.counters("kvpick_decisions_total", "Requests decided.", &["tier", "reason"])?,
            decision_seconds: reg.add(Histogram::with_opts(
                HistogramOpts::new("kvpick_decision_seconds", "From a request's last byte to its decision.")
                    .buckets(buckets.clone()),
            )?)?,
            picks: reg.counters("kvpick_picks_total", "Requests sent to a replica.", &["replica"])?,
            prompt_tokens: reg.counter("kvpick_prompt_tokens_total", "Prompt tokens made here.")?,
            predicted_tokens: reg.counter(
                "kvpick_predicted_cached_tokens_total",
                "Prompt tokens that the picked replica's cache was expected to save.",
            )?,
            predicted_by_replica: reg.counters(
                "kvpick_replica_predicted_cached_tokens_total",
                "Prompt tokens that the replica's cache was expected to save.",
                &["replica"],
            )?,
            delivered_by_replica: reg.counters(
                "kvpick_replica_delivered_cached_tokens_total",
                "Prompt tokens that the replica found in its cache by its own count, whoever sent them.",
                &["replica"],
            )?,
            in_flight: reg
                .add(IntGauge::new("kvpick_requests_in_flight", "Requests decided and not ended.")?)?,
            outs: reg.counters("kvpick_replica_outs_total", "Replicas left out.", &["replica", "how"])?,
            returns: reg.counters(
                "kvpick_replica_returns_total",
                "Replicas that came back.",
                &["replica"],
            )?,
            feed_closed: reg.counters("kvpick_feed_closed_total", "Agents' streams ended.", &["reason"])?,
            feed_refused: reg.counters(
                "kvpick_feed_refused_total",
                "Replicas that an agent described and may not.",
                &["node"],
            )?,
            objectives: reg.counters(
                "kvpick_objective_decisions_total",
                "Requests decided, by what they are for.",
                &["objective", "tier"],
            )?,
            feed_copies: reg.counters("kvpick_feed_copies_total", "Full copies applied.", &["replica"])?,
            models_ready: reg.add(IntGaugeVec::new(
                Opts::new("kvpick_model_ready", "Whether a model's prompts are made here."),
                &["model"],
            )?)?,
            reloads: reg.counters(
                "kvpick_reloads_total",
                "Configuration and models read again.",
                &["result"],
            )?,
            parity_blocks: reg.counters(
                "kvpick_parity_blocks_total",
                "Blocks that requests should have left at the replicas they went to.",
                &["model", "path", "keys", "result"],
            )?,
            parity_requests: reg.counters(
                "kvpick_parity_requests_total",
                "Requests of which it was judged whether their blocks came.",
                &SUBJECT,
            )?,
            parity_share: reg.add(GaugeVec::new(
                Opts::new(
                    "kvpick_parity_share",
                    "Share of expected blocks that came, of the latest requests.",
                ),
                &SUBJECT,
            )?)?,
            parity_distrusted: reg.add(IntGaugeVec::new(
                Opts::new("kvpick_parity_distrusted", "1 where almost none of the expected blocks came."),
                &SUBJECT,
            )?)?,
            remote_requests: reg.counters(
                "kvpick_remote_requests_total",
                "Requests whose prompt was wanted of another server.",
                &["model", "result"],
            )?,
            remote_seconds: reg.add(Histogram::with_opts(
                HistogramOpts::new(
                    "kvpick_remote_seconds",
                    "Until another server has answered with a prompt.",
                )
                .buckets(buckets),
            )?)?,
            remote_resting: reg.add(IntGaugeVec::new(
                Opts::new(
                    "kvpick_remote_resting",
                    "Servers of prompts that failed too often and are left alone for a while.",
                ),
                &["model"],
            )?)?,
            stream_errors: reg.counter(
                "kvpick_ext_proc_errors_total",
                "Streams with Envoy that ended with an error other than its ordinary end.",
            )?,
        })
    }
}

impl Metrics {
    /// Drops what is counted of a replica that is gone: names of pods would pile up.
    pub fn forget(&self, replica: &str) {
        let counters = [
            &self.picks,
            &self.predicted_by_replica,
            &self.delivered_by_replica,
            &self.returns,
            &self.feed_copies,
        ];
        for counter in counters {
            // Not there if nothing was counted.
            counter.remove_label_values(&[replica]).ok();
        }
        for how in [Failure::Connection, Failure::Agent] {
            self.outs.remove_label_values(&[replica, how.label()]).ok();
        }
    }
}

/// Labels of whose parity it is.
const SUBJECT: [&str; 3] = ["model", "path", "keys"];

struct Registrar<'a>(&'a Registry);

impl Registrar<'_> {
    fn add<C: Collector + Clone + 'static>(&self, it: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(it.clone()))?;
        Ok(it)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::new(name, help)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }
}
