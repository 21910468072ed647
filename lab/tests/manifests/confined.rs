//! Pods against the pod security level `restricted`, by the rules of the Pod Security Standards that concern Linux
//! pods.

use serde_json::{Value, json};

use crate::{
    everything,
    made::{base_with, list, text},
};

/// Volumes that `restricted` allows, and that of an image, which is read-only and reaches nothing of the node.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
    "image",
];

/// What in a pod the level does not allow.
fn objections(pod: &Value) -> Vec<String> {
    let spec = &pod["spec"];
    let mut found = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[field] == true {
            found.push(field.to_owned());
        }
    }
    for volume in list(&spec["volumes"]) {
        let kinds = volume.as_object().unwrap().keys().filter(|it| *it != "name");
        found.extend(kinds.filter(|it| !VOLUMES.contains(&it.as_str())).cloned());
    }
    for container in list(&spec["initContainers"]).iter().chain(list(&spec["containers"])) {
        let (own, name) = (&container["securityContext"], text(&container["name"]));
        let effective = |field: &str| own.get(field).or_else(|| spec["securityContext"].get(field)).cloned();
        let mut expect = |what: &str, holds: bool| {
            if !holds {
                found.push(format!("{name}: {what}"));
            }
        };
        expect("privileged", own["privileged"] != true);
        expect("allowPrivilegeEscalation", own["allowPrivilegeEscalation"] == false);
        expect("drop", own["capabilities"]["drop"] == json!(["ALL"]));
        expect("add", list(&own["capabilities"]["add"]).is_empty());
        expect("runAsNonRoot", effective("runAsNonRoot") == Some(true.into()));
        expect("runAsUser", effective("runAsUser").is_some_and(|it| it != 0));
        expect("seccompProfile", effective("seccompProfile") == Some(json!({"type": "RuntimeDefault"})));
        expect("hostPort", list(&container["ports"]).iter().all(|it| it.get("hostPort").is_none()));
        // More than the level asks for.
        expect("readOnlyRootFilesystem", own["readOnlyRootFilesystem"] == true);
        expect("resources", own.is_object() && container["resources"]["limits"]["memory"].is_string());
    }
    found
}

#[test]
fn the_server_is_restricted_whatever_is_added() {
    for made in everything() {
        assert_eq!(objections(&made.pods()["kvpick"]), Vec::<String>::new(), "{}", made.name);
    }
}

#[test]
fn what_the_agent_has_beyond_that_is_known() {
    let root = ["own-state: add", "own-state: runAsNonRoot", "own-state: runAsUser"];
    for (components, expected) in [
        (vec![], [&["hostPath"], root.as_slice()].concat()),
        (vec!["restricted"], vec![]),
        (vec!["restricted", "tls-feed", "monitoring"], vec![]),
        (vec!["restricted", "ipc"], vec!["hostPath"]),
    ] {
        let made = base_with(&components);
        assert_eq!(objections(&made.pods()["kvpick-agent"]), expected, "{}", made.name);
        let init = made.pods()["kvpick-agent"]["spec"]["initContainers"][0].clone();
        if init.is_object() {
            assert_eq!(init["securityContext"]["capabilities"]["add"], json!(["CHOWN", "FOWNER"]));
        }
    }
}
