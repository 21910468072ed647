//! A model whose prompts its own replicas make.
mod common;

use common::{CHAT, chat, decisions, post, settle};
use kvpick_lab::rig::{
    envoy::Mode,
    fleet::{Fleet, Plan},
    program,
    scratch::Scratch,
};
use serde_json::{Map, json};

fn plan(mode: Mode) -> Plan {
    let mut plan = Plan::even(3, 2);
    plan.envoy = Some(mode);
    for engine in &mut plan.engines {
        engine.num_blocks = 4_096;
    }
    let budget = json!({"base_ms": 2_000, "max_ms": 2_000, "full_duplex_ms": 2_000});
    plan.server = Map::from_iter([("budget".to_owned(), budget)]);
    plan.models = Map::from_iter([
        ("source".to_owned(), json!("remote")),
        ("remote".to_owned(), json!({"from": "replicas", "timeout_ms": 2_000})),
    ]);
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_that_replicas_make_lead_to_their_holder() {
    for mode in [Mode::Buffered, Mode::FullDuplex] {
        let scratch = Scratch::new(&format!("remote-{mode:?}")).unwrap();
        let fleet = Fleet::start(&plan(mode), scratch.path()).await.unwrap();
        let status = fleet.server.status().await.unwrap();
        let model = &status["models"][0];
        assert_eq!((&model["state"], &model["fingerprint"]), (&json!("ready"), &json!(null)), "no tokenizer");
        for words in [30, 3_000] {
            let body = chat("qwen3", &format!("sail{words}"), words);
            let first = post(&fleet, CHAT, body.clone()).await;
            assert_eq!((first.status, first.tier_and_reason()), (200, ("precise", "ok")), "{mode:?} {words}");
            settle(&fleet).await;
            for _ in 0..3 {
                let again = post(&fleet, CHAT, body.clone()).await;
                assert_eq!(again.tier_and_reason(), ("precise", "ok"), "{mode:?} {words}");
                assert_eq!(again.engine(), first.engine(), "{mode:?} {words}");
                assert_eq!(again.evidence("predicted_tokens").unwrap(), again.cached_tokens().to_string());
                settle(&fleet).await;
            }
        }
        let completion = json!({"model": "qwen3", "prompt": ["a b c", "d"], "max_tokens": 1}).to_string();
        let answer = post(&fleet, "/v1/completions", completion).await;
        assert_eq!((answer.status, answer.tier_and_reason()), (200, ("precise", "ok")), "{answer:?}");
        let input = json!({"model": "qwen3", "input": "hello"}).to_string();
        let answer = post(&fleet, "/v1/responses", input).await;
        assert_eq!((answer.status, answer.tier_and_reason()), (200, ("precise", "ok")), "{answer:?}");
        let metrics = fleet.server.metrics().await.unwrap();
        let asked = metrics.sum("kvpick_remote_requests_total", &[("model", "qwen3"), ("result", "ok")]);
        assert_eq!(asked, 10.0, "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_none_renders_requests_go_by_load() {
    let scratch = Scratch::new("remote-fails").unwrap();
    let fleet = Fleet::start(&plan(Mode::Buffered), scratch.path()).await.unwrap();
    let http = kvpick_lab::rig::http().unwrap();
    for address in fleet.engine_addresses() {
        let fault = json!({"fault": "fail", "count": 1, "status": 500});
        let url = format!("http://{address}/lab/faults");
        let answer = http.post(url).json(&fault).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    }
    let body = chat("qwen3", "tide", 60);
    let answer = post(&fleet, CHAT, body.clone()).await;
    assert_eq!((answer.status, answer.tier_and_reason()), (200, ("load", "remote_down")), "{answer:?}");
    assert_eq!(decisions(&fleet, "load", "remote_down").await, 1.0);
    let answer = post(&fleet, CHAT, body).await;
    assert_eq!((answer.status, answer.tier_and_reason()), (200, ("precise", "ok")), "{answer:?}");
    let page =
        program::get(&http, &format!("http://{}/status", fleet.server.addresses()["admin"])).await.unwrap();
    assert!(page.contains("\"breaker\":\"closed\""), "{page}");
}
