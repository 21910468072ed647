//! What the template engine does differently from Jinja, written such that it does the same.
//!
//! Every expression is read by Jinja's own grammar and written again: operators whose result differs become filters,
//! `a + b` for example `a|_add(b)`, and so do items, slices and those attributes that are methods in Python. What a
//! loop goes over becomes a list, since only of lists the engine knows which item is the last.

mod expression;
mod lexer;
mod literal;
mod macros;
mod outline;
mod postfix;
mod statement;

pub(super) use lexer::{Tag, Word, tags};

use lexer::{Tokens, next_tag, raw_end};
use outline::Outline;

/// Names of the filters that expressions are written with.
pub(super) mod names {
    pub(in crate::prompts) const ADD: &str = "_add";
    pub(in crate::prompts) const SUB: &str = "_sub";
    pub(in crate::prompts) const MUL: &str = "_mul";
    pub(in crate::prompts) const DIV: &str = "_div";
    pub(in crate::prompts) const FLOOR_DIV: &str = "_floordiv";
    pub(in crate::prompts) const MOD: &str = "_mod";
    pub(in crate::prompts) const POW: &str = "_pow";
    pub(in crate::prompts) const NEG: &str = "_neg";
    pub(in crate::prompts) const POS: &str = "_pos";
    pub(in crate::prompts) const CONCAT: &str = "_concat";
    pub(in crate::prompts) const ATTR: &str = "_attr";
    pub(in crate::prompts) const ITEM: &str = "_item";
    pub(in crate::prompts) const SLICE: &str = "_slice";
    pub(in crate::prompts) const LOOP: &str = "_loop";
    pub(in crate::prompts) const GIVEN: &str = "_given";
    pub(in crate::prompts) const KEPT: &str = "_kept";
    pub(in crate::prompts) const KEY: &str = "_key";
    pub(in crate::prompts) const EQ: &str = "_eq";
    pub(in crate::prompts) const LT: &str = "_lt";
    pub(in crate::prompts) const LE: &str = "_le";
    pub(in crate::prompts) const GT: &str = "_gt";
    pub(in crate::prompts) const GE: &str = "_ge";
    pub(in crate::prompts) const IN: &str = "_in";
}

/// The template with its expressions written again; an error says what Jinja or the engine here does not take.
pub(super) fn rewritten(template: &str) -> Result<String, String> {
    let mut out = String::with_capacity(template.len() * 2);
    let mut outline = Outline::of(template)?;
    let mut rest = template;
    while let Some(start) = next_tag(rest) {
        let tag = &rest[start..];
        out.push_str(&rest[..start]);
        if tag.starts_with("{#") {
            let end = tag.find("#}").ok_or("a comment does not end")? + 2;
            out.push_str(&tag[..end]);
            rest = &tag[end..];
            continue;
        }
        let tokens = Tokens::of_tag(tag).ok_or("a tag does not end")?;
        rest = &tag[tokens.end..];
        if tag.starts_with("{%") && tokens.first_is("raw") {
            out.push_str(&tag[..tokens.end]);
            // The engine takes a line feed away here, which Jinja leaves.
            out.push_str(if rest.starts_with('\n') && !tag[..tokens.end].ends_with("-%}") {
                "\n"
            } else {
                ""
            });
            let end = raw_end(rest).ok_or("a raw block does not end")?;
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let begin = if tag[2..].starts_with(['-', '+']) { 3 } else { 2 };
        let finish =
            if tag[..tokens.end - 2].ends_with(['-', '+']) { tokens.end - 3 } else { tokens.end - 2 };
        out.push_str(&tag[..begin]);
        out.push(' ');
        let is_output = tag.starts_with("{{");
        if !is_output {
            outline.enter(&tokens);
            if outline.is_too_deep() {
                return Err("too many elif".into());
            }
        }
        let written = statement::rewritten(&tokens, is_output, &outline)?;
        out.push_str(&if is_output { written } else { outline.scoped(written)? });
        out.push(' ');
        out.push_str(&tag[finish..tokens.end]);
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_written_in_another_way() {
        for (template, want) in [
            ("{{ a ~ 'b' ~ c.d }}", "{{ a|_concat(\"b\", c.d) }}"),
            ("{%- if x == a ~ f(b, 'c')[0] -%}", "{%- if x|_eq(a|_concat((f(b, \"c\")|_item(0)))) -%}"),
            ("{{ -a ** 2 * b + +c }}", "{{ (a|_neg)|_pow(2, false)|_mul(b)|_add((c|_pos)) }}"),
            ("{{ (a if b else c) ~ d if e }}", "{{ (a if b else c)|_concat(d) if e }}"),
            ("{{ 'a' 'b' % x|upper }}", "{{ \"ab\"|_mod(x|upper) }}"),
            (
                "{{ a[1:][::2].items.items() }}",
                "{{ (((a|_slice(1,none,none))|_slice(none,none,2))|_attr(\"items\")).items() }}",
            ),
            ("{{ x is not in [1] and not y is none }}", "{{ x is not in([1]) and not y is none }}"),
            ("{{ 1_000 + 0x1F + 1.5e3 }}", "{{ 1000|_add(31)|_add(1.5e3) }}"),
            (
                "{% for k, v in d.items() if v recursive %}{{ loop(v) }}",
                "{% for k, v in d.items()|_loop(true) if v recursive %}{{ loop(v|_loop) }}",
            ),
            (
                "{% set a, b = 1, 2 %}{% set x | upper %}",
                "{% set a, b = (1, 2) %}{% set x|upper %}{% with %}",
            ),
            ("{% macro m(a, b='x') %}{% call(c) m(1) %}", "{% macro m(a, b = \"x\") %}{% call(c) m(1) %}"),
            ("{% raw %}{{ a ~ b }}{% endraw %}{{ '}}' }}", "{% raw %}{{ a ~ b }}{% endraw %}{{ \"}}\" }}"),
            ("{# a ~ b #}{{ {'a': {}, b: (1,)} }}", "{# a ~ b #}{{ {\"a\": {}, (b)|_key: ((1,))} }}"),
        ] {
            assert_eq!(rewritten(template).as_deref(), Ok(want));
        }
    }

    #[test]
    fn what_jinja_does_not_take_is_refused() {
        for template in
            ["{{ a ~ ", "{{ a b }}", "{% do x %}", "{{ self }}", "{{ a.b( }}", "{% for x %}", "{{ 'a' | }}"]
        {
            assert!(rewritten(template).is_err(), "{template}");
        }
    }
}
