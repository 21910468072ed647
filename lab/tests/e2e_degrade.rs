//! Whatever is missing or broken, a request is answered by an engine, and the reason is in metric and log.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::net::SocketAddr;

use common::{CHAT, chat, decisions, post, settle, until_replica};
use kvpick_lab::rig::{
    fleet::{Fleet, Plan},
    ports,
    program::{AgentConfig, EngineConfig, Program},
    scratch::Scratch,
    wait,
};
use serde_json::{Map, json};

/// Two engines on two nodes, with a budget that a busy machine can keep.
fn plan() -> Plan {
    let mut plan = Plan::even(2, 2);
    plan.server = Map::from_iter([("budget".to_owned(), json!({"base_ms": 300}))]);
    plan
}

/// An agent of that node that describes an engine and leaves its events alone.
async fn quiet_agent(fleet: &Fleet, scratch: &Scratch, node: &str, address: SocketAddr) -> Program {
    let events = "off".to_owned();
    let engine = EngineConfig { address, rank: 0, events, subscribe: None, listen: None, replay: None };
    let config = AgentConfig {
        node: node.to_owned(),
        servers: vec![fleet.server.address("feed").unwrap().to_string()],
        admin: ports::free().unwrap(),
        engines: vec![engine],
        more: Map::new(),
    };
    let mut agent = Program::agent(&format!("quiet-{node}"), scratch.path(), &config).unwrap();
    agent.start().await.unwrap();
    agent
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_requests_and_unknown_models() {
    let scratch = Scratch::new("degrade-bodies").unwrap();
    let fleet = Fleet::start(&plan(), scratch.path()).await.unwrap();
    let cases = [
        ("not json at all".to_owned(), "not_json", 400),
        (r#"{"model": "qwen3"}"#.to_owned(), "no_messages", 400),
        (r#"{"model": "qwen3", "messages": []}"#.to_owned(), "no_messages", 400),
        (r#"{"model": "qwen3", "messages": "hello"}"#.to_owned(), "wrong_type", 400),
        (r#"{"model": "qwen3", "messages": [{"role": 5}]}"#.to_owned(), "wrong_type", 400),
        (r#"[1, 2]"#.to_owned(), "not_object", 400),
        (format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), "too_deep", 400),
        (String::new(), "no_body", 400),
        (chat("no-such-model", "x", 30), "unknown_model", 404),
    ];
    for (body, reason, status) in cases {
        let shown: String = body.chars().take(60).collect();
        let before = decisions(&fleet, "load", reason).await;
        let answer = post(&fleet, CHAT, body).await;
        assert!(answer.engine().is_some(), "{shown}: no engine has answered: {answer:?}");
        assert_eq!(answer.status, status, "{shown}: {answer:?}");
        assert_eq!(answer.tier_and_reason(), ("load", reason), "{shown}");
        assert_eq!(decisions(&fleet, "load", reason).await, before + 1.0, "{shown}");
    }
    let log = fleet.server.log();
    for reason in ["not_json", "no_messages", "wrong_type", "unknown_model"] {
        assert!(log.contains(reason), "{reason} is not in the log");
    }
    assert_eq!(fleet.envoy().unwrap().picker_stat("failure_mode_allowed").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_index_then_hits() {
    let scratch = Scratch::new("degrade-empty").unwrap();
    let fleet = Fleet::start(&plan(), scratch.path()).await.unwrap();
    let first = post(&fleet, CHAT, chat("qwen3", "harbour", 300)).await;
    assert_eq!((first.status, first.evidence("predicted_tokens")), (200, Some("0")), "{first:?}");
    settle(&fleet).await;
    let second = post(&fleet, CHAT, chat("qwen3", "harbour", 300)).await;
    assert_eq!(second.tier_and_reason(), ("precise", "ok"));
    assert_eq!(second.engine(), first.engine());
    assert!(128 <= second.cached_tokens());
    assert_eq!(second.evidence("predicted_tokens").unwrap(), second.cached_tokens().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_agent_then_one() {
    let scratch = Scratch::new("degrade-no-agent").unwrap();
    let mut fleet = Fleet::start(&plan(), scratch.path()).await.unwrap();
    fleet.agents.iter_mut().for_each(Program::kill);
    fleet.server.kill();
    fleet.server.start().await.unwrap();
    fleet.server.ready().await.unwrap();
    let picked = async || {
        // Envoy looks after the server's health once a second.
        let answer = post(&fleet, CHAT, chat("qwen3", "quay", 100)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.headers.contains_key("x-kvpick-evidence").then_some(answer).ok_or_else(|| "not yet".to_owned())
    };
    let answer = wait::until("Envoy to find the server again", wait::LONG, picked).await.unwrap();
    assert_eq!(answer.tier_and_reason(), ("approximate", "no_agent"));
    assert!(fleet.server.log().contains("no_agent"));
    let again = post(&fleet, CHAT, chat("qwen3", "quay", 100)).await;
    assert_eq!(again.engine(), answer.engine(), "this server knows what it sent where");

    for agent in &mut fleet.agents {
        agent.start().await.unwrap();
    }
    for address in fleet.engine_addresses() {
        until_replica(&fleet, *address, "/state", &json!("live")).await;
    }
    settle(&fleet).await;
    let answer = post(&fleet, CHAT, chat("qwen3", "quay", 100)).await;
    assert_eq!(answer.tier_and_reason(), ("precise", "ok"));
    assert_eq!(answer.evidence("predicted_tokens").unwrap(), answer.cached_tokens().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_agent() {
    let scratch = Scratch::new("degrade-frozen").unwrap();
    let mut fleet = Fleet::start(&plan(), scratch.path()).await.unwrap();
    let addresses = fleet.engine_addresses().to_vec();
    let first = post(&fleet, CHAT, chat("qwen3", "anchor", 300)).await;
    settle(&fleet).await;
    for agent in &mut fleet.agents {
        agent.process().unwrap().stop().unwrap();
    }
    for state in ["stale", "emptied"] {
        for address in &addresses {
            until_replica(&fleet, *address, "/state", &json!(state)).await;
        }
        let answer = post(&fleet, CHAT, chat("qwen3", "anchor", 300)).await;
        assert_eq!((answer.status, answer.engine()), (200, first.engine()), "{state}: {answer:?}");
        if state == "emptied" {
            assert_eq!(answer.tier_and_reason(), ("approximate", "agent_silent"));
            assert!(fleet.server.log().contains("agent_silent"));
        }
    }
    for agent in &mut fleet.agents {
        agent.process().unwrap().cont().unwrap();
    }
    for address in &addresses {
        until_replica(&fleet, *address, "/state", &json!("live")).await;
    }
    settle(&fleet).await;
    let answer = post(&fleet, CHAT, chat("qwen3", "anchor", 300)).await;
    assert_eq!(answer.tier_and_reason(), ("precise", "ok"));
    assert_eq!(answer.evidence("predicted_tokens").unwrap(), answer.cached_tokens().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_without_events_are_served_all_the_same() {
    let scratch = Scratch::new("degrade-no-events").unwrap();
    let mut fleet = Fleet::start(&plan(), scratch.path()).await.unwrap();
    fleet.agents.iter_mut().for_each(Program::kill);
    // The same engines, by agents that are told to leave their events alone.
    let mut agents = Vec::new();
    for (node, address) in fleet.engine_addresses().iter().enumerate() {
        agents.push(quiet_agent(&fleet, &scratch, &format!("node-{node}"), *address).await);
    }
    for address in fleet.engine_addresses() {
        until_replica(&fleet, *address, "/facts", &json!("no_events")).await;
    }
    let first = post(&fleet, CHAT, chat("qwen3", "mast", 300)).await;
    assert_eq!(first.tier_and_reason(), ("approximate", "no_events"));
    let second = post(&fleet, CHAT, chat("qwen3", "mast", 300)).await;
    assert_eq!(second.engine(), first.engine());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_models_with_one_tokenizer_never_share_a_hit() {
    let scratch = Scratch::new("two-models").unwrap();
    let mut plan = plan();
    plan.engines[1].model = "other".to_owned();
    let fleet = Fleet::start(&plan, scratch.path()).await.unwrap();
    let engines: Vec<String> = fleet.engine_addresses().iter().map(ToString::to_string).collect();
    for _ in 0..3 {
        for (model, engine) in [("qwen3", &engines[0]), ("other", &engines[1])] {
            let answer = post(&fleet, CHAT, chat(model, "keel", 300)).await;
            assert_eq!((answer.status, answer.engine()), (200, Some(engine.as_str())), "{model}: {answer:?}");
            let hit = answer.cached_tokens();
            assert_eq!(answer.evidence("predicted_tokens").unwrap(), hit.to_string(), "{model}");
            settle(&fleet).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_describes_anothers_replica_is_refused() {
    let scratch = Scratch::new("foreign-node").unwrap();
    let fleet = Fleet::start(&plan(), scratch.path()).await.unwrap();
    let address = fleet.engine_addresses()[0];
    post(&fleet, CHAT, chat("qwen3", "rudder", 300)).await;
    settle(&fleet).await;
    let before = fleet.server.status().await.unwrap();
    let agent = quiet_agent(&fleet, &scratch, "elsewhere", address).await;
    let refused = async || {
        let metrics = fleet.server.metrics().await.map_err(|it| it.to_string())?;
        let n = metrics.sum("kvpick_feed_refused_total", &[("node", "unknown")]);
        if n == 1.0 { Ok(()) } else { Err(format!("{n} refusals")) }
    };
    wait::until("the refusal", wait::LONG, refused).await.unwrap();
    let told = async || {
        let status = agent.status().await.map_err(|it| it.to_string())?.to_string();
        if status.contains("refused") { Ok(()) } else { Err(status) }
    };
    wait::until("the agent to know", wait::LONG, told).await.unwrap();
    let after = fleet.server.status().await.unwrap();
    assert_eq!(after["replicas"][0]["blocks"], before["replicas"][0]["blocks"]);
    assert_eq!(after["replicas"][0]["state"], "live");
    assert_eq!(after["replicas"][0]["node"], "node-0");
}
