//! An agent is killed under load and back at once: how much of what the engine holds the server knows again.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and states what it measured"
)]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kvpick_lab::rig::{
    fleet::{self, Direction, Fleet, Plan},
    program::Program,
    scratch::Scratch,
    wait,
};
use serde_json::{Map, Value, json};

/// Rewrites an agent's configuration.
fn configure(file: &Path, into: &Path, change: impl FnOnce(&mut Value)) {
    let mut config: Value = kvpick_service::config::load(file).unwrap();
    change(&mut config);
    std::fs::write(into, config.to_string()).unwrap();
}

/// Requests to the engine, of which each has a prompt that some have had and some have not.
async fn load(url: String, stop: Arc<AtomicBool>) {
    let http = kvpick_lab::rig::http().unwrap();
    for round in 0_u32.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let prompt: Vec<u32> =
            (0..400).map(|at| if at < 160 { round % 7 } else { 1_000 + (round * 31 + at) % 9_000 }).collect();
        let body = json!({"model": "qwen3", "prompt": prompt, "max_tokens": 4});
        let answer =
            http.post(&url).header("content-type", "application/json").body(body.to_string()).send().await;
        let status = answer.unwrap().status();
        assert!(status.is_success(), "{status}");
    }
}

fn engine(status: &Value) -> &Value {
    &status["engines"][0]
}

/// Returns how many blocks the server knows after the restart, and how many the engine holds.
async fn restart(replay: bool) -> (u64, u64) {
    let scratch = Scratch::new(if replay { "restart-replay" } else { "restart" }).unwrap();
    let mut plan = Plan { envoy: None, ..Plan::even(1, 1) };
    plan.engines[0].direction = Direction::EngineBinds;
    let state = scratch.path().join("state");
    plan.agent = Map::from_iter([("state".to_owned(), json!(state))]);
    let mut fleet = Fleet::prepare(&plan, scratch.path()).unwrap();
    let config = scratch.path().join("agent-0.yaml");
    // A second agent, which nobody ends, knows all that the engine holds.
    let other = scratch.path().join("witness.yaml");
    configure(&config, &other, |it| {
        it["servers"] = json!(["127.0.0.1:9"]);
        it["admin"] = json!("127.0.0.1:0");
        it.as_object_mut().unwrap().remove("state");
    });
    configure(&config, &config, |it| {
        if !replay {
            it["engines"][0].as_object_mut().unwrap().remove("replay");
        }
    });
    let args = ["run".as_ref(), "--config".as_ref(), other.as_os_str()];
    let mut witness = Program::new("witness", scratch.path(), "kvpick-agent", &args).unwrap();
    for program in [&mut fleet.engines[0], &mut fleet.server, &mut fleet.agents[0], &mut witness] {
        program.start().await.unwrap();
    }
    let address = fleet.engine_addresses()[0];
    let stop = Arc::new(AtomicBool::new(false));
    let url = format!("http://{address}/v1/completions");
    let loads: Vec<_> = (0..2).map(|_| tokio::spawn(load(url.clone(), Arc::clone(&stop)))).collect();

    let written = async || {
        let status = fleet.agents[0].status().await.map_err(|it| it.to_string())?;
        let is_there = engine(&status)["state_file"]["age_ms"].is_number()
            && engine(&status)["blocks"].as_u64() > Some(500);
        if is_there { Ok(()) } else { Err(engine(&status).to_string()) }
    };
    wait::until("the agent to have written what it knows", wait::LONG, written).await.unwrap();
    fleet.agents[0].kill();
    fleet.agents[0].start().await.unwrap();
    let back = async || {
        let status = fleet.agents[0].status().await.map_err(|it| it.to_string())?;
        let is_back = engine(&status)["applied"].is_u64();
        if is_back { Ok(()) } else { Err(engine(&status).to_string()) }
    };
    wait::until("the agent to be back", wait::LONG, back).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    for load in loads {
        load.await.unwrap();
    }
    // What is there once all that was published is accounted for: one flush after the last batch.
    let settled = async || {
        let known = fleet.server.status().await.map_err(|it| it.to_string())?;
        let holds = witness.status().await.map_err(|it| it.to_string())?;
        let (replica, engine) = (fleet::replica(&known, address, 0).unwrap(), engine(&holds));
        let is_settled = replica["applied"].is_u64() && replica["applied"] == engine["applied"];
        let blocks = (replica["blocks"].as_u64().unwrap_or(0), engine["blocks"].as_u64().unwrap_or(0));
        if is_settled && engine["complete"] == true {
            Ok(blocks)
        } else {
            Err(format!("{replica}\n{engine}"))
        }
    };
    let counts = wait::until("both to have applied the same", wait::LONG, settled).await.unwrap();
    let status = fleet.agents[0].status().await.unwrap();
    println!("replay {replay}: {} of {} blocks; {}", counts.0, counts.1, engine(&status)["state_file"]);
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn with_replay_all_is_known_again() {
    let (known, held) = restart(true).await;
    assert_eq!(known, held);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_replay_nothing_is_invented() {
    let (known, held) = restart(false).await;
    assert!(known <= held, "{known} of {held}");
}
