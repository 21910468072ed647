//! An engine's naming is found from blocks that vLLM named.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and reads goldens")]

use kvpick_agent_core::{
    decode::{ExtraItem, Stored},
    domain::{Fit, Naming},
};
use kvpick_proto::{
    naming::{Algorithm, BlockKey, ExtraKeyShape},
    words::{Adapter, KeyKind, KeyState},
};
use serde_json::Value;

/// One case of the goldens as the store that announces its blocks, with its algorithm, root and adapter.
struct Case {
    name: String,
    algorithm: Algorithm,
    root: String,
    adapter: Option<Adapter>,
    stored: Stored,
}

fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let all = value.as_array().unwrap().iter();
    all.map(|it| it.as_u64().and_then(|it| it.try_into().ok()).unwrap()).collect()
}

fn extra(item: &Value) -> ExtraItem {
    match item {
        Value::String(text) => ExtraItem::Text(text.clone()),
        Value::Array(pair) => ExtraItem::Media {
            identifier: pair[0].as_str().unwrap().to_owned(),
            offset: pair[1].as_i64().unwrap(),
        },
        other => {
            let hex = other["bytes_hex"].as_str().unwrap();
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            ExtraItem::Bytes((0..hex.len()).step_by(2).map(byte).collect())
        }
    }
}

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/hashes/golden_hashes.json");
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = json["cases"].as_array().unwrap().iter();
    let all = cases.map(|it| {
        let text = |field: &str| it[field].as_str().unwrap().to_owned();
        let keys: Vec<_> = it["block_hashes_u64"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| BlockKey::from_u64(it.as_str().unwrap().parse().unwrap()))
            .collect();
        let block_size = it["block_size"].as_u64().unwrap().try_into().unwrap();
        let mut tokens: Vec<u32> = numbers(&it["token_ids"]);
        tokens.truncate(keys.len() * block_size as usize);
        let adapter = it["lora"].as_object().map(|it| Adapter {
            name: it["name"].as_str().unwrap().to_owned(),
            path: it["path"].as_str().unwrap().to_owned(),
        });
        let extra_keys = it["event_extra_keys"].as_array().map_or_else(Vec::new, |blocks| {
            let blocks = (0_u32..).zip(blocks).filter_map(|(at, items)| Some((at, items.as_array()?)));
            blocks.map(|(at, items)| (at, items.iter().map(extra).collect())).collect()
        });
        let stored = Stored {
            keys,
            tokens,
            block_size,
            lora_name: adapter.as_ref().map(|it| it.name.clone()),
            extra_keys,
            ..Stored::default()
        };
        Case {
            name: text("name"),
            algorithm: Algorithm::from_name(&text("algo")).unwrap(),
            root: text("effective_seed"),
            adapter,
            stored,
        }
    });
    all.filter(|it| !it.stored.keys.is_empty()).collect()
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|it| it.name == name).unwrap_or_else(|| panic!("no golden {name}"))
}

fn state(naming: &Naming, kind: KeyKind) -> KeyState {
    naming.key_kinds().into_iter().find(|it| it.kind == kind).unwrap().state
}

/// A store that no hash gives.
fn misfit() -> Stored {
    Stored { keys: vec![BlockKey::from_u64(1)], tokens: vec![1, 2], block_size: 2, ..Stored::default() }
}

#[test]
fn every_golden_shows_its_domain() {
    let cases = cases();
    assert!(cases.len() > 60, "{} cases", cases.len());
    for case in cases {
        let mut naming = Naming::new(std::slice::from_ref(&case.root));
        naming.on_version("0.32.0");
        naming.on_adapters(case.adapter.as_slice());
        assert_eq!(naming.on_stored(&case.stored), Fit::Fits, "{}", case.name);
        let domain = naming.domain().unwrap();
        assert_eq!((domain.algorithm, &domain.root), (case.algorithm, &case.root), "{}", case.name);
        assert_eq!(domain.block_size.get(), case.stored.block_size);
        assert_eq!(domain.extra_keys, ExtraKeyShape::Tagged);
        assert_eq!(state(&naming, KeyKind::Plain), KeyState::Verified);
        if case.adapter.is_some() {
            assert_eq!(state(&naming, KeyKind::Adapter), KeyState::Verified, "{}", case.name);
        }
    }
}

#[test]
fn usual_roots_need_no_configuration() {
    for name in ["sha256_cbor/seed=None/bs16/32tok", "sha256/seed=42/bs16/32tok", "xxhash/seed=0/bs16/32tok"]
    {
        assert_eq!(Naming::new(&[]).on_stored(&case(name).stored), Fit::Fits, "{name}");
    }
    let other = case("sha256/seed=007/bs16/32tok").stored;
    assert_eq!(Naming::new(&[]).on_stored(&other), Fit::Misfit);
}

#[test]
fn one_wrong_hash_is_a_misfit() {
    let mut stored = case("sha256_cbor/seed=None/bs16/32tok").stored;
    *stored.keys.last_mut().unwrap() = BlockKey::from_u64(1);
    assert_eq!(Naming::new(&[]).on_stored(&stored), Fit::Misfit);
}

#[test]
fn what_does_not_begin_at_a_prompts_start_is_no_test() {
    let stored = case("sha256_cbor/seed=None/bs16/32tok").stored;
    let mut naming = Naming::new(&[]);
    let later = Stored { parent: Some(BlockKey::from_u64(1)), ..stored.clone() };
    let sparse = Stored { tokens: stored.tokens[1..].to_vec(), ..stored.clone() };
    let empty = Stored { keys: Vec::new(), tokens: Vec::new(), ..stored.clone() };
    let numbered_adapter = Stored { lora_id: Some(1), ..stored.clone() };
    let unknown_adapter = Stored { lora_name: Some("not in /v1/models".to_owned()), ..stored };
    for it in [later, sparse, empty, numbered_adapter, unknown_adapter] {
        assert_eq!(naming.on_stored(&it), Fit::Untestable, "{it:?}");
    }
    assert_eq!(naming.domain(), None);
}

#[test]
fn a_domain_is_given_up_after_eight_plain_misfits_in_a_row() {
    let fitting = case("sha256_cbor/seed=None/bs16/32tok").stored;
    let mut naming = Naming::new(&[]);
    naming.on_stored(&fitting);
    (0..7).for_each(|_| assert_eq!(naming.on_stored(&misfit()), Fit::Misfit));
    naming.on_stored(&fitting);
    (0..7).for_each(|_| assert_eq!(naming.on_stored(&misfit()), Fit::Misfit));
    assert_eq!(state(&naming, KeyKind::Plain), KeyState::Verified);
    // Salted ones, and those whose salt is not published, do not count.
    let salted = Stored { extra_keys: vec![(0, vec![ExtraItem::Text("salt".to_owned())])], ..misfit() };
    let hidden = Stored { hides_extra_keys: true, ..misfit() };
    for it in [salted, hidden] {
        (0..9).for_each(|_| assert_eq!(naming.on_stored(&it), Fit::Misfit));
    }
    assert!(naming.domain().is_some());
    naming.on_stored(&misfit());
    assert_eq!(naming.domain(), None);
    assert!(matches!(state(&naming, KeyKind::Plain), KeyState::Unverified { .. }));
    // It may come back.
    naming.on_stored(&fitting);
    assert_eq!(state(&naming, KeyKind::Plain), KeyState::Verified);
}

#[test]
fn an_engine_that_came_back_with_another_root_is_noticed_at_once() {
    let mut naming = Naming::new(&[]);
    naming.on_stored(&case("sha256_cbor/seed=None/bs16/32tok").stored);
    naming.on_stored(&case("sha256_cbor/seed=42/bs16/32tok").stored);
    assert_eq!(naming.domain().unwrap().root, "42");
}

#[test]
fn before_the_first_store_metrics_and_version_are_evidence() {
    let mut naming = Naming::new(&[]);
    assert!(matches!(state(&naming, KeyKind::Plain), KeyState::Unverified { .. }));
    naming.on_cache_config(Some("sha256"), Some(16));
    assert_eq!(naming.domain(), None);
    naming.on_version("0.28.0");
    assert_eq!(naming.domain(), None, "its root is random");
    naming.on_version("0.29.0+cpu");
    let domain = naming.domain().unwrap();
    assert_eq!((domain.algorithm, domain.root.as_str()), (Algorithm::Sha256Pickle, "vllm-none-hash"));
    assert_eq!(domain.extra_keys, ExtraKeyShape::BareWithOffset);
    let KeyState::Assumed { evidence } = state(&naming, KeyKind::Plain) else { panic!() };
    assert!(evidence.contains("0.29.0") && evidence.contains("sha256"), "{evidence}");
    naming.on_cache_config(Some("xxhash"), Some(16));
    assert_eq!(naming.domain(), None, "its root is random");
    naming.on_cache_config(Some("builtin"), Some(16));
    let KeyState::Unverified { reason, remedy } = state(&naming, KeyKind::Plain) else { panic!() };
    assert!(reason.contains("builtin") && remedy.contains("sha256_cbor"), "{reason} {remedy}");
}

#[test]
fn a_kind_of_key_that_does_not_fit_is_named() {
    let plain = case("sha256_cbor/seed=None/bs16/32tok").stored;
    let mut adapted = case("sha256_cbor/lora");
    let mut naming = Naming::new(&[]);
    naming.on_version("0.32.0");
    naming.on_stored(&plain);
    assert!(matches!(state(&naming, KeyKind::Adapter), KeyState::Assumed { .. }));
    adapted.adapter.as_mut().unwrap().path = "/elsewhere".to_owned();
    naming.on_adapters(adapted.adapter.as_slice());
    assert_eq!(naming.on_stored(&adapted.stored), Fit::Misfit);
    assert!(matches!(state(&naming, KeyKind::Adapter), KeyState::Unverified { .. }));
    assert_eq!(state(&naming, KeyKind::Plain), KeyState::Verified);
}

#[test]
fn versions_decide_how_extra_keys_are_hashed() {
    for (version, shape) in [
        ("0.16.0", ExtraKeyShape::Bare),
        ("0.18.1", ExtraKeyShape::Bare),
        ("0.19.1", ExtraKeyShape::BareWithOffset),
        ("0.30.2rc1", ExtraKeyShape::BareWithOffset),
        ("0.31", ExtraKeyShape::Tagged),
        ("0.32.1rc1.dev5+g1234", ExtraKeyShape::Tagged),
        ("1.0.0", ExtraKeyShape::Tagged),
    ] {
        let mut naming = Naming::new(&[]);
        naming.on_version(version);
        naming.on_stored(&case("sha256_cbor/seed=None/bs16/32tok").stored);
        assert_eq!(naming.domain().unwrap().extra_keys, shape, "{version}");
    }
}
