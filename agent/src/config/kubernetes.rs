//! Engines that are pods of this node.

use kvpick_kube::Which;
use serde::{Deserialize, Serialize};

use super::Mistakes;

/// The environment variable that names this node, where the configuration does not.
pub(super) const NODE: &str = "KVPICK_NODE";

/// Which pods the engines are. In place of `engines`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesEntry {
    /// The pods' namespace; this pod's own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// An InferencePool, which says which pods and which ports. This or `selector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The pool's API group.
    pub group: String,
    /// A label selector. This or `pool`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// With `selector`: the ports on which the pods serve.
    pub ports: Vec<u16>,
    /// How many data-parallel ranks share each address.
    pub ranks: u32,
    /// Where an engine publishes its events. By default that is read from the pod's `--kv-events-config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsEntry>,
}

/// Where engines in pods publish their events; `port` or `ipc`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsEntry {
    /// The port of rank 0, at the pod's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The port of its replay socket, there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_port: Option<u16>,
    /// A folder of the node that each pod mounts by its uid: sockets `events` and `replay` in `<folder>/<uid>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipc: Option<String>,
}

impl Default for KubernetesEntry {
    fn default() -> Self {
        Self {
            namespace: None,
            pool: None,
            group: kvpick_kube::GROUP.to_owned(),
            selector: None,
            ports: Vec::new(),
            ranks: 1,
            events: None,
        }
    }
}

impl KubernetesEntry {
    /// Which pods the engines are.
    #[must_use]
    pub fn which(&self) -> Which {
        Which::of(self.pool.as_deref(), &self.group, self.selector.as_deref(), &self.ports)
    }

    pub(super) fn check(&self, mistakes: &mut Mistakes) {
        for (field, what) in Which::mistakes(self.pool.as_deref(), self.selector.as_deref(), &self.ports) {
            mistakes.add(&format!("kubernetes.{field}"), what);
        }
        if !(1..=super::MOST_RANKS).contains(&self.ranks) {
            mistakes.add(
                "kubernetes.ranks",
                format!("there are 1 to {} ranks behind an address", super::MOST_RANKS),
            );
        }
        let Some(events) = &self.events else { return };
        match (events.port, &events.ipc) {
            (Some(0), _) => mistakes.add("kubernetes.events.port", "0 is no port; write the real one"),
            (Some(_), None) => {}
            (None, Some(folder)) if folder.starts_with('/') => {
                if self.ranks != 1 {
                    let what = "has room for rank 0 alone; have engines with more ranks publish on ports";
                    mistakes.add("kubernetes.events.ipc", what);
                }
                if events.replay_port.is_some() {
                    mistakes.add(
                        "kubernetes.events.replay_port",
                        "with ipc the replay socket is a file; leave it out",
                    );
                }
            }
            (None, Some(_)) => mistakes.add("kubernetes.events.ipc", "is not the absolute path of a folder"),
            _ => mistakes
                .add("kubernetes.events", "give port or ipc, or leave it out to go by each pod's own flags"),
        }
    }
}
