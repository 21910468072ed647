//! The main way through Envoy, in the body modes of our own configurations.
mod common;

use common::{CHAT, chat, post, post_with, settle};
use kvpick_lab::rig::{
    envoy::Mode,
    fleet::{Fleet, Plan},
    scratch::Scratch,
    wait,
};
use serde_json::{Map, Value, json};

fn plan(mode: Mode) -> Plan {
    let mut plan = Plan::even(3, 2);
    plan.envoy = Some(mode);
    for engine in &mut plan.engines {
        engine.num_blocks = 4_096;
    }
    plan.server = Map::from_iter([("budget".to_owned(), json!({"base_ms": 300, "full_duplex_ms": 2_000}))]);
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn both_body_modes_send_a_prompt_to_its_holder() {
    for mode in [Mode::Buffered, Mode::FullDuplex] {
        let scratch = Scratch::new(&format!("modes-{mode:?}")).unwrap();
        let fleet = Fleet::start(&plan(mode), scratch.path()).await.unwrap();
        // Bodies of a packet, of many, and above HTTP/2's first window.
        for words in [30, 3_000, 9_000] {
            let body = chat("qwen3", &format!("sail{words}"), words);
            let first = post(&fleet, CHAT, body.clone()).await;
            assert_eq!(first.status, 200, "{mode:?} {words}: {first:?}");
            assert_eq!(first.evidence("replica"), first.engine(), "Envoy did as it was told");
            settle(&fleet).await;
            for _ in 0..3 {
                let again = post(&fleet, CHAT, body.clone()).await;
                assert_eq!(again.tier_and_reason(), ("precise", "ok"), "{mode:?} {words}");
                assert_eq!(again.engine(), first.engine(), "{mode:?} {words}");
                assert_eq!(again.evidence("predicted_tokens").unwrap(), again.cached_tokens().to_string());
                settle(&fleet).await;
            }
        }
        let chunked = {
            let body = chat("qwen3", "sail9000", 9_000);
            let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
                body.as_bytes().chunks(10_000).map(|it| Ok(it.to_vec())).collect();
            reqwest::Body::wrap_stream(futures::stream::iter(pieces))
        };
        let answer = post(&fleet, CHAT, chunked).await;
        assert_eq!((answer.status, answer.tier_and_reason()), (200, ("precise", "ok")), "{mode:?} chunked");
        assert!(0 < answer.cached_tokens());

        let completion =
            json!({"model": "qwen3", "prompt": [[1, 2, 3], [4, 5, 6, 7]], "max_tokens": 1}).to_string();
        let answer = post(&fleet, "/v1/completions?debug=1", completion).await;
        assert_eq!((answer.status, answer.evidence("prompt_tokens")), (200, Some("7")), "{answer:?}");

        let envoy = fleet.envoy().unwrap();
        for stat in
            ["rejected_header_mutations", "failure_mode_allowed", "spurious_msgs_received", "streams_failed"]
        {
            assert_eq!(envoy.picker_stat(stat).await.unwrap(), 0, "{mode:?}: {stat}");
        }
        let errors = fleet.server.metrics().await.unwrap().sum("kvpick_ext_proc_errors_total", &[]);
        assert_eq!(errors, 0.0, "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_body_and_other_paths_pass() {
    let scratch = Scratch::new("other-paths").unwrap();
    let fleet = Fleet::start(&plan(Mode::Buffered), scratch.path()).await.unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = http.get(format!("{}/v1/models", fleet.url())).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let models: Value = answer.json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "qwen3");
    let answer = post(&fleet, "/v1/nothing", r#"{"model": "qwen3"}"#).await;
    assert_eq!((answer.status, answer.tier_and_reason()), (404, ("load", "other_path")));
    assert!(answer.engine().is_some());
    // These engines have no such routes, the picker reads their bodies all the same.
    let stateful = r#"{"model": "qwen3", "input": "x", "previous_response_id": "resp_1"}"#;
    let answer = post(&fleet, "/v1/responses", stateful).await;
    assert_eq!((answer.status, answer.tier_and_reason()), (404, ("load", "stateful_unpinned")));
    let messages = r#"{"model": "qwen3", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}"#;
    let answer = post(&fleet, "/v1/messages", messages).await;
    assert_eq!(answer.status, 404);
    assert!(
        !["other_path", "bad_field"].contains(&answer.tier_and_reason().1),
        "{:?}",
        answer.tier_and_reason()
    );
    assert!(answer.engine().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_choose_their_replica() {
    let scratch = Scratch::new("spoof").unwrap();
    let fleet = Fleet::start(&plan(Mode::Buffered), scratch.path()).await.unwrap();
    let body = chat("qwen3", "cargo", 600);
    let first = post(&fleet, CHAT, body.clone()).await;
    settle(&fleet).await;
    for address in fleet.engine_addresses() {
        let wish = address.to_string();
        let headers = [
            ("x-gateway-destination-endpoint", wish.as_str()),
            ("x-gateway-destination-endpoint-subset", wish.as_str()),
            ("x-kvpick-evidence", "tier=forged"),
        ];
        let answer = post_with(&fleet, CHAT, body.clone(), &headers).await;
        assert_eq!(answer.engine(), first.engine(), "a client asked for {wish}");
        assert_eq!(answer.evidence("tier"), Some("precise"));
        settle(&fleet).await;
    }
}

/// Envoy has one connection to kvpick; a client that goes away costs one of its streams, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_clients_that_go_away_cuts_nobody_else() {
    use tokio::io::AsyncWriteExt as _;

    for mode in [Mode::Buffered, Mode::FullDuplex] {
        let scratch = Scratch::new(&format!("gone-{mode:?}")).unwrap();
        let mut plan = plan(mode);
        for engine in &mut plan.engines {
            engine.speed = 4.0;
        }
        let fleet = Fleet::start(&plan, scratch.path()).await.unwrap();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let body = json!({"model": "qwen3", "stream": true, "max_tokens": 400,
            "messages": [{"role": "user", "content": "a long story"}]});
        let url = format!("{}{CHAT}", fleet.url());
        let story = http.post(url).json(&body).send().await.unwrap();
        assert_eq!(story.status(), 200);

        let body = chat("qwen3", "gone", 6);
        let request =
            format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let listener = fleet.envoy().unwrap().listener();
        let mut clients = Vec::new();
        for _ in 0..400 {
            clients.push(tokio::net::TcpStream::connect(listener).await.unwrap());
        }
        for client in &mut clients {
            client.write_all(request.as_bytes()).await.unwrap();
        }
        drop(clients);

        let text = story.text().await.expect("the story was cut");
        assert!(text.contains("[DONE]"), "{mode:?}: the story has no end");
        let settled = async || {
            let status = fleet.server.status().await.map_err(|it| it.to_string())?;
            let replicas = status["replicas"].as_array().unwrap();
            let n: u64 = replicas.iter().map(|it| it["in_flight"]["requests"].as_u64().unwrap()).sum();
            if n == 0 { Ok(()) } else { Err(format!("{n} in flight")) }
        };
        wait::until("nothing to be in flight", wait::LONG, settled).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_is_off_unless_switched_on() {
    let scratch = Scratch::new("no-evidence").unwrap();
    let fleet =
        Fleet::start(&Plan { evidence_header: false, ..plan(Mode::Buffered) }, scratch.path()).await.unwrap();
    let answer = post(&fleet, CHAT, chat("qwen3", "x", 30)).await;
    assert_eq!((answer.status, answer.headers.get("x-kvpick-evidence")), (200, None));
}
