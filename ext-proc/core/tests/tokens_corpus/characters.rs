//! Pieces that are made of characters: scripts, marks, emoji, spaces, digits, and what is none of them.

use super::Dice;

/// How many kinds of pieces there are.
pub(crate) const KINDS: usize = 16;

/// First and last of blocks of letters: thirty scripts, with some of what is unassigned in them.
const SCRIPTS: [(u32, u32); 38] = [
    (0x41, 0x7a),
    (0xaa, 0xff),
    (0x100, 0x24f),
    (0x250, 0x2ff),
    (0x370, 0x3ff),
    (0x400, 0x52f),
    (0x531, 0x58f),
    (0x5b0, 0x5ff),
    (0x600, 0x6ff),
    (0x700, 0x74f),
    (0x780, 0x7bf),
    (0x900, 0x97f),
    (0x980, 0x9ff),
    (0xa00, 0xa7f),
    (0xb80, 0xbff),
    (0xc00, 0xc7f),
    (0xd80, 0xdff),
    (0xe00, 0xe7f),
    (0xe80, 0xeff),
    (0xf00, 0xfff),
    (0x1000, 0x109f),
    (0x10a0, 0x10ff),
    (0x1200, 0x137f),
    (0x13a0, 0x13ff),
    (0x1780, 0x17ff),
    (0x1800, 0x18af),
    (0x1e00, 0x1eff),
    (0x1f00, 0x1fff),
    (0x2c00, 0x2dff),
    (0x3040, 0x30ff),
    (0x3100, 0x31bf),
    (0x4e00, 0x9fff),
    (0xa000, 0xa4cf),
    (0xa640, 0xa7ff),
    (0xac00, 0xd7a3),
    (0xfb00, 0xfdff),
    (0x10400, 0x1044f),
    (0x1d400, 0x1d7ff),
];

/// Marks of several combining classes, some of which compose with what stands before them.
const MARKS: [char; 32] = [
    '\u{300}',
    '\u{301}',
    '\u{302}',
    '\u{303}',
    '\u{304}',
    '\u{306}',
    '\u{307}',
    '\u{308}',
    '\u{30a}',
    '\u{30c}',
    '\u{31b}',
    '\u{323}',
    '\u{327}',
    '\u{328}',
    '\u{331}',
    '\u{334}',
    '\u{338}',
    '\u{340}',
    '\u{341}',
    '\u{343}',
    '\u{344}',
    '\u{345}',
    '\u{34f}',
    '\u{5b0}',
    '\u{5c1}',
    '\u{64b}',
    '\u{651}',
    '\u{93c}',
    '\u{3099}',
    '\u{309a}',
    '\u{20dd}',
    '\u{1d165}',
];

/// Letters that marks compose with, that decompose, or that are excluded from composition.
const BASES: [char; 48] = [
    'a',
    'A',
    'e',
    'i',
    'o',
    'O',
    'u',
    'U',
    'y',
    'c',
    's',
    'k',
    'K',
    'l',
    'n',
    '\u{212b}',
    '\u{2126}',
    '\u{212a}',
    '\u{1fbf}',
    '\u{1fef}',
    '\u{37e}',
    '\u{387}',
    '\u{374}',
    '\u{2000}',
    '\u{2001}',
    '\u{3b1}',
    '\u{3b9}',
    '\u{3c9}',
    '\u{1f00}',
    '\u{1ea1}',
    '\u{1e9b}',
    '\u{915}',
    '\u{958}',
    '\u{9dc}',
    '\u{9c7}',
    '\u{9be}',
    '\u{fb2a}',
    '\u{fb1d}',
    '\u{2adc}',
    '\u{f900}',
    '\u{2f800}',
    '\u{304b}',
    '\u{30cf}',
    '\u{628}',
    '\u{622}',
    '\u{dd9}',
    '\u{dcf}',
    '\u{1d15e}',
];

/// Spaces of Unicode and what looks like them but is none.
const SPACES: [char; 32] = [
    ' ', ' ', ' ', ' ', '\t', '\n', '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{1f}',
    '\u{85}', '\u{a0}', '\u{1680}', '\u{180e}', '\u{2000}', '\u{2003}', '\u{2007}', '\u{2009}', '\u{200a}',
    '\u{200b}', '\u{2028}', '\u{2029}', '\u{202f}', '\u{205f}', '\u{2060}', '\u{3000}', '\u{feff}',
    '\u{2581}',
];

/// Zeros of decimal digits, and numbers that are no digits.
const DIGITS: [u32; 20] = [
    0x30, 0x30, 0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xe50, 0x1040, 0x17e0, 0xff10, 0x1d7ce, 0x1fbf0,
    0xb2, 0xbc, 0x2150, 0x2460, 0x2776, 0x1f100,
];

const EMOJI: [char; 20] = [
    '\u{1f600}',
    '\u{1f44d}',
    '\u{1f468}',
    '\u{1f469}',
    '\u{1f467}',
    '\u{2764}',
    '\u{1f308}',
    '\u{1f3f4}',
    '\u{1f3f3}',
    '\u{26a7}',
    '\u{2640}',
    '\u{1f680}',
    '\u{1fae0}',
    '\u{1f9d1}',
    '\u{1f1e9}',
    '\u{1f1ea}',
    '\u{a9}',
    '\u{203c}',
    '\u{2139}',
    '\u{1f4bb}',
];

/// What joins, colours and selects emoji.
const JOINERS: [char; 12] = [
    '\u{200d}',
    '\u{200d}',
    '\u{fe0f}',
    '\u{fe0e}',
    '\u{1f3fb}',
    '\u{1f3ff}',
    '\u{20e3}',
    '\u{200c}',
    '\u{e0067}',
    '\u{e007f}',
    '\u{e0100}',
    '\u{1f9b0}',
];

const PUNCTUATION: [char; 40] = [
    '!', '"', '#', '$', '%', '&', '\'', '(', ')', '*', '+', ',', '-', '.', '/', ':', ';', '<', '=', '>', '?',
    '@', '[', '\\', ']', '^', '_', '`', '{', '|', '}', '~', '\u{2019}', '\u{2014}', '\u{3002}', '\u{ff0c}',
    '\u{20ac}', '\u{2200}', '\u{b4}', '\u{2026}',
];

/// Letters of all cases, among them such as have no case of their own or fold into ASCII.
const CASED: [char; 24] = [
    'a', 'B', 'c', 'D', 'e', 'Z', '\u{1c5}', '\u{1c8}', '\u{1f88}', '\u{2b0}', '\u{2c6}', '\u{aa}',
    '\u{5d0}', '\u{e9}', '\u{c9}', '\u{df}', '\u{1e9e}', '\u{130}', '\u{131}', '\u{17f}', '\u{212a}',
    '\u{3c2}', '\u{4e2d}', '\u{24d0}',
];

const ENDINGS: [&str; 20] = [
    "s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Ve", "M", "lL", "D", "\u{17f}", "r", "v", "l",
    "x", "Re",
];

/// Makes pieces of characters.
pub(crate) struct Characters {
    /// The block that is in use: a text has few scripts.
    script: (u32, u32),
}

fn some(dice: &mut Dice, from: &[char]) -> char {
    from[dice.below(from.len())]
}

fn within(dice: &mut Dice, (first, last): (u32, u32)) -> char {
    char::from_u32(first + dice.below((last - first + 1) as usize) as u32).unwrap_or('\u{fffd}')
}

impl Characters {
    pub(crate) fn new() -> Self {
        Self { script: SCRIPTS[0] }
    }

    /// Appends a piece of a kind.
    pub(crate) fn push(&mut self, kind: usize, dice: &mut Dice, text: &mut String) {
        let several = 1 + dice.below(8);
        match kind {
            0 => self.words(dice, text),
            1 => {
                let length = dice.length(64);
                text.extend((0..length).map(|_| some(dice, &SPACES)));
            }
            2 => {
                let (space, length) = (some(dice, &SPACES), dice.length(400));
                text.extend(std::iter::repeat_n(space, length));
            }
            3 => marked(dice, several, text),
            4 => jamo(dice, several, text),
            5 => emoji(dice, several, text),
            6 => digits(dice, text),
            7 => contraction(dice, text),
            8 => {
                let length = dice.length(2000);
                let from = [&CASED[..], &PUNCTUATION, &MARKS, &EMOJI, &JOINERS, &SPACES][dice.below(6)];
                let char = some(dice, from);
                text.extend(std::iter::repeat_n(char, length));
            }
            9 => text.extend((0..several).map(|_| within(dice, (0, 0x9f)))),
            10 => strange(dice, several, text),
            11 => text.extend((0..several).map(|_| within(dice, (0, 0x10ffff)))),
            12 => text.extend((0..several).map(|_| within(dice, (0xa0, 0x2fff)))),
            13 => text.extend((0..several).map(|_| within(dice, (0x10000, 0x1ffff)))),
            14 => {
                let length = dice.length(40);
                text.extend((0..length).map(|_| some(dice, &CASED)));
            }
            _ => {
                let length = dice.length(30);
                text.extend((0..length).map(|_| some(dice, &PUNCTUATION)));
            }
        }
    }

    /// Words of a script.
    fn words(&mut self, dice: &mut Dice, text: &mut String) {
        if dice.below(4) == 0 {
            self.script = SCRIPTS[dice.below(SCRIPTS.len())];
        }
        for _ in 0..1 + dice.below(6) {
            let length = dice.length(12);
            text.extend((0..length).map(|_| within(dice, self.script)));
            text.push_str(dice.pick(&["", " ", " ", " ", ", ", "\u{3000}", "\n", " 1", "'"]));
        }
    }
}

fn marked(dice: &mut Dice, several: usize, text: &mut String) {
    for _ in 0..several {
        text.push(some(dice, &BASES));
        let marks = if dice.below(20) == 0 { dice.length(60) } else { dice.below(4) };
        text.extend((0..marks).map(|_| some(dice, &MARKS)));
    }
}

fn jamo(dice: &mut Dice, several: usize, text: &mut String) {
    for _ in 0..several {
        match dice.below(4) {
            0 => text.push(within(dice, (0xac00, 0xd7a3))),
            1 => text.push(within(dice, (0x1100, 0x11ff))),
            _ => {
                text.push(within(dice, (0x1100, 0x1112)));
                text.push(within(dice, (0x1161, 0x1175)));
            }
        }
        if dice.below(2) == 0 {
            text.push(within(dice, (0x11a7, 0x11c2)));
        }
    }
}

fn emoji(dice: &mut Dice, several: usize, text: &mut String) {
    for _ in 0..several {
        text.push(some(dice, &EMOJI));
        for _ in 0..dice.below(3) {
            text.push(some(dice, &JOINERS));
        }
    }
}

fn digits(dice: &mut Dice, text: &mut String) {
    let zero = DIGITS[dice.below(DIGITS.len())];
    for _ in 0..dice.length(16) {
        text.push(within(dice, (zero, zero + 9)));
        if dice.below(12) == 0 {
            text.push(some(dice, &['.', ',', '_', '\u{301}', 'e', ':']));
        }
    }
}

fn contraction(dice: &mut Dice, text: &mut String) {
    text.push_str(
        dice.pick(&["I", "we", "don", "", "\u{4e2d}", " ", "_", "X", "\u{e9}", "7", "e\u{301}", "\u{1c5}"]),
    );
    text.push_str(dice.pick(&["'", "'", "'", "\u{2019}", "''", " '"]));
    text.push_str(dice.pick(&ENDINGS));
    text.push_str(dice.pick(&["", " ", "s", "x", "'s", "'", "\u{301}", "A"]));
}

/// Private use, noncharacters, unassigned, and formats.
fn strange(dice: &mut Dice, several: usize, text: &mut String) {
    for _ in 0..several {
        let block = [
            (0xe000, 0xf8ff),
            (0xf0000, 0xffffd),
            (0x10_0000, 0x10_fffd),
            (0xfdd0, 0xfdef),
            (0xfffe, 0xffff),
            (0x1fffe, 0x1ffff),
            (0xfff0, 0xfffd),
            (0x378, 0x379),
            (0x2000, 0x206f),
            (0x2ff0, 0x2fff),
            (0xe0000, 0xe01ef),
            (0x40000, 0x4ffff),
            (0x1cc00, 0x1ceaf),
            (0x1b000, 0x1b2ff),
            (0x2ebf0, 0x2ee5d),
        ];
        let block = block[dice.below(block.len())];
        text.push(within(dice, block));
    }
}
