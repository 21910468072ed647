//! What tests of prompts have in place of a cache.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use kvpick_core::memo::{Entry, Memo, Tally, What};

/// A memo that forgets nothing.
#[derive(Default)]
pub(crate) struct Map {
    kept: Mutex<BTreeMap<u64, Arc<Entry>>>,
    pub(crate) hits: AtomicU64,
}

impl Memo for Map {
    fn seed(&self) -> u64 {
        1
    }

    fn get(&self, key: u64) -> Option<Arc<Entry>> {
        self.kept.lock().expect("nobody fails while holding it").get(&key).cloned()
    }

    fn put(&self, key: u64, entry: Entry) {
        self.kept.lock().expect("nobody fails while holding it").insert(key, Arc::new(entry));
    }

    fn asked(&self, _: What, tally: Tally) {
        self.hits.fetch_add(tally.hits, Ordering::Relaxed);
    }

    fn differs(&self) {
        panic!("ids that the memo had are not those of the whole text");
    }
}
