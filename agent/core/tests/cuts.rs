//! Every recording cut after every message: what the agent holds then is what a reference holds that shares none of its
//! code, no less and no more.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod reference;

use std::{path::PathBuf, time::Instant};

use kvpick_agent_core::{
    engine::Engine,
    recording::{Known, Line, Run},
};
use kvpick_proto::words::{Adapter, KeyKind, KeyState, Tier};
use reference::{Held, Reference};
use serde_json::Value;

fn captures() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "testdata", "captures"].iter().collect()
}

fn lines(folder: &str) -> Vec<Line> {
    let text = std::fs::read_to_string(captures().join(folder).join("frames.jsonl")).unwrap();
    text.lines().map(|it| Line::parse(it).unwrap()).collect()
}

fn meta(folder: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(captures().join(folder).join("meta.json")).unwrap())
        .unwrap()
}

/// What the engine's API said.
fn known(meta: &Value) -> Known {
    let adapter = |(name, path): (&String, &Value)| Adapter {
        name: name.clone(),
        path: path.as_str().unwrap().to_owned(),
    };
    Known {
        version: meta["version"]["version"].as_str().map(str::to_owned),
        adapters: meta["lora"].as_object().into_iter().flatten().map(adapter).collect(),
        ..Known::default()
    }
}

fn held(engine: &Engine) -> Held {
    let medium = |tier| match tier {
        Tier::Gpu => "gpu",
        Tier::Cpu => "cpu",
        Tier::Storage => "storage",
    };
    let held = engine.mirror().held();
    held.map(|(place, key, copies)| ((place.group, medium(place.tier).to_owned(), key.as_u64()), copies))
        .collect()
}

/// Compares after every message, and returns what the reference met.
fn compare(folder: &str) -> Reference {
    let meta = meta(folder);
    let (mut run, mut reference) = (Run::new(known(&meta), Instant::now()), Reference::default());
    // One request asks the hybrid model to announce its whole hit again, of which the sliding window's group has a part,
    // so that this counts as new copies there.
    let most = meta["num_gpu_blocks"].as_u64().filter(|_| !folder.contains("hybrid"));
    for line in lines(folder) {
        let i = line.i;
        reference.hear(&line.frames);
        run.on_line(line);
        assert_eq!(held(&run.engines()[&0]), reference.held, "{folder} after message {i}");
        // One of them is never used.
        let copies: u64 = reference.held.values().copied().map(u64::from).sum();
        assert!(most.is_none_or(|it| copies < it), "{folder} holds {copies} after message {i}");
    }
    assert_eq!((run.unplaced(), run.engines().len()), (0, 1));
    let counts = run.engines()[&0].mirror().counts();
    assert_eq!((counts.ambiguous_stores, counts.unknown_removals), (reference.again.into(), 0), "{folder}");
    reference
}

#[test]
fn vllm_0_16_as_bytes() {
    compare("v0.16-sha256cbor-bytes-bs16");
}

#[test]
fn vllm_0_32_as_bytes() {
    compare("v0.32-xxhashcbor-bytes-bs32");
}

#[test]
fn vllm_0_32_with_second_copies() {
    let met = compare("v0.32-sha256cbor-int-bs16-dups");
    assert!(met.most_copies > 1 && met.again > 0, "{met:?}");
}

#[test]
fn a_restart() {
    let met = compare("v0.32-restart-sha256cbor-int-bs16");
    assert_eq!(met.publishers, 2);
    assert!(!met.held.is_empty());
}

#[test]
fn groups_of_a_hybrid_model() {
    compare("v0.32-hybrid-swa-llama-sha256cbor-bytes-bs16");
    let mut run = Run::new(Known::default(), Instant::now());
    let mut groups = std::collections::BTreeSet::new();
    for line in lines("v0.32-hybrid-swa-llama-sha256cbor-bytes-bs16") {
        run.on_line(line);
        groups.extend(run.engines()[&0].mirror().held().map(|(place, ..)| place.group));
    }
    assert_eq!(groups.into_iter().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn the_layouts_of_older_versions() {
    compare("synthetic-layout-v0.9.2-int");
    compare("synthetic-layout-v0.20.2-bytes");
}

#[test]
fn no_recording_is_left_out() {
    let mut folders: Vec<_> = std::fs::read_dir(captures()).unwrap().map(|it| it.unwrap()).collect();
    folders.retain(|it| it.file_type().unwrap().is_dir());
    let this = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuts.rs")).unwrap();
    for folder in folders {
        let name = folder.file_name().into_string().unwrap();
        assert!(this.contains(&format!("compare(\"{name}\")")), "{name}");
    }
}

#[test]
fn naming_that_is_verified_stays_so() {
    for folder in
        ["v0.16-sha256cbor-bytes-bs16", "v0.32-sha256cbor-int-bs16-dups", "v0.32-xxhashcbor-bytes-bs32"]
    {
        let mut run = Run::new(known(&meta(folder)), Instant::now());
        let mut since = None;
        for line in lines(folder) {
            let i = line.i;
            run.on_line(line);
            let kinds = &run.engines()[&0].provisional_description().key_kinds;
            let plain = kinds.iter().find(|it| it.kind == KeyKind::Plain);
            let is_verified = plain.is_some_and(|it| it.state == KeyState::Verified);
            assert!(
                is_verified || since.is_none(),
                "{folder}: verified by {since:?}, not after {i}: {plain:?}"
            );
            since = since.or_else(|| is_verified.then_some(i));
        }
        assert!(since.is_some_and(|it| it < 8), "{folder}: {since:?}");
    }
}
