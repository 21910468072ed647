//! A Kubernetes API server, as far as whoever follows pods and pools sees one: lists and watches over HTTP, and what goes wrong
//! with them on command. The rules are those of the Kubernetes API conventions and of its page "API concepts"; each is named
//! where it is kept.

mod faults;
mod http;
mod selector;
mod store;

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub use faults::{Faults, Refusal};
pub use store::Kind;
use store::Store;

/// A running API server; it ends with this value.
#[derive(Debug)]
pub struct Cluster {
    store: Arc<Store>,
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Cluster {
    /// Starts an empty one on a port of its own on loopback.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("a port")?;
        let address = listener.local_addr().context("its port")?;
        let store = Arc::new(Store::default());
        let routes = http::routes(Arc::clone(&store));
        let task = tokio::spawn(async move {
            drop(axum::serve(listener, routes).await);
        });
        Ok(Self { store, address, task })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig file that names it, with that default namespace.
    pub fn write_kubeconfig(&self, file: &Path, namespace: &str) -> anyhow::Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": self.url()}}],
            "users": [{"name": "lab", "user": {"token": "any"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": namespace}}],
            "current-context": "lab",
        });
        // YAML takes JSON in.
        std::fs::write(file, config.to_string()).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Makes an object, or puts it in the place of the one of its namespace and name. Its uid, where it has none, is made; its
    /// resource version always.
    pub fn apply(&self, kind: Kind, object: Value) {
        self.store.apply(kind, object);
    }

    /// Removes an object. Returns whether it was there.
    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        self.store.delete(kind, namespace, name)
    }

    /// All objects of that kind.
    #[must_use]
    pub fn objects(&self, kind: Kind) -> Vec<Value> {
        self.store.objects(kind)
    }

    /// Forgets what happened so far, as a server does after some minutes: whoever asks for it is told that it is gone.
    pub fn compact(&self) {
        self.store.compact();
    }

    /// Ends all watches, and forgets what happened so far: another process serves from now on.
    pub fn restart(&self) {
        self.store.compact();
        self.store.end_watches();
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.store.set_faults(faults);
    }

    /// Requests refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.store.refused()
    }

    /// Lists answered, and watches begun, so far.
    #[must_use]
    pub fn requests(&self) -> (u64, u64) {
        self.store.requests()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.store.end_watches();
        self.task.abort();
    }
}

/// A pod that serves on `ip`, ready, on that node.
#[must_use]
pub fn pod(namespace: &str, name: &str, ip: &str, node: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": node, "containers": [{"name": "vllm", "image": "vllm"}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// An InferencePool.
#[must_use]
pub fn pool(namespace: &str, name: &str, labels: &Value, ports: &[u16]) -> Value {
    let ports: Vec<_> = ports.iter().map(|it| json!({"number": it})).collect();
    json!({
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "targetPorts": ports,
            "endpointPickerRef": {"name": "kvpick", "port": {"number": 9002}},
        },
    })
}
