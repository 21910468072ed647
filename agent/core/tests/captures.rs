//! Real engines' batches, from the first to the last.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

use std::time::Instant;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kvpick_agent_core::engine::{Config, Engine, Models};
use kvpick_proto::{
    naming::{Algorithm, ExtraKeyShape},
    words::{Adapter, Completeness, KeyKind, KeyState, ReplicaName},
};
use serde_json::Value;

fn lines(folder: &str, file: &str) -> Vec<Value> {
    let path = format!("{}/../../testdata/captures/{folder}/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn frames(all: &Value) -> Vec<Vec<u8>> {
    all.as_array().unwrap().iter().map(|it| BASE64_STANDARD.decode(it.as_str().unwrap()).unwrap()).collect()
}

fn engine(replay: bool) -> Engine {
    let name = ReplicaName { address: "10.0.0.1:8000".parse().unwrap(), rank: 0 };
    Engine::new(Config { replay, ..Config::new(name) }, Instant::now(), 0)
}

/// All of a capture, and what must be true of every one.
fn heard(folder: &str, version: &str) -> Engine {
    let mut engine = engine(false);
    engine.on_version(version.to_owned());
    let adapter = |name: &str| Adapter { name: name.to_owned(), path: format!("/nowhere/{name}") };
    let adapters = vec![adapter("lora-a"), adapter("lora-b")];
    engine.on_models(Models { models: Vec::new(), adapters, max_model_len: 0 });
    let batches = lines(folder, "frames.jsonl");
    let mut verified = false;
    for batch in &batches {
        engine.on_frames(frames(&batch["frames"]), Instant::now(), 0).unwrap();
        let kinds = &engine.provisional_description().key_kinds;
        let is_verified = kinds.iter().any(|it| it.kind == KeyKind::Plain && it.state == KeyState::Verified);
        assert!(is_verified || !verified, "verified no more after frame {}", batch["i"]);
        verified |= is_verified;
    }
    let counts = engine.counts();
    assert_eq!(counts.batches, batches.len() as u64);
    assert_eq!((counts.undecodable, counts.unknown_events), (0, 0));
    assert_eq!((counts.resets_lost, counts.resets_restarted, counts.resets_unproven), (0, 0, 0));
    assert_eq!(engine.mirror().counts().unknown_removals, 0, "every removal is of a block that was stored");
    assert!(counts.stored_events > 50 && counts.removed_events > 50, "{counts:?}");
    let it = engine.provisional_description();
    assert_eq!(it.completeness, Completeness::Complete);
    let domain = it.domain.as_ref().unwrap();
    assert_eq!(
        (domain.algorithm, domain.root.as_str(), domain.block_size.get()),
        (Algorithm::Sha256Cbor, "0", 16)
    );
    let plain = it.key_kinds.iter().find(|it| it.kind == KeyKind::Plain).unwrap();
    assert_eq!(plain.state, KeyState::Verified);
    assert!(engine.mirror().len() < 96, "more blocks than the engine has");
    engine
}

#[test]
fn vllm_0_16_with_adapters_and_salts() {
    let engine = heard("v0.16-sha256cbor-bytes-bs16", "0.16.0");
    let it = engine.provisional_description();
    assert_eq!(it.domain.as_ref().unwrap().extra_keys, ExtraKeyShape::Bare);
    // The name alone enters the hash in this version, so that its blocks can be recomputed.
    let adapter = it.key_kinds.iter().find(|it| it.kind == KeyKind::Adapter).unwrap();
    assert_eq!(adapter.state, KeyState::Verified);
    // This version does not announce salts.
    let counts = engine.counts();
    assert_eq!((counts.naming_misfits, counts.hidden_keys > 0), (0, true), "{counts:?}");
}

#[test]
fn vllm_0_32_with_second_copies() {
    let engine = heard("v0.32-sha256cbor-int-bs16-dups", "0.32.0");
    let it = engine.provisional_description();
    assert_eq!(it.domain.as_ref().unwrap().extra_keys, ExtraKeyShape::Tagged);
    let salt = it.key_kinds.iter().find(|it| it.kind == KeyKind::Salt).unwrap();
    assert_eq!(salt.state, KeyState::Verified);
}

#[test]
fn recorded_replays_give_what_was_heard() {
    for folder in ["v0.16-sha256cbor-bytes-bs16", "v0.32-sha256cbor-int-bs16-dups"] {
        let live = lines(folder, "frames.jsonl");
        let exchange = lines(folder, "replay.jsonl").into_iter().find(|it| it["tag"] == "from-0").unwrap();
        let mut by_replay = engine(true);
        by_replay.on_connected(Instant::now());
        let request = by_replay.take_replay_request().unwrap();
        for answer in exchange["received"].as_array().unwrap() {
            let frames = frames(&answer["frames"]);
            by_replay.on_replay(request.id, frames, Instant::now(), 0).unwrap();
        }
        assert!(by_replay.is_settled(Instant::now()), "the end was recognized");
        let mut by_life = engine(false);
        let published = usize::try_from(by_replay.counts().batches).unwrap();
        assert!(published > 100);
        for batch in &live[..published] {
            by_life.on_frames(frames(&batch["frames"]), Instant::now(), 0).unwrap();
        }
        assert_eq!(by_replay.take_change(Instant::now()), by_life.take_change(Instant::now()), "{folder}");
    }
}

#[test]
fn a_restarted_engine_is_verified_anew_and_asked_who_it_is() {
    let mut engine = engine(false);
    engine.on_version("0.32.0".to_owned());
    let mut restarted = false;
    for batch in lines("v0.32-restart-sha256cbor-int-bs16", "frames.jsonl") {
        engine.on_frames(frames(&batch["frames"]), Instant::now(), 0).unwrap();
        if engine.counts().resets_restarted > 0 && !restarted {
            restarted = true;
            assert!(engine.take_wants_identity());
        }
        assert!(!engine.take_wants_identity(), "not for nothing");
    }
    assert!(restarted);
    let learnt = engine.learnt().unwrap();
    assert_eq!((learnt.root.as_str(), learnt.kinds[0]), ("0", KeyKind::Plain));
    assert!(!engine.provisional_description().is_translated());
    assert_eq!(engine.counts().naming_misfits, 0);
}

#[test]
fn other_algorithms_and_groups_that_skip_blocks_are_verified() {
    for (folder, algorithm, block_size) in [
        ("v0.32-xxhashcbor-bytes-bs32", Algorithm::Xxh3Cbor, 32),
        ("v0.32-hybrid-swa-llama-sha256cbor-bytes-bs16", Algorithm::Sha256Cbor, 16),
    ] {
        let mut engine = engine(false);
        engine.on_version("0.32.0".to_owned());
        for batch in lines(folder, "frames.jsonl") {
            engine.on_frames(frames(&batch["frames"]), Instant::now(), 0).unwrap();
        }
        let learnt = engine.learnt().unwrap();
        assert_eq!((learnt.algorithm, learnt.block_size.get()), (algorithm, block_size), "{folder}");
        assert!(learnt.kinds.contains(&KeyKind::Salt), "{folder}: {learnt:?}");
        assert_eq!((engine.counts().naming_misfits, engine.counts().hidden_keys), (0, 0), "{folder}");
    }
}
