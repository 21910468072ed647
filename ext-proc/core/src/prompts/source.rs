//! What a template's text says before it is rendered.

/// Whether the template loops over a message's content, so that it wants parts and not one string.
///
/// vLLM looks at the syntax tree for a loop over `content` of something, or over a variable that stands for it. Here
/// the statements are read as words, which is enough: such a loop is always a name, an attribute, filters and slices.
pub(super) fn wants_parts(template: &str) -> bool {
    let statements: Vec<Vec<Word<'_>>> = statements(template).map(words).collect();
    let mut aliases = vec!["content"];
    for statement in &statements {
        if let [Word::Name("set"), Word::Name(alias), Word::Sign('='), value @ ..] = statement.as_slice()
            && is_content(value, &aliases)
        {
            aliases.push(alias);
        }
    }
    statements.iter().any(|statement| looped_over(statement).is_some_and(|value| is_content(value, &aliases)))
}

/// Whether the template has a developer role of its own, by the same plain search that vLLM does.
pub(super) fn knows_developer(template: &str) -> bool {
    template.contains("'developer'") || template.contains("\"developer\"")
}

/// Whether the template has a `generation` tag.
pub(super) fn has_generation_tag(template: &str) -> bool {
    statements(template).any(|statement| statement.trim() == "generation")
}

/// The template as the engine here can take it: line ends as Jinja has them, and the `generation` tag, which
/// only marks what a model said for training, as a plain scope.
pub(super) fn prepared(template: &str) -> String {
    let text = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find("{%") {
        let end = tag_end(&rest[start..]).map(|length| start + length);
        let Some(end) = end else { break };
        let inside = &rest[start + 2..end - 2];
        let name = inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        out.push_str(&rest[..start]);
        match name {
            "generation" => out.push_str(&rest[start..end].replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&rest[start..end].replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Length of the tag that `text` starts with, both its marks included. Marks inside a string end nothing.
fn tag_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, b'%') if bytes.get(at + 1) == Some(&b'}') => return Some(at + 2),
            _ => {}
        }
        at += 1;
    }
    None
}

/// The insides of all `{% … %}` tags outside comments.
fn statements(template: &str) -> impl Iterator<Item = &str> {
    let mut rest = template;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find("{%")?;
            if let Some(comment) = rest.find("{#").filter(|comment| *comment < start) {
                let length = rest[comment..].find("#}")? + 2;
                rest = &rest[comment + length..];
                continue;
            }
            let end = start + tag_end(&rest[start..])?;
            let inside = &rest[start + 2..end - 2];
            rest = &rest[end..];
            return Some(inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']));
        }
    })
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Word<'a> {
    Name(&'a str),
    Text(&'a str),
    Sign(char),
}

fn words(statement: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = statement.trim_start();
    while let Some(first) = rest.chars().next() {
        let length;
        if first == '"' || first == '\'' {
            let inside = rest[1..].find(first).unwrap_or(rest.len() - 1);
            words.push(Word::Text(&rest[1..1 + inside]));
            length = (inside + 2).min(rest.len());
        } else if first.is_alphanumeric() || first == '_' {
            length = rest.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(rest.len());
            words.push(Word::Name(&rest[..length]));
        } else {
            length = first.len_utf8();
            words.push(Word::Sign(first));
        }
        rest = rest[length..].trim_start();
    }
    words
}

/// What a `for` statement loops over.
fn looped_over<'a, 'w>(statement: &'w [Word<'a>]) -> Option<&'w [Word<'a>]> {
    let [Word::Name("for"), rest @ ..] = statement else { return None };
    let from = rest.iter().position(|word| *word == Word::Name("in"))? + 1;
    let mut depth = 0usize;
    let to = rest[from..].iter().position(|word| {
        match word {
            Word::Sign('(' | '[' | '{') => depth += 1,
            Word::Sign(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && matches!(word, Word::Name("if" | "recursive"))
    });
    Some(&rest[from..to.map_or(rest.len(), |to| from + to)])
}

/// Whether `value` is a message's content, or a variable that stands for it, whole or through filters and slices.
fn is_content(value: &[Word<'_>], aliases: &[&str]) -> bool {
    let rest = match value {
        [Word::Name(_), Word::Sign('.'), Word::Name("content"), rest @ ..]
        | [Word::Name(_), Word::Sign('['), Word::Text("content"), Word::Sign(']'), rest @ ..] => rest,
        [Word::Name(name), rest @ ..] if aliases.contains(name) => rest,
        _ => return false,
    };
    keeps_items(rest)
}

/// Whether what follows a value is slices and filters alone.
fn keeps_items(mut rest: &[Word<'_>]) -> bool {
    loop {
        rest = match rest {
            [] => return true,
            [Word::Sign('|'), Word::Name(_), Word::Sign('('), inside @ ..] => match closing(inside) {
                Some(end) => &inside[end + 1..],
                None => return false,
            },
            [Word::Sign('|'), Word::Name(_), after @ ..] => after,
            [Word::Sign('['), inside @ ..] => match closing(inside) {
                Some(end) if inside[..end].contains(&Word::Sign(':')) => &inside[end + 1..],
                _ => return false,
            },
            _ => return false,
        };
    }
}

/// Place of the bracket that closes one opened just before `inside`.
fn closing(inside: &[Word<'_>]) -> Option<usize> {
    let mut depth = 1usize;
    inside.iter().position(|word| {
        match word {
            Word::Sign('(' | '[' | '{') => depth += 1,
            Word::Sign(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_over_content_want_parts() {
        for template in [
            "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{%- for c in message['content'] -%}",
            "{% for c in m[\"content\"]|list %}",
            "{% for c in m.content[1:] if c.type == 'text' %}",
            "{% set parts = m.content %}{% for c in parts %}",
            "{% macro show(content) %}{% for c in content %}",
        ] {
            assert!(wants_parts(template), "{template}");
        }
    }

    #[test]
    fn other_uses_of_content_want_text() {
        for template in [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for c in m.content[0] %}",
            "{% for c in m.content.split('\n') %}",
            "{% for c in m.content + 'x' %}",
            "{# {% for c in m.content %} #}{{ messages }}",
            "{% set parts = m.content|trim + 'x' %}{% for c in parts %}",
            "{{ m.content|map('upper')|join('.') }}",
        ] {
            assert!(!wants_parts(template), "{template}");
        }
    }

    #[test]
    fn the_generation_tag_becomes_a_scope() {
        assert_eq!(
            prepared("a\r\n{%- generation -%}{{ '%}' }}{%+ endgeneration %}\n"),
            "a\n{%- with -%}{{ '%}' }}{%+ endwith %}\n"
        );
    }
}
