//! `record` and `replay`: what a live engine published, kept in a file, gives what the agent held.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Instant,
};

use kvpick_agent::{
    config::EventsConfig,
    record::{Recording, Written, record_until},
    replay::replay,
};
use kvpick_agent_core::recording::Known;
use kvpick_proto::words::Adapter;
use rig::{
    Agent, LONG,
    engine::{Api, Publisher, wire::Wire},
    server::Server,
    subscribe,
};
use serde_json::Value;

fn recording(publisher: &Publisher, with_replay: bool, out: &Path, frames: u64) -> Recording {
    let replay = with_replay.then(|| publisher.replay.clone());
    let events =
        EventsConfig::check(Some(publisher.endpoint().to_owned()), None, replay, String::new()).unwrap();
    Recording { events, out: out.to_owned(), frames: Some(frames), time: None }
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.expect("in time")
}

fn replayed(file: &Path, until: Option<u64>) -> Value {
    let text = replay(file, until, Known::default(), Instant::now()).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Copies by key, of the only place.
fn held(report: &Value) -> BTreeMap<u64, u64> {
    let held = report["held"].as_array().unwrap();
    let Some(place) = held.first() else { return BTreeMap::new() };
    assert_eq!(
        (held.len(), &place["rank"], &place["group"], &place["tier"]),
        (1, &0.into(), &0.into(), &"gpu".into())
    );
    let blocks = place["blocks"].as_object().unwrap();
    blocks.iter().map(|(key, copies)| (key.parse().unwrap(), copies.as_u64().unwrap())).collect()
}

fn lines(file: &Path) -> Vec<Value> {
    std::fs::read_to_string(file).unwrap().lines().map(|it| serde_json::from_str(it).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_with_replay_gives_what_the_agent_held() {
    let (api, mut server, folder) = (Api::start().await, Server::start(), tempfile::tempdir().unwrap());
    let mut publisher = Publisher::bind(Wire::new(1));
    publisher.publish(|it| it.stored(1, 0, 4));
    publisher.publish(|it| it.removed(1, 3, 1));
    let out = folder.path().join("frames.jsonl");
    let task = tokio::spawn(record_until(recording(&publisher, true, &out, 5), std::future::pending()));
    let publisher = tokio::task::spawn_blocking(move || {
        publisher.subscribed();
        publisher
    });
    let mut publisher = publisher.await.unwrap();
    // Some of these may come by replay, by subscription, or by both.
    publisher.publish(|it| it.stored(2, 0, 2));
    publisher.publish(|it| it.stored(2, 0, 2));
    publisher.publish(|it| it.stored(2, 2, 1));
    let written = in_time(task).await.unwrap().unwrap();
    assert_eq!((written.replayed + written.live, written.left_out), (5, 0));
    assert!(written.replayed >= 2, "{written:?}");

    let lines = lines(&out);
    let numbers: Vec<_> = lines.iter().map(|it| it["i"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    let marked = lines.iter().take_while(|it| it["replayed"] == true).count() as u64;
    assert_eq!(marked, written.replayed, "replayed ones come first");
    assert!(lines[0]["t"].as_f64().unwrap() > 1.7e9);

    let _agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    server.holds(&publisher.wire.held(), Some(4)).await;
    let report = replayed(&out, None);
    let keys: Vec<_> = publisher.wire.held().into_iter().map(|(_, key)| key.as_u64()).collect();
    assert_eq!(held(&report).into_keys().collect::<Vec<_>>(), keys);
    assert_eq!((&report["counts"]["batches"], &report["mirror"]["ambiguous_stores"]), (&5.into(), &1.into()));
    assert_eq!(report["completeness"]["complete"], true);
    assert_eq!(held(&replayed(&out, Some(1))).len(), 4);
    assert!(held(&replayed(&out, Some(0))).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_replay_a_recording_begins_with_what_comes() {
    let folder = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::bind(Wire::new(1));
    publisher.publish(|it| it.stored(1, 0, 4));
    let out = folder.path().join("frames.jsonl");
    let task = tokio::spawn(record_until(recording(&publisher, false, &out, 2), std::future::pending()));
    let publisher = tokio::task::spawn_blocking(move || {
        publisher.subscribed();
        publisher.publish(|it| it.stored(2, 0, 3));
        publisher.send(&[b"one frame, and no more".to_vec()]);
        publisher
    });
    let _publisher = publisher.await.unwrap();
    assert_eq!(in_time(task).await.unwrap().unwrap(), Written { live: 2, ..Written::default() });
    let report = replayed(&out, None);
    assert_eq!((held(&report).len(), &report["completeness"]["complete"]), (3, &false.into()));
    assert_eq!((&report["counts"]["undecodable"], &report["lines"]), (&1.into(), &2.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_a_replay_is_written_when_it_is_asked_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::bind(Wire::new(1));
    publisher.publish(|it| it.stored(1, 0, 4));
    publisher.answers.store(1, Ordering::Relaxed);
    publisher.publish(|it| it.stored(1, 4, 4));
    let out = folder.path().join("frames.jsonl");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let recording = recording(&publisher, true, &out, u64::MAX);
    let task = tokio::spawn(record_until(recording, async move { stopped.await.unwrap() }));
    // The publisher falls silent within its answer, so that what is live still waits.
    let publisher = tokio::task::spawn_blocking(move || {
        publisher.subscribed();
        publisher.publish(|it| it.stored(2, 0, 3));
        publisher
    });
    let publisher = publisher.await.unwrap();
    stop.send(()).unwrap();
    let written = in_time(task).await.unwrap().unwrap();
    assert_eq!(lines(&out).len() as u64, written.replayed + written.live);
    assert!(written.replayed <= 1 && written.live <= 1, "{written:?}");
    drop(publisher);
}

#[tokio::test]
async fn a_file_that_exists_is_not_overwritten_and_nobody_else_reads_a_new_one() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let publisher = Publisher::bind(Wire::new(1));
    let out = folder.path().join("frames.jsonl");
    in_time(record_until(recording(&publisher, false, &out, 0), std::future::pending())).await.unwrap();
    assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    let again = in_time(record_until(recording(&publisher, false, &out, 0), std::future::pending())).await;
    let error = format!("{:#}", again.unwrap_err());
    assert!(error.contains("--out") && error.contains("does not exist"), "{error}");
}

#[test]
fn a_bad_line_is_named_with_file_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("frames.jsonl");
    std::fs::write(
        &file,
        "{\"i\": 0, \"t\": 0, \"frames\": []}\n{\"i\": 1, \"t\": 0, \"frames\": [\"?\"]}\n",
    )
    .unwrap();
    let error = replay(&file, None, Known::default(), Instant::now()).unwrap_err().to_string();
    assert!(error.ends_with("frames.jsonl, line 2: `frames[0]` is not base64"), "{error}");
    // Not read at all.
    assert_eq!(replayed(&file, Some(1))["unplaced"], 1);
}

#[test]
fn a_line_without_end_is_not_read_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("frames.jsonl");
    // A hole takes no room on the disk.
    std::fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let error = replay(&file, None, Known::default(), Instant::now()).unwrap_err().to_string();
    assert!(error.contains("line 1: ") && error.contains("longer than"), "{error}");
    std::fs::write(&file, b"\xff\n").unwrap();
    let error = replay(&file, None, Known::default(), Instant::now()).unwrap_err().to_string();
    assert!(error.contains("line 1: ") && error.contains("utf-8"), "{error}");
}

#[test]
fn what_was_met_in_a_recording_is_counted() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/captures/v0.16-sha256cbor-bytes-bs16/frames.jsonl");
    let adapter = |name: &str| Adapter { name: name.to_owned(), path: "/".to_owned() };
    let adapters = vec![adapter("lora-a"), adapter("lora-b")];
    let known = Known { version: Some("0.16.0".to_owned()), adapters, ..Known::default() };
    let text = replay(&file, None, known, Instant::now()).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    // This version salts hashes and does not publish salts.
    assert!(report["counts"]["hidden_keys"].as_u64() > Some(0), "{}", report["counts"]);
    assert_eq!((&report["counts"]["naming_misfits"], &report["domain"]["root"]), (&0.into(), &"0".into()));
}
