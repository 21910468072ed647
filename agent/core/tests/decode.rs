//! Every form of vLLM's event batches, and what anybody else may send.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and reads goldens")]

use kvpick_agent_core::decode::{Batch, DecodeError, Event, ExtraItem, Message, Removed, Replayed, Stored};
use kvpick_proto::{naming::BlockKey, words::Tier};
use proptest::prelude::*;

const BIG: u64 = 0x8000_0000_0000_0005;

fn goldens() -> Vec<(String, Vec<u8>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/wire/golden_wire.json");
    let file = std::fs::read(path).unwrap();
    let json: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&file).unwrap();
    let hex = |text: &str| {
        text.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    };
    json.into_iter().map(|(name, it)| (name, hex(it["hex"].as_str().unwrap()))).collect()
}

fn keys<const N: usize>(values: [u64; N]) -> Vec<BlockKey> {
    values.map(BlockKey::from_u64).to_vec()
}

fn stored(it: Stored) -> Event {
    Event::Stored(Box::new(it))
}

/// The low 8 bytes of 32 equal ones.
fn of_bytes(byte: u8) -> u64 {
    u64::from_be_bytes([byte; 8])
}

fn batch(rank: Option<u32>, time: f64, events: Vec<Event>) -> Batch {
    Batch { time, rank, events, unknown: 0 }
}

/// What each golden means.
fn meaning(name: &str) -> Batch {
    let four = vec![1, 300, 70_000, 5];
    let (gpu, full) = (Some(Tier::Gpu), Some("full_attention".to_owned()));
    let one = Stored {
        keys: keys([BIG]),
        parent: Some(BlockKey::from_u64(9)),
        tokens: vec![1, 2],
        block_size: 2,
        tier: gpu,
        ..Stored::default()
    };
    let removed =
        |key, tier, group| Event::Removed(Removed { keys: keys([key]), tier, group, ..Removed::default() });
    match name {
        "map_int_min" => batch(
            Some(0),
            1.5,
            vec![stored(Stored {
                keys: keys([BIG, 7]),
                tokens: four,
                block_size: 2,
                tier: gpu,
                ..Stored::default()
            })],
        ),
        "map_bytes_full" => batch(
            Some(3),
            1.5,
            vec![
                stored(Stored {
                    keys: keys([of_bytes(0xab)]),
                    parent: Some(BlockKey::from_u64(of_bytes(0xcd))),
                    tokens: vec![1, 2],
                    block_size: 2,
                    tier: Some(Tier::Cpu),
                    group: Some(0),
                    lora_id: Some(1),
                    lora_name: Some("ad".to_owned()),
                    extra_keys: vec![(
                        0,
                        vec![
                            ExtraItem::Text("ad".to_owned()),
                            ExtraItem::Media { identifier: "mmhash".to_owned(), offset: -3 },
                            ExtraItem::Text("salt".to_owned()),
                            ExtraItem::Bytes(vec![1, 2]),
                        ],
                    )],
                    hides_extra_keys: false,
                    kind: full,
                    sliding_window: None,
                }),
                removed(of_bytes(0xab), gpu, Some(0)),
                Event::Cleared,
            ],
        ),
        "map_dp_none" => batch(None, 2.0, vec![Event::Cleared]),
        "array_0.9.2" => batch(
            Some(0),
            1.5,
            vec![
                stored(Stored {
                    // Signed hashes: minus five is what its 64 bits say.
                    keys: keys([u64::MAX - 4, BIG]),
                    tokens: four,
                    block_size: 2,
                    hides_extra_keys: true,
                    ..Stored::default()
                }),
                removed(BIG, None, None),
                Event::Cleared,
            ],
        ),
        "array_0.10.2" => batch(
            Some(0),
            1.5,
            vec![
                stored(Stored {
                    keys: keys([of_bytes(0xab), of_bytes(0xcd)]),
                    tokens: four,
                    block_size: 2,
                    tier: gpu,
                    hides_extra_keys: true,
                    ..Stored::default()
                }),
                removed(of_bytes(0xab), gpu, None),
                Event::Cleared,
            ],
        ),
        "array_0.20_extra_none_group0" => batch(
            Some(0),
            1.5,
            vec![stored(Stored { group: Some(0), ..one }), removed(BIG, gpu, Some(0)), Event::Cleared],
        ),
        "array_0.23_full" => batch(
            Some(0),
            1.5,
            vec![stored(Stored {
                lora_id: Some(3),
                lora_name: Some("ad".to_owned()),
                extra_keys: vec![(0, vec![ExtraItem::Text("ad".to_owned())])],
                group: Some(0),
                kind: full,
                ..one
            })],
        ),
        "array_0.17_all_default" => batch(Some(0), 1.5, vec![stored(one)]),
        other => panic!("no meaning is written down for the golden {other}"),
    }
}

#[test]
fn goldens_mean_what_they_should() {
    let goldens = goldens();
    assert!(goldens.len() >= 8);
    for (name, payload) in goldens {
        assert_eq!(Batch::decode(&payload), Ok(meaning(&name)), "{name}");
    }
}

#[test]
fn a_batch_cut_short_anywhere_is_an_error() {
    for (name, payload) in goldens() {
        for len in 0..payload.len() {
            assert!(Batch::decode(&payload[..len]).is_err(), "{name} cut to {len} bytes");
        }
    }
}

#[test]
fn bytes_after_the_batch_are_an_error() {
    for (_, mut payload) in goldens() {
        payload.push(0xc0);
        assert_eq!(Batch::decode(&payload), Err(DecodeError::Trailing));
    }
}

/// `[0.0, [events…], 0]`, from pieces of msgpack.
fn wrap(events: &[&[u8]]) -> Vec<u8> {
    let count = u8::try_from(events.len()).unwrap();
    [b"\x93\x00" as &[u8], &[0x90 + count], &events.concat(), b"\x00"].concat()
}

#[test]
fn one_batch_may_mix_encodings_and_unknown_kinds() {
    let map = b"\x81\xa4type\xb0AllBlocksCleared";
    let array = b"\x92\xacBlockRemoved\x91\x07";
    let unknown_map = b"\x82\xacblock_hashes\xa1x\xa4type\xa3New";
    let unknown_array = b"\x93\xa3New\x81\x01\x02\xc0";
    let number_as_kind = b"\x92\x05\x06";
    let payload = wrap(&[map, array, unknown_map, unknown_array, number_as_kind]);
    let removed = Removed { keys: keys([7]), tier: None, group: None, ..Removed::default() };
    assert_eq!(
        Batch::decode(&payload),
        Ok(Batch {
            time: 0.0,
            rank: Some(0),
            events: vec![Event::Cleared, Event::Removed(removed)],
            unknown: 3
        })
    );
}

#[test]
fn the_kind_need_not_come_first_and_unknown_fields_are_passed_over() {
    let event = b"\x84\x01\x02\xa3new\x81\xa1a\x90\xacblock_hashes\x91\x07\xa4type\xacBlockRemoved";
    let batch = Batch::decode(&wrap(&[event])).unwrap();
    let removed = Removed { keys: keys([7]), ..Removed::default() };
    assert_eq!(batch.events, vec![Event::Removed(removed)]);
}

#[test]
fn a_removal_may_tell_how_many_copies_are_left() {
    let remaining = |counts: &[u8]| {
        let event = b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x92\x07\x08\xb5remaining_copy_counts";
        let batch = Batch::decode(&wrap(&[&[event as &[u8], counts].concat()])).unwrap();
        let Event::Removed(it) = &batch.events[0] else { panic!("{batch:?}") };
        assert_eq!(it.keys, keys([7, 8]));
        it.remaining.clone()
    };
    assert_eq!(remaining(b"\x92\x00\xcc\xff"), [0, 255]);
    for no_counts in [b"\xc0" as &[u8], b"\x90", b"\xa1x", b"\x05", b"\x93\x01\xff\x01", b"\x92\x01\xa1x"] {
        assert_eq!(remaining(no_counts), [0; 0], "{no_counts:?}");
    }
}

#[test]
fn a_longer_envelope_and_a_longer_array_are_tolerated() {
    let event = b"\x96\xacBlockRemoved\x91\x07\xa3GPU\x01\xc3\xc7\x02\x05ab";
    let payload = [b"\x95\x00\x91" as &[u8], event, b"\x02\x91\x91\xc2\xca\x00\x00\x00\x00"].concat();
    let batch = Batch::decode(&payload).unwrap();
    assert_eq!(batch.rank, Some(2));
    assert_eq!(
        batch.events,
        vec![Event::Removed(Removed {
            keys: keys([7]),
            tier: Some(Tier::Gpu),
            group: Some(1),
            ..Removed::default()
        })]
    );
}

#[test]
fn media_are_told_apart_by_their_names() {
    for (medium, tier) in [
        ("GPU", Tier::Gpu),
        ("gpu", Tier::Gpu),
        ("cpu", Tier::Cpu),
        ("CPU_TIER1", Tier::Cpu),
        ("STORAGE", Tier::Storage),
        ("OBJ", Tier::Storage),
    ] {
        let len = 0xa0 + u8::try_from(medium.len()).unwrap();
        let event = [b"\x93\xacBlockRemoved\x91\x07" as &[u8], &[len], medium.as_bytes()].concat();
        let batch = Batch::decode(&wrap(&[&event])).unwrap();
        let want = Removed { keys: keys([7]), tier: Some(tier), group: None, ..Removed::default() };
        assert_eq!(batch.events, vec![Event::Removed(want)], "{medium}");
    }
}

#[test]
fn lengths_that_lie_cost_nothing() {
    // Four thousand million events, hashes, tokens; a string and a map of that length.
    for event in [
        b"\x92\xacBlockRemoved\xdd\xff\xff\xff\xff" as &[u8],
        b"\x94\xabBlockStored\x90\xc0\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x92\xdb\xff\xff\xff\xff",
        b"\x92\xa1x\xdf\xff\xff\xff\xff",
    ] {
        assert_eq!(Batch::decode(&wrap(&[event])[..3 + event.len()]), Err(DecodeError::Truncated));
    }
    assert_eq!(Batch::decode(b"\x93\x00\xdd\xff\xff\xff\xff"), Err(DecodeError::Truncated));
}

#[test]
fn depth_costs_no_stack() {
    let deep = [b"\x92\xa1x" as &[u8], &[0x91; 1_000_000], b"\xc0"].concat();
    assert_eq!(Batch::decode(&wrap(&[&deep])).unwrap().unknown, 1);
}

#[test]
fn wrong_types_name_the_field() {
    let field = |payload: &[u8]| match Batch::decode(payload) {
        Err(DecodeError::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(b"\xc0"), "batch");
    assert_eq!(field(b"\x92\xa1x\x90"), "batch.time");
    assert_eq!(field(b"\x92\x00\x01"), "batch.events");
    assert_eq!(field(&wrap(&[b"\xc0"])), "event");
    assert_eq!(field(&wrap(&[b"\x92\xacBlockRemoved\x91\xa1x"])), "event.block_hashes");
    assert_eq!(field(&wrap(&[b"\x92\xacBlockRemoved\x91\xc4\x01x"])), "event.block_hashes");
    assert_eq!(field(&wrap(&[b"\x93\xabBlockStored\x90\xc3"])), "event.parent_block_hash");
}

#[test]
fn live_frames() {
    let frames = |frames: &[&[u8]]| frames.iter().map(|it| it.to_vec()).collect::<Vec<_>>();
    let good = frames(&[b"topic", &7_u64.to_be_bytes(), b"payload"]);
    assert_eq!(Message::live(good), Ok(Message { sequence: 7, payload: b"payload".to_vec() }));
    assert_eq!(Message::live(frames(&[b"", b"1234567", b""])), Err(DecodeError::Sequence(7)));
    assert_eq!(Message::live(frames(&[b"", b"12345678"])), Err(DecodeError::Frames(2)));
    assert_eq!(Message::live(Vec::new()), Err(DecodeError::Frames(0)));
}

#[test]
fn replay_answers_with_and_without_a_topic() {
    let frames =
        |frames: &[&[u8]]| Replayed::from_frames(frames.iter().map(|it| it.to_vec()).collect::<Vec<_>>());
    let message = Ok(Replayed::Message(Message { sequence: 7, payload: b"p".to_vec() }));
    assert_eq!(frames(&[b"", &7_u64.to_be_bytes(), b"p"]), message);
    assert_eq!(frames(&[b"", b"topic", &7_u64.to_be_bytes(), b"p"]), message);
    assert_eq!(frames(&[b"", &[0xff; 8], b""]), Ok(Replayed::End));
    assert_eq!(frames(&[b"", b"", &[0xff; 8], b""]), Ok(Replayed::End));
    assert_eq!(frames(&[b""]), Err(DecodeError::Frames(1)));
    assert_eq!(frames(&[b"x", b""]), Err(DecodeError::Sequence(1)));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Batch::decode(&payload);
    }

    /// Nearer to what is parsed: a golden with some bytes changed.
    #[test]
    fn damaged_batches_never_panic(which in 0_usize..8, damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6)) {
        let (_, mut payload) = goldens().swap_remove(which);
        for (at, byte) in damage {
            let at = usize::from(at) % payload.len();
            payload[at] = byte;
        }
        let _ = Batch::decode(&payload);
    }
}
