//! Any part may die at any time; no request is lost but those that ran on an engine that died.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use common::{CHAT, chat, post, until_replica};
use kvpick_lab::{
    load::{
        client::{Client, Record},
        run,
        workload::Workload,
    },
    rig::{
        fleet::{Fleet, Plan},
        scratch::Scratch,
        wait,
    },
};
use serde_json::{Map, Value, json};

fn plan(engines: usize) -> Plan {
    let mut plan = Plan::even(engines, 2);
    plan.server = Map::from_iter([("budget".to_owned(), json!({"base_ms": 300}))]);
    plan
}

/// A load that keeps every engine busy, on its way.
struct Load {
    done: Arc<AtomicU64>,
    records: tokio::task::JoinHandle<Vec<Record>>,
}

impl Load {
    fn start(fleet: &Fleet, sessions: u32) -> Self {
        let workload = Workload {
            model: "qwen3".to_owned(),
            groups: 4,
            system_tokens: 200,
            sessions,
            turns: 12,
            question_tokens: 40,
            output_tokens: 24,
            think_ms: 200,
            seed: 3,
        };
        let client = Client::new(&fleet.url(), wait::LONG).unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&done);
        let records = tokio::spawn(async move {
            let count = move |_: &Record| {
                count.fetch_add(1, Ordering::Relaxed);
            };
            run::run(&client, &workload, 64, count).await.0
        });
        Self { done, records }
    }

    async fn until(&self, n: u64) {
        let look = async || {
            let done = self.done.load(Ordering::Relaxed);
            if n <= done { Ok(()) } else { Err(format!("{done} requests are done")) }
        };
        wait::until(&format!("{n} requests to be done"), wait::LONG, look).await.unwrap();
    }
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// Start of a request by Envoy's log, in Unix milliseconds.
fn start_ms(entry: &Value) -> u128 {
    let text = entry["time"].as_str().unwrap();
    let number = |range: std::ops::Range<usize>| text[range].parse::<u128>().unwrap();
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    // Days since 1970 of a date of the Gregorian calendar, years beginning in March.
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + number(11..13)) * 60 + number(14..16)) * 60 + number(17..19);
    seconds * 1_000 + number(20..23)
}

fn picks(entry: &Value, address: &str) -> bool {
    entry["picked"].as_str().is_some_and(|it| it.split(',').next() == Some(address))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_under_load() {
    let scratch = Scratch::new("kill-engine").unwrap();
    let mut fleet = Fleet::start(&plan(4), scratch.path()).await.unwrap();
    let victim = fleet.engine_addresses()[1];
    let name = victim.to_string();
    let load = Load::start(&fleet, 24);
    load.until(60).await;
    let killed_at = now_ms();
    fleet.engines[1].kill();
    until_replica(&fleet, victim, "/health/state", &json!("out")).await;
    load.until(180).await;
    let back_at = now_ms();
    fleet.engines[1].start().await.unwrap();
    until_replica(&fleet, victim, "/health/state", &json!("in")).await;
    let records = load.records.await.unwrap();

    assert_eq!(records.len(), 24 * 12);
    // By Envoy's log, which names the engine also where no answer came.
    let log = fleet.envoy().unwrap().access_log().unwrap();
    let lost: Vec<_> = log
        .iter()
        .filter(|it| it["status"] != 200 || it["flags"].as_str().is_some_and(|it| it.contains('U')))
        .collect();
    for entry in &lost {
        assert_eq!(
            entry["upstream"].as_str(),
            Some(name.as_str()),
            "lost, and not to the dead engine: {entry}"
        );
        assert!(start_ms(entry) <= killed_at + 1_000, "lost long after the engine died: {entry}");
    }
    let failed = records.iter().filter(|it| it.error.is_some()).count();
    assert!(failed <= lost.len(), "{failed} requests failed, {} by Envoy's log", lost.len());
    let late: Vec<_> = log
        .iter()
        .filter(|it| picks(it, &name) && killed_at + 1_000 < start_ms(it) && start_ms(it) < back_at)
        .collect();
    assert!(late.is_empty(), "picked though dead for more than a second: {late:#?}");
    // Back, it is picked again: it is the idlest.
    let again = async || {
        let answer = post(&fleet, CHAT, chat("qwen3", &format!("new {}", now_ms()), 60)).await;
        if answer.engine() == Some(name.as_str()) { Ok(()) } else { Err(format!("{:?}", answer.headers)) }
    };
    wait::until("the engine to be picked again", wait::LONG, again).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_under_load() {
    let scratch = Scratch::new("kill-server").unwrap();
    let mut fleet = Fleet::start(&plan(2), scratch.path()).await.unwrap();
    let load = Load::start(&fleet, 12);
    load.until(30).await;
    fleet.server.kill();
    load.until(80).await;
    fleet.server.start().await.unwrap();
    fleet.server.ready().await.unwrap();
    let records = load.records.await.unwrap();
    let failed: Vec<_> = records.iter().filter_map(|it| it.error.as_ref()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(
        records.iter().any(|it| !it.headers.contains_key("x-kvpick-evidence")),
        "Envoy's fallback has answered"
    );
    let back = async || {
        let answer = post(&fleet, CHAT, chat("qwen3", "after", 60)).await;
        assert_eq!(answer.status, 200);
        answer.evidence("tier").map(str::to_owned).ok_or_else(|| "no evidence".to_owned())
    };
    let tier = wait::until("the server to be asked again", wait::LONG, back).await.unwrap();
    assert_eq!(tier, "precise", "agents have found it again");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_under_load() {
    let scratch = Scratch::new("kill-agents").unwrap();
    let mut fleet = Fleet::start(&plan(2), scratch.path()).await.unwrap();
    let load = Load::start(&fleet, 12);
    load.until(30).await;
    for agent in &mut fleet.agents {
        agent.kill();
        agent.start().await.unwrap();
    }
    let records = load.records.await.unwrap();
    let failed: Vec<_> = records.iter().filter_map(|it| it.error.as_ref()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    for address in fleet.engine_addresses() {
        until_replica(&fleet, *address, "/state", &json!("live")).await;
    }
    common::settle(&fleet).await;
    // What the new agents know by replay is what the engines hold.
    for topic in ["one", "two"] {
        for _ in 0..2 {
            let answer = post(&fleet, CHAT, chat("qwen3", topic, 200)).await;
            assert_eq!(answer.evidence("predicted_tokens").unwrap(), answer.cached_tokens().to_string());
            common::settle(&fleet).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_holds_nothing() {
    let scratch = Scratch::new("restart-engine").unwrap();
    let mut fleet = Fleet::start(&plan(1), scratch.path()).await.unwrap();
    let address = fleet.engine_addresses()[0];
    for _ in 0..2 {
        assert_eq!(post(&fleet, CHAT, chat("qwen3", "tide", 300)).await.status, 200);
    }
    common::settle(&fleet).await;
    fleet.engines[0].kill();
    until_replica(&fleet, address, "/health/state", &json!("out")).await;
    fleet.engines[0].start().await.unwrap();
    until_replica(&fleet, address, "/health/state", &json!("in")).await;
    until_replica(&fleet, address, "/blocks", &json!(0)).await;
    for want in [0, 1] {
        let answer = post(&fleet, CHAT, chat("qwen3", "tide", 300)).await;
        assert_eq!(answer.cached_tokens().min(1), want, "{answer:?}");
        assert_eq!(answer.evidence("predicted_tokens").unwrap(), answer.cached_tokens().to_string());
        common::settle(&fleet).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_asked_to_stop_cuts_nothing() {
    let scratch = Scratch::new("drain-server").unwrap();
    let mut fleet = Fleet::start(&plan(2), scratch.path()).await.unwrap();
    let load = Load::start(&fleet, 12);
    load.until(30).await;
    let status = fleet.server.terminate(Duration::from_secs(30)).await.unwrap();
    assert!(status.success(), "{status}");
    let records = load.records.await.unwrap();
    let failed: Vec<_> = records.iter().filter_map(|it| it.error.as_ref()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(fleet.server.log().contains("nothing was cut"));
}
