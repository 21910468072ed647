//! An engine's naming is found from blocks that vLLM named.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod goldens;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
};

use goldens::{case, cases, legacy, split};
use kvpick_agent_core::{
    decode::{ExtraItem, Stored},
    domain::{Fit, Naming},
};
use kvpick_proto::{
    naming::{Algorithm, BlockKey, ExtraKey, ExtraKeyShape, Hasher},
    words::{KeyKind, KeyState},
};

fn state(naming: &Naming, kind: KeyKind) -> KeyState {
    naming.key_kinds().into_iter().find(|it| it.kind == kind).unwrap().state
}

/// A store that no hash gives.
fn misfit() -> Stored {
    Stored { keys: vec![BlockKey::from_u64(1)], tokens: vec![1; 16], block_size: 16, ..Stored::default() }
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
    for (it, fit) in [(salted, Fit::Misfit), (hidden, Fit::Hidden)] {
        (0..9).for_each(|_| assert_eq!(naming.on_stored(&it), fit));
    }
    assert!(naming.domain().is_some());
    assert!(!naming.is_translating());
    naming.on_stored(&misfit());
    assert_eq!(state(&naming, KeyKind::Plain), KeyState::Translated);
    let domain = naming.domain().unwrap();
    assert_eq!((domain.algorithm, domain.root.as_str()), (Algorithm::Sha256Cbor, "vllm-none-hash"));
    assert_eq!((domain.block_size.get(), domain.extra_keys), (16, ExtraKeyShape::Tagged));
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
    assert_eq!(state(&naming, KeyKind::Plain), KeyState::Translated);
    assert_eq!(naming.domain().unwrap().algorithm, Algorithm::Sha256Cbor);
    naming.on_cache_config(Some("builtin"), None);
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

/// The kinds of key in a store of vLLM 0.32.
fn kinds(stored: &Stored) -> Vec<KeyKind> {
    let items: Vec<_> = stored.extra_keys.iter().flat_map(|(_, it)| it).collect();
    let text = |it: &&ExtraItem| matches!(it, ExtraItem::Text(it) if Some(it) != stored.lora_name.as_ref());
    let of = [
        (true, KeyKind::Plain),
        (stored.lora_name.is_some(), KeyKind::Adapter),
        (items.iter().any(text), KeyKind::Salt),
        (items.iter().any(|it| matches!(it, ExtraItem::Media { .. })), KeyKind::Media),
        (items.iter().any(|it| matches!(it, ExtraItem::Bytes(_))), KeyKind::Embeds),
    ];
    of.into_iter().filter(|it| it.0).map(|it| it.1).collect()
}

#[test]
fn every_golden_verifies_its_kinds_however_it_is_split() {
    let mut seen = BTreeSet::new();
    for case in cases() {
        for blocks in [1, 2, 3, case.stored.keys.len()] {
            // Also with no version known, and with one that is wrong.
            for version in ["0.32.0", "", "0.29.0"] {
                let mut naming = Naming::new(std::slice::from_ref(&case.root));
                naming.on_version(version);
                naming.on_adapters(case.adapter.as_slice());
                for part in split(&case.stored, blocks) {
                    let fit = naming.on_stored(&part);
                    let settled = case.stored.keys.len() > 256 * blocks;
                    assert!(fit == Fit::Fits || settled, "{} by {blocks}, {version:?}: {fit:?}", case.name);
                }
                for kind in kinds(&case.stored) {
                    seen.insert(kind);
                    let state = state(&naming, kind);
                    assert_eq!(state, KeyState::Verified, "{} by {blocks}, {version:?}: {kind:?}", case.name);
                }
                let domain = naming.domain().unwrap();
                assert_eq!((domain.algorithm, &domain.root), (case.algorithm, &case.root), "{}", case.name);
            }
        }
    }
    assert_eq!(seen.len(), 4, "the goldens have every kind but embeddings: {seen:?}");
}

#[test]
fn prompt_embeddings_verify() {
    for shape in [ExtraKeyShape::Tagged, ExtraKeyShape::Bare] {
        let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, "0", shape);
        let (tokens, digest) = (vec![0; 32], vec![7; 32]);
        let extra = |at| if at == 1 { vec![ExtraKey::Embeds(digest.clone())] } else { Vec::new() };
        let keys = hasher.chain(NonZeroU32::new(16).unwrap(), &tokens, extra);
        let extra_keys = vec![(1, vec![ExtraItem::Bytes(digest.clone())])];
        let stored = Stored { keys, tokens, block_size: 16, extra_keys, ..Stored::default() };
        let mut naming = Naming::new(&[]);
        assert!(split(&stored, 1).iter().all(|it| naming.on_stored(it) == Fit::Fits));
        assert_eq!(state(&naming, KeyKind::Embeds), KeyState::Verified);
    }
}

#[test]
fn older_shapes_verify_with_their_versions_and_with_wrong_ones() {
    let all = legacy();
    assert_eq!(all.len(), 10);
    for (name, version, stored) in all {
        for version in [version, "", "0.32.0"] {
            for blocks in [1, 2] {
                let mut naming = Naming::new(&[]);
                naming.on_version(version);
                let fits: Vec<_> = split(&stored, blocks).iter().map(|it| naming.on_stored(it)).collect();
                let want = match name.split_once('/').unwrap().1 {
                    "lora-int-id" => Fit::Untestable,
                    it if it.starts_with("seed") => Fit::Misfit,
                    _ => Fit::Fits,
                };
                // What goes on where nothing fitted is no test.
                assert!(
                    fits[0] == want && (want == Fit::Misfit || fits.iter().all(|it| *it == want)),
                    "{name} {version}: {fits:?}"
                );
                if want != Fit::Fits {
                    continue;
                }
                let is_verified = |kind| state(&naming, kind) == KeyState::Verified;
                assert!(is_verified(KeyKind::Plain), "{name}");
                assert_eq!(is_verified(KeyKind::Adapter), name.ends_with("lora-name"), "{name} {version}");
                // Where it begins in the first block it might be a salt.
                assert_eq!(is_verified(KeyKind::Media), name.ends_with("mm-id-offset"), "{name} {version}");
                assert!(!is_verified(KeyKind::Salt), "{name} {version}");
            }
        }
    }
}

#[test]
fn a_text_that_may_be_a_salt_or_media_is_checked_and_not_named() {
    let (_, version, stored) = legacy().into_iter().find(|it| it.0 == "sha256_cbor/mm-id-only").unwrap();
    let mut naming = Naming::new(&[]);
    naming.on_version(version);
    assert_eq!(naming.on_stored(&stored), Fit::Fits);
    for kind in [KeyKind::Salt, KeyKind::Media] {
        assert!(matches!(state(&naming, kind), KeyState::Assumed { .. }));
    }
    let wrong = Stored { extra_keys: vec![(0, vec![ExtraItem::Text("other".to_owned())])], ..stored };
    assert_eq!(naming.on_stored(&wrong), Fit::Misfit);
}

/// Blocks of `fine` tokens, of which every so many are announced as one.
fn coarse(fine: usize, per: usize, blocks: usize, salt: Option<&str>) -> Stored {
    let mut hasher = Hasher::with_root(Algorithm::Sha256Pickle, "0", ExtraKeyShape::Tagged);
    let tokens: Vec<u32> = (0..(fine * per * blocks) as u32).collect();
    let size = NonZeroU32::new(fine as u32).unwrap();
    let extra = |at| salt.filter(|_| at == 0).map(|it| ExtraKey::Salt(it.to_owned())).into_iter().collect();
    let keys = hasher.chain(size, &tokens, extra);
    Stored {
        keys: keys.into_iter().skip(per - 1).step_by(per).collect(),
        tokens,
        block_size: (fine * per) as u32,
        extra_keys: salt.map(|it| (0, vec![ExtraItem::Text(it.to_owned())])).into_iter().collect(),
        ..Stored::default()
    }
}

#[test]
fn a_coarse_group_is_hashed_in_smaller_blocks() {
    let whole = coarse(16, 3, 4, Some("salt"));
    let mut naming = Naming::new(&[]);
    assert_eq!(naming.on_stored(&whole), Fit::Misfit, "nothing shows the size of a hashed block");
    naming.on_hash_block_size(Some(16));
    assert!(split(&whole, 1).iter().all(|it| naming.on_stored(it) == Fit::Fits));
    assert_eq!(naming.domain().unwrap().block_size.get(), 16);
    assert_eq!(state(&naming, KeyKind::Salt), KeyState::Verified);

    // Two groups of which neither is as fine as their hashes.
    let mut naming = Naming::new(&[]);
    naming.on_stored(&coarse(16, 2, 4, None));
    assert_eq!(naming.on_stored(&coarse(16, 3, 4, None)), Fit::Fits);
    assert_eq!(naming.on_stored(&coarse(16, 2, 4, None)), Fit::Fits);
    assert_eq!(naming.domain().unwrap().block_size.get(), 16);

    // And a group whose own blocks are those that are hashed.
    let mut naming = Naming::new(&[]);
    naming.on_stored(&coarse(7, 1, 4, None));
    assert_eq!(naming.on_stored(&coarse(7, 5, 4, None)), Fit::Fits);
    assert_eq!(naming.domain().unwrap().block_size.get(), 7);
}

#[test]
fn what_is_verified_is_sampled_for_ever() {
    let chain = |first: u32| {
        let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, "42", ExtraKeyShape::Tagged);
        let tokens: Vec<u32> = (0..8).map(|it| it * 1_000 + first).collect();
        let keys = hasher.chain(NonZeroU32::new(2).unwrap(), &tokens, |_| Vec::new());
        Stored { keys, tokens, block_size: 2, ..Stored::default() }
    };
    let mut naming = Naming::new(&[]);
    (0..256).for_each(|it| assert_eq!(naming.on_stored(&chain(it)), Fit::Fits));
    let mut counts = BTreeMap::<_, u32>::new();
    for first in 1_000..1_800 {
        let whole = chain(first);
        let mut parts = split(&whole, 2);
        *parts[0].keys.last_mut().unwrap() = BlockKey::from_u64(1);
        let root = naming.on_stored(&parts[0]);
        let next = naming.on_stored(&split(&whole, 1)[1]);
        *counts.entry((format!("{root:?}"), format!("{next:?}"))).or_default() += 1;
    }
    let watched = counts[&("Misfit".to_owned(), "Fits".to_owned())];
    assert_eq!(counts[&("Fits".to_owned(), "Untestable".to_owned())], 800 - watched);
    assert!((60..140).contains(&watched), "{counts:?}");
}

#[test]
fn another_process_is_believed_only_once_it_was_seen_to_name_a_block() {
    let stored = case("xxhash_cbor/seed=0/bs16/32tok").stored;
    let mut naming = Naming::new(&[]);
    naming.on_version("0.16.0");
    naming.on_stored(&stored);
    let learnt = naming.learnt().unwrap();
    assert!(!naming.take_wants_identity());
    naming.on_new_process();
    assert!(naming.take_wants_identity() && !naming.take_wants_identity());
    assert_eq!((naming.domain().unwrap().root.as_str(), naming.learnt()), ("0", None));
    let KeyState::Assumed { evidence } = state(&naming, KeyKind::Plain) else { panic!() };
    assert!(evidence.contains("restarted"), "{evidence}");
    // Hidden keys are those of an engine whose plain ones are verified.
    let hidden = Stored { hides_extra_keys: true, ..misfit() };
    assert_eq!(naming.on_stored(&hidden), Fit::Misfit);
    naming.on_stored(&stored);
    assert_eq!(state(&naming, KeyKind::Plain), KeyState::Verified);
    assert_eq!(naming.on_stored(&hidden), Fit::Hidden);
    assert!(!naming.take_wants_identity());
    naming.on_stored(&misfit());
    assert!(naming.take_wants_identity(), "a misfit asks who it is");
    // An upgrade in place that only the version shows.
    naming.on_version("0.32.0");
    assert!(matches!(state(&naming, KeyKind::Plain), KeyState::Assumed { .. }));
    // What an earlier run of the agent had verified needs no store.
    let mut later = Naming::new(&[]);
    later.recall(learnt.clone());
    assert_eq!((later.learnt(), state(&later, KeyKind::Plain)), (Some(learnt), KeyState::Verified));
}

#[test]
fn an_engine_of_another_make_has_no_domain() {
    let mut naming = Naming::new(&[]);
    naming.on_make(true);
    for _ in 0..9 {
        assert_eq!(naming.on_stored(&misfit()), Fit::Untestable);
    }
    assert_eq!((naming.domain(), naming.is_translating(), naming.learnt()), (None, false, None));
    let KeyState::Unverified { reason, .. } = state(&naming, KeyKind::Plain) else { panic!() };
    assert!(reason.contains("not vLLM's"), "{reason}");
}
