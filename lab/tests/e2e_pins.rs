//! Conversations that one engine keeps, through Envoy, with answers' bodies shown to kvpick or not.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Answer, post_with, until_replica};
use kvpick_lab::rig::{
    envoy::Mode,
    fleet::{Fleet, Plan, replica},
    scratch::Scratch,
    wait,
};
use serde_json::{Map, Value, json};

const RESPONSES: &str = "/v1/responses";

async fn fleet(name: &str, mode: Mode, response_body_mode: Option<&'static str>) -> (Scratch, Fleet) {
    let scratch = Scratch::new(name).unwrap();
    let mut plan = Plan::even(3, 2);
    plan.envoy = Some(mode);
    plan.response_body_mode = response_body_mode;
    plan.server = Map::from_iter([("budget".to_owned(), json!({"base_ms": 300, "full_duplex_ms": 2_000}))]);
    let fleet = Fleet::start(&plan, scratch.path()).await.unwrap();
    (scratch, fleet)
}

async fn ask(fleet: &Fleet, fields: Value, session: &str) -> Answer {
    let mut body = json!({"model": "qwen3", "input": "the tide turns at noon", "max_output_tokens": 3});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    post_with(fleet, RESPONSES, body.to_string(), &[("x-session-id", session)]).await
}

/// The response that an answer is, or that its last event tells.
fn response(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    let Some(last) = answer.body.lines().rfind(|it| it.starts_with("data: ")) else {
        return serde_json::from_str(&answer.body).unwrap();
    };
    let event: Value = serde_json::from_str(last.trim_start_matches("data: ")).unwrap();
    assert_eq!(event["type"], "response.completed");
    event["response"].clone()
}

fn id(answer: &Answer) -> String {
    response(answer)["id"].as_str().unwrap().to_owned()
}

/// Goes on from a response, and looks at it: the engine that made it answers.
async fn goes_on(fleet: &Fleet, first: &Answer, session: &str, stream: bool) -> Answer {
    let from = id(first);
    let next = ask(fleet, json!({"previous_response_id": from, "stream": stream}), session).await;
    assert_eq!((next.tier_and_reason(), next.engine()), (("pinned", "ok"), first.engine()), "{next:?}");
    let tokens = |it: &Answer| response(it)["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(first) < tokens(&next), "all that was said before is in the prompt");
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}{RESPONSES}/{from}", fleet.url());
    let kept = http.get(url).header("x-session-id", session).send().await.unwrap();
    assert_eq!(kept.headers()["x-lab-engine"], first.engine().unwrap());
    assert_eq!(kept.json::<Value>().await.unwrap(), response(first));
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_learnt_from_answers_whose_bodies_are_shown() {
    let modes = [(Mode::Buffered, "STREAMED"), (Mode::FullDuplex, "FULL_DUPLEX_STREAMED")];
    for (mode, bodies) in modes {
        let (_scratch, fleet) = fleet(&format!("pins-{bodies}"), mode, Some(bodies)).await;
        for n in 0..6 {
            let stream = n % 2 == 0;
            let first = ask(&fleet, json!({"input": format!("{n} buoys"), "stream": stream}), "").await;
            assert!(id(&first).starts_with("resp_"));
            let second = goes_on(&fleet, &first, "", stream).await;
            goes_on(&fleet, &second, "", !stream).await;
        }
        let unknown = ask(&fleet, json!({"previous_response_id": "resp_unseen"}), "").await;
        assert_eq!((unknown.status, unknown.tier_and_reason()), (404, ("load", "stateful_unpinned")));
        let errors = fleet.server.metrics().await.unwrap().sum("kvpick_ext_proc_errors_total", &[]);
        assert_eq!(errors, 0.0, "{bodies}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_bodies_are_not_shown_sessions_and_chosen_ids_tell() {
    let (_scratch, mut fleet) = fleet("pins-none", Mode::Buffered, None).await;
    let mut first = None;
    for n in 0..6 {
        let session = format!("session-{n}");
        let answer = ask(&fleet, json!({"input": format!("{n} buoys")}), &session).await;
        let second = goes_on(&fleet, &answer, &session, n % 2 == 0).await;
        goes_on(&fleet, &second, &session, false).await;

        let chosen =
            ask(&fleet, json!({"input": format!("{n} bells"), "request_id": format!("own-{n}")}), "").await;
        assert_eq!(id(&chosen), format!("own-{n}"));
        goes_on(&fleet, &chosen, "", false).await;
        first.get_or_insert(chosen);
    }

    // An engine that starts again has forgotten all.
    let first = first.unwrap();
    let at = fleet
        .engine_addresses()
        .iter()
        .position(|it| Some(it.to_string().as_str()) == first.engine())
        .unwrap();
    let address = fleet.engine_addresses()[at];
    let incarnation = |status: &Value| replica(status, address, 0).unwrap()["incarnation"].clone();
    let before = incarnation(&fleet.server.status().await.unwrap());
    fleet.engines[at].kill();
    fleet.engines[at].start().await.unwrap();
    let look = async || {
        let now = incarnation(&fleet.server.status().await.map_err(|it| format!("{it:#}"))?);
        if now == before { Err(now.to_string()) } else { Ok(()) }
    };
    wait::until("the engine's new incarnation", wait::LONG, look).await.unwrap();
    until_replica(&fleet, address, "/health/state", &json!("in")).await;
    let lost = ask(&fleet, json!({"previous_response_id": id(&first)}), "").await;
    assert_eq!((lost.status, lost.tier_and_reason()), (404, ("load", "stateful_unpinned")), "{lost:?}");
}
