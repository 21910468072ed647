//! Engines that are pods of this node: they appear, are replaced and go.

mod flags;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use kvpick_kube::{Endpoint, Members, Pod, Source, State, endpoints::endpoints, follow};
use kvpick_service::drain::Drain;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    config::{EngineConfig, EngineEntry, EventsEntry, KubernetesEntry, Switch},
    engines::{Engines, Running},
};

/// An engine, and whose it is: another pod at the same address is another engine.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    uid: String,
    engine: EngineConfig,
}

/// What is made of the pods, for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Value>>);

impl Seen {
    pub(crate) fn get(&self) -> Value {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, value: Value) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

/// Begins to follow the pods of `node`.
pub(crate) fn begin(
    client: kvpick_kube::Client,
    config: &KubernetesEntry,
    node: &str,
) -> (watch::Receiver<State>, impl Future<Output = ()> + Send + use<>) {
    let source = Source {
        namespace: config.namespace.clone(),
        which: config.which(),
        node: Some(node.to_owned()),
        watch_s: kvpick_kube::WATCH_S,
    };
    let (told, heard) = watch::channel(State::default());
    (heard, follow(client, source, told))
}

/// Keeps the engines those of the pods, until the drain starts. `first` is let go with the first whole picture.
pub(crate) async fn run(
    engines: Engines,
    mut told: watch::Receiver<State>,
    config: KubernetesEntry,
    (seen, first): (Seen, kvpick_service::ready::Hold),
    drain: Drain,
) {
    let mut first = Some(first);
    let mut running: BTreeMap<String, (Wanted, Running)> = BTreeMap::new();
    loop {
        let state = told.borrow_and_update().clone();
        let mut shown = Vec::new();
        if let Some(members) = &state.members {
            let (wanted, pods) = wanted(members, &config);
            shown = pods;
            let mut wanted: BTreeMap<_, _> =
                wanted.into_iter().map(|it| (it.engine.name.to_string(), it)).collect();
            let old: Vec<_> = running
                .iter()
                .filter(|(name, (it, _))| wanted.get(*name) != Some(it))
                .map(|(name, _)| name.clone())
                .collect();
            let ends = old.into_iter().filter_map(|name| {
                tracing::info!(engine = name, "its pod is gone, or is another");
                Some(running.remove(&name)?.1)
            });
            together(ends.map(Running::end)).await;
            wanted.retain(|name, _| !running.contains_key(name));
            for (name, wanted) in wanted {
                match engines.start(wanted.engine.clone(), Drain::new()).await {
                    Ok(started) => {
                        tracing::info!(engine = name, uid = wanted.uid, "a pod's engine");
                        running.insert(name, (wanted, started));
                    }
                    Err(error) => tracing::error!(engine = name, %error, "a pod's engine can't be followed"),
                }
            }
            drop(first.take());
        }
        seen.set(json!({"problem": state.problem, "known": state.members.is_some(), "pods": shown}));
        tokio::select! {
            changed = told.changed() => if changed.is_err() { break },
            () = drain.started() => break,
        }
    }
    together(running.into_values().map(|(_, it)| it.stop())).await;
}

/// Waits for all of them at a time: no engine that is slow to end holds up another.
async fn together<F: Future<Output = ()> + Send + 'static>(all: impl Iterator<Item = F>) {
    let mut all: tokio::task::JoinSet<()> = all.collect();
    while all.join_next().await.is_some() {}
}

/// The engines that those pods are, and what is made of each pod, for people. One whose events can't be had is an engine all
/// the same: it is described with its load.
fn wanted(members: &Members, config: &KubernetesEntry) -> (Vec<Wanted>, Vec<Value>) {
    let pods: BTreeMap<&str, &Pod> = members.pods.iter().map(|it| (it.uid.as_str(), it)).collect();
    let (mut all, mut shown) = (Vec::new(), Vec::new());
    for endpoint in endpoints(&members.pods, &members.ports) {
        let Some(pod) = pods.get(endpoint.uid.as_str()) else { continue };
        let place = members.ports.iter().position(|it| *it == endpoint.address.port()).unwrap_or(0);
        let (entry, mut problem) = match entry(pod, &endpoint, (place, members.ports.len()), config) {
            Ok(entry) => (entry, None),
            Err(why) => (EngineEntry { events: Switch::Off, ..EngineEntry::default() }, Some(why)),
        };
        let entry = EngineEntry {
            address: endpoint.address.to_string(),
            ranks: (1 < config.ranks).then_some(config.ranks),
            ..entry
        };
        match entry.engines() {
            Ok(engines) => {
                all.extend(engines.into_iter().map(|engine| Wanted { uid: endpoint.uid.clone(), engine }));
            }
            Err(mistakes) => problem = Some(mistakes.to_string()),
        }
        if let Some(problem) = &problem {
            tracing::debug!(pod = endpoint.pod, problem, "events of a pod");
        }
        shown.push(json!({
            "pod": format!("{}/{}", pod.namespace, pod.name),
            "uid": pod.uid,
            "address": endpoint.address,
            "ready": endpoint.is_ready,
            "subscribe": entry.subscribe,
            "replay": entry.replay,
            "problem": problem,
        }));
    }
    (all, shown)
}

/// What an entry in a file would say of a pod's events. `place`: of its port among so many. Where a pod serves on several, each
/// is a data-parallel rank of its own, in their order, and vLLM adds the rank to the ports of events.
fn entry(
    pod: &Pod,
    endpoint: &Endpoint,
    (place, ports): (usize, usize),
    config: &KubernetesEntry,
) -> Result<EngineEntry, String> {
    let address = endpoint.address;
    let rank = u16::try_from(place).map_err(|error| error.to_string())?;
    let at =
        |port: u16| format!("tcp://{}", std::net::SocketAddr::new(address.ip(), port.saturating_add(rank)));
    let (subscribe, replay) = match &config.events {
        None => return flags::events(pod, address, rank),
        Some(EventsEntry { ipc: Some(_), .. }) if 1 < ports => {
            return Err("a folder of sockets is of one rank, and the pod serves on several ports; use ports"
                .to_owned());
        }
        Some(EventsEntry { ipc: Some(folder), .. }) => {
            let socket = |name: &str| format!("ipc://{}/{}/{name}", folder.trim_end_matches('/'), pod.uid);
            (Some(socket("events")), Some(socket("replay")))
        }
        Some(EventsEntry { port, replay_port, .. }) => (port.map(at), replay_port.map(at)),
    };
    Ok(EngineEntry { subscribe, replay, ..EngineEntry::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, ip: &str) -> Pod {
        Pod { uid: uid.to_owned(), addresses: vec![ip.parse().unwrap()], ..Pod::default() }
    }

    #[test]
    fn pods_are_engines_with_or_without_events() {
        let members = Members { pods: vec![pod("u1", "10.0.0.1")], ports: vec![8000] };
        let of = |config: &KubernetesEntry| wanted(&members, config);
        let (engines, shown) = of(&KubernetesEntry::default());
        assert!(
            engines[0].engine.events.is_none()
                && shown[0]["problem"].as_str().unwrap().contains("start vLLM")
        );
        let ports = EventsEntry { port: Some(5557), replay_port: Some(5567), ipc: None };
        let (engines, shown) =
            of(&KubernetesEntry { ranks: 2, events: Some(ports), ..KubernetesEntry::default() });
        let replays: Vec<_> =
            engines.iter().map(|it| it.engine.events.as_ref().unwrap().replay.as_deref()).collect();
        assert_eq!(replays, [Some("tcp://10.0.0.1:5567"), Some("tcp://10.0.0.1:5568")], "{shown:?}");
        assert!(engines.iter().all(|it| it.engine.rank_by_header && it.uid == "u1"));
        let two = Members { ports: vec![8000, 8001], ..members.clone() };
        let ports = EventsEntry { port: Some(5557), replay_port: Some(5567), ipc: None };
        let (engines, _) =
            wanted(&two, &KubernetesEntry { events: Some(ports), ..KubernetesEntry::default() });
        let sockets = engines.iter().map(|it| it.engine.events.as_ref().unwrap().source.clone());
        let at = |port: u16| crate::config::Source::Subscribe(format!("tcp://10.0.0.1:{port}"));
        assert_eq!(sockets.collect::<Vec<_>>(), [at(5557), at(5558)], "no two have one socket");
        let ipc = EventsEntry { ipc: Some("/run/kvpick".to_owned()), ..EventsEntry::default() };
        let (engines, shown) =
            wanted(&two, &KubernetesEntry { events: Some(ipc), ..KubernetesEntry::default() });
        assert!(engines.iter().all(|it| it.engine.events.is_none()), "{shown:?}");
        let ipc = EventsEntry { ipc: Some("/run/kvpick/".to_owned()), ..EventsEntry::default() };
        let (engines, _) = of(&KubernetesEntry { events: Some(ipc), ..KubernetesEntry::default() });
        let events = engines[0].engine.events.as_ref().unwrap();
        assert_eq!(events.replay.as_deref(), Some("ipc:///run/kvpick/u1/replay"));
    }
}
