//! Pieces that are texts: tokens and their fragments, Markdown, code, what machines write.

use super::Dice;

/// How many kinds of pieces there are.
pub(crate) const KINDS: usize = 10;

const NAMES: [&str; 24] = [
    "request",
    "tokenIds",
    "HTTPServer",
    "get_block",
    "x1",
    "i",
    "self",
    "MAX_LEN",
    "parseJSON",
    "T",
    "foo",
    "_private",
    "naïve",
    "größe",
    "переменная",
    "変数",
    "URL",
    "iOS26",
    "__init__",
    "a\u{301}b",
    "Ünïcode",
    "kvCache2",
    "blockSize",
    "über",
];

const PROSE: [&str; 24] = [
    "the",
    "a",
    "cache",
    "of",
    "tokens",
    "is",
    "don't",
    "It's",
    "WE'RE",
    "they'll",
    "blocks",
    "which",
    "engine's",
    "recently",
    "however,",
    "(sometimes)",
    "\"quoted\"",
    "e.g.",
    "1,024",
    "3.14",
    "50%",
    "naïve",
    "—",
    "…",
];

/// Makes pieces of texts.
pub(crate) struct Texts {
    pub(crate) vocabulary: Vec<Vec<u8>>,
    pub(crate) added: Vec<String>,
}

impl Texts {
    /// Appends a piece of a kind.
    pub(crate) fn push(&self, kind: usize, dice: &mut Dice, text: &mut String) {
        match kind {
            0 | 1 => self.glued(dice, text),
            2 => self.tokens(dice, text),
            3 => self.fragments(dice, text),
            4 => markdown(dice, text),
            5 => code(dice, text),
            6 => json(dice, 0, text),
            7 => encoded(dice, text),
            8 => address(dice, text),
            _ => {
                let length = dice.length(600);
                text.extend((0..length).map(|_| char::from(b'a' + dice.below(26) as u8)));
            }
        }
    }

    /// Tokens of the vocabulary side by side. Where one ends within a character, a replacement character stands.
    fn glued(&self, dice: &mut Dice, text: &mut String) {
        let mut bytes = Vec::new();
        for _ in 0..1 + dice.below(20) {
            bytes.extend_from_slice(&self.vocabulary[dice.below(self.vocabulary.len())]);
        }
        text.push_str(&String::from_utf8_lossy(&bytes));
    }

    fn added(&self, dice: &mut Dice) -> &str {
        &self.added[dice.below(self.added.len())]
    }

    /// Added tokens, with and without something between them.
    fn tokens(&self, dice: &mut Dice, text: &mut String) {
        for _ in 0..1 + dice.below(3) {
            text.push_str(self.added(dice));
            text.push_str(dice.pick(&["", "", " ", "\n", "user", "  ", "\r", "'s", "\u{301}", "<", "|>"]));
        }
    }

    /// Parts of added tokens, also of two that overlap.
    fn fragments(&self, dice: &mut Dice, text: &mut String) {
        let token = self.added(dice);
        let borders: Vec<_> = token.char_indices().map(|(at, _)| at).chain([token.len()]).collect();
        let at = borders[dice.below(borders.len())];
        match dice.below(5) {
            0 => text.push_str(&token[..at]),
            1 => text.push_str(&token[at..]),
            2 => text.push_str(&format!("{}{}", &token[..at], self.added(dice))),
            3 => text.push_str(&format!("{} {}", &token[..at], &token[at..])),
            _ => text.push_str(&token.to_uppercase()),
        }
    }
}

fn prose(dice: &mut Dice, text: &mut String) {
    for _ in 0..1 + dice.below(14) {
        text.push_str(dice.pick(&PROSE));
        text.push_str(dice.pick(&[" ", " ", " ", " ", "  ", ", "]));
    }
}

fn markdown(dice: &mut Dice, text: &mut String) {
    let start = [
        "# ",
        "### ",
        "- ",
        "  * ",
        "1. ",
        "> ",
        "| a | b |\n|---|:-:|\n| ",
        "```rust\n",
        "**",
        "[x](",
        "\n\n",
        "    ",
        "---\n",
        "- [ ] ",
        "<b>",
        "$$\\frac{1}{2}$$ ",
    ];
    text.push_str(dice.pick(&start));
    prose(dice, text);
    text.push_str(dice.pick(&["\n", "\n\n", "  \n", "\r\n", "**\n", "`\n", " |\n", "```\n", ")\n"]));
}

fn code(dice: &mut Dice, text: &mut String) {
    let indent = dice.pick(&["", "    ", "        ", "\t", "\t\t", "  ", "            "]);
    let [one, two, three] = [(); 3].map(|()| dice.pick(&NAMES));
    let number = dice.below(100_000);
    let line = match dice.below(10) {
        0 => format!("{indent}fn {one}<'a>({two}: &'a mut {three}) -> Option<Vec<u8>> {{\n"),
        1 => format!("{indent}let {one} = {two}.iter().map(|{three}| {three} * {number}_usize)?;\n"),
        2 => format!(
            "{indent}def {one}({two}: str = '{three}', *args, **kwargs):\n{indent}    return {number}\n"
        ),
        3 => format!("{indent}if ({one} != NULL && {two}->{three} <= 0x{number:08X}) {{ ++{one}; }}\n"),
        4 => format!("{indent}// {one}: {two}\u{2026} 'll {three}\n"),
        5 => format!("#include <{one}.h>\r\n#define {two} \\\r\n    ({three} << {number})\r\n"),
        6 => format!("{indent}}}\n{indent}}} else {{\n\n\n{indent}\"{one}\\n\\t{two}\\u{number:04}\"\n"),
        7 => format!("{indent}for {one} in range({number}):  # {two}\n{indent}\t{three}+={one}**2;;\n"),
        8 => format!("<div class=\"{one}\"><a href='#{two}'>{three}&nbsp;</a></div>\n"),
        _ => format!("SELECT {one}, COUNT(*) FROM {two} WHERE {three} >= {number}.5e-3;\n"),
    };
    text.push_str(&line);
}

fn json(dice: &mut Dice, depth: usize, text: &mut String) {
    match dice.below(if depth < 4 { 6 } else { 4 }) {
        0 => text.push_str(&format!("-{}.{}e+{}", dice.below(1000), dice.below(1000), dice.below(30))),
        1 => text.push_str(dice.pick(&["true", "false", "null", "\"\"", "\"\\u00e9\\n\"", "\"\\\\\"", "0"])),
        2 | 3 => text.push_str(&format!("\"{} {}\"", dice.pick(&NAMES), dice.pick(&PROSE))),
        kind => {
            let pretty = dice.below(2) == 0;
            let (open, close) = if kind == 4 { ('{', '}') } else { ('[', ']') };
            text.push(open);
            for at in 0..dice.below(4) {
                text.push_str(if at > 0 { "," } else { "" });
                if pretty {
                    text.push('\n');
                    text.extend(std::iter::repeat_n(' ', 2 * depth + 2));
                }
                if kind == 4 {
                    text.push_str(&format!("\"{}\":", dice.pick(&NAMES)));
                    text.push_str(if pretty { " " } else { "" });
                }
                json(dice, depth + 1, text);
            }
            text.push(close);
        }
    }
}

/// Base64, hexadecimal, and numbers in rows.
fn encoded(dice: &mut Dice, text: &mut String) {
    let letters: &[u8] = dice.pick(&[
        &b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[..],
        b"0123456789abcdef",
        b"0123456789ABCDEF-",
        b"01",
        b"ACGT",
        b"0123456789 ",
    ]);
    let length = dice.length(1200);
    text.extend((0..length).map(|_| char::from(letters[dice.below(letters.len())])));
    text.push_str(dice.pick(&["", "=", "==", "\n"]));
}

fn address(dice: &mut Dice, text: &mut String) {
    text.push_str(dice.pick(&[
        "https://",
        "http://www.",
        "ftp://",
        "mailto:a.b+c@",
        "file:///",
        "C:\\",
        "../",
    ]));
    for _ in 0..1 + dice.below(8) {
        text.push_str(dice.pick(&NAMES));
        text.push_str(dice.pick(&["/", ".", "?q=", "&", "#", "%20", "%E4%B8%AD", "-", "=", ":8080/", "\\"]));
    }
}
