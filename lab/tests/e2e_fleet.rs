//! The rig itself: a fleet comes up, routes, and each part of it can be killed and comes back.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::time::Duration;

use kvpick_lab::rig::envoy::Mode;
use kvpick_lab::rig::fleet::{Direction, Fleet, Plan};
use kvpick_lab::rig::scratch::Scratch;
use kvpick_lab::rig::wait;
use serde_json::{Value, json};

/// Long enough for some blocks of 16 tokens.
fn body() -> Value {
    let text = "The cache of a replica holds the blocks of the prompts that it has seen. ".repeat(20);
    json!({"model": "qwen3", "max_tokens": 2, "messages": [{"role": "user", "content": text}]})
}

async fn chat(fleet: &Fleet) -> Value {
    let client = reqwest::Client::builder().no_proxy().timeout(wait::LONG).build().unwrap();
    let answer = client.post(format!("{}/v1/chat/completions", fleet.url())).json(&body()).send();
    let answer = answer.await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The access log's line number `number`, from 1.
async fn logged(fleet: &Fleet, number: usize) -> Value {
    let look = async || match fleet.envoy().and_then(|envoy| envoy.access_log()) {
        Ok(mut lines) if number <= lines.len() => Ok(lines.remove(number - 1)),
        other => Err(format!("{other:?}")),
    };
    wait::until("a line of the access log", wait::LONG, look).await.unwrap()
}

#[tokio::test]
async fn a_fleet_comes_up_and_routes_by_what_engines_hold() {
    let scratch = Scratch::new("fleet-routes").unwrap();
    let mut plan = Plan::even(2, 2);
    plan.engines[1].direction = Direction::EngineBinds;
    let mut fleet = Fleet::start(&plan, scratch.path()).await.unwrap();
    for (round, mode) in [Mode::Buffered, Mode::FullDuplex].into_iter().enumerate() {
        if round != 0 {
            fleet.start_envoy(mode).await.unwrap();
        }
        chat(&fleet).await;
        let line = logged(&fleet, 2 * round + 1).await;
        let upstream = line["upstream"].as_str().unwrap();
        fleet.applied(upstream.parse().unwrap(), 0, 0).await.unwrap();

        let answer = chat(&fleet).await;
        assert_ne!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{mode:?}: {answer}");
        let again = logged(&fleet, 2 * round + 2).await;
        assert_eq!(again["upstream"], upstream, "{mode:?}");
        assert_eq!(again["served"], upstream, "{mode:?}");
        let envoy = fleet.envoy().unwrap();
        assert_eq!(envoy.picker_stat("failure_mode_allowed").await.unwrap(), 0, "{mode:?}");
        assert_eq!(envoy.picker_stat("rejected_header_mutations").await.unwrap(), 0, "{mode:?}");
    }
    fleet.finish(Duration::from_secs(30)).await.unwrap();
}

#[tokio::test]
async fn each_part_can_be_killed_and_comes_back_on_its_ports() {
    let scratch = Scratch::new("fleet-kills").unwrap();
    let mut fleet = Fleet::start(&Plan::even(2, 1), scratch.path()).await.unwrap();
    chat(&fleet).await;

    let ext_proc = fleet.server.address("ext_proc").unwrap();
    fleet.server.kill();
    chat(&fleet).await;
    fleet.server.start().await.unwrap();
    assert_eq!(fleet.server.address("ext_proc").unwrap(), ext_proc);
    fleet.server.ready().await.unwrap();

    fleet.engines[0].kill();
    chat(&fleet).await;
    fleet.engines[0].start().await.unwrap();
    assert_eq!(fleet.engines[0].address("http").unwrap(), fleet.engine_addresses()[0]);

    fleet.agents[0].kill();
    chat(&fleet).await;
    fleet.agents[0].start().await.unwrap();
    chat(&fleet).await;

    let listener = fleet.envoy().unwrap().listener();
    fleet.kill_envoy();
    fleet.start_envoy(Mode::RoundRobin).await.unwrap();
    assert_eq!(fleet.envoy().unwrap().listener(), listener);
    chat(&fleet).await;
}
