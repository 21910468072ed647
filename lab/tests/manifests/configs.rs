//! The configurations in ConfigMaps, as the programs take them.

use std::{path::Path, process::Command};

use kvpick_lab::rig::{scratch::Scratch, tools};
use serde_json::Value;

use crate::{
    everything,
    made::{Made, list, text},
};

/// A program and its file.
const PROGRAMS: [(&str, &str); 2] = [("kvpick", "kvpick.yaml"), ("kvpick-agent", "kvpick-agent.yaml")];

/// What `check-config` complains of.
fn complaint(program: &str, file: &Path) -> Option<String> {
    let mut check = Command::new(tools::program(program).unwrap());
    // The node's name, as the DaemonSet gives it.
    let done =
        check.args(["check-config", "--config"]).arg(file).env("KVPICK_NODE", "node-a").output().unwrap();
    (!done.status.success()).then(|| String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn the_programs_take_their_configurations() {
    let scratch = Scratch::new("configs").unwrap();
    let here = scratch.path().join("files");
    std::fs::create_dir(&here).unwrap();
    // Folders of models and files of certificates are there in the cluster alone.
    let model = here.join("models/qwen3");
    std::fs::create_dir_all(model.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(tools::tokenizer().unwrap(), &model).unwrap();
    std::fs::create_dir(here.join("kvpick-feed")).unwrap();
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        std::fs::write(here.join("kvpick-feed").join(name), "").unwrap();
    }
    for made in everything() {
        for (program, name) in PROGRAMS {
            let text = made.config(&made.pods()[program], name);
            let text = text.replace("/models/", &format!("{}/models/", here.display()));
            let text = text.replace("/etc/kvpick-feed", &here.join("kvpick-feed").display().to_string());
            let file = scratch.path().join(name);
            std::fs::write(&file, text).unwrap();
            let complaint = complaint(program, &file);
            assert_eq!(complaint, None, "{}: {name}", made.name);
        }
    }
}

#[test]
fn a_wrong_field_of_a_configuration_is_told() {
    let scratch = Scratch::new("configs").unwrap();
    for (program, name) in PROGRAMS {
        let file = scratch.path().join(name);
        std::fs::write(&file, "admim: 0.0.0.0:9090\n").unwrap();
        assert!(complaint(program, &file).unwrap().contains("admim"));
    }
}

/// The last part of `ip:port`.
fn port(address: &Value) -> u64 {
    text(address).rsplit_once(':').unwrap().1.parse().unwrap()
}

fn named_port(made: &Made, pod: &str, name: &str) -> u64 {
    let container = &made.pods()[pod]["spec"]["containers"][0];
    list(&container["ports"]).iter().find(|it| it["name"] == name).unwrap()["containerPort"].as_u64().unwrap()
}

#[test]
fn what_is_configured_is_what_is_mounted_probed_and_served() {
    for made in everything() {
        let pods = made.pods();
        let (server, agent) = (&pods["kvpick"], &pods["kvpick-agent"]);
        let server_config: Value = serde_saphyr::from_str(&made.config(server, "kvpick.yaml")).unwrap();
        let agent_config: Value = serde_saphyr::from_str(&made.config(agent, "kvpick-agent.yaml")).unwrap();
        for (field, name) in [
            ("listen", "grpc-ext-proc"),
            ("health", "grpc-health"),
            ("feed", "grpc-feed"),
            ("admin", "admin"),
        ] {
            assert_eq!(
                port(&server_config[field]),
                named_port(&made, "kvpick", name),
                "{}: {field}",
                made.name
            );
        }
        assert_eq!(port(&agent_config["admin"]), named_port(&made, "kvpick-agent", "admin"));
        for probe in ["livenessProbe", "readinessProbe"] {
            let container = &server["spec"]["containers"][0];
            assert_eq!(container[probe]["grpc"]["port"], port(&server_config["health"]));
        }

        // Both look for the same engines.
        let engines = |config: &Value| {
            ["namespace", "pool", "selector", "ports"].map(|it| config["kubernetes"].get(it).cloned())
        };
        assert_eq!(engines(&server_config), engines(&agent_config), "{}", made.name);
        // A pool's members are its own affair; else there are ports.
        let kubernetes = &server_config["kubernetes"];
        assert!(kubernetes.get("pool").is_some() != kubernetes.get("ports").is_some(), "{}", made.name);

        // The agents' server is the Service of the feed, at its port.
        let feed = text(&agent_config["servers"][0]);
        let (host, port) = feed.rsplit_once(':').unwrap();
        let service = made.one("Service", host);
        assert_eq!(service["spec"]["ports"][0]["port"], port.parse::<u64>().unwrap());
        assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
        assert_eq!(service["spec"]["clusterIP"], "None");

        // Who may speak: pods with the agents' labels, or with a certificate for the name that is asked for.
        match kubernetes.get("agents") {
            Some(selector) => {
                for term in text(selector).split(',') {
                    let (name, value) = term.split_once('=').unwrap();
                    assert_eq!(agent["metadata"]["labels"][name], value, "{}", made.name);
                }
            }
            None => {
                let certificate = made.one("Certificate", "kvpick-feed-server");
                assert!(server_config["feed_tls"]["client_ca"].is_string());
                assert_eq!(certificate["spec"]["dnsNames"][0], agent_config["tls"]["server_name"]);
            }
        }

        // What is named is mounted.
        let mounted = |pod: &Value, path: &Value| {
            let path = text(path);
            let mounts = list(&pod["spec"]["containers"][0]["volumeMounts"]).to_vec();
            mounts.iter().any(|it| path.starts_with(&text(&it["mountPath"])))
        };
        assert!(mounted(agent, &agent_config["state"]));
        for model in list(&server_config["models"]) {
            assert!(mounted(server, &model["path"]), "{}: {model}", made.name);
        }
        if let Some(folder) = agent_config["kubernetes"]["events"].get("ipc") {
            assert!(mounted(agent, folder));
        }
    }
}
