//! What kvpick learns of answers, through real Envoy, where their bodies pass through it and where they do not.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Answer, CHAT, post, settle};
use kvpick_lab::rig::{
    envoy::Mode,
    fleet::{Fleet, Plan},
    metrics::Metrics,
    scratch::Scratch,
    wait,
};
use serde_json::{Map, Value, json};

async fn fleet(
    name: &str,
    mode: Mode,
    bodies: Option<&'static str>,
    more: &[(&str, Value)],
) -> (Scratch, Fleet) {
    let scratch = Scratch::new(name).unwrap();
    let mut plan = Plan::even(2, 1);
    plan.envoy = Some(mode);
    plan.response_body_mode = bodies;
    plan.evidence_header = false;
    plan.server = Map::from_iter([("budget".to_owned(), json!({"base_ms": 300, "full_duplex_ms": 2_000}))]);
    plan.server.extend(more.iter().map(|(field, value)| ((*field).to_owned(), value.clone())));
    let fleet = Fleet::start(&plan, scratch.path()).await.unwrap();
    (scratch, fleet)
}

/// Every API of the engines here, streamed and not. The prompt is counted in each answer.
fn requests() -> Vec<(&'static str, Value)> {
    let long =
        "the harbour bell rang twice before the fog came in and nobody on the quay could say why ".repeat(8);
    let mut requests = Vec::new();
    for stream in [false, true] {
        let chat = json!([{"role": "user", "content": long}]);
        let options = if stream { json!({"include_usage": true}) } else { Value::Null };
        let with = |more: Value| {
            let mut body = json!({"model": "qwen3", "max_tokens": 3, "stream": stream});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        requests.extend([
            (CHAT, with(json!({"messages": chat, "stream_options": options}))),
            ("/v1/completions", with(json!({"prompt": long, "stream_options": options}))),
            ("/v1/responses", with(json!({"input": long, "max_output_tokens": 3}))),
        ]);
    }
    requests
}

/// The metrics, once nothing is under way.
async fn settled(fleet: &Fleet) -> Metrics {
    let look = async || {
        let metrics = fleet.server.metrics().await.map_err(|it| format!("{it:#}"))?;
        let in_flight = metrics.sum("kvpick_requests_in_flight", &[]);
        if in_flight == 0.0 { Ok(metrics) } else { Err(format!("{in_flight} requests under way")) }
    };
    wait::until("all requests to end", wait::LONG, look).await.unwrap()
}

fn is_whole(answer: &Answer, stream: bool) {
    assert_eq!(answer.status, 200, "{answer:?}");
    let ends = ["data: [DONE]", "event: response.completed"];
    let has_end =
        if stream { ends.iter().any(|it| answer.body.contains(it)) } else { answer.body.ends_with('}') };
    assert!(has_end, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_engines_tell_in_answers_is_compared_with_what_was_foreseen() {
    let modes = [(Mode::Buffered, "STREAMED"), (Mode::FullDuplex, "FULL_DUPLEX_STREAMED")];
    for (mode, bodies) in modes {
        let (_scratch, fleet) = fleet(&format!("answers-{bodies}"), mode, Some(bodies), &[]).await;
        let requests = requests();
        let mut count = 0.0;
        // Twice, so that all of the second round is in a cache.
        for _ in 0..2 {
            for (path, body) in &requests {
                is_whole(&post(&fleet, path, body.to_string()).await, body["stream"] == true);
                // What it left behind is what the next prediction stands on.
                settle(&fleet).await;
                count += 1.0;
            }
        }
        let metrics = settled(&fleet).await;
        let sum = |name, labels: &[(&str, &str)]| metrics.sum(name, labels);
        let by = |name: &str, label: &str| format!("{bodies}: {:?}", metrics.by(name, label));
        assert_eq!(
            sum("kvpick_answers_total", &[("code", "2xx"), ("end", "whole")]),
            count,
            "{}",
            by("kvpick_answers_total", "end")
        );
        assert_eq!(sum("kvpick_answers_total", &[]), count);
        assert_eq!(sum("kvpick_first_event_seconds_count", &[]), count / 2.0, "of those that were streamed");
        assert_eq!(
            sum("kvpick_prompts_told_total", &[("result", "equal")]),
            count,
            "{}",
            by("kvpick_prompts_told_total", "result")
        );
        let told = sum("kvpick_predictions_total", &[]);
        assert_eq!(
            sum("kvpick_predictions_total", &[("result", "equal")]),
            told,
            "{}",
            by("kvpick_predictions_total", "result")
        );
        assert!(0.8 * count <= told, "{told} of {count} predictions");
        let cached = sum("kvpick_usage_tokens_total", &[("kind", "cached")]);
        let prompt = sum("kvpick_usage_tokens_total", &[("kind", "prompt")]);
        assert!(0.5 * prompt < cached && cached < prompt, "{cached} of {prompt}");
        assert!(0.0 < sum("kvpick_usage_tokens_total", &[("kind", "output")]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cuts_its_answer() {
    let (_scratch, fleet) = fleet("answers-cut", Mode::Buffered, Some("STREAMED"), &[]).await;
    let body = json!({"model": "qwen3", "max_tokens": 5_000, "stream": true,
        "messages": [{"role": "user", "content": "count the waves"}]});
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut answer = http.post(format!("{}{CHAT}", fleet.url())).body(body.to_string()).send().await.unwrap();
    answer.chunk().await.unwrap().unwrap();
    drop((answer, http));
    let metrics = settled(&fleet).await;
    assert_eq!(metrics.sum("kvpick_answers_total", &[("code", "2xx"), ("end", "cut")]), 1.0);
    assert_eq!(metrics.sum("kvpick_first_event_seconds_count", &[]), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_answer_that_is_not_shown_is_not_seen() {
    let (_scratch, fleet) = fleet("answers-unseen", Mode::Buffered, None, &[]).await;
    for (path, body) in requests() {
        is_whole(&post(&fleet, path, body.to_string()).await, body["stream"] == true);
    }
    let missing = post(&fleet, CHAT, json!({"model": "unknown"}).to_string()).await;
    let metrics = settled(&fleet).await;
    let count = requests().len() as f64;
    assert_eq!(metrics.sum("kvpick_answers_total", &[("code", "2xx"), ("end", "unseen")]), count);
    assert_eq!(metrics.sum("kvpick_answers_total", &[("code", "4xx")]), 1.0, "{missing:?}");
    assert_eq!(metrics.sum("kvpick_usage_tokens_total", &[]), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_left_after_the_request_lose_nothing() {
    let modes = [(Mode::Buffered, None), (Mode::FullDuplex, Some("FULL_DUPLEX_STREAMED"))];
    for (mode, bodies) in modes {
        let leave = [("leave_after_request", json!(true))];
        let (_scratch, fleet) = fleet(&format!("answers-left-{mode:?}"), mode, bodies, &leave).await;
        let requests = requests();
        for (path, body) in requests.iter().chain(&requests) {
            is_whole(&post(&fleet, path, body.to_string()).await, body["stream"] == true);
        }
        let before = fleet.server.metrics().await.unwrap();
        assert!(0.0 < before.sum("kvpick_requests_in_flight", &[]), "the last ones count on for a while");
        let metrics = settled(&fleet).await;
        assert_eq!(metrics.sum("kvpick_picks_total", &[]), 2.0 * requests.len() as f64);
        assert_eq!(metrics.sum("kvpick_answers_total", &[]), 0.0);
        assert_eq!(metrics.sum("kvpick_ext_proc_errors_total", &[]), 0.0);
        let envoy = fleet.envoy().unwrap();
        assert_eq!(envoy.picker_stat("streams_failed").await.unwrap(), 0);
        assert_eq!(envoy.picker_stat("failure_mode_allowed").await.unwrap(), 0);
    }
}
