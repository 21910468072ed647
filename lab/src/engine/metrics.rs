//! What the engine shows under vLLM's names.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{
    Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, TextEncoder,
};

use super::scheduler::{FinishReason, Limits, Produced, Scheduler, Totals};

/// Handles to one engine's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    usage: Gauge,
    queries: IntCounter,
    hits: IntCounter,
    generated: IntCounter,
    preemptions: IntCounter,
    time_to_first: Histogram,
    finished: IntCounterVec,
    /// Batches of events handed to the publisher: the next one has this number. Not vLLM's; tests wait by it.
    pub batches: IntCounter,
    /// What the counters were last set from.
    shown: Totals,
}

impl Metrics {
    /// Metrics of an engine that serves `model` and hashes blocks by `algorithm`.
    ///
    /// # Errors
    ///
    /// Never with the names given here.
    pub fn new(model: &str, limits: &Limits, algorithm: &str) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let make = Maker { registry: &registry, model };
        let time_to_first = Histogram::with_opts(
            HistogramOpts::from(
                make.opts("vllm:time_to_first_token_seconds", "Time to first token in seconds."),
            )
            .buckets(TIME_TO_FIRST_BUCKETS.to_vec()),
        )?;
        registry.register(Box::new(time_to_first.clone()))?;
        let finished = IntCounterVec::new(
            make.opts("vllm:request_success_total", "Finished requests."),
            &["finished_reason"],
        )?;
        registry.register(Box::new(finished.clone()))?;
        for reason in [FinishReason::Length, FinishReason::Stop] {
            finished.with_label_values(&[reason.as_str()]);
        }
        let sleep = GaugeVec::new(
            make.opts("vllm:engine_sleep_state", "1 for the state that the engine is in."),
            &["sleep_state"],
        )?;
        registry.register(Box::new(sleep.clone()))?;
        for (state, value) in [("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)] {
            sleep.with_label_values(&[state]).set(value);
        }
        make.cache_config(limits, algorithm)?;
        let start =
            Gauge::new("process_start_time_seconds", "Start time of the engine since 1970 in seconds.")?;
        start.set(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
        registry.register(Box::new(start))?;

        Ok(Self {
            batches: make.counter("lab:event_batches_total", "Event batches published.")?,
            running: make
                .gauge("vllm:num_requests_running", "Number of requests in model execution batches.")?,
            waiting: make
                .gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.")?,
            usage: {
                let usage =
                    Gauge::with_opts(make.opts("vllm:kv_cache_usage_perc", "Blocks in use, 0 to 1."))?;
                registry.register(Box::new(usage.clone()))?;
                usage
            },
            queries: make
                .counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.")?,
            hits: make.counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.")?,
            generated: make.counter("vllm:generation_tokens_total", "Tokens generated.")?,
            preemptions: make
                .counter("vllm:num_preemptions_total", "Running requests that lost their blocks.")?,
            time_to_first,
            finished,
            shown: Totals::default(),
            registry,
        })
    }

    /// Shows the scheduler's present state.
    pub fn show(&mut self, scheduler: &Scheduler) {
        self.running.set(i64::try_from(scheduler.running()).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(scheduler.waiting()).unwrap_or(i64::MAX));
        self.usage.set(scheduler.pool().usage());
        let (now, shown) = (scheduler.totals(), self.shown);
        self.queries.inc_by(now.prefix_queries - shown.prefix_queries);
        self.hits.inc_by(now.prefix_hits - shown.prefix_hits);
        self.generated.inc_by(now.generated - shown.generated);
        self.preemptions.inc_by(now.preemptions - shown.preemptions);
        self.shown = now;
    }

    /// Counts what a step produced.
    pub fn observe(&self, produced: &[Produced]) {
        for token in produced {
            if let Some(time) = token.time_to_first {
                self.time_to_first.observe(time.as_secs_f64());
            }
            if let Some(reason) = token.finish {
                self.finished.with_label_values(&[reason.as_str()]).inc();
            }
        }
    }

    /// All metrics in Prometheus' text format.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(%error, "metrics are incomplete");
        }
        text
    }
}

struct Maker<'a> {
    registry: &'a Registry,
    model: &'a str,
}

impl Maker<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).const_label("model_name", self.model).const_label("engine", ENGINE)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        let it = IntGauge::with_opts(self.opts(name, help))?;
        self.registry.register(Box::new(it.clone()))?;
        Ok(it)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        let it = IntCounter::with_opts(self.opts(name, help))?;
        self.registry.register(Box::new(it.clone()))?;
        Ok(it)
    }

    /// A gauge that says by its labels how the cache is set up.
    fn cache_config(&self, limits: &Limits, algorithm: &str) -> Result<(), prometheus::Error> {
        let labels = [
            ("block_size", limits.block_size.to_string()),
            ("cache_dtype", "auto".to_owned()),
            ("enable_prefix_caching", "True".to_owned()),
            ("engine", ENGINE.to_owned()),
            ("hash_block_size", "None".to_owned()),
            ("num_gpu_blocks", limits.num_blocks.to_string()),
            ("prefix_caching_hash_algo", algorithm.to_owned()),
        ];
        let opts = Opts::new("vllm:cache_config_info", "Information of the LLMEngine CacheConfig");
        let info = Gauge::with_opts(
            labels.into_iter().fold(opts, |opts, (name, value)| opts.const_label(name, value)),
        )?;
        info.set(1.0);
        self.registry.register(Box::new(info))
    }
}

/// Label of the only data-parallel rank.
const ENGINE: &str = "0";

/// vLLM's buckets, in seconds.
const TIME_TO_FIRST_BUCKETS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
