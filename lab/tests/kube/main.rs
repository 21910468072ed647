//! Pods and pools are followed through all that an API server does, well and badly: what is known is always a picture that was
//! true at one time, and in the end the one that is true now.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod law;
mod trouble;

use std::collections::BTreeSet;

use kvpick_kube::{Source, State, Which, client::client_of, endpoints::endpoints, follow};
use kvpick_lab::{
    kube::{Cluster, Kind, pod, pool},
    rig::wait,
};
use serde_json::{Value, json};
use tokio::sync::watch;

const NAMESPACE: &str = "inference";

fn selector() -> Which {
    Which::Selector { selector: "app=vllm".to_owned(), ports: vec![8000] }
}

fn of_pool() -> Which {
    Which::Pool { name: "engines".to_owned(), group: "inference.networking.k8s.io".to_owned() }
}

/// Follows; ends with the receiver.
fn started(cluster: &Cluster, which: Which, node: Option<&str>, watch_s: u32) -> watch::Receiver<State> {
    let client = client_of(&cluster.url(), NAMESPACE).unwrap();
    let source = Source { namespace: None, which, node: node.map(str::to_owned), watch_s };
    let (told, heard) = watch::channel(State::default());
    tokio::spawn(follow(client, source, told));
    heard
}

/// `name@ip:port` of each endpoint, with `-` before one that is not ready.
fn shown(state: &State) -> Option<BTreeSet<String>> {
    let members = state.members.as_ref()?;
    let shown = |it: kvpick_kube::Endpoint| {
        format!("{}{}@{}", if it.is_ready { "" } else { "-" }, it.pod, it.address)
    };
    Some(endpoints(&members.pods, &members.ports).into_iter().map(shown).collect())
}

/// Waits until these are the endpoints. Each picture on the way is given to `check`.
async fn until_with(heard: &mut watch::Receiver<State>, want: &[&str], check: impl Fn(&State)) {
    let want: BTreeSet<String> = want.iter().map(ToString::to_string).collect();
    let look = async {
        loop {
            let state = heard.borrow_and_update().clone();
            check(&state);
            if shown(&state).as_ref() == Some(&want) {
                return;
            }
            heard.changed().await.unwrap();
        }
    };
    if tokio::time::timeout(wait::LONG, look).await.is_err() {
        panic!("{:?}, not {want:?}", *heard.borrow());
    }
}

async fn until(heard: &mut watch::Receiver<State>, want: &[&str]) {
    until_with(heard, want, |_| ()).await;
}

/// Waits for what is wrong to have such a word in it, or for nothing to be wrong.
async fn until_problem(heard: &mut watch::Receiver<State>, word: Option<&str>) -> State {
    let has = |it: &State| match (&it.problem, word) {
        (Some(problem), Some(word)) => problem.contains(word),
        (problem, word) => problem.is_none() && word.is_none(),
    };
    match tokio::time::timeout(wait::LONG, heard.wait_for(has)).await {
        Ok(state) => state.unwrap().clone(),
        Err(_) => panic!("a problem with {word:?} is awaited"),
    }
}

fn vllm(name: &str, ip: &str) -> Value {
    pod(NAMESPACE, name, ip, "node-1", &json!({"app": "vllm"}))
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[field] = value;
    object
}

#[tokio::test]
async fn pods_come_and_change_and_go() {
    let cluster = Cluster::start().await.unwrap();
    cluster.apply(Kind::Pod, vllm("a", "10.0.0.1"));
    cluster.apply(Kind::Pod, pod(NAMESPACE, "other", "10.0.0.9", "node-1", &json!({"app": "web"})));
    cluster.apply(Kind::Pod, pod("elsewhere", "b", "10.0.0.8", "node-1", &json!({"app": "vllm"})));
    let mut heard = started(&cluster, selector(), None, 30);
    until(&mut heard, &["a@10.0.0.1:8000"]).await;
    // Scheduled, started, ready.
    let fresh = with(with(vllm("b", ""), "/status/podIPs", json!([])), "/status/conditions", json!([]));
    cluster.apply(Kind::Pod, fresh);
    let not_ready = with(vllm("b", "10.0.0.2"), "/status/conditions/0/status", json!("False"));
    cluster.apply(Kind::Pod, not_ready);
    until(&mut heard, &["a@10.0.0.1:8000", "-b@10.0.0.2:8000"]).await;
    cluster.apply(Kind::Pod, vllm("b", "10.0.0.2"));
    until(&mut heard, &["a@10.0.0.1:8000", "b@10.0.0.2:8000"]).await;
    // Asked to stop, ended, and gone.
    cluster.apply(
        Kind::Pod,
        with(vllm("a", "10.0.0.1"), "/metadata/deletionTimestamp", json!("2026-01-01T00:01:00Z")),
    );
    until(&mut heard, &["-a@10.0.0.1:8000", "b@10.0.0.2:8000"]).await;
    cluster.apply(Kind::Pod, with(vllm("a", "10.0.0.1"), "/status/phase", json!("Succeeded")));
    until(&mut heard, &["b@10.0.0.2:8000"]).await;
    assert!(cluster.delete(Kind::Pod, NAMESPACE, "a"));
    // One whose label is taken off is one of these no longer.
    cluster.apply(Kind::Pod, with(vllm("b", "10.0.0.2"), "/metadata/labels/app", json!("aside")));
    until(&mut heard, &[]).await;
    let (lists, _) = cluster.requests();
    assert_eq!(lists, 1, "all of that was told by watches");
}

#[tokio::test]
async fn of_one_node_if_that_is_asked_for() {
    let cluster = Cluster::start().await.unwrap();
    cluster.apply(Kind::Pod, vllm("a", "10.0.0.1"));
    cluster.apply(Kind::Pod, with(vllm("b", "10.0.0.2"), "/spec/nodeName", json!("node-2")));
    let mut heard = started(&cluster, selector(), Some("node-2"), 30);
    until(&mut heard, &["b@10.0.0.2:8000"]).await;
}

#[tokio::test]
async fn an_address_is_used_again_at_once() {
    let cluster = Cluster::start().await.unwrap();
    cluster.apply(Kind::Pod, vllm("a", "10.0.0.1"));
    let mut heard = started(&cluster, selector(), None, 30);
    until(&mut heard, &["a@10.0.0.1:8000"]).await;
    // The new one is told of before the end of the one before.
    cluster.apply(
        Kind::Pod,
        with(vllm("a", "10.0.0.1"), "/metadata/deletionTimestamp", json!("2026-01-01T00:01:00Z")),
    );
    let late = with(vllm("b", "10.0.0.1"), "/metadata/creationTimestamp", json!("2026-01-01T00:01:00Z"));
    cluster.apply(Kind::Pod, late);
    cluster.delete(Kind::Pod, NAMESPACE, "a");
    until(&mut heard, &["b@10.0.0.1:8000"]).await;
    // A pod of a StatefulSet comes back by its name and address, and is another.
    let before = heard.borrow().members.clone().unwrap().pods[0].uid.clone();
    cluster.delete(Kind::Pod, NAMESPACE, "b");
    cluster.apply(Kind::Pod, vllm("b", "10.0.0.1"));
    let is_other = |it: &State| it.members.iter().flat_map(|it| &it.pods).any(|it| it.uid != before);
    tokio::time::timeout(wait::LONG, heard.wait_for(is_other)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_pool_says_which_pods() {
    let cluster = Cluster::start().await.unwrap();
    cluster.apply(Kind::Pod, vllm("a", "10.0.0.1"));
    let mut heard = started(&cluster, of_pool(), None, 30);
    let state =
        until_problem(&mut heard, Some("there is no InferencePool engines in namespace inference")).await;
    assert_eq!(state.members, None, "it may come yet");
    cluster.apply(Kind::Pool, pool(NAMESPACE, "other", &json!({"app": "web"}), &[1]));
    cluster.apply(Kind::Pool, pool(NAMESPACE, "engines", &json!({"app": "vllm"}), &[8000]));
    until(&mut heard, &["a@10.0.0.1:8000"]).await;
    until_problem(&mut heard, None).await;
    cluster.apply(Kind::Pool, pool(NAMESPACE, "engines", &json!({"app": "vllm"}), &[8000, 8001]));
    until(&mut heard, &["a@10.0.0.1:8000", "a@10.0.0.1:8001"]).await;
    // Other pods are meant: until they are all known, those before stand.
    cluster.apply(Kind::Pod, pod(NAMESPACE, "c", "10.0.0.3", "node-1", &json!({"app": "next"})));
    cluster.apply(Kind::Pool, pool(NAMESPACE, "engines", &json!({"app": "next"}), &[8001]));
    until_with(&mut heard, &["c@10.0.0.3:8001"], |it| {
        let found: Vec<_> = shown(it).unwrap().into_iter().collect();
        let before = ["a@10.0.0.1:8000", "a@10.0.0.1:8001"];
        assert!(found == before || found == ["c@10.0.0.3:8001"], "a picture of both: {found:?}");
    })
    .await;
    // What makes no sense changes nothing.
    cluster.apply(Kind::Pool, pool(NAMESPACE, "engines", &json!({}), &[8001]));
    until_problem(&mut heard, Some("matchLabels")).await;
    assert_eq!(shown(&heard.borrow()).unwrap().len(), 1);
    cluster.delete(Kind::Pool, NAMESPACE, "engines");
    until(&mut heard, &[]).await;
    cluster.apply(Kind::Pool, pool(NAMESPACE, "engines", &json!({"app": "vllm"}), &[8000]));
    until(&mut heard, &["a@10.0.0.1:8000"]).await;
}

#[tokio::test]
async fn a_long_list_comes_in_pages() {
    let cluster = Cluster::start().await.unwrap();
    for n in 0..1_100 {
        cluster.apply(Kind::Pod, vllm(&format!("p{n}"), &format!("10.1.{}.{}", n / 250, n % 250)));
    }
    let mut heard = started(&cluster, selector(), None, 30);
    let is_all = |it: &State| {
        let pods = it.members.as_ref().map(|it| it.pods.len());
        assert!(pods.is_none() || pods == Some(1_100), "a part of a list is no picture: {pods:?}");
        pods.is_some()
    };
    tokio::time::timeout(wait::LONG, heard.wait_for(is_all)).await.unwrap().unwrap();
    assert!(2 <= cluster.requests().0, "{:?}", cluster.requests());
}
