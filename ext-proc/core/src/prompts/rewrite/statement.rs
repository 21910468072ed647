//! Statements, by Jinja's grammar.

use super::{expression::Parser, lexer::Tokens, macros::Macro, names, outline::Outline};

/// What stands in a tag, written for the engine.
pub(super) fn rewritten(tokens: &Tokens<'_>, is_output: bool, outline: &Outline) -> Result<String, String> {
    let mut parser = Parser::new(tokens, outline);
    let out = if is_output { parser.tuple()? } else { statement(&mut parser)? };
    parser.finish()?;
    Ok(out)
}

/// Brackets in what is assigned to beyond which a template cannot mean it.
const MOST_BRACKETS: usize = 100;

fn statement(parser: &mut Parser<'_, '_>) -> Result<String, String> {
    let tag = parser.name()?;
    Ok(match tag {
        "if" | "elif" => format!("{tag} {}", parser.tuple()?),
        "for" => looped(parser)?,
        "set" => assigned(parser)?,
        "macro" => {
            let name = parser.name()?;
            let outline = parser.outline;
            let (signature, late) = signature(parser, outline.macros.get(name))?;
            format!("macro {name}{signature}{late}")
        }
        "call" => {
            let (signature, late) =
                if parser.is("(") { signature(parser, None)? } else { <(String, String)>::default() };
            format!("call{signature} {}{late}", parser.expression()?)
        }
        "block" => {
            parser.name()?;
            "with".to_owned()
        }
        "endblock" => {
            if !parser.at_end() {
                parser.name()?;
            }
            "endwith".to_owned()
        }
        "filter" => {
            let filters = parser.filters(String::new())?;
            format!("filter {}", filters.trim_start_matches('|'))
        }
        "with" => {
            let mut parts = Vec::new();
            while !parser.at_end() {
                if !parts.is_empty() {
                    parser.expect(",")?;
                }
                let target = target(parser, &["="])?;
                parser.expect("=")?;
                parts.push(format!("{target} = {}", parser.expression()?));
            }
            format!("with {}", parts.join(", "))
        }
        "else" | "endif" | "endfor" | "endset" | "endmacro" | "endcall" | "endfilter" | "endwith"
        | "endraw" | "break" | "continue" => tag.to_owned(),
        _ => return Err(format!("the tag {tag} is not supported")),
    })
}

/// `for TARGET in VALUES [if CONDITION] [recursive]`.
fn looped(parser: &mut Parser<'_, '_>) -> Result<String, String> {
    let target = target(parser, &["in"])?;
    parser.expect("in")?;
    let values = parser.tuple_of(Parser::or)?;
    let mut out = format!("for {target} in {}|{}", parser.filterable(values), names::LOOP);
    if parser.skip("if") {
        out.push_str(if target.contains(',') { "(true) if " } else { " if " });
        out.push_str(&parser.expression()?);
    }
    if parser.skip("recursive") {
        out.push_str(" recursive");
    }
    Ok(out)
}

/// `set TARGET = VALUE`, or `set TARGET [| FILTERS]` at the start of a block.
fn assigned(parser: &mut Parser<'_, '_>) -> Result<String, String> {
    let target = target(parser, &["=", "|"])?;
    if parser.skip("=") {
        let value = parser.tuple()?;
        // What a namespace keeps grows from round to round of a loop.
        return Ok(match target.contains('.') {
            true => format!("set {target} = ({value})|{}", names::KEPT),
            false => format!("set {target} = {value}"),
        });
    }
    parser.filters(format!("set {target}"))
}

/// What is assigned to, up to one of the words in `ends`.
fn target(parser: &mut Parser<'_, '_>, ends: &[&str]) -> Result<String, String> {
    let (mut out, mut brackets) = (String::new(), 0);
    while !parser.at_end() && !ends.iter().any(|end| parser.is(end)) {
        let word = parser.next_text();
        brackets += usize::from(word == "(");
        if MOST_BRACKETS < brackets {
            return Err("what is assigned to is too deep in brackets".into());
        }
        if !word.starts_with(|char: char| char.is_alphabetic() || matches!(char, '_' | '.' | ',' | '(' | ')'))
        {
            return Err(format!("{word} in what is assigned to"));
        }
        out.push_str(word);
        out.push_str(if word == "," { " " } else { "" });
    }
    if out.is_empty() { Err("nothing to assign to".into()) } else { Ok(out) }
}

/// Parameters of a macro, with their brackets, and what its body has to begin with: defaults that are made of other
/// parameters, which the engine does not show them.
fn signature(parser: &mut Parser<'_, '_>, of: Option<&Macro>) -> Result<(String, String), String> {
    parser.expect("(")?;
    let (mut parameters, mut names, mut late) = (Vec::new(), Vec::new(), String::new());
    while !parser.is(")") {
        if !parameters.is_empty() {
            parser.expect(",")?;
        }
        let name = parser.name()?.to_owned();
        if !parser.skip("=") {
            names.push(name.clone());
            parameters.push(name);
            continue;
        }
        let start = parser.place();
        let default = parser.expression()?;
        if parser.words_from(start).any(|word| names.iter().any(|it| it == word)) {
            late += &format!(" %}}{{% if {name} is undefined %}}{{% set {name} = {default} %}}{{% endif");
            parameters.push(format!("{name} = _late"));
        } else {
            parameters.push(format!("{name} = {default}"));
        }
        names.push(name);
    }
    parser.expect(")")?;
    parameters.extend(of.into_iter().flat_map(Macro::hidden).map(str::to_owned));
    Ok((format!("({})", parameters.join(", ")), late))
}
