//! A publisher that speaks as vLLM before 0.24 does, and knows what it holds by the rules of the mirror.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use kvpick_proto::{naming::BlockKey, words::Place};

#[derive(Clone, Debug)]
pub(crate) struct Wire {
    /// Keeps the batches of two publishers apart.
    id: u64,
    /// Whether hashes are bytes, or integers.
    bytes: bool,
    rank: u8,
    next: u64,
    copies: BTreeMap<u64, u32>,
    /// Copies that there may be beside these; of everything, where what was before is not known.
    more: BTreeMap<u64, u32>,
    is_part: bool,
}

impl Wire {
    pub(crate) fn new(id: u64) -> Self {
        let (copies, more) = (BTreeMap::new(), BTreeMap::new());
        Self { id, bytes: false, rank: 0, next: 0, copies, more, is_part: false }
    }

    /// The same with hashes of 32 bytes.
    pub(crate) fn in_bytes(self) -> Self {
        Self { bytes: true, ..self }
    }

    /// The same of another data-parallel rank, below 128.
    pub(crate) fn of_rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    pub(crate) fn held(&self) -> BTreeSet<(Place, BlockKey)> {
        self.copies.keys().map(|it| (Place::GPU, BlockKey::from_u64(*it))).collect()
    }

    pub(crate) fn holds_some_of(&self, chain: u64) -> bool {
        self.copies.range(Self::key(chain, 0)..Self::key(chain + 1, 0)).next().is_some()
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// Another process, with nothing in it.
    pub(crate) fn restart(&mut self) {
        *self = Self { bytes: self.bytes, rank: self.rank, ..Self::new(self.id + 1_000) };
    }

    /// Batches that nobody hears.
    pub(crate) fn skip(&mut self, batches: u64) {
        self.next += batches;
    }

    fn key(chain: u64, at: u64) -> u64 {
        chain * 1_000_000 + at
    }

    pub(crate) fn stored(&mut self, chain: u64, from: u64, len: u64) -> Vec<Vec<u8>> {
        let keys: Vec<_> = (from..from + len).map(|at| Self::key(chain, at)).collect();
        let held = |it: &u64| self.copies.contains_key(it);
        let may_be_held = |it: &u64| held(it) || self.is_part || self.more.contains_key(it);
        let is_ambiguous = from == 0 && keys.iter().any(held) && keys.iter().all(may_be_held);
        for key in &keys {
            let copies = self.copies.entry(*key).or_default();
            if !is_ambiguous || *copies == 0 {
                *copies += 1;
            } else {
                *self.more.entry(*key).or_default() += 1;
            }
        }
        let mut event = b"\x96\xabBlockStored".to_vec();
        self.hashes(&mut event, &keys);
        match from.checked_sub(1) {
            Some(parent) => self.hash(&mut event, Self::key(chain, parent)),
            None => event.push(0xc0),
        }
        array(&mut event, keys.len());
        keys.iter().for_each(|_| event.push(7));
        int(&mut event, 1);
        // An adapter that has a number only: no hash of it can be recomputed, so that none is taken for a misfit.
        event.push(1);
        self.batch(&event)
    }

    pub(crate) fn removed(&mut self, chain: u64, from: u64, len: u64) -> Vec<Vec<u8>> {
        let keys: Vec<_> = (from..from + len).map(|at| Self::key(chain, at)).collect();
        for key in &keys {
            if let Some(copies) = self.copies.get_mut(key) {
                *copies -= 1;
                if *copies == 0 {
                    self.copies.remove(key);
                }
            } else if let Some(more) = self.more.get_mut(key) {
                *more -= 1;
                if *more == 0 {
                    self.more.remove(key);
                }
            }
        }
        let mut event = b"\x92\xacBlockRemoved".to_vec();
        self.hashes(&mut event, &keys);
        self.batch(&event)
    }

    pub(crate) fn cleared(&mut self) -> Vec<Vec<u8>> {
        self.copies.clear();
        self.more.clear();
        self.is_part = false;
        self.batch(b"\x91\xb0AllBlocksCleared")
    }

    /// A batch of which nothing can be read, after which nothing is known.
    pub(crate) fn garbage(&mut self) -> Vec<Vec<u8>> {
        self.copies.clear();
        self.is_part = true;
        let mut frames = self.batch(b"");
        frames[2] = vec![0xc1];
        frames
    }

    fn hashes(&self, into: &mut Vec<u8>, keys: &[u64]) {
        array(into, keys.len());
        keys.iter().for_each(|it| self.hash(into, *it));
    }

    fn hash(&self, into: &mut Vec<u8>, key: u64) {
        if self.bytes {
            into.extend_from_slice(b"\xc4\x20");
            into.extend_from_slice(&[0xee; 24]);
            into.extend_from_slice(&key.to_be_bytes());
        } else {
            int(into, key);
        }
    }

    fn batch(&mut self, event: &[u8]) -> Vec<Vec<u8>> {
        let number = self.next;
        self.next += 1;
        let mut payload = vec![0x93];
        int(&mut payload, self.id);
        payload.push(0x91);
        payload.extend_from_slice(event);
        payload.push(self.rank);
        vec![b"topic".to_vec(), number.to_be_bytes().to_vec(), payload]
    }
}

fn int(into: &mut Vec<u8>, value: u64) {
    into.push(0xcf);
    into.extend_from_slice(&value.to_be_bytes());
}

fn array(into: &mut Vec<u8>, len: usize) {
    into.push(0xdd);
    into.extend_from_slice(&u32::try_from(len).expect("a short array").to_be_bytes());
}
