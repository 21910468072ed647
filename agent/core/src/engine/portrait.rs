//! What is true of an engine apart from its blocks and its load, put together from all that shows it.

use std::time::{Duration, Instant};

use kvpick_proto::words::{Adapter, Completeness, Description, EngineStatus, Events, Group, Tier};

use super::{Config, PATIENCE};
use crate::{
    bounds::{MAX_LIST, fits},
    decode::Stored,
    domain::{Fit, Learnt, Naming},
    load::Metrics,
    mirror::MAX_GROUPS,
    sequence::Why,
    translate::is_dense_kind,
};

/// Tokens looked up in the engine's cache, and not found there, that show with no event heard that it announces
/// nothing: several requests with several blocks each.
const UNANNOUNCED_TOKENS: u64 = 4_096;

/// How long an engine whose API does not answer is not described: until its metrics tell who it is it would look like
/// another engine, and servers would forget what they know.
const DESCRIBE_AFTER: Duration = Duration::from_secs(2);

/// What an engine's `/v1/models` says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Models {
    /// Names of base models.
    pub models: Vec<String>,
    /// Adapters.
    pub adapters: Vec<Adapter>,
    /// In tokens; 0 when unknown.
    pub max_model_len: u32,
}

/// Keeps an engine's description.
#[derive(Debug)]
pub(super) struct Portrait {
    description: Description,
    /// Whether it can be described: its metrics were had, or could not be had for a while.
    describable: bool,
    /// Until when it is not described though its API does not answer; and whether it was asked.
    describe_at: Instant,
    was_asked: bool,
    naming: Naming,
    is_naming_new: bool,
    /// Since when its metrics can't be had.
    failing: Option<Instant>,
    /// Texts left out for their length, and lists cut.
    long_texts: u64,
    /// Tokens not found in its cache when events were awaited for the first time.
    unannounced: Option<u64>,
}

impl Portrait {
    pub(super) fn new(config: &Config, now: Instant, unix_ms: u64) -> Self {
        let description = Description {
            name: config.name,
            incarnation: String::new(),
            events: if config.events { Events::Awaited } else { Events::Off },
            models: Vec::new(),
            adapters: Vec::new(),
            domain: None,
            key_kinds: Vec::new(),
            completeness: Completeness::PartialSince { unix_ms },
            num_gpu_blocks: 0,
            groups: Vec::new(),
            max_model_len: 0,
            hit_blocks_dropped: 0,
            status: EngineStatus::Down,
            status_reason: "not asked yet".to_owned(),
            engine_version: String::new(),
            rank_by_header: config.rank_by_header,
            tier_weights: config.tier_weights.to_vec(),
        };
        let naming = Naming::new(&config.roots);
        let mut it = Self {
            description,
            describable: false,
            describe_at: now + DESCRIBE_AFTER,
            was_asked: false,
            naming,
            is_naming_new: true,
            failing: None,
            long_texts: 0,
            unannounced: None,
        };
        it.settle();
        it
    }

    pub(super) const fn description(&self) -> &Description {
        &self.description
    }

    pub(super) const fn is_describable(&self) -> bool {
        self.describable
    }

    /// When it is described however little is known.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.was_asked && !self.describable).then_some(self.describe_at)
    }

    pub(super) fn on_time(&mut self, now: Instant) {
        self.describable |= self.due().is_some_and(|at| at <= now);
    }

    pub(super) const fn long_texts(&self) -> u64 {
        self.long_texts
    }

    /// Takes what the naming has found out since into the description.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.is_naming_new) {
            self.description.domain = self.naming.domain();
            self.description.key_kinds = self.naming.key_kinds();
            if self.naming.is_translating() {
                self.description.groups.retain(|it| is_dense_kind(&it.kind));
            }
        }
    }

    pub(super) const fn naming(&self) -> &Naming {
        &self.naming
    }

    pub(super) const fn naming_mut(&mut self) -> &mut Naming {
        &mut self.naming
    }

    /// What was known of its blocks is given up; it may be another process now.
    pub(super) fn on_reset(&mut self, why: Why) {
        if matches!(why, Why::Restarted | Why::Unproven) {
            // It may be another engine now, with other groups.
            self.description.groups.clear();
            self.naming.on_new_process();
            self.is_naming_new = true;
        }
    }

    pub(super) fn learnt(&self) -> Option<Learnt> {
        self.naming.learnt()
    }

    pub(super) fn recall(&mut self, learnt: Learnt) {
        self.naming.recall(learnt);
        self.is_naming_new = true;
        self.settle();
    }

    pub(super) fn set_groups(&mut self, groups: Vec<Group>) {
        self.description.groups = groups;
    }

    pub(super) const fn set_completeness(&mut self, completeness: Completeness) {
        self.description.completeness = completeness;
    }

    // === Events ===

    pub(super) fn on_connected(&mut self) {
        if self.description.events != Events::Live {
            self.description.events = Events::Awaited;
        }
    }

    pub(super) fn on_heard(&mut self) {
        self.unannounced = None;
        self.description.events = Events::Live;
    }

    pub(super) fn on_unavailable(&mut self, reason: String, remedy: String) {
        self.description.events = Events::Unavailable { reason, remedy };
    }

    pub(super) fn on_stored(&mut self, stored: &Stored) -> Fit {
        let fit = self.naming.on_stored(stored);
        self.is_naming_new |= fit != Fit::Untestable;
        self.note_group(stored);
        fit
    }

    fn note_group(&mut self, stored: &Stored) {
        // A connector's placeholders say nothing of the group.
        if stored.tokens.is_empty() || stored.tier.is_some_and(|it| it != Tier::Gpu) {
            return;
        }
        let index = stored.group.unwrap_or(0);
        if index >= MAX_GROUPS {
            return;
        }
        let kind = stored.kind.as_deref().unwrap_or_default();
        // Blocks of others get no names, so that they must not decide a hit.
        if self.naming.is_translating() && !is_dense_kind(kind) {
            return;
        }
        let kind = if self.take(kind) { kind.to_owned() } else { String::new() };
        let group = Group {
            index,
            kind,
            block_size: stored.block_size,
            sliding_window: stored.sliding_window.unwrap_or(0),
        };
        let groups = &mut self.description.groups;
        let at = match groups.binary_search_by_key(&group.index, |it| it.index) {
            Ok(at) => at,
            Err(at) => return groups.insert(at, group),
        };
        // What is known stays, but for the size: some groups announce parts of blocks, which are smaller.
        let known = &mut groups[at];
        if known.kind.is_empty() {
            known.kind = group.kind;
        }
        if known.sliding_window == 0 {
            known.sliding_window = group.sliding_window;
        }
        known.block_size = known.block_size.max(group.block_size);
    }

    /// Whether a text of the engine's is taken; one that is not is counted.
    fn take(&mut self, text: &str) -> bool {
        let taken = fits(text);
        self.long_texts += u64::from(!taken);
        taken
    }

    // === The engine's API ===

    /// Returns whether these are metrics of a vLLM.
    pub(super) fn on_metrics(&mut self, metrics: &Metrics) -> bool {
        self.describable = true;
        self.failing = None;
        self.naming.on_make(!metrics.is_vllm);
        self.is_naming_new = true;
        let description = &mut self.description;
        if !metrics.is_vllm {
            description.status = EngineStatus::Foreign;
            "its /metrics has nothing of vLLM's".clone_into(&mut description.status_reason);
            self.settle();
            return false;
        }
        description.status =
            if metrics.asleep == Some(true) { EngineStatus::Asleep } else { EngineStatus::Up };
        description.status_reason.clear();
        if let Some(start) = metrics.process_start {
            description.incarnation = format!("started-{start}");
        }
        if let Some(blocks) = metrics.cache.num_gpu_blocks {
            description.num_gpu_blocks = blocks;
        }
        self.naming.on_cache_config(metrics.cache.algorithm.as_deref(), metrics.cache.block_size);
        self.naming.on_hash_block_size(metrics.cache.hash_block_size);
        self.watch_silence(metrics);
        self.settle();
        true
    }

    /// An engine without events looks like an idle one, but for its own counters.
    fn watch_silence(&mut self, metrics: &Metrics) {
        if metrics.cache.prefix_caching == Some(false) && self.description.events != Events::Off {
            return self.on_unavailable(
                "its prefix cache is switched off".to_owned(),
                "start it with --enable-prefix-caching".to_owned(),
            );
        }
        if self.description.events != Events::Awaited {
            return;
        }
        let missed = metrics.load.prefix_queries.saturating_sub(metrics.load.prefix_hits);
        let since = *self.unannounced.get_or_insert(missed);
        if missed.saturating_sub(since) >= UNANNOUNCED_TOKENS {
            self.on_unavailable(
                "it serves requests and announces no blocks".to_owned(),
                "start it with the flags that `kvpick-agent engine-args` prints".to_owned(),
            );
        }
    }

    /// Returns whether it counts as down now: at once where nothing listens, else after a while, since a busy
    /// engine may be slow to answer.
    pub(super) fn on_scrape_failed(&mut self, reason: String, refused: bool, now: Instant) -> bool {
        self.was_asked = true;
        let since = *self.failing.get_or_insert(now);
        let is_down = refused || !self.describable || since + PATIENCE <= now;
        if is_down {
            self.description.status = EngineStatus::Down;
            self.description.status_reason = reason;
        }
        is_down
    }

    pub(super) fn on_models(&mut self, mut models: Models) {
        models.models.retain(|it| self.take(it));
        models.adapters.retain(|it| self.take(&it.name) && self.take(&it.path));
        self.long_texts += u64::from(models.models.len().max(models.adapters.len()) > MAX_LIST);
        models.models.truncate(MAX_LIST);
        models.adapters.truncate(MAX_LIST);
        self.naming.on_adapters(&models.adapters);
        self.description.models = models.models;
        self.description.adapters = models.adapters;
        self.description.max_model_len = models.max_model_len;
    }

    pub(super) fn on_version(&mut self, version: String) {
        let version = if self.take(&version) { version } else { String::new() };
        self.naming.on_version(&version);
        self.description.engine_version = version;
        self.is_naming_new = true;
        self.settle();
    }
}
