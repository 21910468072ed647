//! Replicas that are pods: from what Kubernetes tells to the world, and who of the agents is who.

use std::{net::IpAddr, sync::Arc, time::Instant};

use kvpick_core::replicas::ReplicaSpec;
use kvpick_kube::{Client, Members, Source, State, Which, endpoints::endpoints, follow};
use kvpick_proto::words::ReplicaName;
use kvpick_service::drain::Drain;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{config::KubernetesConfig, shared::Shared};

/// What Kubernetes tells.
#[derive(Clone, Debug)]
pub struct Told {
    /// Of the replicas.
    pub pool: watch::Receiver<State>,
    /// Of the agents, where they are known by their pods.
    pub agents: Option<watch::Receiver<State>>,
}

/// Begins to follow the pods that are meant.
#[must_use]
pub fn begin(client: &Client, config: &KubernetesConfig, drain: &Drain) -> Told {
    let follow_one = |name, namespace: &Option<String>, which| {
        let source =
            Source { namespace: namespace.clone(), which, node: None, watch_s: kvpick_kube::WATCH_S };
        let (told, heard) = watch::channel(State::default());
        let (client, stop) = (client.clone(), drain.clone());
        drain.spawn(name, async move {
            tokio::select! {
                () = follow(client, source, told) => {}
                () = stop.started() => {}
            }
        });
        heard
    };
    let agents = config.agents.as_ref().map(|selector| {
        let which = Which::Selector { selector: selector.clone(), ports: Vec::new() };
        follow_one("pods of agents", &config.agents_namespace, which)
    });
    Told { pool: follow_one("pods of replicas", &config.namespace, config.which()), agents }
}

/// Keeps the world's replicas those that Kubernetes tells of.
pub async fn run(
    shared: Arc<Shared>,
    mut told: watch::Receiver<State>,
    config: KubernetesConfig,
    drain: Drain,
) {
    loop {
        let state = told.borrow_and_update().clone();
        let metrics = &shared.metrics;
        metrics.kubernetes_problem.set(state.problem.is_some().into());
        if let Some(members) = &state.members {
            let specs = specs(members, &config);
            let away = specs.iter().filter(|it| it.is_away).count();
            for (label, count) in [("ready", specs.len() - away), ("away", away)] {
                metrics.members.with_label_values(&[label]).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            let gone = shared.world().set_members(specs, Instant::now());
            for name in gone {
                tracing::info!(replica = %name, "its pod is gone");
                metrics.forget(&name.to_string());
            }
        }
        tokio::select! {
            changed = told.changed() => if changed.is_err() { return },
            () = drain.started() => return,
        }
    }
}

/// The replicas that those pods are.
#[must_use]
pub fn specs(members: &Members, config: &KubernetesConfig) -> Vec<ReplicaSpec> {
    let endpoints = endpoints(&members.pods, &members.ports);
    let ranks = endpoints.into_iter().flat_map(|it| (0..config.ranks).map(move |rank| (rank, it.clone())));
    ranks
        .map(|(rank, it)| ReplicaSpec {
            name: ReplicaName { address: it.address, rank },
            uid: it.uid,
            node: it.node,
            models: config.models.clone(),
            is_away: !it.is_ready,
        })
        .collect()
}

/// The node of the agent whose pod has that address; else why it is none.
///
/// # Errors
/// For the agent's log.
pub fn node_of(agents: &State, address: Option<IpAddr>) -> Result<String, String> {
    let Some(members) = &agents.members else {
        return Err(
            "this server does not know the agents' pods yet; it has to reach the API server first".to_owned()
        );
    };
    let Some(address) = address.map(|it| it.to_canonical()) else {
        return Err("agents are known by the addresses of their pods, and this one has none".to_owned());
    };
    let living = members.pods.iter().filter(|it| !it.is_over && it.addresses.contains(&address));
    // An address is used again by a younger pod.
    let pod = living.max_by_key(|it| (!it.is_deleting, it.created));
    pod.and_then(|it| it.node.clone()).ok_or_else(|| {
        format!("{address} is the address of no agent's pod; see `kubernetes.agents` in this server's configuration")
    })
}

/// For people: what is followed, and what is wrong with it.
#[must_use]
pub fn status(told: &Told) -> Value {
    let one = |state: &State| {
        let pods = state.members.iter().flat_map(|it| &it.pods);
        let pods: Vec<_> = pods
            .map(|it| {
                json!({
                    "pod": format!("{}/{}", it.namespace, it.name),
                    "uid": it.uid,
                    "node": it.node,
                    "addresses": it.addresses,
                    "ready": it.is_ready && !it.is_deleting,
                })
            })
            .collect();
        json!({"problem": state.problem, "known": state.members.is_some(), "pods": pods})
    };
    json!({"replicas": one(&told.pool.borrow()), "agents": told.agents.as_ref().map(|it| one(&it.borrow()))})
}

#[cfg(test)]
mod tests {
    use kvpick_kube::Pod;

    use super::*;

    fn pod(uid: &str, ip: &str) -> Pod {
        let addresses = vec![ip.parse().unwrap()];
        Pod {
            uid: uid.to_owned(),
            node: Some(format!("node-{uid}")),
            addresses,
            is_ready: true,
            ..Pod::default()
        }
    }

    #[test]
    fn each_rank_of_each_port_is_a_replica() {
        let leaving = Pod { is_deleting: true, ..pod("b", "10.0.0.2") };
        let members = Members { pods: vec![pod("a", "10.0.0.1"), leaving], ports: vec![8000] };
        let config =
            KubernetesConfig { ranks: 2, models: vec!["m".to_owned()], ..KubernetesConfig::default() };
        let found: Vec<_> = specs(&members, &config)
            .into_iter()
            .map(|it| (it.name.to_string(), it.uid, it.is_away))
            .collect();
        assert_eq!(found.len(), 4);
        assert_eq!((found[1].1.as_str(), found[1].2, found[3].2), ("a", false, true), "{found:?}");
    }

    #[test]
    fn agents_are_known_by_their_pods() {
        let over = Pod { is_over: true, ..pod("over", "10.0.0.3") };
        let former = Pod { is_deleting: true, created: 9, ..pod("former", "10.0.0.1") };
        let pods = vec![pod("a", "10.0.0.1"), former, over];
        let state = State { members: Some(Arc::new(Members { pods, ports: Vec::new() })), problem: None };
        let of = |ip: &str| node_of(&state, Some(ip.parse().unwrap()));
        assert_eq!(of("10.0.0.1").as_deref(), Ok("node-a"));
        assert_eq!(of("::ffff:10.0.0.1").as_deref(), Ok("node-a"), "as a socket of both families has it");
        assert!(of("10.0.0.3").unwrap_err().contains("kubernetes.agents"));
        assert!(of("10.0.0.9").is_err() && node_of(&state, None).is_err());
        assert!(node_of(&State::default(), None).unwrap_err().contains("API server"));
    }
}
