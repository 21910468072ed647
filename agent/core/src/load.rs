//! How busy an engine is, from the text of its Prometheus metrics.

use std::collections::BTreeSet;

use kvpick_proto::words::Load;

use crate::bounds::{MAX_LIST, fits};

/// What one scrape says of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// How busy it is; its age is 0.
    pub load: Load,
    /// Whether there was anything of vLLM's.
    pub is_vllm: bool,
    /// Whether the engine sleeps; `None` where it does not say (vLLM before 0.11.2).
    pub asleep: Option<bool>,
    /// Its cache.
    pub cache: CacheConfig,
    /// When its process began, Unix time in seconds; absent with several API servers.
    pub process_start: Option<f64>,
}

/// The labels of `vllm:cache_config_info` that matter here.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CacheConfig {
    /// Tokens in a block.
    pub block_size: Option<u32>,
    /// Tokens in a hashed block, where that is said (vLLM 0.32, for models with several groups).
    pub hash_block_size: Option<u32>,
    /// Physical blocks.
    pub num_gpu_blocks: Option<u64>,
    /// vLLM's name of the algorithm.
    pub algorithm: Option<String>,
    /// Whether there is a prefix cache at all.
    pub prefix_caching: Option<bool>,
}

/// One line.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl Sample<'_> {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(it, _)| *it == name).map(|(_, value)| value.as_str())
    }
}

impl Metrics {
    /// Reads the metrics of rank `rank`. Lines that are not understood are passed over, and what is not there
    /// counts as 0.
    ///
    /// The label `engine` names the rank. Where no series has that rank, but all have the same one, the process
    /// serves one rank and numbers it in its own way.
    #[must_use]
    pub fn parse(text: &str, rank: u32) -> Self {
        let mut samples: Vec<_> = text.lines().filter_map(sample).collect();
        // The names of vLLM before 0.12, which some versions show beside the new ones.
        if samples.iter().any(|it| it.name.starts_with("vllm:prefix_cache_")) {
            samples.retain(|it| !it.name.starts_with("vllm:gpu_prefix_cache_"));
        }
        let ranks: BTreeSet<_> = samples.iter().filter_map(|it| it.label("engine")).collect();
        let wanted = rank.to_string();
        let all = ranks.len() <= 1;
        let of_rank = |it: &&Sample<'_>| all || it.label("engine").is_none_or(|it| it == wanted);
        let mut metrics = Self::default();
        let mut adapters_at = f64::NEG_INFINITY;
        for sample in samples.iter().filter(of_rank) {
            metrics.is_vllm |= sample.name.starts_with("vllm:");
            metrics.take(sample, &mut adapters_at);
        }
        metrics
    }

    fn take(&mut self, sample: &Sample<'_>, adapters_at: &mut f64) {
        let load = &mut self.load;
        match sample.name {
            "vllm:num_requests_running" => load.running = load.running.saturating_add(count(sample)),
            "vllm:num_requests_waiting" => load.waiting = load.waiting.saturating_add(count(sample)),
            // The second name is that of vLLM before 0.12; both were there for a while.
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => {
                load.cache_use = load.cache_use.max((sample.value as f32).clamp(0.0, 1.0));
            }
            "vllm:prefix_cache_queries_total" | "vllm:gpu_prefix_cache_queries_total" => {
                load.prefix_queries = load.prefix_queries.saturating_add(whole(sample));
            }
            "vllm:prefix_cache_hits_total" | "vllm:gpu_prefix_cache_hits_total" => {
                load.prefix_hits = load.prefix_hits.saturating_add(whole(sample));
            }
            "vllm:time_to_first_token_seconds_sum" => {
                load.ttft_sum_s = (load.ttft_sum_s + sample.value.max(0.0)).min(f64::MAX);
            }
            "vllm:time_to_first_token_seconds_count" => {
                load.ttft_count = load.ttft_count.saturating_add(whole(sample));
            }
            // One series for each combination that ever was; the value is the time when it was.
            "vllm:lora_requests_info" if sample.value > *adapters_at => {
                *adapters_at = sample.value;
                load.running_adapters = names(sample.label("running_lora_adapters"));
                load.waiting_adapters = names(sample.label("waiting_lora_adapters"));
            }
            "vllm:engine_sleep_state" if sample.label("sleep_state") == Some("awake") => {
                self.asleep = Some(sample.value == 0.0);
            }
            "vllm:cache_config_info" => {
                self.cache = CacheConfig {
                    block_size: sample.label("block_size").and_then(|it| it.parse().ok()),
                    hash_block_size: sample.label("hash_block_size").and_then(|it| it.parse().ok()),
                    num_gpu_blocks: sample.label("num_gpu_blocks").and_then(|it| it.parse().ok()),
                    algorithm: sample
                        .label("prefix_caching_hash_algo")
                        .filter(|it| fits(it))
                        .map(str::to_owned),
                    prefix_caching: sample.label("enable_prefix_caching").map(|it| it == "True"),
                };
            }
            // What is no time would differ from itself.
            "process_start_time_seconds" => {
                self.process_start = Some(sample.value).filter(|it| it.is_finite())
            }
            _ => (),
        }
    }
}

/// A value as a whole number; what is negative or no number is 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and NaN is 0")]
const fn whole(sample: &Sample<'_>) -> u64 {
    sample.value as u64
}

/// As [`whole`], in 32 bits.
fn count(sample: &Sample<'_>) -> u32 {
    u32::try_from(whole(sample)).unwrap_or(u32::MAX)
}

fn names(list: Option<&str>) -> Vec<String> {
    let names = list.unwrap_or_default().split(',').map(str::trim);
    names.filter(|it| !it.is_empty() && fits(it)).take(MAX_LIST).map(str::to_owned).collect()
}

/// `name{label="value",…} value [time]`, if it is one.
fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    if !name.starts_with("vllm:") && name != "process_start_time_seconds" {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// The labels, and what comes after the closing brace.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.trim(), value));
        rest = &after[end + 1..];
    }
}
