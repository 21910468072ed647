//! Objects as kubectl and Helm make them, or as they stand in a file.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
};

use kvpick_lab::rig::{scratch::Scratch, tools};
use serde_json::Value;

/// The namespace of everything that the tests make.
pub(crate) const NAMESPACE: &str = "llm";

/// Objects that are applied together, with the name of what made them.
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) objects: Vec<Value>,
}

/// `envoy/kubernetes`.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("envoy/kubernetes")
}

/// The base with these components, as an overlay of somebody's own has it.
pub(crate) fn base_with(components: &[&str]) -> Made {
    with("base", components)
}

/// A folder of `envoy/kubernetes` with these components.
pub(crate) fn with(base: &str, components: &[&str]) -> Made {
    let scratch = Scratch::new("manifests").unwrap();
    let ours =
        relative(&std::fs::canonicalize(scratch.path()).unwrap(), &std::fs::canonicalize(folder()).unwrap());
    let mut text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: {NAMESPACE}\nresources: [{}]\n",
        ours.join(base).display()
    );
    let paths: Vec<_> =
        components.iter().map(|it| ours.join("components").join(it).display().to_string()).collect();
    text.push_str(&format!("components: [{}]\n", paths.join(", ")));
    std::fs::write(scratch.path().join("kustomization.yaml"), text).unwrap();
    Made { name: [&[base], components].concat().join(" + "), objects: kustomize(scratch.path()) }
}

/// An overlay as it is.
pub(crate) fn overlay(name: &str) -> Made {
    Made { name: format!("overlays/{name}"), objects: kustomize(&folder().join("overlays").join(name)) }
}

/// A file of `example/`.
pub(crate) fn example(name: &str) -> Made {
    let text = std::fs::read_to_string(folder().join("example").join(name)).unwrap();
    Made { name: format!("example/{name}"), objects: documents(&text) }
}

/// The chart, with these settings of values (`--set-json`).
pub(crate) fn chart(settings: &[&str]) -> Made {
    let objects = documents(&try_chart(settings).unwrap());
    Made { name: format!("chart {}", settings.join(" ")), objects }
}

/// The chart as a release of another name.
pub(crate) fn release(name: &str) -> Made {
    Made { name: format!("release {name}"), objects: documents(&try_release(name, &[]).unwrap()) }
}

/// What Helm prints, or complains of.
pub(crate) fn try_chart(settings: &[&str]) -> Result<String, String> {
    try_release("kvpick", settings)
}

fn try_release(name: &str, settings: &[&str]) -> Result<String, String> {
    let mut helm = Command::new(tools::helm().unwrap());
    helm.args(["template", name, "--namespace", NAMESPACE]).arg(folder().join("chart"));
    for setting in settings {
        helm.args(["--set-json", setting]);
    }
    // Nothing of the person who runs this counts.
    let scratch = Scratch::new("helm").unwrap();
    for name in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
        helm.env(name, scratch.path());
    }
    run(helm)
}

/// What `kubectl kustomize` makes of a folder.
pub(crate) fn kustomize(folder: &Path) -> Vec<Value> {
    let mut kubectl = Command::new(tools::kubectl().unwrap());
    kubectl.arg("kustomize").arg(folder);
    documents(&run(kubectl).unwrap())
}

fn run(mut command: Command) -> Result<String, String> {
    let done = command.stdin(Stdio::null()).output().unwrap();
    match done.status.success() {
        true => Ok(String::from_utf8(done.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

/// The objects of a YAML text.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    all.into_iter().filter(|it| !it.is_null()).collect()
}

/// The way from one folder to another; kustomize takes no other.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let (from, to): (Vec<_>, Vec<_>) = (from.components().collect(), to.components().collect());
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[common..].iter().map(|_| Component::ParentDir);
    up.chain(to[common..].iter().copied()).collect()
}

impl Made {
    /// The objects of a kind.
    pub(crate) fn of(&self, kind: &str) -> Vec<&Value> {
        self.objects.iter().filter(|it| it["kind"] == kind).collect()
    }

    /// The one object of a kind and name.
    pub(crate) fn one(&self, kind: &str, name: &str) -> &Value {
        let found: Vec<_> = self.of(kind).into_iter().filter(|it| it["metadata"]["name"] == name).collect();
        assert_eq!(found.len(), 1, "{}: {kind} {name}", self.name);
        found[0]
    }

    /// The pod templates of its Deployments and DaemonSets, by name, with their labels.
    pub(crate) fn pods(&self) -> BTreeMap<String, Value> {
        let workloads = self
            .objects
            .iter()
            .filter(|it| ["Deployment", "DaemonSet"].map(Value::from).contains(&it["kind"]));
        workloads.map(|it| (text(&it["metadata"]["name"]), it["spec"]["template"].clone())).collect()
    }

    /// The file of a ConfigMap that a pod template mounts.
    pub(crate) fn config(&self, pod: &Value, file: &str) -> String {
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let name = volumes.iter().find_map(|it| it["configMap"]["name"].as_str()).unwrap();
        text(&self.one("ConfigMap", name)["data"][file])
    }
}

/// A string.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string")).to_owned()
}

/// A list; nothing is an empty one.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Kind and name, to complain with.
pub(crate) fn named(object: &Value) -> String {
    format!("{} {}", object["kind"], object["metadata"]["name"])
}
