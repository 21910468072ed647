//! Every form of the wire against the agent's decoder. That they are a real engine's to the byte is shown by
//! `engine_captures`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{num::NonZeroU32, sync::Arc};

use kvpick_agent_core::decode::{self, Batch, ExtraItem};
use kvpick_lab::engine::{
    announce::{Adapter, Event, Removed, Stored},
    attention::Group,
    wire::{Encoder, Encoding, HashForm},
};
use kvpick_proto::naming::{Algorithm, Digest, ExtraKey, Hasher};

const ENCODINGS: [Encoding; 4] = [Encoding::Map, Encoding::Array, Encoding::Array8, Encoding::Array7];

fn decoded(encoding: Encoding, hashes: HashForm, events: &[Event]) -> Vec<decode::Event> {
    let payload = Encoder { encoding, hashes, block_size: 2, rank: 3 }.batch(1.5, events);
    let batch = Batch::decode(&payload).unwrap();
    assert_eq!((batch.time, batch.rank, batch.unknown), (1.5, Some(3), 0));
    batch.events
}

fn three_blocks(first: &[ExtraKey]) -> [Digest; 3] {
    let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, "0", Encoding::Map.extra_keys());
    let first = hasher.next(&hasher.root(), &[1, 70_000], first);
    let second = hasher.next(&first, &[3, 4], &[]);
    [first, second, hasher.next(&second, &[5, 6], &[])]
}

#[test]
fn every_form_says_the_same() {
    let salt = vec![ExtraKey::Salt("s".to_owned())];
    let [first, second, third] = three_blocks(&salt);
    let stored = |hashes, parent, tokens, extra| {
        Event::Stored(Stored::new(0, Group::Full, hashes, parent, tokens, extra))
    };
    let events = [
        Event::Removed(Removed { group: 0, hash: third }),
        stored(vec![first, second], None, vec![1, 70_000, 3, 4], vec![salt, vec![]]),
        stored(vec![third], Some(second), vec![5, 6], vec![vec![]]),
        Event::Cleared,
    ];
    for encoding in ENCODINGS {
        for hashes in [HashForm::Int, HashForm::Bytes] {
            let decoded = decoded(encoding, hashes, &events);
            let [
                decode::Event::Removed(removed),
                decode::Event::Stored(root),
                decode::Event::Stored(next),
                cleared,
            ] = decoded.as_slice()
            else {
                panic!("{encoding:?} {hashes:?}: {decoded:?}");
            };
            // Versions that know no groups do not tell extra keys either.
            let tells = matches!(encoding, Encoding::Map | Encoding::Array);
            assert_eq!(
                (removed.keys.as_slice(), removed.group),
                ([third.key()].as_slice(), tells.then_some(0))
            );
            assert_eq!((root.keys.as_slice(), root.parent), ([first.key(), second.key()].as_slice(), None));
            assert_eq!((root.tokens.as_slice(), root.block_size), ([1, 70_000, 3, 4].as_slice(), 2));
            assert_eq!((next.keys.as_slice(), next.parent), ([third.key()].as_slice(), Some(second.key())));
            let salts = [(0, vec![ExtraItem::Text("s".to_owned())])];
            assert_eq!(root.extra_keys, if tells { salts.as_slice() } else { &[] });
            assert_eq!(next.kind.as_deref(), tells.then_some("full_attention"));
            assert_eq!(next.hides_extra_keys, !tells, "{encoding:?}");
            assert_eq!(*cleared, decode::Event::Cleared);
        }
    }
}

#[test]
fn an_adapter_is_numbered_in_all_forms_and_named_since_0_16() {
    let adapter = Adapter { id: 2, name: "poet".to_owned(), path: "/adapters/poet".to_owned() };
    let key = ExtraKey::Adapter { name: adapter.name.clone(), path: adapter.path.clone() };
    let [first, ..] = three_blocks(std::slice::from_ref(&key));
    let plain = Stored::new(0, Group::Full, vec![first], None, vec![1, 70_000], vec![vec![key]]);
    let stored = Stored { adapter: Some(Arc::new(adapter)), ..plain };
    for encoding in ENCODINGS {
        let decoded = decoded(encoding, HashForm::Int, &[Event::Stored(stored.clone())]);
        let [decode::Event::Stored(stored)] = decoded.as_slice() else { panic!("{decoded:?}") };
        assert_eq!(stored.lora_id, Some(2));
        assert_eq!(stored.lora_name.as_deref(), (encoding != Encoding::Array7).then_some("poet"));
    }
}

#[test]
fn a_window_tells_its_size_and_may_leave_out_hashes() {
    let [_, second, _] = three_blocks(&[]);
    let window = Group::Window(NonZeroU32::new(64).unwrap());
    let some = Stored::new(0, window, vec![second], None, vec![1, 70_000, 3, 4], vec![vec![]]);
    let none = Stored::new(0, window, vec![], Some(second), vec![5, 6], vec![]);
    let removed = Removed { group: 1, hash: second };
    for encoding in [Encoding::Map, Encoding::Array] {
        let events = [Event::Stored(some.clone()), Event::Stored(none.clone()), Event::Removed(removed)];
        let decoded = decoded(encoding, HashForm::Bytes, &events);
        let [decode::Event::Stored(some), decode::Event::Stored(none), decode::Event::Removed(removed)] =
            decoded.as_slice()
        else {
            panic!("{decoded:?}");
        };
        assert_eq!((some.kind.as_deref(), some.sliding_window), (Some("sliding_window"), Some(64)));
        assert_eq!((some.keys.len(), some.tokens.len(), some.is_dense()), (1, 4, false));
        assert_eq!((none.keys.len(), none.tokens.len(), none.parent), (0, 2, Some(second.key())));
        assert_eq!(removed.group, Some(1));
    }
}

#[test]
fn a_session_is_told_in_maps() {
    let [first, ..] = three_blocks(&[]);
    let plain = Stored::new(0, Group::Full, vec![first], None, vec![1, 70_000], vec![vec![]]);
    let encoder = Encoder { encoding: Encoding::Map, hashes: HashForm::Int, block_size: 2, rank: 0 };
    let silent = encoder.batch(1.5, &[Event::Stored(plain.clone())]);
    let told = encoder.batch(1.5, &[Event::Stored(Stored { session: Some("s-1".into()), ..plain })]);
    let tail = b"\xaasession_id\xa3s-1";
    assert!(
        told.windows(tail.len()).any(|it| it == tail) && !silent.windows(10).any(|it| it == b"session_id")
    );
    assert_eq!(Batch::decode(&told).unwrap().events, Batch::decode(&silent).unwrap().events);
}
