//! Data-parallel ranks behind one address, through Envoy: a prompt goes to the rank that holds it.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;

use common::{Answer, CHAT, chat, post, post_with};
use kvpick_lab::rig::{
    envoy::Mode,
    fleet::{Direction, Fleet, Plan},
    metrics::Metrics,
    program,
    scratch::Scratch,
    wait,
};
use serde_json::{Map, json};

const RANKS: u32 = 2;
const HEADER: &str = "x-data-parallel-rank";

/// One engine with two ranks, which tells the agent where it publishes.
fn plan(mode: Mode) -> Plan {
    let mut plan = Plan::even(1, 1);
    plan.envoy = Some(mode);
    for engine in &mut plan.engines {
        (engine.ranks, engine.direction, engine.num_blocks) = (RANKS, Direction::Discovered, 4_096);
    }
    plan.server = Map::from_iter([("budget".to_owned(), json!({"base_ms": 300, "full_duplex_ms": 2_000}))]);
    plan
}

async fn engine_metrics(fleet: &Fleet) -> Metrics {
    let url = format!("http://{}/metrics", fleet.engine_addresses()[0]);
    let page = program::get(&kvpick_lab::rig::http().unwrap(), &url).await.unwrap();
    Metrics::parse(&page)
}

/// Waits until all that the ranks have published is applied.
async fn settle(fleet: &Fleet) {
    let metrics = engine_metrics(fleet).await;
    for rank in 0..RANKS {
        let batches = metrics.sum("lab:event_batches_total", &[("engine", &rank.to_string())]) as u64;
        if let Some(last) = batches.checked_sub(1) {
            fleet.applied(fleet.engine_addresses()[0], rank, last).await.unwrap();
        }
    }
}

/// Tokens that each rank has found in its cache.
async fn hits(fleet: &Fleet) -> [u64; RANKS as usize] {
    let metrics = engine_metrics(fleet).await;
    std::array::from_fn(|rank| {
        metrics.sum("vllm:prefix_cache_hits_total", &[("engine", &rank.to_string())]) as u64
    })
}

/// The rank that the engine was asked for, in as many values as there were.
fn asked(answer: &Answer) -> Option<&str> {
    answer.headers.get("x-lab-asked-rank").map(String::as_str)
}

/// The rank of the replica that kvpick picked.
fn picked(answer: &Answer) -> usize {
    let replica = answer.evidence("replica").unwrap();
    replica.split_once('#').map_or(0, |(_, rank)| rank.parse().unwrap())
}

/// Sends a prompt that a rank holds, and sees it find there what kvpick has promised.
async fn goes_to(fleet: &Fleet, body: &str, rank: usize, headers: &[(&str, &str)]) {
    let before = hits(fleet).await;
    let answer = post_with(fleet, CHAT, body.to_owned(), headers).await;
    assert_eq!(
        (answer.status, answer.tier_and_reason()),
        (200, ("precise", "ok")),
        "{headers:?}: {answer:?}"
    );
    assert_eq!(picked(&answer), rank);
    assert_eq!(asked(&answer), Some(rank.to_string().as_str()), "{headers:?}");
    let cached = answer.cached_tokens();
    assert!(0 < cached);
    assert_eq!(answer.evidence("predicted_tokens").unwrap(), cached.to_string());
    let after = hits(fleet).await;
    let mut want = before;
    want[rank] += cached;
    assert_eq!(after, want, "{headers:?}");
    settle(fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_goes_to_the_rank_that_holds_it_and_no_client_steers() {
    for mode in [Mode::Buffered, Mode::FullDuplex] {
        let scratch = Scratch::new(&format!("ranks-{mode:?}")).unwrap();
        let fleet = Fleet::start(&plan(mode), scratch.path()).await.unwrap();
        let mut used = BTreeSet::new();
        for topic in 0..8 {
            let body = chat("qwen3", &format!("rank{topic}"), 600);
            let first = post(&fleet, CHAT, body.clone()).await;
            assert_eq!(first.status, 200, "{first:?}");
            let rank = picked(&first);
            used.insert(rank);
            settle(&fleet).await;
            goes_to(&fleet, &body, rank, &[]).await;
            for wish in ["0", "1", "7", "one"] {
                goes_to(&fleet, &body, rank, &[(HEADER, wish)]).await;
            }
            goes_to(&fleet, &body, rank, &[(HEADER, "0"), ("X-Data-Parallel-Rank", "1")]).await;
        }
        assert_eq!(used.len(), RANKS as usize, "{mode:?}: prompts are spread");

        // Where vLLM would not read it the engine is asked for no rank, and nothing is promised.
        let body = json!({"model": "qwen3", "input": "hello"}).to_string();
        for path in ["/v1/responses", "/v1/embeddings", "/v1/nothing"] {
            let answer = post_with(&fleet, path, body.clone(), &[(HEADER, "1")]).await;
            assert_eq!(
                (answer.engine().is_some(), asked(&answer)),
                (true, None),
                "{mode:?} {path}: {answer:?}"
            );
            assert_eq!(
                (answer.evidence("tier"), answer.evidence("predicted_tokens")),
                (Some("load"), Some("0"))
            );
        }
        let http = kvpick_lab::rig::http().unwrap();
        let models = http.get(format!("{}/v1/models", fleet.url())).header(HEADER, "1").send().await.unwrap();
        assert_eq!((models.status().as_u16(), models.headers().get("x-lab-asked-rank")), (200, None));

        let envoy = fleet.envoy().unwrap();
        for stat in ["rejected_header_mutations", "failure_mode_allowed", "streams_failed"] {
            assert_eq!(envoy.picker_stat(stat).await.unwrap(), 0, "{mode:?}: {stat}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_back_at_other_ports_is_found_again() {
    let scratch = Scratch::new("ranks-restart").unwrap();
    let mut fleet = Fleet::start(&plan(Mode::Buffered), scratch.path()).await.unwrap();
    let body = chat("qwen3", "before", 600);
    let first = post(&fleet, CHAT, body.clone()).await;
    settle(&fleet).await;
    goes_to(&fleet, &body, picked(&first), &[]).await;
    fleet.engines[0].kill();
    fleet.engines[0].start().await.unwrap();
    let endpoint = format!("tcp://{}", fleet.engines[0].address("events-1").unwrap());
    let look = async || {
        let status = fleet.agents[0].status().await.map_err(|it| format!("{it:#}"))?;
        let rank = &status["engines"][1];
        let is = rank["discovered"]["endpoint"] == endpoint.as_str() && rank["blocks"] == 0;
        if is { Ok(()) } else { Err(rank.to_string()) }
    };
    wait::until("the new ports to be known", wait::LONG, look).await.unwrap();
    let served = async || {
        let answer = post(&fleet, CHAT, body.clone()).await;
        let evidence = answer.headers.get("x-kvpick-evidence").cloned().unwrap_or_default();
        if answer.status == 200 && answer.tier_and_reason() == ("precise", "ok") {
            Ok(())
        } else {
            Err(evidence)
        }
    };
    wait::until("the engine to be served again", wait::LONG, served).await.unwrap();
    settle(&fleet).await;
    let again = post(&fleet, CHAT, body.clone()).await;
    settle(&fleet).await;
    goes_to(&fleet, &body, picked(&again), &[]).await;
}
