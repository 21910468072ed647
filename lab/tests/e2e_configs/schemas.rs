//! Objects for Kubernetes are held to the schemas that their projects publish (`testdata/crds`).

use std::{collections::BTreeMap, io::Read as _, path::Path};

use flate2::read::GzDecoder;
use jsonschema::Validator;
use serde_json::{Map, Value, json};

use crate::istio::objects;

/// The files with objects of which there are schemas.
const FILES: [&str; 4] = [
    "istio/envoyfilter.yaml",
    "istio/inferencepool.yaml",
    "ai-gateway/inferencepool.yaml",
    "envoy-gateway/kvpick.yaml",
];

/// Objects of these groups have no schema here: read against their project's API types by hand.
const WITHOUT: [&str; 1] = ["gateway.envoyproxy.io/v1alpha1"];

fn schemas() -> BTreeMap<String, Validator> {
    let mut schemas = BTreeMap::new();
    for file in [
        "inferencepools.yaml",
        "gateway-api-gateways.yaml",
        "gateway-api-gatewayclasses.yaml",
        "gateway-api-httproutes.yaml.gz",
        "istio-crd-all.yaml.gz",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/crds").join(file);
        let bytes = std::fs::read(&path).unwrap();
        let mut text = String::new();
        match file.ends_with(".gz") {
            true => GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).unwrap(),
            false => bytes.as_slice().read_to_string(&mut text).unwrap(),
        };
        for document in text.split("\n---\n").filter(|it| it.contains("CustomResourceDefinition")) {
            let crd: Value = serde_saphyr::from_str(document).unwrap();
            for version in crd["spec"]["versions"].as_array().unwrap() {
                let (group, kind) = (crd["spec"]["group"].as_str(), crd["spec"]["names"]["kind"].as_str());
                let name = version["name"].as_str().unwrap();
                let mut schema = version["schema"]["openAPIV3Schema"].clone();
                let properties = schema["properties"].as_object_mut().unwrap();
                properties.extend(Map::from_iter([
                    ("apiVersion".to_owned(), json!({"type": "string"})),
                    ("kind".to_owned(), json!({"type": "string"})),
                    ("metadata".to_owned(), json!({"type": "object"})),
                ]));
                close(&mut schema);
                let validator = jsonschema::validator_for(&schema).unwrap();
                schemas.insert(format!("{}/{name} {}", group.unwrap(), kind.unwrap()), validator);
            }
        }
    }
    schemas
}

/// Makes unknown fields mistakes, as the API server's strict validation does.
fn close(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    let is_open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if schema.contains_key("properties") && !schema.contains_key("additionalProperties") && !is_open {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(close);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(it) = schema.get_mut(name) {
            close(it);
        }
    }
}

fn mistakes(schemas: &BTreeMap<String, Validator>, object: &Value) -> Vec<String> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let kind = format!("{} {}", text("apiVersion"), text("kind"));
    match schemas.get(&kind) {
        Some(schema) => {
            schema.iter_errors(object).map(|it| format!("{kind} {}: {it}", it.instance_path())).collect()
        }
        None if WITHOUT.contains(&text("apiVersion")) => Vec::new(),
        None => vec![format!("there is no schema of {kind}")],
    }
}

#[test]
fn kubernetes_takes_every_object() {
    let schemas = schemas();
    for file in FILES {
        let all = objects(file);
        let wrong: Vec<_> = all.iter().flat_map(|it| mistakes(&schemas, it)).collect();
        assert!(wrong.is_empty(), "{file}:\n{}", wrong.join("\n"));
        let checked = all.iter().filter(|it| !WITHOUT.contains(&it["apiVersion"].as_str().unwrap()));
        assert_ne!(checked.count(), 0, "{file} has nothing to check");
    }
}

#[test]
fn a_wrong_field_is_told() {
    let schemas = schemas();
    for (file, kind, pointer, value) in [
        ("istio/envoyfilter.yaml", "EnvoyFilter", "/spec/configPatches/0/applyTo", json!("CLUSTERS")),
        ("istio/envoyfilter.yaml", "EnvoyFilter", "/spec/configPatches/0/patch/operatoin", json!("ADD")),
        ("istio/envoyfilter.yaml", "EnvoyFilter", "/spec/configPatches/1/match/listener/port", json!(80)),
        ("istio/envoyfilter.yaml", "VirtualService", "/spec/http/0/retries/retryon", json!("reset")),
        (
            "istio/envoyfilter.yaml",
            "DestinationRule",
            "/spec/trafficPolicy/loadBalancer/simple",
            json!("LEAST"),
        ),
        (
            "istio/inferencepool.yaml",
            "DestinationRule",
            "/spec/trafficPolicy/tls/insecureSkipVerfy",
            json!(true),
        ),
        ("istio/inferencepool.yaml", "InferencePool", "/spec/endpointPickerRef/failureMode", json!("Open")),
        ("istio/inferencepool.yaml", "InferencePool", "/spec/extensionRef", json!({"name": "kvpick"})),
        ("istio/inferencepool.yaml", "HTTPRoute", "/spec/rules/0/timeouts/request", json!("soon")),
        ("istio/inferencepool.yaml", "Gateway", "/spec/gatewayClassName", json!("")),
        ("ai-gateway/inferencepool.yaml", "InferencePool", "/spec/targetPorts/0/number", json!(0)),
    ] {
        let object = objects(file).into_iter().find(|it| it["kind"] == kind).unwrap();
        assert_eq!(mistakes(&schemas, &object), Vec::<String>::new());
        let mut wrong = object.clone();
        let (above, field) = pointer.rsplit_once('/').unwrap();
        wrong.pointer_mut(above).unwrap()[field] = value;
        assert!(!mistakes(&schemas, &wrong).is_empty(), "{file}: {kind}: {pointer} is taken");
    }
}
