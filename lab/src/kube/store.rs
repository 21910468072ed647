//! Objects, and what happened to them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::faults::{Faults, Refusal};

/// A kind of object.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// `v1` `Pod`.
    Pod,
    /// `inference.networking.k8s.io/v1` `InferencePool`.
    Pool,
}

impl Kind {
    pub(super) const fn list_kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Pod => ("v1", "PodList"),
            Self::Pool => ("inference.networking.k8s.io/v1", "InferencePoolList"),
        }
    }
}

/// Something that happened to an object.
#[derive(Clone, Debug)]
pub(super) struct Happened {
    pub(super) version: u64,
    pub(super) kind: Kind,
    /// As it was before; `None` for one that is new.
    pub(super) before: Option<Value>,
    /// As it is now; `None` for one that is gone.
    pub(super) after: Option<Value>,
}

#[derive(Debug, Default)]
struct Inner {
    version: u64,
    objects: BTreeMap<(Kind, String, String), Value>,
    happened: Vec<Happened>,
    /// What happened up to here is forgotten.
    forgotten: u64,
    faults: Faults,
    lists: u64,
    watches: u64,
    refused: u64,
}

#[derive(Debug)]
pub(super) struct Store {
    inner: Mutex<Inner>,
    /// Says that there is something to look at.
    news: watch::Sender<()>,
    /// Counts up where all watches are to end.
    generation: watch::Sender<u64>,
}

impl Default for Store {
    fn default() -> Self {
        Self { inner: Mutex::default(), news: watch::Sender::new(()), generation: watch::Sender::new(0) }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn apply(&self, kind: Kind, mut object: Value) {
        let mut inner = self.lock();
        inner.version += 1;
        let version = inner.version;
        let metadata = &mut object["metadata"];
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let key = (kind, text(&metadata["namespace"]), text(&metadata["name"]));
        if !metadata["uid"].is_string() {
            // An object that is changed stays who it is.
            let uid = inner.objects.get(&key).map(|it| it["metadata"]["uid"].clone());
            metadata["uid"] = uid.unwrap_or_else(|| json!(format!("uid-{version}")));
        }
        metadata["resourceVersion"] = json!(version.to_string());
        let before = inner.objects.insert(key, object.clone());
        // Another object of the same name came after the end of the one before.
        let is_other = before.as_ref().is_some_and(|it| it["metadata"]["uid"] != object["metadata"]["uid"]);
        let mut before = before;
        if is_other {
            let ended = before.take();
            inner.happened.push(Happened { version, kind, before: ended, after: None });
            inner.version += 1;
        }
        let version = inner.version;
        inner.happened.push(Happened { version, kind, before, after: Some(object) });
        drop(inner);
        self.news.send_replace(());
    }

    pub(super) fn delete(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        let mut inner = self.lock();
        let Some(before) = inner.objects.remove(&(kind, namespace.to_owned(), name.to_owned())) else {
            return false;
        };
        inner.version += 1;
        let version = inner.version;
        inner.happened.push(Happened { version, kind, before: Some(before), after: None });
        drop(inner);
        self.news.send_replace(());
        true
    }

    pub(super) fn objects(&self, kind: Kind) -> Vec<Value> {
        let inner = self.lock();
        inner.objects.iter().filter(|((it, ..), _)| *it == kind).map(|(_, it)| it.clone()).collect()
    }

    /// A list's objects, and the version that it is of.
    pub(super) fn list(&self, kind: Kind, namespace: &str) -> (u64, Vec<Value>) {
        let mut inner = self.lock();
        inner.lists += 1;
        let of = inner.objects.iter().filter(|((it, within, _), _)| *it == kind && within == namespace);
        (inner.version, of.map(|(_, it)| it.clone()).collect())
    }

    /// What happened since, and up to which version that is; `None` where it is forgotten.
    pub(super) fn since(&self, version: u64) -> Option<(u64, Vec<Happened>)> {
        let inner = self.lock();
        if version < inner.forgotten {
            return None;
        }
        let later = inner.happened.iter().filter(|it| version < it.version);
        Some((inner.version, later.cloned().collect()))
    }

    pub(super) fn begin_watch(&self) -> (watch::Receiver<()>, watch::Receiver<u64>) {
        self.lock().watches += 1;
        (self.news.subscribe(), self.generation.subscribe())
    }

    pub(super) fn compact(&self) {
        let mut inner = self.lock();
        // Something happens elsewhere in a cluster all the time, so what a client has seen last is older than that.
        inner.version += 1;
        inner.forgotten = inner.version;
        inner.happened.clear();
    }

    pub(super) fn end_watches(&self) {
        self.generation.send_modify(|it| *it += 1);
    }

    pub(super) fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
        self.news.send_replace(());
    }

    pub(super) fn faults(&self) -> Faults {
        self.lock().faults.clone()
    }

    /// Whether the next event of a watch is cut, or an error, for which it is the turn only once.
    pub(super) fn take_once(&self) -> (bool, bool) {
        let mut inner = self.lock();
        (std::mem::take(&mut inner.faults.cut_once), std::mem::take(&mut inner.faults.gone_once))
    }

    /// What refuses all requests now, counted.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        let mut inner = self.lock();
        inner.refused += u64::from(inner.faults.refuse.is_some());
        inner.faults.refuse
    }

    pub(super) fn refused(&self) -> u64 {
        self.lock().refused
    }

    pub(super) fn requests(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.lists, inner.watches)
    }
}
