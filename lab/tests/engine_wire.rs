//! Pool and wire against a real engine, and the wire's other forms against the agent's decoder.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{num::NonZeroU32, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kvpick_agent_core::decode::{self, Batch, ExtraItem};
use kvpick_lab::engine::{
    pool::{Event, Pool, Stored},
    sequence::Sequence,
    wire::{Encoder, Encoding, HashForm},
};
use kvpick_proto::naming::{Algorithm, ExtraKey, Hasher};
use serde_json::Value;

/// What vLLM 0.32.0 was asked in this capture up to here is plain; then come fields that are not imitated.
const FIRST_NOT_IMITATED: &str = "chat-session-id";

#[test]
fn a_real_engines_payloads_are_reproduced_to_the_byte() {
    let capture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/captures/v0.32-sha256cbor-int-bs16-dups");
    let lines = |name: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(capture.join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let frames = lines("frames.jsonl");
    let payload = |i: usize| STANDARD.decode(frames[i]["frames"][2].as_str().unwrap()).unwrap();
    let mut engine = Replica::new();
    let mut compared = 0;
    for request in lines("requests.jsonl") {
        let name = request["name"].as_str().unwrap();
        if name == FIRST_NOT_IMITATED {
            break;
        }
        let mut events = engine.serve(&request).into_iter();
        let range = |end: usize| usize::try_from(request["frames"][end].as_u64().unwrap()).unwrap();
        for i in range(0)..range(1) {
            let want = payload(i);
            let batch = Batch::decode(&want).unwrap();
            let ours: Vec<Event> = events.by_ref().take(batch.events.len()).collect();
            let got = encoder(Encoding::Map, HashForm::Int, 16).batch(batch.time, &ours);
            assert!(got == want, "{name}: frame {i}: want {batch:?}, got {:?}", Batch::decode(&got));
            compared += 1;
        }
        assert_eq!(events.next(), None, "{name}: the real engine announced less");
    }
    assert_eq!(compared, 50, "the capture has that many batches up to {FIRST_NOT_IMITATED}");
}

/// A pool that is set up as the captured engine.
struct Replica {
    pool: Pool,
    hasher: Hasher,
}

impl Replica {
    fn new() -> Self {
        let hasher = Hasher::with_root(Algorithm::Sha256Cbor, "0", Encoding::Map.extra_keys());
        Self { pool: Pool::new(96), hasher }
    }

    /// The events of a request: its prompts are computed at once, then its answers token by token.
    fn serve(&mut self, request: &Value) -> Vec<Event> {
        let prompts = token_lists(&request["server_prompt_token_ids"]);
        let answers = token_lists(&request["output_token_ids"]);
        let salt = request["request"]["cache_salt"].as_str();
        let samples = answers.len() / prompts.len();
        let mut running = Vec::new();
        for (i, answer) in answers.into_iter().enumerate() {
            let (prompt, salt) = (prompts[i / samples].clone(), salt.map(str::to_owned));
            let block_size = NonZeroU32::new(16).unwrap();
            let mut sequence = Sequence::new(prompt, salt, block_size, &mut self.hasher);
            let hit = sequence.find_hit(&self.pool);
            let rest = sequence.tokens().len() - hit.len() * 16;
            assert!(sequence.extend(&mut self.pool, &hit, rest));
            sequence.advance(rest);
            running.push((sequence, answer));
        }
        for (sequence, answer) in &mut running {
            for (i, token) in answer.iter().enumerate() {
                if 0 < i {
                    assert!(sequence.extend(&mut self.pool, &[], 1));
                    sequence.advance(1);
                }
                sequence.push(*token, &mut self.hasher);
            }
        }
        for (sequence, _) in &mut running {
            sequence.release(&mut self.pool);
        }
        self.pool.take_events()
    }
}

fn token_lists(lists: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(lists.clone()).unwrap()
}

fn encoder(encoding: Encoding, hashes: HashForm, block_size: u32) -> Encoder {
    Encoder { encoding, hashes, block_size, rank: 0 }
}

#[test]
fn every_form_says_the_same() {
    let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, "0", Encoding::Map.extra_keys());
    let salt = vec![ExtraKey::Salt("s".to_owned())];
    let first = hasher.next(&hasher.root(), &[1, 70_000], &salt);
    let second = hasher.next(&first, &[3, 4], &[]);
    let third = hasher.next(&second, &[5, 6], &[]);
    let events = [
        Event::Removed(third),
        Event::Stored(Stored {
            hashes: vec![first, second],
            parent: None,
            tokens: vec![1, 70_000, 3, 4],
            extra: vec![salt, vec![]],
        }),
        Event::Stored(Stored {
            hashes: vec![third],
            parent: Some(second),
            tokens: vec![5, 6],
            extra: vec![vec![]],
        }),
        Event::Cleared,
    ];
    for encoding in [Encoding::Map, Encoding::Array] {
        for hashes in [HashForm::Int, HashForm::Bytes] {
            let payload = encoder(encoding, hashes, 2).batch(1.5, &events);
            let batch = Batch::decode(&payload).unwrap();
            assert_eq!((batch.time, batch.rank, batch.unknown), (1.5, Some(0), 0));
            let [
                decode::Event::Removed(removed),
                decode::Event::Stored(root),
                decode::Event::Stored(next),
                cleared,
            ] = batch.events.as_slice()
            else {
                panic!("{encoding:?} {hashes:?}: {batch:?}");
            };
            assert_eq!((removed.keys.as_slice(), removed.group), ([third.key()].as_slice(), Some(0)));
            assert_eq!((root.keys.as_slice(), root.parent), ([first.key(), second.key()].as_slice(), None));
            assert_eq!((root.tokens.as_slice(), root.block_size), ([1, 70_000, 3, 4].as_slice(), 2));
            assert_eq!(root.extra_keys, [(0, vec![ExtraItem::Text("s".to_owned())])]);
            assert_eq!((next.keys.as_slice(), next.parent), ([third.key()].as_slice(), Some(second.key())));
            assert_eq!((next.kind.as_deref(), next.hides_extra_keys), (Some("full_attention"), false));
            assert_eq!(*cleared, decode::Event::Cleared);
        }
    }
}
