//! Where a text may be cut so that its pieces, encoded apart, give the ids of the whole.
//!
//! A tokenizer splits a text at its added tokens, then each part where its pattern says, and merges within those. A
//! place between two of them that neither side reaches over is a cut. Two kinds are used: places that the two characters
//! around them tell, for tokenizers whose pattern or vocabulary is known well enough ([`Places`]), and places before
//! added tokens, for all others ([`Splitter`]). A piece is of a length that is worth looking up, and where it ends
//! depends on nothing but what it holds and the character after it, so that what is appended to a text leaves all
//! pieces but the last as they are.

use aho_corasick::AhoCorasick;

/// Bytes that a piece has at least, unless it is a text's last.
const LEAST: usize = 1_024;

/// Bytes from which on any place is taken. Before, it is one line's end in some that is, chosen by what stands there:
/// texts that differ in their beginnings come to be cut alike again.
const AMPLE: usize = 4_096;

/// A line's end is chosen if that many bits of a hash are zero.
const CHOOSY: u32 = 4;

/// Bytes between two cuts at added tokens, at least.
const LEAST_BETWEEN_TOKENS: usize = 512;

/// How a tokenizer's texts are cut.
#[derive(Debug)]
pub(super) enum Cuts {
    /// At places that two characters tell.
    Places(Box<Places>),
    /// Before added tokens.
    Tokens(Splitter),
    /// Nowhere.
    Nowhere,
}

impl Cuts {
    /// The ends of the pieces of `text`, in order; the last is the text's length. `is_ordinary` is whether special
    /// tokens in it are text like any other.
    pub(super) fn ends(&self, text: &str, is_ordinary: bool) -> Vec<usize> {
        match self {
            Self::Places(places) => places.ends(text),
            Self::Tokens(splitter) if !is_ordinary => splitter.ends(text),
            Self::Tokens(_) | Self::Nowhere => vec![text.len()],
        }
    }
}

/// The places at which a text may be cut, by the characters on both sides.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Places {
    /// Before a space: the bytes on its left, of printable ASCII.
    pub(super) before_space: [bool; 128],
    /// After a newline: the bytes on its right, of printable ASCII.
    pub(super) after_newline: [bool; 128],
    /// After a newline, before a letter or digit that is not ASCII.
    pub(super) after_newline_wide: bool,
    /// Between a common Chinese or Japanese letter and the full stop.
    pub(super) before_stop: bool,
}

impl Places {
    /// None at all.
    pub(super) const NONE: Self = Self {
        before_space: [false; 128],
        after_newline: [false; 128],
        after_newline_wide: false,
        before_stop: false,
    };

    /// Whether `text`, which has something on both sides of `at`, may be cut there.
    pub(super) fn is_cut(&self, text: &str, at: usize) -> bool {
        let bytes = text.as_bytes();
        let holds = |set: &[bool; 128], byte: u8| set.get(usize::from(byte)).is_some_and(|it| *it);
        match (bytes[at - 1], bytes[at]) {
            (left, b' ') => holds(&self.before_space, left),
            (b'\n', right @ ..0x80) => holds(&self.after_newline, right),
            (b'\n', _) => {
                self.after_newline_wide && text[at..].chars().next().is_some_and(char::is_alphanumeric)
            }
            (0x80.., 0xe3) => {
                self.before_stop && bytes[at..].starts_with("。".as_bytes()) && {
                    text[..at].chars().next_back().is_some_and(is_common_letter)
                }
            }
            _ => false,
        }
    }

    /// Whether some place inside `text` is a cut.
    pub(super) fn cuts(&self, text: &str) -> bool {
        (1..text.len()).any(|at| self.is_cut(text, at))
    }

    fn ends(&self, text: &str) -> Vec<usize> {
        let mut ends = Vec::with_capacity(text.len() / LEAST + 1);
        let mut from = 0;
        while from < text.len() {
            from = self.end(text, from);
            ends.push(from);
        }
        ends
    }

    /// The end of the piece that begins at `from`.
    fn end(&self, text: &str, from: usize) -> usize {
        let ample = text.floor_char_boundary(from + AMPLE);
        let mut at = text.floor_char_boundary(from + LEAST).min(ample);
        while let Some(newline) = text[at..ample].find('\n') {
            at += newline + 1;
            if at < text.len() && is_chosen(&text.as_bytes()[..at]) && self.is_cut(text, at) {
                return at;
            }
        }
        (ample..text.len()).find(|at| self.is_cut(text, *at)).unwrap_or(text.len())
    }
}

/// Whether a line that ends `bytes` is one of the few after which a text is cut early.
fn is_chosen(bytes: &[u8]) -> bool {
    // The golden ratio in 64 bits: it spreads to the high bits what differs in any.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let last = bytes.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
    last.wrapping_mul(SPREAD) >> (u64::BITS - CHOOSY) == 0
}

/// Letters that are in one class with every pattern known here and that no normaliser touches.
fn is_common_letter(letter: char) -> bool {
    matches!(letter, '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{4e00}'..='\u{9fa5}')
}

/// Finds added tokens as the tokenizer does: of all that match the leftmost, and of those the longest.
#[derive(Debug)]
pub(super) struct Splitter {
    tokens: AhoCorasick,
    strips: Vec<Strips>,
}

/// Which white space around it belongs to an added token.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Strips {
    pub(super) left: bool,
    pub(super) right: bool,
}

impl Splitter {
    /// For those tokens. `None` where there are none, or too many.
    pub(super) fn new(tokens: &[(&str, Strips)]) -> Option<Self> {
        let mut builder = AhoCorasick::builder();
        builder.match_kind(aho_corasick::MatchKind::LeftmostLongest);
        let found = builder.build(tokens.iter().map(|(text, _)| text)).ok().filter(|_| !tokens.is_empty());
        found.map(|it| Self { tokens: it, strips: tokens.iter().map(|(_, strips)| *strips).collect() })
    }

    fn ends(&self, text: &str) -> Vec<usize> {
        let mut ends = Vec::new();
        // Ends of the last piece, and of the last token with the white space that is its own.
        let (mut cut, mut token_end) = (0, 0);
        for found in self.tokens.find_iter(text) {
            let strips = self.strips[found.pattern().as_usize()];
            // Where a token takes white space, one that stands in it is none.
            if found.start() < token_end {
                continue;
            }
            let before = &text[token_end..found.start()];
            let kept = if strips.left { before.trim_end().len() } else { before.len() };
            let start = token_end + kept;
            if LEAST_BETWEEN_TOKENS <= start - cut {
                cut = start;
                ends.push(cut);
            }
            let after = &text[found.end()..];
            let taken = if strips.right { after.len() - after.trim_start().len() } else { 0 };
            token_end = found.end() + taken;
        }
        if cut < text.len() {
            ends.push(text.len());
        }
        ends
    }
}
