//! What has been computed before and need not be again: the ids of pieces of text, the keys of runs of blocks.
//!
//! A memo may change how long something takes, never what comes out. What is found is trusted only after what it was
//! made of has been compared with what is asked for, byte by byte; a hash alone proves nothing, as clients choose the
//! texts.

use std::sync::Arc;

use kvpick_proto::naming::{Algorithm, BlockKey, Digest, ExtraKeyShape};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A place where results are kept, as long as there is room. It may forget anything at any time.
pub trait Memo: Send + Sync {
    /// A number that clients cannot know, the same as long as the memo lives: it spreads the keys.
    fn seed(&self) -> u64;
    /// What is kept under that key.
    fn get(&self, key: u64) -> Option<Arc<Entry>>;
    /// Keeps an entry in place of what is under that key.
    fn put(&self, key: u64, entry: Entry);
    /// Told after each text or prompt: how much of it was found.
    fn asked(&self, what: What, tally: Tally);
    /// Told when a comparison with a full encoding shows that the memo was wrong. It is not asked for texts of that
    /// model from then on.
    fn differs(&self);
}

/// What is looked up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum What {
    /// The ids of a piece of text.
    Text,
    /// The keys of a run of blocks.
    Blocks,
}

impl What {
    /// Short fixed name for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Blocks => "blocks",
        }
    }
}

/// How much was looked up, and found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Look-ups that found what they asked for.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Bytes of what was found: of text, or of token ids, 4 each.
    pub hit_bytes: u64,
    /// Bytes of all that was to be made, what is never looked up as it is too short or too long included.
    pub bytes: u64,
}

/// A result, with what it was made of.
#[derive(Debug)]
pub struct Entry(pub(crate) Kept);

#[derive(Debug)]
pub(crate) enum Kept {
    Text(Text),
    Run(Run),
}

/// A piece of text and its ids.
#[derive(Debug)]
pub(crate) struct Text {
    /// Which tokenizer's.
    pub(crate) tokenizer: u128,
    /// Whether special tokens in it are text like any other.
    pub(crate) is_ordinary: bool,
    pub(crate) text: Box<str>,
    pub(crate) ids: Box<[u32]>,
}

/// A run of blocks and their keys.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) naming: RunNaming,
    /// The block before the first.
    pub(crate) parent: Digest,
    pub(crate) tokens: Box<[u32]>,
    /// One for each block, in order.
    pub(crate) keys: Box<[BlockKey]>,
    /// The last block.
    pub(crate) last: Digest,
}

/// All that enters a block's hash besides its parent and its tokens, where neither salt nor media do. The domain's root
/// is in the parent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RunNaming {
    pub(crate) algorithm: Algorithm,
    pub(crate) extra_keys: ExtraKeyShape,
    pub(crate) block_size: usize,
    /// Name and path.
    pub(crate) adapter: Option<(String, String)>,
}

impl Entry {
    /// Bytes that it takes, those of the entry itself included, those of what holds it not.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let more = match &self.0 {
            Kept::Text(it) => it.text.len() + size_of_val(&*it.ids),
            Kept::Run(it) => {
                let adapter = it.naming.adapter.as_ref().map_or(0, |(name, path)| name.len() + path.len());
                size_of_val(&*it.tokens) + size_of_val(&*it.keys) + adapter
            }
        };
        size_of::<Self>() + more
    }

    /// The ids of that text, if it is about that one.
    pub(crate) fn ids_of(&self, tokenizer: u128, is_ordinary: bool, text: &str) -> Option<&[u32]> {
        match &self.0 {
            Kept::Text(it)
                if it.tokenizer == tokenizer && it.is_ordinary == is_ordinary && *it.text == *text =>
            {
                Some(&it.ids)
            }
            Kept::Text(_) | Kept::Run(_) => None,
        }
    }

    /// The run of those blocks, if it is about them.
    pub(crate) fn run_of(&self, naming: &RunNaming, parent: &Digest, tokens: &[u32]) -> Option<&Run> {
        match &self.0 {
            Kept::Run(it) if it.naming == *naming && it.parent == *parent && *it.tokens == *tokens => {
                Some(it)
            }
            Kept::Text(_) | Kept::Run(_) => None,
        }
    }
}

/// The key of a piece of text. Texts with one key take each other's place, and no more.
pub(crate) fn text_key(memo: &dyn Memo, tokenizer: u128, is_ordinary: bool, text: &str) -> u64 {
    let model = (tokenizer as u64) ^ u64::from(is_ordinary);
    xxh3_64_with_seed(text.as_bytes(), memo.seed() ^ model)
}

#[cfg(test)]
pub(crate) mod testing {
    use std::{
        collections::BTreeMap,
        sync::{
            Arc, Mutex,
            atomic::{AtomicU64, Ordering},
        },
    };

    use super::{Entry, Memo, Tally, What};

    /// A memo with room for so many entries. All keys are one if it has no seed, so that every look-up finds what
    /// somebody else has put there.
    pub(crate) struct Map {
        room: usize,
        seed: u64,
        kept: Mutex<BTreeMap<u64, Arc<Entry>>>,
        pub(crate) hits: AtomicU64,
        pub(crate) differences: AtomicU64,
    }

    impl Map {
        pub(crate) fn new(room: usize, seed: u64) -> Self {
            Self { room, seed, kept: Mutex::default(), hits: 0.into(), differences: 0.into() }
        }

        pub(crate) fn hits(&self) -> u64 {
            self.hits.load(Ordering::Relaxed)
        }

        fn place(&self, key: u64) -> u64 {
            if self.seed == 0 { 0 } else { key }
        }
    }

    impl Memo for Map {
        fn seed(&self) -> u64 {
            self.seed
        }

        fn get(&self, key: u64) -> Option<Arc<Entry>> {
            self.kept.lock().unwrap().get(&self.place(key)).cloned()
        }

        fn put(&self, key: u64, entry: Entry) {
            let mut kept = self.kept.lock().unwrap();
            kept.insert(self.place(key), Arc::new(entry));
            while self.room < kept.len() {
                // Any will do: the keys are hashes.
                kept.pop_first();
            }
        }

        fn asked(&self, _: What, tally: Tally) {
            self.hits.fetch_add(tally.hits, Ordering::Relaxed);
        }

        fn differs(&self) {
            self.differences.fetch_add(1, Ordering::Relaxed);
        }
    }
}
