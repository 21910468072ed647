//! What the template engine does differently from Jinja in operators, written such that it does the same.
//!
//! `'…' % values` formats in Python; here it becomes a filter. `~` puts its operands together as Python prints them;
//! here an operand that may be other than text is turned into text before.

/// Filter that formats its value, a text with `%` in it, with its one argument.
pub(super) const FORMAT: &str = "_percent";

/// The template with those operators written in another way.
pub(super) fn rewritten(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = next_tag(rest) {
        let tag = &rest[start..];
        out.push_str(&rest[..start]);
        if tag.starts_with("{#") {
            let end = tag.find("#}").map_or(tag.len(), |end| end + 2);
            out.push_str(&tag[..end]);
            rest = &tag[end..];
            continue;
        }
        let Some(tokens) = Tokens::of_tag(tag) else {
            out.push_str(tag);
            return out;
        };
        let mut at = 0;
        for (place, text) in tokens.insertions() {
            out.push_str(&tag[at..place.start]);
            out.push_str(text);
            at = place.end;
        }
        out.push_str(&tag[at..tokens.end]);
        rest = &tag[tokens.end..];
        if tag.starts_with("{%") && tokens.first_is("raw") {
            let end = rest.find("endraw").unwrap_or(rest.len());
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

/// A tag that is no comment: a statement or an output.
pub(super) struct Tag<'t> {
    pub(super) is_statement: bool,
    pub(super) words: Vec<Word<'t>>,
}

/// A token of a tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Word<'t> {
    Name(&'t str),
    Number(&'t str),
    /// What stands between the quotes, as it is written there.
    Text(&'t str),
    Sign(&'t str),
}

/// The tags of `template`, without those that a `raw` block has as text. What follows one that does not end is left out.
pub(super) fn tags(template: &str) -> Vec<Tag<'_>> {
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
            rest = rest.find("endraw").map_or("", |end| &rest[end..]);
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
fn next_tag(text: &str) -> Option<usize> {
    ["{{", "{%", "{#"].into_iter().filter_map(|mark| text.find(mark)).min()
}

/// A tag's tokens.
struct Tokens<'t> {
    tag: &'t str,
    list: Vec<Token>,
    /// Behind the mark that ends the tag.
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    start: usize,
    end: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Name,
    Number,
    Text,
    Sign,
}

impl Token {
    fn text(self, tag: &str) -> &str {
        &tag[self.start..self.end]
    }
}

impl<'t> Tokens<'t> {
    /// The tokens of the tag that `tag` starts with; `None` where it does not end.
    fn of_tag(tag: &'t str) -> Option<Self> {
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

    fn first_is(&self, name: &str) -> bool {
        self.is(0, name)
    }

    fn is(&self, index: usize, text: &str) -> bool {
        self.list.get(index).is_some_and(|token| token.text(self.tag) == text)
    }

    /// What is to stand at which place instead of what stands there, in order.
    fn insertions(&self) -> Vec<(std::ops::Range<usize>, &'static str)> {
        let mut out = Vec::new();
        for index in 0..self.list.len() {
            if self.is(index, "~") {
                for end in [self.operand_before(index), self.operand_after(index)].into_iter().flatten() {
                    let place = self.list[end].end;
                    out.push((place..place, "|string"));
                }
            }
            let formats = self.is(index, "%") && index > 0 && self.list[index - 1].kind == Kind::Text;
            let end = self.end_of_operand(index + 1);
            if formats && index + 1 < end {
                out.push((self.list[index].start..self.list[index].end, "|_percent("));
                out.push((self.list[end - 1].end..self.list[end - 1].end, ")"));
            }
        }
        out.sort_by_key(|(place, text)| (place.start, *text == ")"));
        out.dedup();
        out
    }

    /// Whether an operand of `%` or `~` ends before this token.
    fn ends_operand(&self, token: Token) -> bool {
        match token.kind {
            Kind::Sign => {
                let text = token.text(self.tag);
                matches!(text, "," | ":" | "=" | "~" | "+" | "-" | "*" | "/" | "//" | "%")
                    || matches!(text, "==" | "!=" | "<" | ">" | "<=" | ">=")
            }
            Kind::Name => {
                matches!(
                    token.text(self.tag),
                    "if" | "else" | "and" | "or" | "in" | "not" | "is" | "recursive"
                )
            }
            Kind::Number | Kind::Text => false,
        }
    }

    /// Last token of the operand before `index`, where it is one whose value may be no text: a name or a bracket with
    /// attributes, items, calls and filters behind it.
    fn operand_before(&self, index: usize) -> Option<usize> {
        let end = index.checked_sub(1)?;
        let mut start = index;
        let mut open = 0usize;
        while let Some(at) = start.checked_sub(1) {
            let token = self.list[at];
            match token.text(self.tag) {
                ")" | "]" | "}" => open += 1,
                "(" | "[" | "{" if open == 0 => break,
                "(" | "[" | "{" => open -= 1,
                _ if open == 0 && (self.ends_operand(token) || at == 0 && self.tag.starts_with("{%")) => {
                    break;
                }
                _ => {}
            }
            start = at;
        }
        let before = start.checked_sub(1).map(|at| self.list[at].text(self.tag));
        let binds_tighter = matches!(before, Some("*" | "/" | "//" | "%" | "-" | "+" | "is" | "not"));
        (!binds_tighter && self.is_plain(start, end)).then_some(end)
    }

    /// The same behind `index`.
    fn operand_after(&self, index: usize) -> Option<usize> {
        let end = self.end_of_operand(index + 1);
        let after = self.list.get(end).map(|token| token.text(self.tag));
        let binds_tighter = matches!(after, Some("*" | "/" | "//" | "%" | "is"));
        (!binds_tighter && index + 1 < end && self.is_plain(index + 1, end - 1)).then(|| end - 1)
    }

    /// Behind the last token of the operand that begins at `start`.
    fn end_of_operand(&self, start: usize) -> usize {
        let mut open = 0usize;
        let mut end = start;
        while let Some(token) = self.list.get(end) {
            match token.text(self.tag) {
                "(" | "[" | "{" => open += 1,
                ")" | "]" | "}" if open == 0 => break,
                ")" | "]" | "}" => open -= 1,
                _ if open == 0 && start < end && self.ends_operand(*token) => break,
                _ => {}
            }
            end += 1;
        }
        end
    }

    /// Whether tokens from `start` to `end` are an operand to which a filter may be added.
    fn is_plain(&self, start: usize, end: usize) -> bool {
        let is_text = start == end && self.list[start].kind == Kind::Text;
        let begins = match self.list[start].kind {
            Kind::Name | Kind::Number => true,
            Kind::Sign => matches!(self.list[start].text(self.tag), "(" | "[" | "{"),
            Kind::Text => start < end && self.list[start + 1].kind == Kind::Sign,
        };
        // A power binds tighter than a filter in Python and not here.
        let has_power = (start..=end).any(|at| self.is(at, "**"));
        begins && !is_text && !has_power
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_written_in_another_way() {
        for (template, want) in [
            ("{{ a ~ 'b' ~ c.d }}", "{{ a|string ~ 'b' ~ c.d|string }}"),
            ("{{ a ~ b ~ c }}", "{{ a|string ~ b|string ~ c|string }}"),
            ("{%- if x == a ~ f(b, 'c')[0] -%}", "{%- if x == a|string ~ f(b, 'c')[0]|string -%}"),
            (
                "{% set x = a.b|trim ~ [c ~ d] %}",
                "{% set x = a.b|trim|string ~ [c|string ~ d|string]|string %}",
            ),
            ("{{ a * b ~ c is none ~ -d }}", "{{ a * b ~ c is none ~ -d }}"),
            ("{{ (a if b else c) ~ d if e }}", "{{ (a if b else c)|string ~ d|string if e }}"),
            ("{{ '%s' % x }}", "{{ '%s' |_percent( x) }}"),
            ("{{ f('%s-%d' % (a, b), c) }}", "{{ f('%s-%d' |_percent( (a, b)), c) }}"),
            ("{{ '%s' % x|upper ~ '!' }}", "{{ '%s' |_percent( x|upper) ~ '!' }}"),
            ("{{ a % 2 }} ~ {# a ~ b #}", "{{ a % 2 }} ~ {# a ~ b #}"),
            (
                "{% raw %}{{ a ~ b }}{% endraw %}{{ '}}' ~ a }}",
                "{% raw %}{{ a ~ b }}{% endraw %}{{ '}}' ~ a|string }}",
            ),
            ("{{ {'a': {}} ~ b }}", "{{ {'a': {}}|string ~ b|string }}"),
            ("{{ a ~ ", "{{ a ~ "),
        ] {
            assert_eq!(rewritten(template), want);
        }
    }
}
