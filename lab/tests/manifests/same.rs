//! With its own values the chart makes what the base makes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::made::{Made, base_with, chart, text};

/// Objects by kind and name, without what is different by intention:
/// - kustomize puts a digest behind a ConfigMap's name, the chart puts one into an annotation of the pods;
/// - configurations are the same as data, and have comments only in the base;
/// - the labels that charts have (`helm.sh/chart` and `managed-by`);
/// - `imagePullPolicy`, which the base leaves to Kubernetes, whose default it is.
fn comparable(made: &Made) -> BTreeMap<(String, String), Value> {
    made.objects
        .iter()
        .map(|it| {
            let mut it = it.clone();
            if let Some(labels) = it["metadata"]["labels"].as_object_mut() {
                labels.remove("helm.sh/chart");
                labels.remove("app.kubernetes.io/managed-by");
            }
            if let Some(data) = it.get_mut("data").and_then(Value::as_object_mut) {
                for file in data.values_mut() {
                    *file = serde_saphyr::from_str(file.as_str().unwrap()).unwrap();
                }
                it["metadata"]["name"] = without_digest(&it["metadata"]["name"]);
            }
            if let Some(pod) = it.pointer_mut("/spec/template") {
                for volume in pod["spec"]["volumes"].as_array_mut().unwrap() {
                    if let Some(name) = volume.pointer_mut("/configMap/name") {
                        *name = without_digest(name);
                    }
                }
                for container in pod["spec"]["containers"].as_array_mut().unwrap() {
                    let container = container.as_object_mut().unwrap();
                    let policy = container.remove("imagePullPolicy");
                    assert!([None, Some(json!("IfNotPresent"))].contains(&policy));
                }
                let metadata = pod["metadata"].as_object_mut().unwrap();
                if let Some(annotations) = metadata.remove("annotations") {
                    let names: Vec<_> = annotations.as_object().unwrap().keys().collect();
                    assert_eq!(names, ["checksum/config"]);
                }
            }
            ((text(&it["kind"]), text(&it["metadata"]["name"])), it)
        })
        .collect()
}

/// `kvpick-5h4k6m9t2b` is `kvpick`.
fn without_digest(name: &Value) -> Value {
    let name = text(name);
    match name.rsplit_once('-') {
        Some((name, digest)) if digest.len() == 10 => name.into(),
        _ => name.into(),
    }
}

#[test]
fn the_chart_makes_what_the_base_makes() {
    let (base, chart) = (comparable(&base_with(&[])), comparable(&chart(&[])));
    assert_eq!(chart.keys().collect::<Vec<_>>(), base.keys().collect::<Vec<_>>());
    for (name, object) in &base {
        let show = |it: &Value| serde_json::to_string_pretty(&sorted(it)).unwrap();
        pretty_eq(&show(object), &show(&chart[name]), name);
    }
}

#[test]
fn the_chart_makes_what_components_make() {
    for (components, settings) in [
        (
            vec!["models-pvc"],
            vec![
                "modelsVolume={\"persistentVolumeClaim\":{\"claimName\":\"kvpick-models\",\"readOnly\":true}}",
            ],
        ),
        (
            vec!["models-image"],
            vec![
                r#"modelsVolume={"image":{"reference":"registry.example/model-files:1","pullPolicy":"IfNotPresent"}}"#,
            ],
        ),
        (vec!["restricted"], vec!["agent.stateHostPath=\"\""]),
        (vec!["ipc"], vec!["agent.events={\"ipc\":\"/run/kvpick\"}"]),
        (vec!["istio"], vec!["istio.destinationRule=true"]),
        (vec!["monitoring"], vec!["monitoring.enabled=true"]),
        (vec!["tls-feed"], vec!["feedTls={\"enabled\":true,\"nodes\":[\"node-a\",\"node-b\"]}"]),
    ] {
        let (kustomized, chart) = (comparable(&base_with(&components)), comparable(&chart(&settings)));
        assert_eq!(chart.keys().collect::<Vec<_>>(), kustomized.keys().collect::<Vec<_>>(), "{components:?}");
        for (name, object) in &kustomized {
            let show = |it: &Value| serde_json::to_string_pretty(&sorted(it)).unwrap();
            pretty_eq(&show(object), &show(&chart[name]), name);
        }
    }
}

/// Objects with their fields in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.iter().map(|(name, it)| (name.clone(), sorted(it))).collect();
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(all) => all.iter().map(sorted).collect(),
        value => value.clone(),
    }
}

/// Equal texts, or the lines that only one of them has.
fn pretty_eq(base: &str, chart: &str, name: &(String, String)) {
    let only = |a: &str, b: &str| -> Vec<String> {
        a.lines().filter(|line| !b.lines().any(|it| it == *line)).map(str::to_owned).collect()
    };
    assert!(base == chart, "{name:?}\nbase: {:#?}\nchart: {:#?}", only(base, chart), only(chart, base));
}
