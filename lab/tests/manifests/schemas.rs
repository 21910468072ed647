//! The published schemas that objects are held to.

use std::{cell::RefCell, collections::BTreeMap, io::Read as _, path::Path, rc::Rc};

use flate2::read::GzDecoder;
use jsonschema::Validator;
use kvpick_lab::rig::tools;
use serde_json::{Map, Value, json};

use crate::made::named;

/// Kinds that no registry has a schema of. What the manifests say of them was read against their documentation.
const WITHOUT: [&str; 3] =
    ["monitoring.coreos.com/v1 PodMonitor", "cert-manager.io/v1 Certificate", "cert-manager.io/v1 Issuer"];

/// Kubernetes' own kinds of one version, and those of CRDs.
pub(crate) struct Schemas {
    version: &'static str,
    own: Value,
    /// By API version and kind; Kubernetes' own are added as they are asked for, as each takes a while to make.
    validators: RefCell<BTreeMap<String, Option<Rc<Validator>>>>,
}

impl Schemas {
    /// Those of a version of Kubernetes.
    pub(crate) fn of(version: &'static str) -> Self {
        let text = std::fs::read_to_string(tools::kubernetes_schemas(version).unwrap()).unwrap();
        let mut validators = BTreeMap::new();
        for (file, name) in [
            ("inferencepools.yaml", "inferencepools"),
            ("gateway-api-gateways.yaml", "gateways.gateway"),
            ("gateway-api-httproutes.yaml.gz", "httproutes"),
            ("istio-crd-all.yaml.gz", "destinationrules"),
        ] {
            let crd = crd(file, name);
            let (group, kind) = (&crd["spec"]["group"], &crd["spec"]["names"]["kind"]);
            for version in crd["spec"]["versions"].as_array().unwrap() {
                let api = format!("{}/{}", group.as_str().unwrap(), version["name"].as_str().unwrap());
                let mut schema = version["schema"]["openAPIV3Schema"].clone();
                close(&mut schema, true);
                let validator = jsonschema::validator_for(&schema).unwrap();
                validators.insert(format!("{api} {}", kind.as_str().unwrap()), Some(Rc::new(validator)));
            }
        }
        Self { version, own: serde_json::from_str(&text).unwrap(), validators: RefCell::new(validators) }
    }

    /// What is wrong with an object.
    pub(crate) fn mistakes(&self, object: &Value) -> Vec<String> {
        let (api, kind) =
            (object["apiVersion"].as_str().unwrap_or(""), object["kind"].as_str().unwrap_or(""));
        let full = format!("{api} {kind}");
        if WITHOUT.contains(&full.as_str()) {
            return Vec::new();
        }
        let of = |validator: &Validator| -> Vec<String> {
            let error = |it: jsonschema::ValidationError<'_>| {
                format!("{} in {}: {}: {it}", named(object), self.version, it.instance_path())
            };
            validator.iter_errors(object).map(error).collect()
        };
        let mut validators = self.validators.borrow_mut();
        let validator = validators.entry(full.clone()).or_insert_with(|| self.own(api, kind).map(Rc::new));
        match validator {
            Some(validator) => of(validator),
            None => vec![format!("{}: there is no schema of {full}", named(object))],
        }
    }

    fn own(&self, api: &str, kind: &str) -> Option<Validator> {
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let wanted = json!({"group": group, "version": version, "kind": kind});
        let is_it = |it: &Value| {
            it["x-kubernetes-group-version-kind"].as_array().is_some_and(|all| all.contains(&wanted))
        };
        let definitions = self.own["$defs"].as_object()?;
        let (name, _) = definitions.iter().find(|(_, it)| is_it(it))?;
        let schema = json!({"$ref": format!("#/$defs/{name}"), "$defs": definitions});
        Some(jsonschema::validator_for(&schema).unwrap())
    }
}

/// A custom resource's definition, from a file with several.
fn crd(file: &str, name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("testdata/crds").join(file);
    let bytes = std::fs::read(&path).unwrap();
    let mut text = String::new();
    match file.ends_with(".gz") {
        true => GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).unwrap(),
        false => bytes.as_slice().read_to_string(&mut text).unwrap(),
    };
    let is_it = |it: &&str| it.lines().any(|line| line.starts_with(&format!("  name: {name}.")));
    serde_saphyr::from_str(text.split("\n---\n").find(is_it).unwrap()).unwrap()
}

/// Makes unknown fields mistakes, as the API server's strict validation does: it looks at the fields of a structural
/// schema, which are in `properties`, and never below `allOf` and its like.
fn close(schema: &mut Value, is_root: bool) {
    let Some(schema) = schema.as_object_mut() else { return };
    if is_root {
        let own = json!({"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}});
        let Value::Object(own) = own else { unreachable!("it was written as one") };
        let properties = schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        properties.as_object_mut().unwrap().extend(own);
    }
    let is_open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if schema.contains_key("properties") && !schema.contains_key("additionalProperties") && !is_open {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        schema.insert("type".to_owned(), json!(["integer", "string"]));
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        let of_metadata = |name: &str| is_root && name == "metadata";
        properties.iter_mut().filter(|(name, _)| !of_metadata(name)).for_each(|(_, it)| close(it, false));
    }
    for name in ["items", "additionalProperties"] {
        if let Some(it) = schema.get_mut(name) {
            close(it, false);
        }
    }
}
