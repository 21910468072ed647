//! The demo's three parts: one request at a time, all at once by round robin, all at once by kvpick. Each begins with
//! fresh engines.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value, json};

use super::{
    GOODBYE, Setup,
    report::{Phase, Serial, say},
};
use crate::{
    load::{
        client::{Client, Record},
        report::Report,
        run,
        workload::Workload,
    },
    rig::{
        envoy::Mode,
        fleet::{Fleet, Plan},
        metrics::Metrics,
        program,
    },
};

/// Longest answer that is waited for.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What differs from kvpick's defaults: here four engines, their clients and Envoy share the server's cores, so a
/// decision may have to wait for one of them.
pub(super) fn server_settings() -> Map<String, Value> {
    Map::from_iter([("budget".to_owned(), json!({"base_ms": 250}))])
}

/// Each question when the last one's events are applied everywhere.
pub(super) async fn serial(setup: &Setup, folder: &Path) -> anyhow::Result<Serial> {
    let workload = &setup.serial;
    say(&format!("serial: {} requests, one at a time, through Envoy and kvpick", workload.requests()));
    let folder = sub(folder, "serial")?;
    // Nothing here depends on time, so nobody needs to wait for it.
    let mut plan = setup.plan.clone();
    for engine in &mut plan.engines {
        engine.speed = SERIAL_SPEED;
    }
    let fleet = Fleet::start(&plan, &folder).await?;
    let client = Client::new(&fleet.url(), TIMEOUT)?;
    let http = crate::rig::http()?;
    let mut sessions: Vec<_> = (0..workload.sessions).map(|it| workload.session(it)).collect();
    let mut serial = Serial::default();
    for turn in 0..workload.turns {
        for session in &mut sessions {
            let body = session.ask().context("a session has ended early")?;
            let (record, text) = client.chat(&body).await;
            if let Some(error) = &record.error {
                anyhow::bail!("a request failed: {error}");
            }
            session.answered(&text);
            serial.add(&record, predicted(&record));
            settle(&fleet, &http).await?;
        }
        let done = u64::from(turn + 1) * u64::from(workload.sessions);
        if (turn + 1) % 6 == 0 || done == workload.requests() {
            progress("serial", done, workload.requests());
        }
    }
    fleet.finish(GOODBYE).await?;
    Ok(serial)
}

/// How much faster than a real engine they work where time does not matter.
const SERIAL_SPEED: f64 = 20.0;

/// Waits until the server has applied all that the engines have published.
async fn settle(fleet: &Fleet, http: &reqwest::Client) -> anyhow::Result<()> {
    for address in fleet.engine_addresses() {
        let page = program::get(http, &format!("http://{address}/metrics")).await?;
        let batches = Metrics::parse(&page).sum("lab:event_batches_total", &[]) as u64;
        if let Some(last) = batches.checked_sub(1) {
            fleet.applied(*address, 0, last).await?;
        }
    }
    Ok(())
}

/// All sessions at once, Envoy choosing in turn.
pub(super) async fn round_robin(setup: &Setup, folder: &Path) -> anyhow::Result<Phase> {
    let plan = Plan { envoy: Some(Mode::RoundRobin), ..setup.plan.clone() };
    let fleet = Fleet::start(&plan, &sub(folder, "round-robin")?).await?;
    let (records, report) = concurrent("round robin", setup, &fleet).await?;
    fleet.finish(GOODBYE).await?;
    let decisions = BTreeMap::from([("round_robin".to_owned(), records.len() as u64)]);
    Ok(Phase::new(report, decisions, &records, |_| None))
}

/// All sessions at once, kvpick choosing. Returns the fleet, which still runs.
pub(super) async fn kvpick(setup: &Setup, folder: &Path) -> anyhow::Result<(Phase, Fleet)> {
    let fleet = Fleet::start(&setup.plan, &sub(folder, "kvpick")?).await?;
    let (records, report) = concurrent("kvpick", setup, &fleet).await?;
    let metrics = fleet.server.metrics().await?;
    let decisions = metrics.by("kvpick_decisions_total", "tier");
    let decisions = decisions.into_iter().map(|(tier, n)| (tier, n as u64)).collect();
    Ok((Phase::new(report, decisions, &records, predicted), fleet))
}

async fn concurrent(
    what: &'static str,
    setup: &Setup,
    fleet: &Fleet,
) -> anyhow::Result<(Vec<Record>, Report)> {
    let workload: &Workload = &setup.concurrent;
    let requests = workload.requests();
    say(&format!("{what}: {requests} requests of {} sessions, at once", workload.sessions));
    let client = Client::new(&fleet.url(), TIMEOUT)?;
    let done = Arc::new(AtomicU64::new(0));
    let step = (requests / 4).max(1);
    let (records, duration_s) = run::run(&client, workload, setup.concurrency, move |_| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(step) {
            progress(what, done, requests);
        }
    })
    .await;
    let report = Report::of(&records, duration_s);
    ensure!(report.failures == 0, "{} requests failed: {:?}", report.failures, report.errors);
    Ok((records, report))
}

/// What kvpick expected of the cache, by its evidence header; `None` where it had no say.
fn predicted(record: &Record) -> Option<u64> {
    let evidence = record.headers.get("x-kvpick-evidence")?;
    let pairs = evidence.split("; ").filter_map(|it| it.split_once('='));
    let value = |name: &str| pairs.clone().find(|(key, _)| *key == name).map(|(_, value)| value);
    // A pick by load is no prediction.
    let by_blocks = matches!(value("tier"), Some("precise" | "approximate"));
    value("predicted_tokens").filter(|_| by_blocks)?.parse().ok()
}

fn progress(what: &str, done: u64, of: u64) {
    say(&format!("  {what}: {done} of {of}"));
}

fn sub(folder: &Path, name: &str) -> anyhow::Result<std::path::PathBuf> {
    let sub = folder.join(name);
    std::fs::create_dir_all(&sub).with_context(|| format!("can't make {}", sub.display()))?;
    Ok(sub)
}
