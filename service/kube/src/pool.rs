//! An InferencePool, as far as it says which pods are its.

use std::collections::BTreeMap;

use kube::{
    api::ApiResource,
    core::{DynamicObject, GroupVersionKind},
};
use serde::Deserialize;

/// Its `spec` (Gateway API Inference Extension, `inference.networking.k8s.io/v1`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Pool {
    /// A label selector as a query has it.
    pub(crate) selector: String,
    pub(crate) ports: Vec<u16>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    selector: Selector,
    target_ports: Vec<TargetPort>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct TargetPort {
    number: u16,
}

/// The version of their API that is read.
pub(crate) const VERSION: &str = "v1";

/// The API of pools of that group.
pub(crate) fn resource(group: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(group, VERSION, "InferencePool");
    ApiResource::from_gvk_with_plural(&kind, "inferencepools")
}

impl Pool {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn read(object: &DynamicObject) -> Result<Self, String> {
        let spec: Spec =
            serde_json::from_value(object.data["spec"].clone()).map_err(|it| format!("spec: {it}"))?;
        let labels: Vec<_> =
            spec.selector.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if labels.is_empty() {
            return Err(
                "spec.selector.matchLabels: is empty, which would be every pod; name a label".to_owned()
            );
        }
        Ok(Self { selector: labels.join(","), ports: spec.target_ports.iter().map(|it| it.number).collect() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value) -> Result<Pool, String> {
        let object = json!({"metadata": {"name": "p"}, "spec": spec});
        Pool::read(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_pool_is_read_and_mistakes_are_named() {
        let spec = json!({"selector": {"matchLabels": {"b": "2", "a": "1"}}, "targetPorts": [{"number": 8000}, {"number": 8001}],
            "endpointPickerRef": {"name": "kvpick"}});
        assert_eq!(read(spec), Ok(Pool { selector: "a=1,b=2".to_owned(), ports: vec![8000, 8001] }));
        for (spec, field) in [
            (json!({"selector": {"matchLabels": {}}, "targetPorts": []}), "matchLabels"),
            (json!({"selector": {"matchLabels": {"a": "1"}}, "targetPorts": [{"number": 70_000}]}), "70000"),
            (json!({"selector": {"matchLabels": {"a": "1"}}}), "targetPorts"),
            (Value::Null, "spec"),
        ] {
            assert!(read(spec.clone()).unwrap_err().contains(field), "{spec}");
        }
    }
}
