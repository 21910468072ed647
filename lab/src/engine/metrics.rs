//! What the engine shows under vLLM's names.

use std::{
    collections::BTreeSet,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus::{
    Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, TextEncoder, core::Collector,
};

use super::{
    limits::Limits,
    request::{FinishReason, Produced},
    scheduler::{Scheduler, Totals},
    version::Version,
};

/// The metrics of all ranks, as `/metrics` shows them.
#[derive(Clone, Debug)]
pub struct Page {
    registry: Registry,
    model: String,
    limits: Limits,
    algorithm: String,
    adapters: Option<Adapters>,
}

/// Which adapters are in use: one series for each combination that ever was, with the time when it was last. Not by
/// rank, as in vLLM.
#[derive(Clone, Debug)]
struct Adapters {
    gauge: GaugeVec,
    count: usize,
}

impl Page {
    /// Metrics of an engine that serves `model` with so many adapters, hashes blocks by `algorithm`, and starts now.
    ///
    /// # Errors
    ///
    /// Never with the names given here.
    pub fn new(
        model: &str,
        limits: &Limits,
        algorithm: &str,
        adapter_count: usize,
    ) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let start =
            Gauge::new("process_start_time_seconds", "Start time of the engine since 1970 in seconds.")?;
        start.set(now());
        registry.register(Box::new(start))?;
        let gauge = GaugeVec::new(
            Opts::new("vllm:lora_requests_info", "Running stats on lora requests."),
            &["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )?;
        registry.register(Box::new(gauge.clone()))?;
        Ok(Self {
            registry,
            model: model.to_owned(),
            limits: *limits,
            algorithm: algorithm.to_owned(),
            adapters: (0 < adapter_count).then_some(Adapters { gauge, count: adapter_count }),
        })
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

    fn add<T: Collector + Clone + 'static>(&self, metric: T) -> Result<T, prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}

impl Adapters {
    fn show(&self, scheduler: &Scheduler) {
        let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(",");
        let [running, waiting] = scheduler.adapters().map(list);
        self.gauge.with_label_values(&[&self.count.to_string(), &running, &waiting]).set(now());
    }
}

/// Handles to the metrics of one rank.
#[derive(Clone, Debug)]
pub struct Metrics {
    running: IntGauge,
    waiting: IntGauge,
    waiting_for_capacity: Option<IntGauge>,
    /// Under each of its names.
    usage: Vec<Gauge>,
    queries: Vec<IntCounter>,
    hits: Vec<IntCounter>,
    generated: IntCounter,
    preemptions: IntCounter,
    time_to_first: Histogram,
    finished: IntCounterVec,
    sleep: GaugeVec,
    /// Batches of events handed to the publisher: the next one has this number. Not vLLM's; tests wait by it.
    pub batches: IntCounter,
    adapters: Option<Adapters>,
    /// What the counters were last set from.
    shown: Totals,
}

impl Metrics {
    /// Metrics of that data-parallel rank.
    ///
    /// # Errors
    ///
    /// A rank that is on the page already.
    pub fn new(page: &Page, rank: u32) -> Result<Self, prometheus::Error> {
        let make = Maker { page, engine: rank.to_string(), version: page.limits.version };
        let time_to_first = HistogramOpts::from(
            make.opts("vllm:time_to_first_token_seconds", "Time to first token in seconds."),
        )
        .buckets(TIME_TO_FIRST_BUCKETS.to_vec());
        let success = make.opts("vllm:request_success_total", "Finished requests.");
        let sleep = make.opts("vllm:engine_sleep_state", "1 for the state that the engine is in.");
        let it = Self {
            batches: make.counter("lab:event_batches_total", "Event batches published.")?,
            running: make
                .gauge("vllm:num_requests_running", "Number of requests in model execution batches.")?,
            waiting: make
                .gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.")?,
            waiting_for_capacity: make.waiting_by_reason()?,
            usage: {
                let names = make.cache_names("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc");
                let usages =
                    names.map(|name| page.add(Gauge::with_opts(make.opts(name, "Blocks in use, 0 to 1."))?));
                usages.collect::<Result<_, _>>()?
            },
            queries: make.counters(
                ["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"],
                "Tokens looked up in the prefix cache.",
            )?,
            hits: make.counters(
                ["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"],
                "Tokens found in the prefix cache.",
            )?,
            generated: make.counter("vllm:generation_tokens_total", "Tokens generated.")?,
            preemptions: make
                .counter("vllm:num_preemptions_total", "Running requests that lost their blocks.")?,
            time_to_first: page.add(Histogram::with_opts(time_to_first)?)?,
            finished: page.add(IntCounterVec::new(success, &["finished_reason"])?)?,
            sleep: page.add(GaugeVec::new(sleep, &["sleep_state"])?)?,
            adapters: page.adapters.clone(),
            shown: Totals::default(),
        };
        make.cache_config()?;
        for reason in [FinishReason::Length, FinishReason::Stop] {
            it.finished.with_label_values(&[reason.as_str()]);
        }
        it.show_sleep(None);
        Ok(it)
    }

    /// Shows the scheduler's present state.
    pub fn show(&mut self, scheduler: &Scheduler) {
        self.running.set(i64::try_from(scheduler.running()).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(scheduler.waiting()).unwrap_or(i64::MAX));
        if let Some(waiting) = &self.waiting_for_capacity {
            waiting.set(self.waiting.get());
        }
        if let Some(adapters) = &self.adapters {
            adapters.show(scheduler);
        }
        self.usage.iter().for_each(|it| it.set(scheduler.pool().usage()));
        let (now, shown) = (scheduler.totals(), self.shown);
        self.queries.iter().for_each(|it| it.inc_by(now.prefix_queries - shown.prefix_queries));
        self.hits.iter().for_each(|it| it.inc_by(now.prefix_hits - shown.prefix_hits));
        self.generated.inc_by(now.generated - shown.generated);
        self.preemptions.inc_by(now.preemptions - shown.preemptions);
        self.shown = now;
    }

    /// Shows how deep it sleeps: at level 1 its weights are elsewhere, at level 2 nowhere.
    pub fn show_sleep(&self, level: Option<u32>) {
        let states = [
            ("awake", level.is_none()),
            ("weights_offloaded", level == Some(1)),
            ("discard_all", level == Some(2)),
        ];
        for (state, is_it) in states {
            self.sleep.with_label_values(&[state]).set(f64::from(u8::from(is_it)));
        }
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
}

struct Maker<'a> {
    page: &'a Page,
    engine: String,
    version: Version,
}

impl Maker<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).const_label("model_name", &self.page.model).const_label("engine", &self.engine)
    }

    /// The present name, and the old one where the version still has it.
    fn cache_names<'n>(&self, name: &'n str, old: &'n str) -> impl Iterator<Item = &'n str> + use<'n> {
        std::iter::once(name).chain(self.version.has_gpu_names().then_some(old))
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.page.add(IntGauge::with_opts(self.opts(name, help))?)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.page.add(IntCounter::with_opts(self.opts(name, help))?)
    }

    fn counters(&self, [name, old]: [&str; 2], help: &str) -> Result<Vec<IntCounter>, prometheus::Error> {
        self.cache_names(name, old).map(|name| self.counter(name, help)).collect()
    }

    /// Nothing is ever deferred here, so all wait for capacity.
    fn waiting_by_reason(&self) -> Result<Option<IntGauge>, prometheus::Error> {
        if !self.version.counts_waiting_by_reason() {
            return Ok(None);
        }
        let name = "vllm:num_requests_waiting_by_reason";
        let of = |reason: &str| {
            let opts = self.opts(name, "Number of requests waiting, by reason.");
            self.page.add(IntGauge::with_opts(opts.const_label("reason", reason))?)
        };
        of("deferred")?;
        of("capacity").map(Some)
    }

    /// A gauge that says by its labels how the cache is set up.
    fn cache_config(&self) -> Result<(), prometheus::Error> {
        let limits = &self.page.limits;
        let mut labels = vec![
            ("block_size", limits.block_size.to_string()),
            ("cache_dtype", "auto".to_owned()),
            ("enable_prefix_caching", "True".to_owned()),
            ("engine", self.engine.clone()),
            ("num_gpu_blocks", limits.num_blocks.to_string()),
            ("prefix_caching_hash_algo", self.page.algorithm.clone()),
        ];
        if self.version == Version::V0_32 {
            labels.push(("hash_block_size", "None".to_owned()));
        }
        let opts = Opts::new("vllm:cache_config_info", "Information of the LLMEngine CacheConfig");
        let info = Gauge::with_opts(
            labels.into_iter().fold(opts, |opts, (name, value)| opts.const_label(name, value)),
        )?;
        info.set(1.0);
        self.page.add(info).map(drop)
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// vLLM's buckets, in seconds.
const TIME_TO_FIRST_BUCKETS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
