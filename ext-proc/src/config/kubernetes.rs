//! Replicas that are pods.

use kvpick_kube::Which;
use serde::{Deserialize, Serialize};

use super::replicas::MOST_RANKS;

/// Which pods the replicas are, and which are agents. In place of `replicas`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesConfig {
    /// The pods' namespace; this pod's own by default.
    pub namespace: Option<String>,
    /// An InferencePool, which says which pods and which ports. This or `selector`.
    pub pool: Option<String>,
    /// The pool's API group.
    pub group: String,
    /// A label selector: `app=vllm,tier!=test`. This or `pool`.
    pub selector: Option<String>,
    /// With `selector`: the pods' serving ports. Each of a pod's ports is a replica.
    pub ports: Vec<u16>,
    /// How many data-parallel ranks share each address; each is a replica.
    pub ranks: u32,
    /// Models that all of them serve, beside those that agents tell of.
    pub models: Vec<String>,
    /// A label selector of the agents' pods: `feed` then hears these alone, each of the replicas of its own node. By default
    /// none is heard without a certificate.
    pub agents: Option<String>,
    /// The agents' namespace; this pod's own by default.
    pub agents_namespace: Option<String>,
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            namespace: None,
            pool: None,
            group: kvpick_kube::GROUP.to_owned(),
            selector: None,
            ports: Vec::new(),
            ranks: 1,
            models: Vec::new(),
            agents: None,
            agents_namespace: None,
        }
    }
}

impl KubernetesConfig {
    /// Which pods the replicas are.
    #[must_use]
    pub fn which(&self) -> Which {
        Which::of(self.pool.as_deref(), &self.group, self.selector.as_deref(), &self.ports)
    }

    pub(super) fn mistakes(&self, found: &mut Vec<String>) {
        let mut add = |field: &str, what: &str| found.push(format!("kubernetes.{field}: {what}"));
        for (field, what) in Which::mistakes(self.pool.as_deref(), self.selector.as_deref(), &self.ports) {
            add(field, what);
        }
        if !(1..=MOST_RANKS).contains(&self.ranks) {
            add("ranks", &format!("there are 1 to {MOST_RANKS} ranks behind an address"));
        }
        let fields = [
            ("namespace", &self.namespace),
            ("pool", &self.pool),
            ("selector", &self.selector),
            ("agents", &self.agents),
            ("agents_namespace", &self.agents_namespace),
        ];
        for (field, value) in fields {
            if value.as_ref().is_some_and(|it| it.trim().is_empty()) {
                add(field, "is empty, which would be everything; name what is meant, or leave it out");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn mistakes(yaml: &str) -> Vec<String> {
        let config = kvpick_service::config::parse::<Config>(yaml).unwrap();
        config.mistakes().into_iter().map(|it| it.split(": ").next().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_can_not_be_meant_is_named() {
        for (yaml, fields) in [
            ("kubernetes: {pool: p}", &[][..]),
            ("kubernetes: {selector: app=vllm, ports: [8000], ranks: 4, models: [m]}", &[]),
            ("kubernetes: {pool: p, agents: app=agent}\nfeed: 0.0.0.0:9004", &[]),
            ("kubernetes: {pool: p}\nfeed: 0.0.0.0:9004", &["feed"]),
            ("{}", &["replicas"]),
            ("kubernetes: {}", &["kubernetes.pool"]),
            ("kubernetes: {pool: p, selector: a, ports: [1]}", &["kubernetes.selector", "kubernetes.ports"]),
            ("kubernetes: {selector: a}", &["kubernetes.ports"]),
            ("kubernetes: {selector: a, ports: [0], ranks: 0}", &["kubernetes.ports", "kubernetes.ranks"]),
            (
                "kubernetes: {pool: p, agents: '', namespace: ' '}",
                &["kubernetes.namespace", "kubernetes.agents"],
            ),
            ("kubernetes: {pool: p}\nreplicas: [{address: 10.0.0.1:1, models: [m]}]", &["replicas"]),
        ] {
            assert_eq!(mistakes(yaml), fields, "{yaml}");
        }
        assert!(
            kvpick_service::config::parse::<Config>("kubernetes: {pools: p}").is_err(),
            "unknown fields are mistakes"
        );
    }
}
