//! What a batch may cost whoever reads it, and what of others' batches is passed over.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../fuzz/checks.rs"]
mod checks;

use checks::size;
use kvpick_agent_core::decode::{
    Batch, DecodeError, Event, ExtraItem, MAX_EVENTS, MAX_EXTRA_KEYS, MAX_KEYS, MAX_TEXT_BYTES, MAX_TOKENS,
    Removed, Stored, most_decoded,
};
use kvpick_proto::{naming::BlockKey, words::Tier};

/// Largest frame that the agent's sockets take.
const FRAME: usize = 16 << 20;

fn list(len: usize) -> Vec<u8> {
    [&[0xdd], &u32::try_from(len).unwrap().to_be_bytes()[..]].concat()
}

fn text(len: usize, byte: u8) -> Vec<u8> {
    [&[0xdb], &u32::try_from(len).unwrap().to_be_bytes()[..], &vec![byte; len]].concat()
}

/// `[0, [event × times], 0]`.
fn batch(event: &[u8], times: usize) -> Vec<u8> {
    [&[0x93, 0x00][..], &list(times), &event.repeat(times), &[0x00]].concat()
}

/// A store in the array form with `hashes`, `tokens` and `extra_keys`, each already encoded.
fn store(hashes: &[u8], tokens: &[u8], extra_keys: &[u8]) -> Vec<u8> {
    let head = b"\x99\xabBlockStored";
    [head, hashes, b"\xc0", tokens, b"\x01\xc0\xa3GPU\xc0", extra_keys].concat()
}

#[test]
fn whatever_is_read_is_bounded_by_what_came_and_absolutely() {
    assert!(most_decoded(FRAME) <= 128 << 20, "{}", most_decoded(FRAME));
    let event = b"\x91\xabBlockStored";
    for payload in [
        batch(event, MAX_EVENTS),
        batch(b"\x91\xb0AllBlocksCleared", MAX_EVENTS),
        batch(b"\x92\xacBlockRemoved\x94\x01\x02\x03\x04", MAX_EVENTS),
        batch(&store(&[&list(MAX_KEYS)[..], &vec![1; MAX_KEYS]].concat(), b"\xc0", b"\xc0"), 1),
        batch(&store(b"\xc0", &[&list(MAX_TOKENS)[..], &vec![1; MAX_TOKENS]].concat(), b"\xc0"), 1),
        batch(
            &store(
                b"\xc0",
                b"\xc0",
                &[&list(MAX_EXTRA_KEYS)[..], &b"\x91\xa5ad-ab".repeat(MAX_EXTRA_KEYS)].concat(),
            ),
            1,
        ),
        batch(&store(b"\xc0", b"\xc0", &[&[0x91], &text(MAX_TEXT_BYTES, b'x')[..]].concat()), 1),
    ] {
        let read = Batch::decode(&payload).unwrap();
        assert!(!read.events.is_empty());
        assert!(size(&read) <= most_decoded(payload.len()), "{} of {}", size(&read), payload.len());
    }
}

#[test]
fn more_than_any_step_makes_is_refused_by_name() {
    let refused = |payload: &[u8], field| match Batch::decode(payload) {
        Err(DecodeError::TooMany { field: it, .. }) => assert_eq!(it, field),
        other => panic!("{field}: {:?}", other.map(|it| it.events.len())),
    };
    refused(&batch(b"\x91\xb0AllBlocksCleared", MAX_EVENTS + 1), "batch.events");
    let keys = [&list(MAX_KEYS + 1)[..], &[1; MAX_KEYS + 1]].concat();
    refused(&batch(&store(&keys, b"\xc0", b"\xc0"), 1), "event.block_hashes");
    // Over all events of a batch, not in each.
    let half = [&list(MAX_KEYS / 2 + 1)[..], &[1; MAX_KEYS / 2 + 1]].concat();
    refused(&batch(&store(&half, b"\xc0", b"\xc0"), 2), "event.block_hashes");
    let tokens = [&list(MAX_TOKENS + 1)[..], &vec![1; MAX_TOKENS + 1]].concat();
    refused(&batch(&store(b"\xc0", &tokens, b"\xc0"), 1), "event.token_ids");
    let extra = [&list(MAX_EXTRA_KEYS + 1)[..], &b"\x91\xa5ad-ab".repeat(MAX_EXTRA_KEYS + 1)].concat();
    refused(&batch(&store(b"\xc0", b"\xc0", &extra), 1), "event.extra_keys");
    refused(
        &batch(&store(b"\xc0", b"\xc0", &[&[0x91, 0x91][..], &text(MAX_TEXT_BYTES + 1, b'x')].concat()), 1),
        "event's texts",
    );
    // Each of these bytes is three as UTF-8.
    refused(
        &batch(&store(b"\xc0", b"\xc0", &[&[0x91, 0x91][..], &text(MAX_TEXT_BYTES / 2, 0xff)].concat()), 1),
        "event's texts",
    );
}

#[test]
fn bytes_that_stand_for_dozens_are_refused_long_before_a_frame_is_full() {
    let dense = |payload: &[u8], field| {
        assert!(payload.len() < FRAME / 8);
        assert_eq!(Batch::decode(payload), Err(DecodeError::TooDense { field }));
    };
    // Extra keys of one byte each, within one block's list and as blocks' lists.
    let many = MAX_EXTRA_KEYS / 2;
    dense(
        &batch(&store(b"\xc0", b"\xc0", &[&list(1)[..], &list(many), &vec![1; many]].concat()), 1),
        "event.extra_keys",
    );
    dense(
        &batch(&store(b"\xc0", b"\xc0", &[&list(many)[..], &vec![1; many]].concat()), 1),
        "event.extra_keys",
    );
    dense(
        &batch(&store(b"\xc0", b"\xc0", &[&list(many)[..], &[0x91, 0x01].repeat(many)].concat()), 1),
        "event.extra_keys",
    );
}

#[test]
fn nothing_and_depth_take_nothing() {
    let many = FRAME - 100;
    let nils = batch(&store(b"\xc0", b"\xc0", &[&list(many)[..], &vec![0xc0; many]].concat()), 1);
    assert!(size(&Batch::decode(&nils).unwrap()) < 1_024);
    let deep = |depth: usize| [&vec![0x91; depth][..], &[0xc0]].concat();
    // As a field, as an extra key, as a block's extra keys, as a token.
    for event in [
        [&b"\x96\xabBlockStored\x90\xc0\xc0\x01"[..], &deep(many)].concat(),
        store(b"\xc0", b"\xc0", &[&[0x91, 0x91][..], &deep(many)].concat()),
        store(b"\xc0", &[&[0x91][..], &deep(many)].concat(), b"\xc0"),
    ] {
        let read = Batch::decode(&batch(&event, 1)).unwrap();
        assert!(size(&read) < 1_024, "{}", size(&read));
    }
}

#[test]
fn a_real_step_is_far_within_the_bounds() {
    // A thousand requests that store 512 blocks of 16 tokens between them and evict as many, as vLLM 0.32 says it.
    let hash = [&[0xc4, 32][..], &[7; 32]].concat();
    let stored = store(
        &[&[0x91], &hash[..]].concat(),
        &[&[0xdc, 0, 16][..], &[0xcd, 1, 1].repeat(16)].concat(),
        b"\x91\x91\xa6lora-a",
    );
    let removed = [&b"\x94\xacBlockRemoved\x91"[..], &hash, b"\xa3GPU\x00"].concat();
    let payload =
        [&[0x93, 0x00][..], &list(1_024), &stored.repeat(512), &removed.repeat(512), &[0x00]].concat();
    let read = Batch::decode(&payload).unwrap();
    assert_eq!(read.events.len(), 1_024);
    assert!(
        size(&read) * 2 < most_decoded(payload.len()),
        "{} of {}",
        size(&read),
        most_decoded(payload.len())
    );
}

fn only(event: &[u8]) -> Stored {
    match Batch::decode(&batch(event, 1)).unwrap().events.pop() {
        Some(Event::Stored(it)) => *it,
        other => panic!("{other:?}"),
    }
}

#[test]
fn fields_of_look_alikes_count_as_absent() {
    let plain = Stored {
        keys: vec![BlockKey::from_u64(7)],
        tokens: vec![1, 2],
        block_size: 2,
        tier: Some(Tier::Gpu),
        ..Stored::default()
    };
    // SGLang: another field where vLLM has the adapter's name, in each of its forms.
    let head = b"\xabBlockStored\x91\x07\xc0\x92\x01\x02\x02\xc0\xa3GPU";
    for field in [&b"\x81\xaacache_salt\xa4salt"[..], b"\x92\xa3key\xa5value", b"\x05", b"\xc3", b"\xd4\x05x"]
    {
        let hides = Stored { hides_extra_keys: true, ..plain.clone() };
        assert_eq!(only(&[b"\x98", &head[..], field].concat()), hides);
        let all_wrong = [b"\x9c", &head[..], &field.repeat(5)].concat();
        let (group, sliding_window) = if field == b"\x05" { (Some(5), Some(5)) } else { (None, None) };
        let kind = None;
        assert_eq!(only(&all_wrong), Stored { group, sliding_window, kind, ..it_with(&plain, field) });
    }
    // TensorRT-LLM: a key of its own, and texts among the token ids; nobody's token ids are negative.
    let map = b"\x87\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xb1parent_block_hash\xc0\xa9token_ids";
    let rest = b"\xaablock_size\x02\xa6medium\xa3GPU\xa7mm_keys\x91\x91\xa1x";
    assert_eq!(only(&[&map[..], b"\x92\x01\x02", rest].concat()), plain);
    for tokens in
        [&b"\x92\x01\xa1x"[..], b"\x92\x01\xff", b"\xa1x", b"\xc0", b"\x92\x01\xcf\0\0\0\x01\0\0\0\0"]
    {
        let tokens_gone = Stored { tokens: Vec::new(), ..plain.clone() };
        assert_eq!(only(&[&map[..], tokens, rest].concat()), tokens_gone);
    }
}

/// What an array of nothing understood in place of extra keys is.
fn it_with(plain: &Stored, field: &[u8]) -> Stored {
    let is_array = field[0] == 0x92;
    let extra_keys =
        if is_array { [0, 1].map(|it| (it, vec![ExtraItem::Other])).to_vec() } else { Vec::new() };
    Stored { extra_keys, ..plain.clone() }
}

#[test]
fn hashes_of_every_width_sign_and_form_in_one_batch() {
    let hashes: [(&[u8], u64); 14] = [
        (b"\x05", 5),
        (b"\xfb", u64::MAX - 4),
        (b"\xcc\xff", 255),
        (b"\xcd\xff\xff", 65_535),
        (b"\xce\xff\xff\xff\xff", 4_294_967_295),
        (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", u64::MAX),
        (b"\xd0\x80", u64::MAX - 127),
        (b"\xd1\x80\x00", u64::MAX - 32_767),
        (b"\xd2\x80\x00\x00\x00", u64::MAX - 0x7fff_ffff),
        (b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 1 << 63),
        (b"\xc4\x0812345678", u64::from_be_bytes(*b"12345678")),
        (b"\xc4\x10abcdefgh12345678", u64::from_be_bytes(*b"12345678")),
        (b"\xc5\x00\x0aab87654321", u64::from_be_bytes(*b"87654321")),
        (b"\xc6\x00\x00\x00\x08abcdefgh", u64::from_be_bytes(*b"abcdefgh")),
    ];
    let all = hashes.map(|(bytes, _)| bytes).concat();
    let event = [&b"\x92\xacBlockRemoved\x9e"[..], &all].concat();
    let keys = hashes.map(|(_, key)| BlockKey::from_u64(key)).to_vec();
    let want = vec![Event::Removed(Removed { keys, tier: None, group: None, remaining: Vec::new() })];
    assert_eq!(Batch::decode(&batch(&event, 1)).unwrap().events, want);
    for (parent, key) in hashes {
        let event = [&b"\x93\xabBlockStored\x91\x01"[..], parent].concat();
        assert_eq!(only(&event).parent, Some(BlockKey::from_u64(key)));
    }
}

#[test]
fn envelopes_of_every_length() {
    let events = b"\x91\x91\xb0AllBlocksCleared";
    for (head, tail, rank) in [
        (&b"\x92\x00"[..], &b""[..], None),
        (b"\x93\xca\x3f\x80\x00\x00", b"\xc0", None),
        (b"\x93\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00", b"\x03", Some(3)),
        (b"\x93\x00", b"\xff", None),
        (b"\x93\x00", b"\xa1x", None),
        (b"\x95\x00", b"\x03\xc0\x81\xa1a\x90", Some(3)),
        (b"\xdc\x00\x04\x00", b"\xcd\x00\x03\x91\x91\x91\xc0", Some(3)),
    ] {
        let read = Batch::decode(&[head, events, tail].concat()).unwrap();
        assert_eq!((read.events, read.rank), (vec![Event::Cleared], rank), "{head:?}");
    }
    assert!(matches!(Batch::decode(b"\x91\x00"), Err(DecodeError::Field { field: "batch", .. })));
}
