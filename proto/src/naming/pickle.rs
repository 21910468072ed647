//! `pickle.dumps(value, protocol=5)` of CPython 3.8 and later, for what a block hash is made of.
//!
//! Strings, byte strings and tuples are memoized in order of completion. The same object met again is a reference to
//! its first place; equal objects are not the same, so only the tags, constants of vLLM's source, are ever shared.

use super::extra::Item;

const PROTO: [u8; 2] = [0x80, 5];
const FRAME: u8 = 0x95;
const STOP: u8 = b'.';
const MEMOIZE: u8 = 0x94;
const MARK: u8 = b'(';
const EMPTY_TUPLE: u8 = b')';
const TUPLE: u8 = b't';
const TUPLE1: u8 = 0x85;
const TUPLE2: u8 = 0x86;
const TUPLE3: u8 = 0x87;
const NONE: u8 = b'N';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const BININT: u8 = b'J';
const LONG1: u8 = 0x8a;
const SHORT_BINBYTES: u8 = b'C';
const BINBYTES: u8 = b'B';
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const BINGET: u8 = b'h';

/// Appends the string whose hash is a root.
pub(super) fn root(out: &mut Vec<u8>, text: &str) {
    framed(out, |pickler| pickler.str(text));
}

/// Appends the triple of one block.
pub(super) fn block(out: &mut Vec<u8>, parent: &[u8], tokens: &[u32], extra: &[Item<'_>]) {
    framed(out, |pickler| {
        pickler.bytes(parent);
        pickler.open_tuple(tokens.len());
        for token in tokens {
            pickler.int(i64::from(*token));
        }
        pickler.close_tuple(tokens.len());
        if extra.is_empty() {
            pickler.out.push(NONE);
        } else {
            pickler.tuple(extra);
        }
        pickler.close_tuple(3);
    });
}

fn framed(out: &mut Vec<u8>, body: impl FnOnce(&mut Pickler<'_>)) {
    out.extend(PROTO);
    out.push(FRAME);
    let length_at = out.len();
    out.extend([0; 8]);
    body(&mut Pickler { out, memo_len: 0, tags: Vec::new() });
    out.push(STOP);
    let length = (out.len() - length_at - 8) as u64;
    out[length_at..length_at + 8].copy_from_slice(&length.to_le_bytes());
}

struct Pickler<'a> {
    out: &'a mut Vec<u8>,
    memo_len: u8,
    tags: Vec<(&'static str, u8)>,
}

impl Pickler<'_> {
    fn item(&mut self, item: &Item<'_>) {
        match item {
            Item::Tag(tag) => self.tag(tag),
            Item::Str(text) => self.str(text),
            Item::Bytes(bytes) => self.bytes(bytes),
            Item::Int(value) => self.int(*value),
            Item::Tuple(items) => self.tuple(items),
        }
    }

    fn tag(&mut self, tag: &'static str) {
        if let Some((_, at)) = self.tags.iter().find(|(it, _)| *it == tag) {
            self.out.extend([BINGET, *at]);
        } else {
            self.tags.push((tag, self.memo_len));
            self.str(tag);
        }
    }

    fn str(&mut self, text: &str) {
        self.sized(text.as_bytes(), SHORT_BINUNICODE, BINUNICODE);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.sized(bytes, SHORT_BINBYTES, BINBYTES);
    }

    fn sized(&mut self, bytes: &[u8], short: u8, long: u8) {
        if let Ok(length) = u8::try_from(bytes.len()) {
            self.out.extend([short, length]);
        } else {
            self.out.push(long);
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.out.extend(length.to_le_bytes());
        }
        self.out.extend_from_slice(bytes);
        self.memoize();
    }

    fn int(&mut self, value: i64) {
        if let Ok(value) = u8::try_from(value) {
            self.out.extend([BININT1, value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.out.push(BININT2);
            self.out.extend(value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.out.push(BININT);
            self.out.extend(value.to_le_bytes());
        } else {
            let bytes = value.to_le_bytes();
            // The shortest two's complement form that keeps the sign.
            let sign = if value < 0 { 0xff } else { 0 };
            let mut length = bytes.len();
            while 1 < length && bytes[length - 1] == sign && (bytes[length - 2] ^ sign) < 0x80 {
                length -= 1;
            }
            self.out.push(LONG1);
            self.out.push(u8::try_from(length).unwrap_or(8));
            self.out.extend_from_slice(&bytes[..length]);
        }
    }

    fn tuple(&mut self, items: &[Item<'_>]) {
        self.open_tuple(items.len());
        for item in items {
            self.item(item);
        }
        self.close_tuple(items.len());
    }

    fn open_tuple(&mut self, len: usize) {
        if 3 < len {
            self.out.push(MARK);
        }
    }

    fn close_tuple(&mut self, len: usize) {
        match len {
            // The empty tuple is a constant, and never memoized.
            0 => return self.out.push(EMPTY_TUPLE),
            1 => self.out.push(TUPLE1),
            2 => self.out.push(TUPLE2),
            3 => self.out.push(TUPLE3),
            _ => self.out.push(TUPLE),
        }
        self.memoize();
    }

    fn memoize(&mut self) {
        self.out.push(MEMOIZE);
        // Tags are few and come early; a place above 255 is never referred to.
        self.memo_len = self.memo_len.saturating_add(1);
    }
}
