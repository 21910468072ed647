//! Follows pods, and the pool that says which.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, future::pending};
use k8s_openapi::api::core::v1;
use kube::{
    Api, Client,
    core::DynamicObject,
    runtime::watcher::{self, Event, watcher},
};
use tokio::sync::watch;

use crate::{
    Pod,
    pool::{self, Pool},
    source::{Members, Source, State, Which},
};

type Events<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>;

/// Tells of those pods until nobody listens any more. After errors it is tried again, with growing pauses of at most 30 s.
pub async fn follow(client: Client, source: Source, told: watch::Sender<State>) {
    let namespace = source.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let mut follower = Follower::new(&client, &source, &namespace);
    loop {
        tokio::select! {
            event = next(&mut follower.pools) => follower.on_pool(event),
            event = next(&mut follower.pods) => follower.on_pod(event),
            () = told.closed() => return,
        }
        let state = follower.state();
        told.send_if_modified(|it| {
            let is_news = *it != state;
            if is_news && it.problem != state.problem {
                match &state.problem {
                    Some(problem) => tracing::warn!(namespace, problem, "Kubernetes"),
                    None => tracing::info!(namespace, "Kubernetes is as it should be again"),
                }
            }
            *it = state;
            is_news
        });
    }
}

/// The next event, for ever where there is nothing to follow.
async fn next<K>(events: &mut Option<Events<K>>) -> watcher::Result<Event<K>> {
    let Some(stream) = events else { return pending().await };
    match stream.next().await {
        Some(event) => event,
        // It does not end by itself.
        None => pending().await,
    }
}

struct Follower<'a> {
    client: &'a Client,
    source: &'a Source,
    namespace: &'a str,
    pools: Option<Events<DynamicObject>>,
    pods: Option<Events<v1::Pod>>,
    /// Before each is asked again after an error.
    pool_pause: Pause,
    pod_pause: Pause,
    /// The pool: not known, not there, or there.
    pool: Option<Option<Pool>>,
    /// During a new list, the pool and what is wrong with it.
    listed_pool: Option<Pool>,
    listed_problem: Option<String>,
    /// By uid.
    known: BTreeMap<String, Pod>,
    /// The ports of those.
    ports: Vec<u16>,
    listed: BTreeMap<String, Pod>,
    is_whole: bool,
    pool_problem: Option<String>,
    pod_problem: Option<String>,
}

impl<'a> Follower<'a> {
    fn new(client: &'a Client, source: &'a Source, namespace: &'a str) -> Self {
        let mut follower = Self {
            client,
            source,
            namespace,
            pools: None,
            pods: None,
            pool_pause: Pause::default(),
            pod_pause: Pause::default(),
            pool: None,
            listed_pool: None,
            listed_problem: None,
            known: BTreeMap::new(),
            ports: Vec::new(),
            listed: BTreeMap::new(),
            is_whole: false,
            pool_problem: None,
            pod_problem: None,
        };
        match &source.which {
            Which::Selector { selector, ports } => {
                follower.set_pool(Some(Pool { selector: selector.clone(), ports: ports.clone() }));
            }
            Which::Pool { .. } => follower.pools = follower.pool_events(),
        }
        follower
    }

    fn pool_events(&self) -> Option<Events<DynamicObject>> {
        let Which::Pool { name, group } = &self.source.which else { return None };
        let api = Api::namespaced_with(self.client.clone(), self.namespace, &pool::resource(group));
        let config = self.config().fields(&format!("metadata.name={name}"));
        Some(watcher(api, config).boxed())
    }

    /// For people.
    fn pools_name(&self) -> String {
        match &self.source.which {
            Which::Pool { group, .. } => format!("inferencepools of {group}/{}", pool::VERSION),
            Which::Selector { .. } => String::new(),
        }
    }

    fn pod_events(&self) -> Option<Events<v1::Pod>> {
        let selector = &self.pool.as_ref()?.as_ref()?.selector;
        let api = Api::namespaced(self.client.clone(), self.namespace);
        let mut config = self.config().labels(selector);
        if let Some(node) = &self.source.node {
            config = config.fields(&format!("spec.nodeName={node}"));
        }
        Some(watcher(api, config).boxed())
    }

    fn config(&self) -> watcher::Config {
        watcher::Config::default().timeout(self.source.watch_s)
    }

    fn on_pool(&mut self, event: watcher::Result<Event<DynamicObject>>) {
        match event {
            Ok(Event::Init) => (self.listed_pool, self.listed_problem) = (None, None),
            Ok(Event::InitApply(object)) => match Pool::read(&object) {
                Ok(pool) => self.listed_pool = Some(pool),
                Err(why) => {
                    // What it said before stands.
                    self.listed_pool = self.pool.clone().flatten();
                    self.listed_problem = Some(makes_no_sense(&why));
                }
            },
            Ok(Event::InitDone) => {
                self.pool_pause = Pause::default();
                self.pool_problem = self.listed_problem.take();
                let listed = self.listed_pool.take();
                self.set_pool(listed);
            }
            Ok(Event::Apply(object)) => {
                let read = Pool::read(&object);
                self.pool_problem = read.as_ref().err().map(|why| makes_no_sense(why));
                if let Ok(pool) = read {
                    self.set_pool(Some(pool));
                }
            }
            Ok(Event::Delete(_)) => {
                self.pool_problem = None;
                self.set_pool(None);
            }
            Err(error) => {
                self.pool_problem = Some(problem(&error, &self.pools_name(), self.namespace));
                let pause = self.pool_pause.take();
                self.pools = self.pool_events().map(|it| later(it, pause));
            }
        }
    }

    /// What the pool says now. Pods are asked for anew only where others are meant.
    fn set_pool(&mut self, pool: Option<Pool>) {
        let selector = |it: &Option<Option<Pool>>| it.as_ref()?.as_ref().map(|it| it.selector.clone());
        let before = selector(&self.pool);
        // One that is not there yet tells nothing; one that was deleted has no pods.
        if pool.is_some() || before.is_some() {
            self.pool = Some(pool);
        }
        let now = selector(&self.pool);
        if now == before {
            // Of the same pods; those of other pods count with them.
            self.ports = self.said_ports();
            return;
        }
        self.pods = self.pod_events();
        self.pod_pause = Pause::default();
        self.pod_problem = None;
        if self.pods.is_none() {
            self.known.clear();
        }
    }

    fn said_ports(&self) -> Vec<u16> {
        self.pool.iter().flatten().next().map_or_else(Vec::new, |it| it.ports.clone())
    }

    fn on_pod(&mut self, event: watcher::Result<Event<v1::Pod>>) {
        match event {
            Ok(Event::Init) => self.listed.clear(),
            Ok(Event::InitApply(pod)) => {
                let pod = Pod::read(&pod);
                self.listed.extend(pod.map(|it| (it.uid.clone(), it)));
            }
            Ok(Event::InitDone) => {
                self.pod_pause = Pause::default();
                self.pod_problem = None;
                self.known = std::mem::take(&mut self.listed);
                self.ports = self.said_ports();
                self.is_whole = true;
            }
            Ok(Event::Apply(pod)) => {
                let pod = Pod::read(&pod);
                self.known.extend(pod.map(|it| (it.uid.clone(), it)));
            }
            Ok(Event::Delete(pod)) => {
                self.known.remove(&pod.metadata.uid.unwrap_or_default());
            }
            Err(error) => {
                self.pod_problem = Some(problem(&error, "pods", self.namespace));
                let pause = self.pod_pause.take();
                self.pods = self.pod_events().map(|it| later(it, pause));
            }
        }
    }

    fn state(&self) -> State {
        let is_deleted = self.pool == Some(None);
        let missing = || match (&self.pool, &self.source.which) {
            (None | Some(None), Which::Pool { name, .. }) => Some(format!(
                "there is no InferencePool {name} in namespace {}; create it, or name another one",
                self.namespace
            )),
            _ => None,
        };
        let members = (self.is_whole || is_deleted).then(|| {
            Arc::new(Members { pods: self.known.values().cloned().collect(), ports: self.ports.clone() })
        });
        State {
            members,
            problem: self.pool_problem.clone().or_else(|| self.pod_problem.clone()).or_else(missing),
        }
    }
}

/// How long to wait before a list is asked for again. Every error ends in a new list, though a watch might go on where it was:
/// the library tells nothing when one does, so that it could not be said that all is well again; and where a watch can't begin
/// because what happened since is forgotten (410), it asks for the same for ever.
#[derive(Clone, Copy, Debug)]
struct Pause(Duration);

/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

impl Default for Pause {
    fn default() -> Self {
        Self(PAUSES.0)
    }
}

impl Pause {
    /// The next one: twice the last, less up to a half, as many clients may have lost one server.
    fn take(&mut self) -> Duration {
        let longest = self.0;
        self.0 = (longest * 2).min(PAUSES.1);
        let dice = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) % 1_024;
        longest - longest * u32::try_from(dice).unwrap_or(0) / 2_048
    }
}

fn later<K: Send + 'static>(events: Events<K>, pause: Duration) -> Events<K> {
    let pause = futures::stream::once(tokio::time::sleep(pause)).filter_map(async |()| None);
    pause.chain(events).boxed()
}

fn makes_no_sense(why: &str) -> String {
    format!("the InferencePool makes no sense: {why}")
}

/// What an error means for people.
fn problem(error: &watcher::Error, plural: &str, namespace: &str) -> String {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(it))
        | watcher::Error::WatchStartFailed(kube::Error::Api(it))
        | watcher::Error::WatchError(it) => Some(it.as_ref()),
        _ => None,
    };
    match status.map(|it| it.code) {
        Some(403) => format!(
            "the API server does not let this service account list and watch {plural} in namespace {namespace}; give it a Role \
             with the verbs get, list and watch for them"
        ),
        Some(401) => {
            "the API server does not know this service account; see whether its token is mounted".to_owned()
        }
        Some(404) => format!(
            "the API server has no {plural}; install the CRDs of the Gateway API Inference Extension, or use a selector"
        ),
        _ => format!("{plural} can't be followed, and what is known of them may be old: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut pause = Pause::default();
        let mut longest = PAUSES.0;
        for _ in 0..12 {
            let taken = pause.take();
            assert!(longest / 2 <= taken && taken <= longest, "{taken:?} of {longest:?}");
            longest = (longest * 2).min(PAUSES.1);
        }
        assert_eq!(longest, PAUSES.1);
    }
}
