//! Whether kvpick notices by what engines store that its prompts are not theirs.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{CHAT, chat, post, settle};
use futures::StreamExt as _;
use kvpick_lab::rig::{
    fleet::{Fleet, Plan},
    scratch::Scratch,
    wait,
};
use serde_json::{Map, Value, json};

/// Requests after which there is evidence enough for a verdict, whose blocks are about fifteen each.
const ENOUGH: usize = 32;

const COMPLETIONS: &str = "/v1/completions";

fn plan() -> Plan {
    let mut plan = Plan::even(2, 2);
    // A prompt that was not made in time tells nothing, and what is tested is not the time.
    let budget = json!({"base_ms": 10_000, "max_ms": 10_000});
    plan.server = Map::from_iter([("budget".to_owned(), budget)]);
    plan
}

/// Requests that nobody sent before, a few at a time. All are answered.
async fn traffic(fleet: &Fleet, path: &str, topic: &str, n: usize) {
    let body = |i: usize| match path {
        CHAT => chat("qwen3", &format!("{topic}{i}"), 240),
        _ => {
            let text: Vec<String> = (0..80).map(|word| format!("{topic}{i} {word}")).collect();
            json!({"model": "qwen3", "prompt": text.join(" "), "max_tokens": 2}).to_string()
        }
    };
    let sent = (0..n).map(|i| post(fleet, path, body(i)));
    let answers: Vec<_> = futures::stream::iter(sent).buffer_unordered(8).collect().await;
    for answer in answers {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// What `/status` says of plain prompts of that path, once so many requests were judged.
async fn judged(fleet: &Fleet, path: &str, n: usize) -> Value {
    let look = async || {
        let status = fleet.server.status().await.map_err(|it| format!("{it:#}"))?;
        let all = status["parity"].as_array().unwrap();
        let found = all.iter().find(|it| it["path"] == path && it["keys"] == "plain");
        let judged = found.and_then(|it| it["judged"].as_u64()).unwrap_or(0);
        found.filter(|_| n as u64 <= judged).cloned().ok_or_else(|| status["parity"].to_string())
    };
    wait::until(&format!("{n} judged requests of {path}"), wait::LONG, look).await.unwrap()
}

async fn metric(fleet: &Fleet, name: &str, path: &str, more: &[(&str, &str)]) -> f64 {
    let labels = [&[("model", "qwen3"), ("path", path), ("keys", "plain")], more].concat();
    fleet.server.metrics().await.unwrap().sum(name, &labels)
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_healthy_fleet_all_that_is_expected_comes() {
    let scratch = Scratch::new("parity-healthy").unwrap();
    let fleet = Fleet::start(&plan(), scratch.path()).await.unwrap();
    for path in [CHAT, COMPLETIONS] {
        traffic(&fleet, path, "mast", ENOUGH).await;
        let parity = judged(&fleet, path, ENOUGH).await;
        assert_eq!((&parity["model"], &parity["state"]), (&json!("qwen3"), &json!("trusted")));
        assert_eq!(parity["share"], 1.0, "{parity}");
        let seen = async || {
            let share = metric(&fleet, "kvpick_parity_share", path, &[]).await;
            if share == 1.0 { Ok(()) } else { Err(share.to_string()) }
        };
        wait::until("the share in the metrics", wait::LONG, seen).await.unwrap();
        let of =
            async |result| metric(&fleet, "kvpick_parity_blocks_total", path, &[("result", result)]).await;
        assert!(200.0 <= of("confirmed").await);
        assert_eq!(of("missing").await, 0.0);
    }
    let answer = post(&fleet, CHAT, chat("qwen3", "mast0", 240)).await;
    assert_eq!(answer.tier_and_reason(), ("precise", "ok"));
    assert!(!fleet.server.log().contains("parity is lost"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_chat_template_is_noticed_and_costs_no_request() {
    let scratch = Scratch::new("parity-template").unwrap();
    let template = scratch.path().join("wrong.jinja");
    let text = "A chat:{% for it in messages %} {{ it.role }} says {{ it.content }}{% endfor %}";
    std::fs::write(&template, text).unwrap();
    let mut plan = plan();
    plan.models = Map::from_iter([("chat_template".to_owned(), json!(template))]);
    let fleet = Fleet::start(&plan, scratch.path()).await.unwrap();

    let before = post(&fleet, CHAT, chat("qwen3", "keel", 240)).await;
    assert_eq!((before.status, before.tier_and_reason()), (200, ("precise", "ok")), "it can't know yet");
    traffic(&fleet, CHAT, "keel", ENOUGH).await;
    // Completions need no template, and tell by their stores that the engines' words arrive.
    traffic(&fleet, COMPLETIONS, "keel", ENOUGH).await;
    settle(&fleet).await;
    let parity = judged(&fleet, CHAT, ENOUGH).await;
    assert_eq!((&parity["state"], &parity["share"]), (&json!("distrusted"), &json!(0.0)), "{parity}");
    assert_eq!(judged(&fleet, COMPLETIONS, ENOUGH).await["state"], "trusted");

    let seen = async || {
        let distrusted = metric(&fleet, "kvpick_parity_distrusted", CHAT, &[]).await;
        if distrusted == 1.0 { Ok(()) } else { Err(distrusted.to_string()) }
    };
    wait::until("the distrust in the metrics", wait::LONG, seen).await.unwrap();
    assert_eq!(metric(&fleet, "kvpick_parity_distrusted", COMPLETIONS, &[]).await, 0.0);
    let logged = async || {
        let log = fleet.server.log();
        let line = log.lines().find(|it| it.contains("parity is lost")).map(str::to_owned);
        line.ok_or(log)
    };
    let line = wait::until("a word in the log", wait::LONG, logged).await.unwrap();
    assert!(line.contains("WARN") && line.contains(CHAT) && line.contains("chat template"), "{line}");

    let first = post(&fleet, CHAT, chat("qwen3", "rudder", 240)).await;
    assert_eq!((first.status, first.tier_and_reason()), (200, ("approximate", "parity_lost")), "{first:?}");
    settle(&fleet).await;
    let second = post(&fleet, CHAT, chat("qwen3", "rudder", 240)).await;
    assert_eq!(second.tier_and_reason(), ("approximate", "parity_lost"));
    assert_eq!(second.engine(), first.engine(), "kvpick knows what it sent where");
    assert!(0 < second.cached_tokens());
    let other = post(&fleet, COMPLETIONS, r#"{"model": "qwen3", "prompt": "The tide turns at noon."}"#).await;
    assert_eq!((other.status, other.tier_and_reason()), (200, ("precise", "ok")));
}
