//! What of a pod is looked at.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1;

/// A pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Pod {
    /// Who it is: no other pod ever has it.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.nodeName`; none until it is scheduled.
    pub node: Option<String>,
    /// `status.podIPs`, the main one first; none until it is started.
    pub addresses: Vec<IpAddr>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970 at which it was made; 0 if that is not told.
    pub created: i64,
    /// Whether its condition `Ready` is `True`.
    pub is_ready: bool,
    /// Whether it has a `metadata.deletionTimestamp`.
    pub is_deleting: bool,
    /// Whether its phase is `Succeeded` or `Failed`: its containers have ended, and its address may be another's.
    pub is_over: bool,
    /// Its containers, with the init containers that stay (sidecars).
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// `command`.
    pub command: Vec<String>,
    /// `args`.
    pub args: Vec<String>,
    /// Environment variables that are plain values.
    pub env: BTreeMap<String, String>,
    /// `ports[].containerPort`.
    pub ports: Vec<u16>,
}

impl Pod {
    /// Reads one; `None` for one without a uid, which an API server does not make.
    #[must_use]
    pub fn read(pod: &v1::Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let conditions = status.and_then(|it| it.conditions.as_ref()).into_iter().flatten();
        let ips = status.and_then(|it| it.pod_ips.as_ref()).into_iter().flatten().map(|it| it.ip.as_str());
        let mut addresses: Vec<IpAddr> = ips.filter_map(|it| it.parse().ok()).collect();
        let main = status.and_then(|it| it.pod_ip.as_deref()).and_then(|it| it.parse().ok());
        if let Some(main) = main.filter(|it| !addresses.contains(it)) {
            addresses.insert(0, main);
        }
        let phase = status.and_then(|it| it.phase.as_deref()).unwrap_or_default();
        let stays = |it: &&v1::Container| it.restart_policy.as_deref() == Some("Always");
        let inits = spec.and_then(|it| it.init_containers.as_ref()).into_iter().flatten().filter(stays);
        Some(Self {
            uid: metadata.uid.clone().filter(|it| !it.is_empty())?,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            node: spec.and_then(|it| it.node_name.clone()).filter(|it| !it.is_empty()),
            addresses,
            labels: metadata.labels.clone().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(0, |it| it.0.as_second()),
            is_ready: conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True"),
            is_deleting: metadata.deletion_timestamp.is_some(),
            is_over: matches!(phase, "Succeeded" | "Failed"),
            containers: inits.chain(spec.into_iter().flat_map(|it| &it.containers)).map(container).collect(),
        })
    }
}

fn container(it: &v1::Container) -> Container {
    let ports = it.ports.iter().flatten().filter_map(|it| u16::try_from(it.container_port).ok());
    let env = it.env.iter().flatten().filter_map(|it| Some((it.name.clone(), it.value.clone()?)));
    Container {
        name: it.name.clone(),
        command: it.command.clone().unwrap_or_default(),
        args: it.args.clone().unwrap_or_default(),
        env: env.collect(),
        ports: ports.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_read() {
        let pod = json!({
            "metadata": {"uid": "u", "name": "vllm-0", "namespace": "n", "labels": {"app": "vllm"},
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "gpu-1",
                "initContainers": [{"name": "fetch"}, {"name": "proxy", "restartPolicy": "Always"}],
                "containers": [{"name": "vllm", "args": ["serve"], "ports": [{"containerPort": 8000}],
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}],
                "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}]}
        });
        let pod = Pod::read(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!((pod.node.as_deref(), pod.created), (Some("gpu-1"), 1_767_225_600));
        assert_eq!(pod.addresses, ["10.0.0.7".parse::<IpAddr>().unwrap(), "fd00::7".parse().unwrap()]);
        assert!(pod.is_ready && !pod.is_deleting && !pod.is_over);
        let names: Vec<_> = pod.containers.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["proxy", "vllm"]);
        assert_eq!((&pod.containers[1].ports[..], pod.containers[1].env.len()), (&[8000][..], 1));
    }

    #[test]
    fn one_that_is_not_scheduled_yet_is_read() {
        let pod = json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False"}]}});
        let pod = Pod::read(&serde_json::from_value(pod).unwrap()).unwrap();
        let bare = Pod { uid: "u".to_owned(), is_deleting: true, is_over: true, ..Pod::default() };
        assert_eq!(pod, bare);
        assert_eq!(Pod::read(&v1::Pod::default()), None);
    }
}
