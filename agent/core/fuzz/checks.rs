//! What must hold whatever bytes come: run by the fuzz targets on what libFuzzer makes up, and by a test on the corpus.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "each target uses one of them; it may panic"
)]

use std::{
    collections::BTreeSet,
    mem::size_of,
    time::{Duration, Instant},
};

use kvpick_agent_core::{
    decode::{
        Batch, Event, ExtraItem, MAX_EVENTS, MAX_EXTRA_KEYS, MAX_KEYS, MAX_TOKENS, Message, Replayed, Stored,
        is_replay_end, most_decoded, replayed_number,
    },
    engine::{Config, Engine},
};
use kvpick_proto::{
    naming::BlockKey,
    words::{Change, Place, ReplicaName, Step},
};

/// A payload, and a live message's frames.
pub(crate) fn decode(bytes: &[u8]) {
    let frames =
        vec![b"topic".to_vec(), bytes.iter().copied().chain([0; 8]).take(8).collect(), bytes.to_vec()];
    let message = Message::live(frames).unwrap();
    assert_eq!(message.payload, bytes);
    let _whatever = Message::live(split(bytes));
    let Ok(batch) = Batch::decode(bytes) else { return };
    assert!(size(&batch) <= most_decoded(bytes.len()), "{} for {} bytes", size(&batch), bytes.len());
    let stored: Vec<_> = batch.events.iter().filter_map(stored).collect();
    let extra = stored.iter().flat_map(|it| &it.extra_keys).map(|(_, items)| items.len()).sum::<usize>();
    assert!(batch.events.len() <= MAX_EVENTS && keys(&batch) <= MAX_KEYS && extra <= MAX_EXTRA_KEYS);
    assert!(stored.iter().map(|it| it.tokens.len()).sum::<usize>() <= MAX_TOKENS);
    assert_eq!(Batch::decode(bytes).map(|it| it.events), Ok(batch.events), "twice the same");
}

/// Frames of a replay socket's answer.
pub(crate) fn replayed(bytes: &[u8]) {
    let frames = split(bytes);
    let (is_end, number) = (is_replay_end(&frames), replayed_number(&frames));
    match Replayed::from_frames(frames.clone()) {
        Ok(Replayed::End) => assert!(is_end && number.is_none()),
        Ok(Replayed::Message(message)) => {
            assert!(!is_end);
            assert_eq!(number, Some(message.sequence));
            assert_eq!(frames.last(), Some(&message.payload));
        }
        Err(_) => assert!(!is_end && number.is_none()),
    }
}

/// What an engine's sockets may say, in any order.
///
/// A step is a byte, and for those with a message the length of its payload in two bytes and the payload.
pub(crate) fn engine(bytes: &[u8]) {
    let mut input = Input(bytes);
    let settings = input.byte().unwrap_or(0);
    let name = ReplicaName { address: "10.0.0.1:8000".parse().unwrap(), rank: 0 };
    let replay = settings & 1 == 1;
    let config = Config { replay, ..Config::new(name) };
    let mut now = Instant::now();
    let mut engine = Engine::new(config, now, 0);
    if settings & 2 == 2 {
        engine.on_version("0.32.0".to_owned());
    }
    let mut server = Server::default();
    let (mut next, mut asked, mut stored) = (0_u64, 0, 0);
    while let Some(step) = input.byte() {
        now += Duration::from_millis(100);
        let number = match step >> 4 {
            0..8 => next,
            8 => 0,
            9 => next.wrapping_add(1),
            10 => next.wrapping_sub(1),
            11 => next.wrapping_sub(2),
            12 => u64::from(step),
            13 => u64::MAX - 1,
            14 => next.wrapping_add(1 << 40),
            _ => u64::MAX,
        };
        match step & 0x0f {
            0..8 => {
                let payload = input.payload();
                stored += Batch::decode(payload).map_or(0, |it| keys(&it));
                let frames = vec![Vec::new(), number.to_be_bytes().to_vec(), payload.to_vec()];
                let _whatever = engine.on_frames(frames, now, 0);
                next = number.wrapping_add(1);
            }
            8 | 9 => {
                let payload = input.payload();
                stored += Batch::decode(payload).map_or(0, |it| keys(&it));
                let frames = vec![Vec::new(), number.to_be_bytes().to_vec(), payload.to_vec()];
                let _whatever = engine.on_replay(asked, frames, now, 0);
                next = number.wrapping_add(1);
            }
            10 => {
                let _whatever = engine.on_replay(asked, vec![vec![0xff; 8], Vec::new()], now, 0);
            }
            11 => engine.on_replay_failed(asked, "silent", now, 0),
            12 => engine.on_connected(now),
            13 => engine.on_disconnected(now, 0),
            14 => server.hear(engine.take_change(now)),
            _ => {
                now += Duration::from_secs(7);
                engine.on_time(now, 0);
            }
        }
        asked = engine.take_replay_request().map_or(asked, |it| it.id);
        assert!(engine.mirror().len() <= stored, "more is held than was ever stored");
    }
    // A history that is being delivered is given up, so that what is left may be announced.
    engine.on_disconnected(now, 0);
    server.hear(engine.take_change(now));
    let mut copy = Server::default();
    let (steps, rest) = engine.mirror().copy_part(engine.mirror().copy(), usize::MAX);
    assert!(rest.is_none(), "a copy in one part");
    copy.hear(Some(Change { steps, applied: None }));
    assert_eq!(server.held, copy.held, "all changes together, and the mirror");
    assert_eq!(server.held.len(), engine.mirror().len());
}

/// A server that keeps what it is told.
#[derive(Default)]
struct Server {
    held: BTreeSet<(Place, BlockKey)>,
}

impl Server {
    fn hear(&mut self, change: Option<Change>) {
        for step in change.into_iter().flat_map(|it| it.steps) {
            match step {
                Step::Gained { place, keys, .. } => {
                    for key in keys {
                        assert!(self.held.insert((place, key)), "gained twice");
                    }
                }
                Step::Lost { place, keys } => {
                    for key in keys {
                        assert!(self.held.remove(&(place, key)), "lost, but not held");
                    }
                }
                Step::Cleared => self.held.clear(),
            }
        }
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn payload(&mut self) -> &'a [u8] {
        let len = [self.byte().unwrap_or(0), self.byte().unwrap_or(0)];
        let len = usize::from(u16::from_be_bytes(len)).min(self.0.len());
        let (payload, rest) = self.0.split_at(len);
        self.0 = rest;
        payload
    }
}

/// Frames, each after its length in a byte.
fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some((len, rest)) = bytes.split_first() {
        let (frame, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        frames.push(frame.to_vec());
        bytes = rest;
    }
    frames
}

const fn stored(event: &Event) -> Option<&Stored> {
    match event {
        Event::Stored(it) => Some(it),
        Event::Removed(_) | Event::Cleared => None,
    }
}

fn keys(batch: &Batch) -> usize {
    let of = |event: &Event| match event {
        Event::Stored(it) => it.keys.len(),
        Event::Removed(it) => it.keys.len(),
        Event::Cleared => 0,
    };
    batch.events.iter().map(of).sum()
}

/// Memory that a batch takes, as far as its own types tell: what its vectors could hold, and what is behind them.
pub(crate) fn size(batch: &Batch) -> usize {
    let item = |it: &ExtraItem| match it {
        ExtraItem::Text(text) => text.capacity(),
        ExtraItem::Media { identifier, .. } => identifier.capacity(),
        ExtraItem::Bytes(bytes) => bytes.capacity(),
        ExtraItem::Other => 0,
    };
    let extra = |items: &Vec<ExtraItem>| {
        items.capacity() * size_of::<ExtraItem>() + items.iter().map(item).sum::<usize>()
    };
    let stored = |it: &Stored| {
        let texts = [&it.lora_name, &it.kind].map(|it| it.as_ref().map_or(0, String::capacity));
        size_of::<Stored>()
            + it.keys.capacity() * size_of::<BlockKey>()
            + it.tokens.capacity() * size_of::<u32>()
            + texts.iter().sum::<usize>()
            + it.extra_keys.capacity() * size_of::<(u32, Vec<ExtraItem>)>()
            + it.extra_keys.iter().map(|(_, items)| extra(items)).sum::<usize>()
    };
    let event = |it: &Event| match it {
        Event::Stored(it) => stored(it),
        Event::Removed(it) => it.keys.capacity() * size_of::<BlockKey>(),
        Event::Cleared => 0,
    };
    batch.events.capacity() * size_of::<Event>() + batch.events.iter().map(event).sum::<usize>()
}
