//! Finds `usage` in a JSON text that comes in pieces, without building the text's values.

use super::Usage;

/// Longest value of `usage` that is read, in bytes; real ones have some 200.
const LONGEST: usize = 4 << 10;

/// Longest key that is compared; one more byte shows that a key is longer.
const KEY: usize = 9;

/// One JSON text. What is no JSON makes no sense to it and does no harm.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Brackets that are open.
    depth: usize,
    /// Whether the innermost open bracket is an object whose `usage` is sought: the outermost, or the value of its
    /// `response` (OpenAI's responses) or `message` (Anthropic's messages), as their events have it.
    is_sought: bool,
    /// Whether the second bracket that is open is such an object.
    has_inner: bool,
    is_object: bool,
    has_response: bool,
    text: Text,
    /// The last string of an object in which is sought, cut.
    last: Short,
    /// That string, where a colon made it a key.
    key: Short,
    /// The value of `usage` so far, and the depth outside of it.
    kept: Option<(Vec<u8>, usize)>,
}

/// Whether the next byte is in a string.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Text {
    #[default]
    Out,
    In,
    Escaped,
}

#[derive(Clone, Copy, Debug, Default)]
struct Short {
    bytes: [u8; KEY],
    len: usize,
}

impl Short {
    fn push(&mut self, bytes: &[u8]) {
        let room = KEY - self.len;
        let taken = &bytes[..bytes.len().min(room)];
        self.bytes[self.len..self.len + taken.len()].copy_from_slice(taken);
        self.len += taken.len();
    }

    fn is(&self, key: &str) -> bool {
        &self.bytes[..self.len] == key.as_bytes()
    }
}

impl Scan {
    /// Whether the text is an object that has no `response`.
    pub(super) const fn is_of_tokens(&self) -> bool {
        self.is_object && !self.has_response
    }

    /// Takes the next piece, and puts what it finds into `usage`.
    pub(super) fn push(&mut self, bytes: &[u8], usage: &mut Usage) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match self.text {
                Text::Out => self.outside(rest, usage),
                Text::In => self.inside(rest),
                Text::Escaped => {
                    self.text = Text::In;
                    self.note(&rest[..1]);
                    1
                }
            };
            rest = &rest[taken..];
        }
    }

    /// Up to the next byte that says something of the structure, that included. Returns how many bytes that is.
    fn outside(&mut self, bytes: &[u8], usage: &mut Usage) -> usize {
        let says = |it: &u8| matches!(it, b'"' | b'{' | b'}' | b'[' | b']' | b':' | b',');
        let end = bytes.iter().position(says).map_or(bytes.len(), |it| it + 1);
        self.keep(&bytes[..end]);
        match bytes[end - 1] {
            b'"' => {
                self.text = Text::In;
                self.last = Short::default();
            }
            b':' => self.key = self.last,
            b',' => self.key = Short::default(),
            open @ (b'{' | b'[') => self.open(open),
            b'}' | b']' => self.close(usage),
            _ => {}
        }
        end
    }

    fn open(&mut self, bracket: u8) {
        let outer = std::mem::replace(&mut self.is_sought, false);
        if bracket == b'{' && self.kept.is_none() {
            if outer && self.key.is("usage") {
                self.kept = Some((vec![bracket], self.depth));
            }
            self.is_object |= self.depth == 0;
            if self.depth == 1 {
                self.has_response |= outer && self.key.is("response");
                self.has_inner = outer && (self.key.is("response") || self.key.is("message"));
            }
            self.is_sought = self.depth == 0 || self.depth == 1 && self.has_inner;
        }
        self.depth = self.depth.saturating_add(1);
        self.key = Short::default();
    }

    fn close(&mut self, usage: &mut Usage) {
        self.depth = self.depth.saturating_sub(1);
        self.key = Short::default();
        if let Some((json, _)) = self.kept.take_if(|(_, outside)| *outside == self.depth) {
            usage.add(&json);
            self.is_sought = true;
        } else if self.kept.is_none() {
            self.has_inner &= 2 <= self.depth;
            self.is_sought = self.depth == 1 || self.depth == 2 && self.has_inner;
        }
    }

    /// Up to the string's end, or an escape.
    fn inside(&mut self, bytes: &[u8]) -> usize {
        let end = memchr::memchr2(b'"', b'\\', bytes);
        self.note(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(at) = end else { return bytes.len() };
        self.keep(&bytes[at..=at]);
        self.text = if bytes[at] == b'"' { Text::Out } else { Text::Escaped };
        at + 1
    }

    /// Bytes of a string's content.
    fn note(&mut self, bytes: &[u8]) {
        if self.is_sought {
            self.last.push(bytes);
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Some((json, _)) = &mut self.kept {
            // One that is too long is cut, and then is no JSON.
            let room = LONGEST.saturating_sub(json.len());
            json.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
}
