//! How much is hashed for an engine that means harm: it chooses what it stores.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::num::NonZeroU32;

use kvpick_agent_core::{
    decode::{ExtraItem, Stored},
    domain::{Fit, Naming},
};
use kvpick_proto::{
    naming::{Algorithm, BlockKey, ExtraKey, ExtraKeyShape, Hasher},
    words::Adapter,
};

/// A store that no hash gives, of a chain that is watched.
fn misfit() -> Stored {
    Stored { keys: vec![BlockKey::from_u64(8)], tokens: vec![1; 2], block_size: 2, ..Stored::default() }
}

fn fitting(root: &str, extra: &[ExtraKey]) -> Stored {
    let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, root, ExtraKeyShape::Tagged);
    let keys = hasher.chain(NonZeroU32::new(2).unwrap(), &[7; 2], |_| extra.to_vec());
    Stored { keys, tokens: vec![7; 2], ..misfit() }
}

#[test]
fn who_never_fits_is_looked_at_rarely() {
    let salted = Stored { extra_keys: vec![(0, vec![ExtraItem::Text("salt".to_owned())])], ..misfit() };
    for it in [misfit(), salted] {
        let mut naming = Naming::new(&[]);
        let tried = (1..=256).filter(|_| naming.on_stored(&it) == Fit::Misfit).count();
        assert_eq!(tried, 64 + 3, "{it:?}");
        // Now and then is often enough to find it yet.
        let fits = (1..=64).filter(|_| naming.on_stored(&fitting("42", &[])) == Fit::Fits).count();
        assert_eq!(fits, 1);
        naming.on_new_process();
        assert_eq!(naming.on_stored(&it), Fit::Misfit, "another process has another chance");
    }
}

#[test]
fn who_fits_in_turns_is_looked_at_rarely() {
    let mut naming = Naming::new(&[]);
    let roots = ["0", "42"].into_iter().cycle().take(256);
    let fits = roots.filter(|it| naming.on_stored(&fitting(it, &[])) == Fit::Fits).count();
    // Of those after the first 64, only every other one, which is hashed in the way found last.
    assert_eq!(fits, 64 + 96);
}

#[test]
fn a_naming_comes_back_a_few_times_only() {
    let mut naming = Naming::new(&[]);
    let round = |naming: &mut Naming| {
        (0..8).for_each(|_| assert_ne!(naming.on_stored(&misfit()), Fit::Fits));
        assert!(naming.is_translating());
        naming.on_stored(&fitting("42", &[]))
    };
    (0..4).for_each(|_| assert_eq!(round(&mut naming), Fit::Fits));
    assert_eq!(round(&mut naming), Fit::Untestable);
    assert!(naming.is_translating());
    naming.on_new_process();
    assert_eq!(round(&mut naming), Fit::Fits);
}

#[test]
fn an_adapters_name_of_any_length_is_not_hashed() {
    for (len, fit) in [(256, Fit::Fits), (257, Fit::Untestable)] {
        let (name, path) = ("a".repeat(len), "/a".to_owned());
        let stored = fitting("42", &[ExtraKey::Adapter { name: name.clone(), path: path.clone() }]);
        let mut naming = Naming::new(&[]);
        naming.on_adapters(&[Adapter { name: name.clone(), path }]);
        assert_eq!(naming.on_stored(&Stored { lora_name: Some(name), ..stored }), fit);
    }
}
