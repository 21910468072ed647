//! What an engine holds by its own messages, worked out with none of the agent's code: a reader of msgpack that takes
//! what comes for granted, and the plainest bookkeeping of vLLM's rules.

use std::collections::BTreeMap;

/// A value of msgpack.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Nil,
    Bool,
    Int(i128),
    Float,
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Self>),
    Map(Vec<(Self, Self)>),
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken.to_vec()
    }

    /// An unsigned number of that width.
    fn number(&mut self, width: usize) -> usize {
        self.take(width).into_iter().fold(0, |all, byte| all << 8 | usize::from(byte))
    }

    fn signed(&mut self, width: usize) -> i128 {
        let bits = 8 * u32::try_from(width).unwrap();
        let number = i128::try_from(self.number(width)).unwrap();
        if number >> (bits - 1) == 1 { number - (1 << bits) } else { number }
    }

    fn text(&mut self, len: usize) -> Value {
        Value::Text(String::from_utf8(self.take(len)).unwrap())
    }

    fn array(&mut self, len: usize) -> Value {
        Value::Array((0..len).map(|_| self.value()).collect())
    }

    fn map(&mut self, len: usize) -> Value {
        Value::Map((0..len).map(|_| (self.value(), self.value())).collect())
    }

    fn value(&mut self) -> Value {
        let head = self.number(1);
        match head {
            0x00..=0x7f => Value::Int(i128::try_from(head).unwrap()),
            0x80..=0x8f => self.map(head & 0x0f),
            0x90..=0x9f => self.array(head & 0x0f),
            0xa0..=0xbf => self.text(head & 0x1f),
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool,
            0xc4..=0xc6 => {
                let len = self.number(1 << (head - 0xc4));
                Value::Bytes(self.take(len))
            }
            0xca | 0xcb => {
                self.take(4 << (head - 0xca));
                Value::Float
            }
            0xcc..=0xcf => Value::Int(i128::try_from(self.number(1 << (head - 0xcc))).unwrap()),
            0xd0..=0xd3 => Value::Int(self.signed(1 << (head - 0xd0))),
            0xd9..=0xdb => {
                let len = self.number(1 << (head - 0xd9));
                self.text(len)
            }
            0xdc | 0xdd => {
                let len = self.number(2 << (head - 0xdc));
                self.array(len)
            }
            0xde | 0xdf => {
                let len = self.number(2 << (head - 0xde));
                self.map(len)
            }
            0xe0..=0xff => Value::Int(i128::try_from(head).unwrap() - 256),
            other => panic!("{other:#x} is nothing that vLLM sends"),
        }
    }
}

/// One event: its kind, and its fields by name.
struct Event {
    kind: String,
    fields: BTreeMap<&'static str, Value>,
}

/// The fields after the kind in the array form.
const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

impl Event {
    fn new(value: Value) -> Self {
        match value {
            Value::Array(items) => {
                let Value::Text(kind) = &items[0] else { panic!("{items:?}") };
                let names: &[_] = if kind == "BlockStored" { &STORED } else { &REMOVED };
                let fields = names.iter().copied().zip(items[1..].iter().cloned()).collect();
                Self { kind: kind.clone(), fields }
            }
            Value::Map(pairs) => {
                let named = |name: &str| {
                    let mut found = pairs.iter().filter(|(key, _)| *key == Value::Text(name.to_owned()));
                    found.next().map(|(_, value)| value.clone())
                };
                let Some(Value::Text(kind)) = named("type") else { panic!("{pairs:?}") };
                Self { kind, fields: STORED.iter().filter_map(|it| Some((*it, named(it)?))).collect() }
            }
            other => panic!("{other:?}"),
        }
    }

    fn keys(&self) -> Vec<u64> {
        let Some(Value::Array(hashes)) = self.fields.get("block_hashes") else { panic!("no hashes") };
        hashes.iter().map(key).collect()
    }

    /// Group and medium, as far as the version names them.
    fn place(&self) -> (u32, String) {
        let group = match self.fields.get("group_idx") {
            Some(Value::Int(group)) => u32::try_from(*group).unwrap(),
            _ => 0,
        };
        match self.fields.get("medium") {
            Some(Value::Text(medium)) => (group, medium.to_lowercase()),
            _ => (group, "gpu".to_owned()),
        }
    }

    fn is_root(&self) -> bool {
        matches!(self.fields.get("parent_block_hash"), None | Some(Value::Nil))
    }

    fn has_tokens(&self) -> bool {
        matches!(self.fields.get("token_ids"), Some(Value::Array(tokens)) if !tokens.is_empty())
    }
}

/// The low 64 bits of a hash.
fn key(hash: &Value) -> u64 {
    match hash {
        Value::Int(number) => u64::try_from(number & i128::from(u64::MAX)).unwrap(),
        Value::Bytes(bytes) => u64::from_be_bytes(bytes[bytes.len() - 8..].try_into().unwrap()),
        other => panic!("{other:?} is no hash"),
    }
}

/// Copies by group, medium and key.
pub(crate) type Held = BTreeMap<(u32, String, u64), u32>;

/// What one rank holds.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    next: u64,
    pub(crate) held: Held,
    /// What was met, so that a test may see that it tested something.
    pub(crate) most_copies: u32,
    pub(crate) again: u32,
    pub(crate) publishers: u32,
}

impl Reference {
    /// The next message: topic, sequence, payload.
    pub(crate) fn hear(&mut self, frames: &[Vec<u8>]) {
        let number = u64::from_be_bytes(frames[1][..].try_into().unwrap());
        if self.publishers == 0 || number < self.next {
            self.held.clear();
            self.publishers += 1;
        } else {
            assert_eq!(number, self.next, "the recordings have no gaps");
        }
        self.next = number + 1;
        let Value::Array(batch) = Bytes(&frames[2]).value() else { panic!("no batch") };
        let Value::Array(events) = batch[1].clone() else { panic!("no events") };
        events.into_iter().map(Event::new).for_each(|it| self.event(&it));
    }

    fn event(&mut self, event: &Event) {
        match event.kind.as_str() {
            "BlockStored" => self.store(event),
            "BlockRemoved" => {
                let (group, medium) = event.place();
                for key in event.keys() {
                    let at = (group, medium.clone(), key);
                    let copies = self.held.remove(&at).expect("a removal of what is held");
                    if copies > 1 {
                        self.held.insert(at, copies - 1);
                    }
                }
            }
            "AllBlocksCleared" => self.held.clear(),
            other => panic!("vLLM has no {other}"),
        }
    }

    /// Every copy is announced. A prompt's first blocks that are all there may be a second copy or only a report, so
    /// that they count once.
    fn store(&mut self, event: &Event) {
        assert!(event.has_tokens(), "the recordings have no connectors");
        let (group, medium) = event.place();
        let keys: Vec<_> = event.keys().into_iter().map(|key| (group, medium.clone(), key)).collect();
        if event.is_root() && keys.iter().all(|it| self.held.contains_key(it)) {
            self.again += 1;
            return;
        }
        for at in keys {
            let copies = self.held.entry(at).or_default();
            *copies += 1;
            self.most_copies = self.most_copies.max(*copies);
        }
    }
}
