//! What `envoy/kubernetes` makes: objects that Kubernetes takes, that fit together, and that allow no more than they
//! say. kubectl and Helm make them; there are both for Linux x86-64 only.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod configs;
mod confined;
mod images;
mod made;
mod reach;
mod same;
mod schemas;
mod together;

use serde_json::{Value, json};

use self::{
    made::{Made, base_with, chart, example, named, overlay, try_chart, with},
    schemas::Schemas,
};

/// Every component; some exclude each other.
const COMPONENTS: [&str; 8] =
    ["models-pvc", "models-copy", "models-image", "restricted", "ipc", "tls-feed", "istio", "monitoring"];

/// Values with which the chart makes all that it can.
const EVERYTHING: [&str; 12] = [
    "engines.namespace=\"engines\"",
    "engines.pool=\"vllm\"",
    "models=[{\"name\":\"qwen3\",\"path\":\"/models/qwen3\"}]",
    "modelsVolume={\"persistentVolumeClaim\":{\"claimName\":\"kvpick-models\",\"readOnly\":true}}",
    "agent.events={\"port\":5557}",
    "monitoring.enabled=true",
    "istio.destinationRule=true",
    "feedTls={\"enabled\":true,\"nodes\":[\"node-a\"]}",
    // Those that are empty by default.
    r#"server.nodeSelector={"pool":"cpu"}"#,
    r#"server.tolerations=[{"operator":"Exists"}]"#,
    r#"agent.podAnnotations={"a":"b"}"#,
    r#"networkPolicies.serverEgress=[{"to":[{"podSelector":{"matchLabels":{"app":"render"}}}]}]"#,
];

/// All that is shipped, by itself and in the combinations that the README shows.
fn everything() -> Vec<Made> {
    let mut all: Vec<_> = ["selector", "inferencepool", "istio"].map(overlay).into();
    all.push(base_with(&[]));
    all.extend(COMPONENTS.map(|it| base_with(&[it])));
    all.push(base_with(&["models-copy", "restricted", "tls-feed", "istio", "monitoring"]));
    all.push(with("overlays/inferencepool", &["restricted", "istio", "monitoring"]));
    all.push(chart(&[]));
    all.push(chart(&EVERYTHING));
    all.push(chart(&["agent.events={\"ipc\":\"/run/kvpick\"}", "agent.stateHostPath=\"\""]));
    all
}

#[test]
fn kubernetes_takes_every_object() {
    let examples = ["vllm.yaml", "inferencepool.yaml", "vllm-ipc.yaml"];
    let mut all = everything();
    // The last is a patch of the first.
    all.extend(examples[..2].iter().map(|it| example(it)));
    all.extend(examples[2..].iter().map(|it| patched(it)));
    let mut wrong = Vec::new();
    for version in ["v1.31", "v1.37"] {
        let schemas = Schemas::of(version);
        for made in &all {
            assert!(!made.objects.is_empty(), "{} makes nothing", made.name);
            let mistakes = made.objects.iter().flat_map(|it| schemas.mistakes(it));
            wrong.extend(mistakes.map(|it| format!("{}: {it}", made.name)));
            let nulls = made.objects.iter().filter(|it| has_null(it));
            wrong.extend(nulls.map(|it| format!("{}: {} has a null", made.name, named(it))));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The example's Deployment with a patch of it, as kustomize makes it.
fn patched(patch: &str) -> Made {
    let scratch = kvpick_lab::rig::scratch::Scratch::new("patched").unwrap();
    for (file, name) in [("vllm.yaml", "vllm.yaml"), (patch, "patch.yaml")] {
        std::fs::copy(made::folder().join("example").join(file), scratch.path().join(name)).unwrap();
    }
    let text = "resources: [vllm.yaml]\npatches: [{path: patch.yaml}]\n";
    std::fs::write(scratch.path().join("kustomization.yaml"), text).unwrap();
    Made { name: format!("example/{patch}"), objects: made::kustomize(scratch.path()) }
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(all) => all.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[test]
fn a_wrong_field_is_told() {
    let schemas = Schemas::of("v1.31");
    let (base, istio, pool) = (base_with(&[]), base_with(&["istio"]), example("inferencepool.yaml"));
    let deployment = base.one("Deployment", "kvpick");
    let wrong = [
        (deployment, "/spec/template/spec/containers/0/readinessProbe/grpc/prot", json!(9003)),
        (deployment, "/spec/template/spec/terminationGracePeriodSeconds", json!("45")),
        (deployment, "/spec/selector", Value::Null),
        (base.one("DaemonSet", "kvpick-agent"), "/spec/updateStrategy/rollingupdate", json!({})),
        (base.one("Role", "kvpick-engines"), "/rules/0/verb", json!("get")),
        (base.one("NetworkPolicy", "kvpick"), "/spec/ingress/0/ports/0/ports", json!(1)),
        (istio.one("DestinationRule", "kvpick"), "/spec/trafficPolicy/tls/insecureSkipVerfy", json!(true)),
        (istio.one("DestinationRule", "kvpick"), "/spec/trafficPolicy/tls/mode", json!("SIMPEL")),
        (pool.one("InferencePool", "vllm"), "/spec/endpointPickerRef/failureMode", json!("FailShut")),
        (pool.one("InferencePool", "vllm"), "/spec/targetPort", json!(8000)),
        (pool.one("HTTPRoute", "vllm"), "/spec/rules/0/timeouts/request", json!("soon")),
        (pool.one("Gateway", "inference"), "/spec/listeners/0/port", json!(0)),
    ];
    for (object, pointer, value) in wrong {
        assert_eq!(schemas.mistakes(object), Vec::<String>::new());
        let mut object = object.clone();
        let (above, field) = pointer.rsplit_once('/').unwrap();
        let fields = object.pointer_mut(above).unwrap().as_object_mut().unwrap();
        match value {
            Value::Null => drop(fields.remove(field)),
            value => drop(fields.insert(field.to_owned(), value)),
        }
        assert!(!schemas.mistakes(&object).is_empty(), "{} is taken", pointer);
    }
    assert!(!schemas.mistakes(&json!({"apiVersion": "v1", "kind": "Pot"})).is_empty());
}

#[test]
fn wrong_values_of_the_chart_are_told() {
    for (setting, told) in [
        ("server.replica=3", "replica"),
        ("server.replicas=\"two\"", "replicas"),
        ("engines.selector=\"app in (vllm)\"", "selector"),
        ("agent.events={\"ipc\":\"/run/kvpick\",\"listen\":5657}", "events"),
        ("feedTls={\"enabled\":true}", "nodes"),
        ("bindAddress=\"127.0.0.1\"", "bindAddress"),
    ] {
        let complaint = try_chart(&[setting]).unwrap_err();
        assert!(complaint.contains(told), "{setting}: {complaint}");
    }
}
