//! A template taken apart into tags, and tags into words.

/// A tag that is no comment: a statement or an output.
pub(in crate::prompts) struct Tag<'t> {
    pub(in crate::prompts) is_statement: bool,
    pub(in crate::prompts) words: Vec<Word<'t>>,
}

/// A token of a tag.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(in crate::prompts) enum Word<'t> {
    Name(&'t str),
    Number(&'t str),
    /// What stands between the quotes, as it is written there.
    Text(&'t str),
    Sign(&'t str),
}

/// The tags of `template`, without those that a `raw` block has as text. What follows one that does not end is left out.
pub(in crate::prompts) fn tags(template: &str) -> Vec<Tag<'_>> {
    let mut out = Vec::new();
    let mut rest = template;
    while let Some(start) = next_tag(rest) {
        let tag = &rest[start..];
        if tag.starts_with("{#") {
            rest = tag.find("#}").map_or("", |end| &tag[end + 2..]);
            continue;
        }
        let Some(tokens) = Tokens::of_tag(tag) else { break };
        rest = &tag[tokens.end..];
        let is_statement = tag.starts_with("{%");
        if is_statement && tokens.first_is("raw") {
            rest = raw_end(rest).map_or("", |end| &rest[end..]);
            continue;
        }
        let word = |token: &Token| match token.kind {
            Kind::Name => Word::Name(token.text(tag)),
            Kind::Number => Word::Number(token.text(tag)),
            Kind::Text => Word::Text(&tag[token.start + 1..token.end - 1]),
            Kind::Sign => Word::Sign(token.text(tag)),
        };
        out.push(Tag { is_statement, words: tokens.list.iter().map(word).collect() });
    }
    out
}

/// Where the next tag or comment begins.
pub(super) fn next_tag(text: &str) -> Option<usize> {
    ["{{", "{%", "{#"].into_iter().filter_map(|mark| text.find(mark)).min()
}

/// Where the tag begins that ends a `raw` block.
pub(super) fn raw_end(text: &str) -> Option<usize> {
    text.match_indices("{%").map(|(at, _)| at).find(|at| {
        let inside = text[at + 2..].trim_start_matches(['-', '+']);
        inside.trim_start().starts_with("endraw")
    })
}

/// A tag's tokens.
pub(super) struct Tokens<'t> {
    pub(super) tag: &'t str,
    pub(super) list: Vec<Token>,
    /// Behind the mark that ends the tag.
    pub(super) end: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Name,
    Number,
    Text,
    Sign,
}

impl Token {
    pub(super) fn text(self, tag: &str) -> &str {
        &tag[self.start..self.end]
    }
}

impl<'t> Tokens<'t> {
    /// The tokens of the tag that `tag` starts with; `None` where it does not end.
    pub(super) fn of_tag(tag: &'t str) -> Option<Self> {
        let close = if tag.starts_with("{{") { "}}" } else { "%}" };
        let mut list = Vec::new();
        let mut depth = 0usize;
        let mut at = if tag[2..].starts_with(['-', '+']) { 3 } else { 2 };
        loop {
            let rest = &tag[at..];
            let first = rest.chars().next()?;
            let behind_mark = if matches!(first, '-' | '+') { &rest[1..] } else { rest };
            if depth == 0 && behind_mark.starts_with(close) {
                let end = at + rest.len() - behind_mark.len() + close.len();
                return Some(Self { tag, list, end });
            }
            let (kind, length) = match first {
                _ if first.is_whitespace() => {
                    at += first.len_utf8();
                    continue;
                }
                '"' | '\'' => (Kind::Text, text_length(rest, first)?),
                _ if first.is_ascii_digit() => (Kind::Number, number_length(rest)),
                _ if first.is_alphanumeric() || first == '_' => {
                    let length = rest.find(|char: char| !char.is_alphanumeric() && char != '_');
                    (Kind::Name, length.unwrap_or(rest.len()))
                }
                _ => {
                    let is_double =
                        ["**", "//", "==", "!=", ">=", "<="].iter().any(|it| rest.starts_with(it));
                    (Kind::Sign, if is_double { 2 } else { first.len_utf8() })
                }
            };
            if matches!(first, ')' | ']' | '}') {
                depth = depth.saturating_sub(1);
            }
            list.push(Token { start: at, end: at + length, kind });
            if matches!(first, '(' | '[' | '{') {
                depth += 1;
            }
            at += length;
        }
    }

    pub(super) fn first_is(&self, name: &str) -> bool {
        self.list.first().is_some_and(|token| token.text(self.tag) == name)
    }
}

/// Length of the string literal at the start of `rest`, quotes included.
fn text_length(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    rest.char_indices().skip(1).find_map(|(at, char)| match char {
        _ if escaped => {
            escaped = false;
            None
        }
        '\\' => {
            escaped = true;
            None
        }
        char => (char == quote).then_some(at + 1),
    })
}

/// Length of the number at the start of `rest`. A point ends it unless a digit follows, as in `1.5` and not `1.x`.
fn number_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        let is_point = bytes[at] == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        let is_sign = matches!(bytes[at], b'-' | b'+')
            && matches!(bytes[at - 1], b'e' | b'E')
            && !rest.starts_with("0x")
            && bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        if !bytes[at].is_ascii_alphanumeric() && bytes[at] != b'_' && !is_point && !is_sign {
            break;
        }
        at += 1;
    }
    at
}
