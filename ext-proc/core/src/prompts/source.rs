//! What a template's text says before it is rendered.

use super::rewrite::{Tag, Word, tags};

/// Whether the template loops over a message's content, so that it wants parts and not one string.
///
/// vLLM finds this in the syntax tree; the rules are its own, so that what it overlooks is overlooked here. A message
/// is what a loop over `messages` runs through, or over a variable that stands for them, whole or through slices and
/// filters. Its content is looped over as it is, through slices and filters, as an argument of a macro, or under the
/// name `content`.
pub(super) fn wants_parts(template: &str) -> bool {
    let tags = tags(template);
    messages_of(&tags).and_then(|messages| loops_over_content(&tags, &messages)).unwrap_or(false)
}

/// Names of loops' variables that are messages. `None` where vLLM gives up.
fn messages_of<'t>(tags: &[Tag<'t>]) -> Option<Vec<&'t str>> {
    let mut lists = vec!["messages"];
    let mut at = 0;
    while let Some(list) = lists.get(at).copied() {
        for tag in tags.iter().filter(|tag| tag.is_statement) {
            let [Word::Name("set"), rest @ ..] = tag.words.as_slice() else { continue };
            let Some(sign) = rest.iter().position(|word| *word == Word::Sign("=")) else { continue };
            if is_access(&rest[sign + 1..], list, None) {
                let [Word::Name(name)] = rest[..sign] else { return None };
                if !lists.contains(&name) {
                    lists.push(name);
                }
            }
        }
        at += 1;
    }
    let loops = tags.iter().filter_map(Loop::of);
    let over_messages = loops.filter(|it| lists.iter().any(|list| is_access(it.over, list, None)));
    over_messages.map(|it| it.variable).collect()
}

fn loops_over_content(tags: &[Tag<'_>], messages: &[&str]) -> Option<bool> {
    let is_content = |value: &[Word<'_>]| messages.iter().any(|it| is_access(value, it, Some("content")));
    // Parameters that are given a content, of each macro that is open.
    let mut macros: Vec<Vec<&str>> = Vec::new();
    for tag in tags {
        match tag.words.as_slice() {
            [Word::Name("macro"), Word::Name(name), Word::Sign("("), signature @ ..] if tag.is_statement => {
                macros.push(parameters_given(tags, name, signature, is_content));
            }
            [Word::Name("endmacro"), ..] if tag.is_statement => _ = macros.pop(),
            _ => {}
        }
        let Some(it) = Loop::of(tag) else { continue };
        let by_name = match (it.over, macros.iter().rev().find(|parameters| !parameters.is_empty())) {
            ([Word::Name(name)], Some(parameters)) => parameters.contains(name),
            ([Word::Name(name)], None) => macros.is_empty() && *name == "content",
            _ => false,
        };
        if by_name || is_content(it.over) {
            return it.variable.map(|_| true);
        }
    }
    Some(false)
}

/// Those parameters in a macro's `signature` that some call of it gives a content.
fn parameters_given<'t>(
    tags: &[Tag<'_>],
    name: &str,
    signature: &[Word<'t>],
    is_content: impl Fn(&[Word<'_>]) -> bool,
) -> Vec<&'t str> {
    let parameters: Vec<&str> = arguments(signature)
        .filter_map(|argument| match argument {
            [Word::Name(parameter), ..] => Some(*parameter),
            _ => None,
        })
        .collect();
    let mut given = Vec::new();
    for words in tags.iter().map(|tag| tag.words.as_slice()) {
        for at in 0..words.len() {
            let is_call = words[at..].starts_with(&[Word::Name(name), Word::Sign("(")])
                && !at.checked_sub(1).is_some_and(|before| {
                    matches!(words[before], Word::Name("macro") | Word::Sign("." | "|"))
                });
            let Some(inside) = words.get(at + 2..).filter(|_| is_call) else { continue };
            for (index, argument) in arguments(inside).enumerate() {
                let (parameter, value) = match argument {
                    [Word::Name(name), Word::Sign("="), value @ ..] => {
                        (parameters.iter().find(|it| *it == name).copied(), value)
                    }
                    value => (parameters.get(index).copied(), value),
                };
                given.extend(parameter.filter(|_| is_content(value)));
            }
        }
    }
    given
}

/// The arguments that stand in `inside` up to the bracket that closes them.
fn arguments<'w, 't>(inside: &'w [Word<'t>]) -> impl Iterator<Item = &'w [Word<'t>]> {
    let inside = &inside[..closing(inside).unwrap_or(inside.len())];
    let mut depth = 0usize;
    let arguments = inside.split(move |word| {
        match word {
            Word::Sign("(" | "[" | "{") => depth += 1,
            Word::Sign(")" | "]" | "}") => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *word == Word::Sign(",")
    });
    arguments.filter(|argument| !argument.is_empty())
}

/// A `for` statement.
struct Loop<'w, 't> {
    /// `None` where it has several, which vLLM does not expect of the loops that it looks for.
    variable: Option<&'t str>,
    over: &'w [Word<'t>],
}

impl<'w, 't> Loop<'w, 't> {
    fn of(tag: &'w Tag<'t>) -> Option<Self> {
        let [Word::Name("for"), rest @ ..] = tag.words.as_slice() else { return None };
        let sign = rest.iter().position(|word| *word == Word::Name("in")).filter(|_| tag.is_statement)?;
        let variable = match rest[..sign] {
            [Word::Name(name)] => Some(name),
            _ => None,
        };
        let over = &rest[sign + 1..];
        let mut depth = 0usize;
        let end = over.iter().position(|word| {
            match word {
                Word::Sign("(" | "[" | "{") => depth += 1,
                Word::Sign(")" | "]" | "}") => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && matches!(word, Word::Name("if" | "recursive"))
        });
        Some(Self { variable, over: bare(&over[..end.unwrap_or(over.len())]) })
    }
}

/// A value without the brackets around it.
fn bare<'w, 't>(value: &'w [Word<'t>]) -> &'w [Word<'t>] {
    match value {
        [Word::Sign("("), inside @ ..] if closing(inside).is_some_and(|end| end + 1 == inside.len()) => {
            bare(&inside[..inside.len() - 1])
        }
        _ => value,
    }
}

/// Whether `value` is the variable, or its item of that `key`, whole or through filters, tests and slices.
fn is_access(value: &[Word<'_>], variable: &str, key: Option<&str>) -> bool {
    let rest = match (value, key) {
        ([Word::Sign("("), inside @ ..], _) => match closing(inside) {
            Some(end) if is_access(&inside[..end], variable, key) => &inside[end + 1..],
            _ => return false,
        },
        ([Word::Name(name), Word::Sign("."), Word::Name(item), rest @ ..], Some(key))
            if *name == variable && *item == key =>
        {
            rest
        }
        ([Word::Name(name), Word::Sign("["), Word::Text(item), Word::Sign("]"), rest @ ..], Some(key))
            if *name == variable && *item == key =>
        {
            rest
        }
        ([Word::Name(name), rest @ ..], None) if *name == variable => rest,
        _ => return false,
    };
    keeps_items(rest)
}

/// Whether what follows a value is slices, filters and tests alone.
fn keeps_items(mut rest: &[Word<'_>]) -> bool {
    loop {
        rest = match rest {
            [] => return true,
            [Word::Sign("|"), Word::Name(_), Word::Sign("("), inside @ ..] => match closing(inside) {
                Some(end) => &inside[end + 1..],
                None => return false,
            },
            [Word::Sign("|"), Word::Name(_), after @ ..] => after,
            [Word::Name("is"), Word::Name(_)] => return true,
            [Word::Sign("["), inside @ ..] => match closing(inside) {
                Some(end) if inside[..end].contains(&Word::Sign(":")) => &inside[end + 1..],
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
            Word::Sign("(" | "[" | "{") => depth += 1,
            Word::Sign(")" | "]" | "}") => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

/// Whether the template has a developer role of its own, by the same plain search that vLLM does.
pub(super) fn knows_developer(template: &str) -> bool {
    template.contains("'developer'") || template.contains("\"developer\"")
}

/// Whether the template has a `generation` tag.
pub(super) fn has_generation_tag(template: &str) -> bool {
    tags(template).iter().any(|tag| tag.is_statement && tag.words.first() == Some(&Word::Name("generation")))
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP: &str = "{% for m in messages %}";

    #[test]
    fn loops_over_content_want_parts() {
        for template in [
            "{% for c in m.content %}{% endfor %}",
            "{%- for c in m['content'] -%}",
            "{% for c in m[\"content\"]|list %}",
            "{% for c in m.content[1:] if c.type == 'text' %}",
            "{% for c in (m.content|default([]))[:2] %}",
            "{% set content = m.x %}{% for c in (content) %}",
            "{% macro show(a, b) %}{% for c in b %}{% endfor %}{% endmacro %}{{ show(1, m.content) }}",
            "{% macro show(parts) %}{% for c in parts %}{% endfor %}{% endmacro %}{{ show(parts=m.content|list) }}",
        ] {
            assert!(wants_parts(&format!("{LOOP}{template}")), "{template}");
        }
        let renamed = "{% set rest = messages[1:] %}{% set more = rest %}{% for x in more|list %}{% for c in x.content %}";
        assert!(wants_parts(renamed));
    }

    #[test]
    fn other_uses_of_content_want_text() {
        for template in [
            "{{ m.content }}{% endfor %}",
            "{% for c in m.content[0] %}",
            "{% for c in m.content.split('\n') %}",
            "{% for c in m.content + 'x' %}",
            "{% for c in other.content %}",
            "{% for a, b in m.content %}",
            "{# {% for c in m.content %} #}{% raw %}{% for c in m.content %}{% endraw %}",
            "{% set parts = m.content %}{% for c in parts %}",
            "{% for c in content|list %}",
            "{{ m.content|map('upper')|join('.') }}",
            "{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ show(m.text) }}",
        ] {
            assert!(!wants_parts(&format!("{LOOP}{template}")), "{template}");
        }
        assert!(!wants_parts("{% set first = messages[0] %}{% for c in first.content %}"));
        // vLLM gives up where messages are kept in a namespace.
        assert!(!wants_parts("{% set ns.m = messages %}{% for m in messages %}{% for c in m.content %}"));
    }

    #[test]
    fn the_generation_tag_becomes_a_scope() {
        assert_eq!(
            prepared("a\r\n{%- generation -%}{{ '%}' }}{%+ endgeneration %}\n"),
            "a\n{%- with -%}{{ '%}' }}{%+ endwith %}\n"
        );
    }
}
