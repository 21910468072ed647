//! What is kept of earlier requests, so that nothing is encoded or hashed twice: one cache for all models, bounded in
//! bytes. What it may be used for is [`kvpick_core::memo`]'s to say.

use std::{
    hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kvpick_core::{
    memo::{Entry, Memo, Tally, What},
    prompts::Prompter,
};
use moka::{policy::EvictionPolicy, sync::Cache};
use prometheus::{
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use serde::{Deserialize, Serialize};

/// Bytes that the cache takes for an entry beside the entry's own: its place in the table, in the order of use, and
/// what an allocator adds to each piece.
const OVERHEAD: usize = 256;

/// What is kept of earlier requests.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoConfig {
    /// In bytes, for all models together; a conversation takes 3 for each byte of its text. 0 keeps nothing.
    pub max_bytes: u64,
}

impl Default for MemoConfig {
    fn default() -> Self {
        Self { max_bytes: 256 << 20 }
    }
}

/// Gives models their memos. Cheap to clone; by default there are none.
#[derive(Clone, Debug, Default)]
pub struct Memos(Option<Arc<Store>>);

#[derive(Debug)]
struct Store {
    cache: Entries,
    seed: u64,
    metrics: Metrics,
}

/// In the order of their last use: conversations grow, and a request that goes on from another one is all but sure to
/// come soon or never, as engines take it too. A policy by frequency would refuse the new pieces of a young conversation
/// in favour of those of one that was long and is over.
type Entries = Cache<u64, Arc<Entry>, BuildHasherDefault<AsItIs>>;

/// Keys are hashes.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[derive(Clone, Debug)]
struct Metrics {
    hits: IntCounterVec,
    misses: IntCounterVec,
    hit_bytes: IntCounterVec,
    bytes: IntCounterVec,
    differences: IntCounterVec,
    modes: IntGaugeVec,
}

impl Metrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let it = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(it.clone()))?;
            Ok::<_, prometheus::Error>(it)
        };
        let labels = ["model", "what"];
        let modes = Opts::new(
            "kvpick_memo_modes",
            "1 for each model and the way in which its texts are cut for the memo, or why they are not.",
        );
        let modes = IntGaugeVec::new(modes, &["model", "mode"])?;
        registry.register(Box::new(modes.clone()))?;
        Ok(Self {
            hits: counters("kvpick_memo_hits_total", "Look-ups that found what was made before.", &labels)?,
            misses: counters("kvpick_memo_misses_total", "Look-ups that did not.", &labels)?,
            hit_bytes: counters(
                "kvpick_memo_hit_bytes_total",
                "Bytes of texts, and of token ids of blocks, that were made before.",
                &labels,
            )?,
            bytes: counters("kvpick_memo_bytes_total", "Bytes of all of them.", &labels)?,
            differences: counters(
                "kvpick_memo_differences_total",
                "Comparisons with a full encoding that showed another one. Please report any.",
                &["model"],
            )?,
            modes,
        })
    }
}

impl Memos {
    /// A cache of that size, and its metrics.
    ///
    /// # Errors
    /// When the name of a metric is taken already.
    pub fn new(config: MemoConfig, registry: &Registry) -> Result<Self, prometheus::Error> {
        if config.max_bytes == 0 {
            return Ok(Self::default());
        }
        let weigh = |_: &u64, entry: &Arc<Entry>| {
            u32::try_from(entry.bytes().saturating_add(OVERHEAD)).unwrap_or(u32::MAX)
        };
        let cache = Cache::builder()
            .max_capacity(config.max_bytes)
            .weigher(weigh)
            .eviction_policy(EvictionPolicy::lru())
            .build_with_hasher(BuildHasherDefault::default());
        registry.register(Box::new(Size::new(&cache)?))?;
        let metrics = Metrics::new(registry)?;
        Ok(Self(Some(Arc::new(Store { cache, seed: RandomState::new().hash_one(0), metrics }))))
    }

    /// The prompter of the model of that name, with a memo if there are any.
    #[must_use]
    pub fn give(&self, model: &str, prompter: Prompter) -> Prompter {
        let Some(store) = &self.0 else { return prompter };
        match prompter.memo_label() {
            Ok(mode) => {
                tracing::info!(model, mode, "texts are kept in the memo");
                store.metrics.modes.with_label_values(&[model, mode]).set(1);
            }
            Err(reason) => {
                tracing::warn!(
                    model,
                    reason,
                    "each text is encoded anew: pieces of it need not have its ids"
                );
                store.metrics.modes.with_label_values(&[model, reason]).set(1);
            }
        }
        prompter.with_memo(Arc::new(ModelMemo::new(Arc::clone(store), model)))
    }
}

/// The memo in the use of one model.
struct ModelMemo {
    store: Arc<Store>,
    model: String,
    text: Counters,
    blocks: Counters,
    has_differed: AtomicBool,
}

struct Counters {
    hits: IntCounter,
    misses: IntCounter,
    hit_bytes: IntCounter,
    bytes: IntCounter,
}

impl ModelMemo {
    fn new(store: Arc<Store>, model: &str) -> Self {
        let metrics = &store.metrics;
        let counters = |what: What| {
            let of = |it: &IntCounterVec| it.with_label_values(&[model, what.label()]);
            Counters {
                hits: of(&metrics.hits),
                misses: of(&metrics.misses),
                hit_bytes: of(&metrics.hit_bytes),
                bytes: of(&metrics.bytes),
            }
        };
        metrics.differences.with_label_values(&[model]);
        let (text, blocks) = (counters(What::Text), counters(What::Blocks));
        Self { store, model: model.to_owned(), text, blocks, has_differed: AtomicBool::new(false) }
    }
}

impl Memo for ModelMemo {
    fn seed(&self) -> u64 {
        self.store.seed
    }

    fn get(&self, key: u64) -> Option<Arc<Entry>> {
        self.store.cache.get(&key)
    }

    fn put(&self, key: u64, entry: Entry) {
        self.store.cache.insert(key, Arc::new(entry));
    }

    fn asked(&self, what: What, tally: Tally) {
        let counters = match what {
            What::Text => &self.text,
            What::Blocks => &self.blocks,
        };
        counters.hits.inc_by(tally.hits);
        counters.misses.inc_by(tally.misses);
        counters.hit_bytes.inc_by(tally.hit_bytes);
        counters.bytes.inc_by(tally.bytes);
    }

    fn differs(&self) {
        self.store.metrics.differences.with_label_values(&[self.model.as_str()]).inc();
        if !self.has_differed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                model = self.model,
                "ids that the memo had differ from those of the whole text: each text is encoded anew from here on"
            );
        }
    }
}

/// How much is kept, read when metrics are.
struct Size {
    cache: Entries,
    bytes: IntGauge,
    entries: IntGauge,
}

impl Size {
    fn new(cache: &Entries) -> Result<Self, prometheus::Error> {
        let bytes = IntGauge::new("kvpick_memo_size_bytes", "Bytes that the memo takes.")?;
        let entries = IntGauge::new("kvpick_memo_entries", "Pieces of text and runs of blocks in the memo.")?;
        Ok(Self { cache: cache.clone(), bytes, entries })
    }
}

impl Collector for Size {
    fn desc(&self) -> Vec<&Desc> {
        [self.bytes.desc(), self.entries.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The cache counts what it has put in order only.
        self.cache.run_pending_tasks();
        self.bytes.set(i64::try_from(self.cache.weighted_size()).unwrap_or(i64::MAX));
        self.entries.set(i64::try_from(self.cache.entry_count()).unwrap_or(i64::MAX));
        [self.bytes.collect(), self.entries.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use kvpick_core::prompts::{ModelFiles, Settings};
    use prometheus::TextEncoder;
    use serde_json::json;

    use super::*;

    /// A tokenizer of bytes.
    fn prompter() -> Prompter {
        let printing =
            (0..=u8::MAX).filter(|it| matches!(it, 33..=126 | 161..=172 | 174..=255)).map(char::from);
        let names = printing.chain(('\u{100}'..).take(68));
        let vocabulary: serde_json::Map<_, _> =
            names.zip(0..).map(|(name, id): (char, i32)| (name.to_string(), id.into())).collect();
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocabulary, "merges": [],
            },
        });
        let tokenizer = tokenizer.to_string();
        let files = ModelFiles { tokenizer_json: tokenizer.as_bytes(), ..ModelFiles::default() };
        Prompter::new(files, Settings::default()).unwrap()
    }

    fn value(registry: &Registry, series: &str) -> u64 {
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let line =
            text.lines().find_map(|it| it.strip_prefix(series)).unwrap_or_else(|| panic!("{series}: {text}"));
        line.trim().parse().unwrap()
    }

    #[test]
    fn what_is_kept_stays_within_its_bound() {
        let (registry, most) = (Registry::new(), 1 << 20);
        let memos = Memos::new(MemoConfig { max_bytes: most }, &registry).unwrap();
        let (plain, with_memo) = (prompter(), memos.give("m", prompter()));
        let text = |i: usize| format!("text {i} of many words. ").repeat(50 + i % 50);
        for i in 0..1_000 {
            assert_eq!(with_memo.encode(&text(i), false), plain.encode(&text(i), false));
        }
        let size = value(&registry, "kvpick_memo_size_bytes");
        assert!((most / 2..=most).contains(&size), "{size}");
        assert!(0 < value(&registry, "kvpick_memo_entries"));
        // The last is there, the first is not any more.
        let hits = || value(&registry, r#"kvpick_memo_hits_total{model="m",what="text"}"#);
        let before = hits();
        with_memo.encode(&text(999), false).unwrap();
        let last = hits();
        with_memo.encode(&text(0), false).unwrap();
        assert!(before < last && hits() == last);
        let bytes = |name: &str| value(&registry, &format!(r#"kvpick_memo_{name}{{model="m",what="text"}}"#));
        assert!(0 < bytes("hit_bytes_total") && bytes("hit_bytes_total") < bytes("bytes_total"));
        assert_eq!(value(&registry, r#"kvpick_memo_modes{mode="anywhere",model="m"}"#), 1);
        assert_eq!(value(&registry, r#"kvpick_memo_differences_total{model="m"}"#), 0);
    }

    #[test]
    fn models_do_not_share_what_is_counted() {
        let registry = Registry::new();
        let memos = Memos::new(MemoConfig::default(), &registry).unwrap();
        let (a, b) = (memos.give("a", prompter()), memos.give("b", prompter()));
        let text = "the same text. ".repeat(100);
        a.encode(&text, false).unwrap();
        // One tokenizer under two names has one memo.
        b.encode(&text, false).unwrap();
        let hits = |model: &str| {
            value(&registry, &format!(r#"kvpick_memo_hits_total{{model="{model}",what="text"}}"#))
        };
        assert_eq!((hits("a"), hits("b")), (0, 1));
    }

    #[test]
    fn a_size_of_nothing_is_no_memo() {
        let registry = Registry::new();
        let memos = Memos::new(MemoConfig { max_bytes: 0 }, &registry).unwrap();
        assert!(memos.give("m", prompter()).memo().is_none());
        assert!(registry.gather().is_empty());
    }
}
