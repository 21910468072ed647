//! Engines as pods: server and agent read from an API server which they are, while pods come, are replaced and go.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod setup;

use std::collections::{BTreeMap, BTreeSet};

use kvpick_lab::{
    kube::{Faults, Kind, Refusal},
    rig::{scratch::Scratch, wait},
};
use serde_json::{Value, json};
use setup::{NAMESPACE, Setup};

/// Status, the engine that answered, and what kvpick says of the pick.
async fn chat(setup: &Setup, topic: &str) -> (u16, Option<String>, String) {
    let text: Vec<String> = (0..60).map(|it| format!("{topic} {it}")).collect();
    let body =
        json!({"model": "qwen3", "max_tokens": 2, "messages": [{"role": "user", "content": text.join(" ")}]});
    let http = reqwest::Client::builder().no_proxy().timeout(wait::LONG).build().unwrap();
    let url = format!("http://{}/v1/chat/completions", setup.envoy.listener());
    let answer = http.post(url).body(body.to_string()).send().await.unwrap();
    let header = |name: &str| answer.headers().get(name).map(|it| it.to_str().unwrap().to_owned());
    (answer.status().as_u16(), header("x-lab-engine"), header("x-kvpick-evidence").unwrap_or_default())
}

/// Sends the same until it is known where it is held: the engine that has it answers.
async fn held(setup: &Setup, topic: &str) -> String {
    let look = async || {
        let (status, engine, evidence) = chat(setup, topic).await;
        assert_eq!(status, 200, "{evidence}");
        let is_known = evidence.contains("tier=precise") && !evidence.contains("predicted_tokens=0");
        if is_known { Ok(engine.unwrap()) } else { Err(evidence) }
    };
    wait::until("a hit", wait::LONG, look).await.unwrap()
}

async fn engines_of(setup: &Setup, topics: std::ops::Range<u32>) -> BTreeSet<String> {
    let mut engines = BTreeSet::new();
    for topic in topics {
        let (status, engine, evidence) = chat(setup, &format!("topic-{topic}")).await;
        assert_eq!(status, 200, "{evidence}");
        engines.extend(engine);
    }
    engines
}

fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[field] = value;
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_come_and_are_replaced_and_go() {
    let scratch = Scratch::new("kubernetes").unwrap();
    let mut setup = Setup::start(scratch.path(), 2).await;
    let names: Vec<String> = setup.engines.iter().map(|it| it.address.to_string()).collect();
    let (status, _, _) = chat(&setup, "nobody").await;
    assert_eq!(status, 503, "the pool is known, and has nobody");

    // The first pod comes.
    setup.apply(setup.pod(0));
    setup.in_step(0).await;
    assert_eq!(held(&setup, "tides").await, names[0]);
    // Another, and then the first is not ready: what is known of it stays, but nobody is sent there.
    setup.apply(setup.pod(1));
    setup.in_step(1).await;
    assert_eq!(held(&setup, "tides").await, names[0], "it is held there");
    let not_ready = with(setup.pod(0), "/status/conditions/0/status", json!("False"));
    setup.apply(not_ready);
    setup.until(0, "away", |it| it.is_some_and(|it| it["away"] == true)).await;
    assert_eq!(engines_of(&setup, 0..6).await, BTreeSet::from([names[1].clone()]));
    setup.apply(setup.pod(0));
    setup.until(0, "ready", |it| it.is_some_and(|it| it["away"] == false)).await;
    assert_eq!(held(&setup, "tides").await, names[0]);

    // It is replaced: by its name and address, but another pod and another process.
    let uid = |replica: &Value| replica["uid"].as_str().unwrap().to_owned();
    let before = setup.server.status().await.unwrap();
    let before = uid(kvpick_lab::rig::fleet::replica(&before, setup.engines[0].address, 0).unwrap());
    setup.engines[0].program.kill();
    setup.cluster.delete(Kind::Pod, NAMESPACE, "engine-0");
    setup.until(0, "gone", |it| it.is_none()).await;
    assert_eq!(engines_of(&setup, 6..9).await, BTreeSet::from([names[1].clone()]));
    setup.engines[0].program.start().await.unwrap();
    setup.apply(setup.pod(0));
    setup
        .until(0, "another, in step and empty", |it| {
            it.is_some_and(|it| uid(it) != before && it["state"] == "live" && it["blocks"] == 0)
        })
        .await;

    // The second goes, and what was counted of it with it.
    setup.cluster.delete(Kind::Pod, NAMESPACE, "engine-1");
    setup.until(1, "gone", |it| it.is_none()).await;
    assert_eq!(engines_of(&setup, 9..12).await, BTreeSet::from([names[0].clone()]));
    let metrics = setup.server.metrics().await.unwrap();
    let picks: BTreeMap<_, _> = metrics.by("kvpick_picks_total", "replica");
    assert_eq!(picks.keys().collect::<Vec<_>>(), [&names[0]]);
    let gone = async || {
        let status = setup.agent.status().await.map_err(|it| it.to_string())?;
        let engines = status["engines"].as_array().map_or(0, Vec::len);
        if engines == 1 { Ok(()) } else { Err(status.to_string()) }
    };
    wait::until("the agent to leave it", wait::LONG, gone).await.unwrap();
    setup.cluster.delete(Kind::Pod, NAMESPACE, "engine-0");
    setup.until(0, "gone", |it| it.is_none()).await;
    let (status, _, _) = chat(&setup, "nobody").await;
    assert_eq!(status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_fails_changes_nothing() {
    let scratch = Scratch::new("kubernetes-fails").unwrap();
    let setup = Setup::start(scratch.path(), 1).await;
    setup.apply(setup.pod(0));
    setup.in_step(0).await;
    let engine = held(&setup, "tides").await;
    setup.cluster.set_faults(Faults { refuse: Some(Refusal::Forbidden), ..Faults::default() });
    setup.cluster.restart();
    let told = async || {
        let status = setup.server.status().await.map_err(|it| it.to_string())?;
        let problem = status["kubernetes"]["replicas"]["problem"].as_str().unwrap_or_default();
        if problem.contains("give it a Role") { Ok(()) } else { Err(status["kubernetes"].to_string()) }
    };
    wait::until("the problem to be told", wait::LONG, told).await.unwrap();
    assert_eq!(held(&setup, "tides").await, engine);
    assert_eq!(setup.server.metrics().await.unwrap().sum("kvpick_kubernetes_problem", &[]), 1.0);
    setup.cluster.set_faults(Faults::default());
    let well = async || {
        let metrics = setup.server.metrics().await.map_err(|it| it.to_string())?;
        if metrics.sum("kvpick_kubernetes_problem", &[]) == 0.0 { Ok(()) } else { Err("still".to_owned()) }
    };
    wait::until("it to be well again", wait::LONG, well).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_heard_only_of_its_own_pods_node() {
    let scratch = Scratch::new("kubernetes-agents").unwrap();
    let setup = Setup::start(scratch.path(), 1).await;
    setup.apply(setup.pod(0));
    setup.in_step(0).await;
    let feed = setup.server.address("feed").unwrap();
    let folder = std::path::absolute(scratch.path()).unwrap();
    // It comes from the address of a pod of node-1.
    let mut other = setup::agent("stranger", &folder, "node-2", feed, &folder.join("kubeconfig"));
    other.start().await.unwrap();
    let refused = async || {
        let metrics = setup.server.metrics().await.map_err(|it| it.to_string())?;
        let closed = metrics.sum("kvpick_feed_closed_total", &[("reason", "not_the_pod")]);
        if 0.0 < closed { Ok(()) } else { Err("not yet".to_owned()) }
    };
    wait::until("it to be refused", wait::LONG, refused).await.unwrap();
    // The pod is no agent's any more: a stream that is made anew is refused too.
    setup.cluster.delete(Kind::Pod, NAMESPACE, "agent-1");
    let known = async || {
        let status = setup.server.status().await.map_err(|it| it.to_string())?;
        let agents = status["kubernetes"]["agents"]["pods"].as_array().map_or(1, Vec::len);
        if agents == 0 { Ok(()) } else { Err(status["kubernetes"].to_string()) }
    };
    wait::until("its pod to be gone", wait::LONG, known).await.unwrap();
    let mut again = setup::agent("again", &folder, setup::NODE, feed, &folder.join("kubeconfig"));
    again.start().await.unwrap();
    let told = async || {
        let status = again.status().await.map_err(|it| it.to_string())?;
        let error = status["servers"][0]["last_error"].as_str().unwrap_or_default().to_owned();
        if error.contains("no agent's pod") { Ok(()) } else { Err(error) }
    };
    wait::until("it to be told why", wait::LONG, told).await.unwrap();
}
