//! The macros of a template, and which of them take more than their signature names.
//!
//! Jinja gives a macro that reads `varargs` or `kwargs` what a call has beyond its parameters. The engine has no form for
//! that, so they become parameters by that name, and every call of the macro gives them what is beyond the others. A macro
//! that is called by any other name than its own can't be written so, and is refused.

use std::collections::BTreeMap;

use super::lexer::{Tag, Word};

/// A macro of a template.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Macro {
    /// Its parameters, and whether they have a default.
    pub(super) parameters: Vec<(String, bool)>,
    /// Whether it reads `varargs`, arguments beyond its parameters.
    pub(super) varargs: bool,
    /// Whether it reads `kwargs`, arguments of other names.
    pub(super) kwargs: bool,
    /// Whether it reads `caller`.
    caller: bool,
}

impl Macro {
    /// Whether it takes what its signature does not name.
    pub(super) fn catches(&self) -> bool {
        self.varargs || self.kwargs
    }

    /// What goes behind the parameters of its signature.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &'static str> {
        let varargs = self.varargs.then_some("varargs = ()");
        varargs.into_iter().chain(self.kwargs.then_some("kwargs = {}"))
    }

    /// An attribute of it, as a literal.
    pub(super) fn attribute(&self, name: &str, of: &str) -> Option<String> {
        let bool = |it| Some(if it { "true" } else { "false" }.to_owned());
        match name {
            "name" => Some(format!("\"{of}\"")),
            "catch_varargs" => bool(self.varargs),
            "catch_kwargs" => bool(self.kwargs),
            "caller" => bool(self.caller),
            "arguments" => {
                let names: Vec<_> = self.parameters.iter().map(|(name, _)| format!("\"{name}\"")).collect();
                let comma = if names.len() == 1 { "," } else { "" };
                Some(format!("({}{comma})", names.join(", ")))
            }
            _ => None,
        }
    }
}

/// What is read of a macro while its body goes by.
enum Body {
    Macro(String),
    Call,
}

/// The macros, by name; an error says what can't be written for the engine.
pub(super) fn macros(tags: &[Tag<'_>]) -> Result<BTreeMap<String, Macro>, String> {
    let mut macros: BTreeMap<String, Macro> = BTreeMap::new();
    let mut open: Vec<Body> = Vec::new();
    for tag in tags {
        match tag.words.as_slice() {
            [Word::Name("macro"), Word::Name(name), Word::Sign("("), signature @ ..] if tag.is_statement => {
                let parameters = parameters(signature);
                if parameters.iter().any(|(it, _)| it == "varargs" || it == "kwargs") {
                    return Err("a parameter that is called varargs or kwargs".into());
                }
                let new = Macro { parameters, ..Macro::default() };
                if macros.insert((*name).to_owned(), new).is_some_and(|it| it.catches()) {
                    return Err(format!("a second macro {name}, and one of them reads varargs or kwargs"));
                }
                open.push(Body::Macro((*name).to_owned()));
            }
            [Word::Name("call"), ..] if tag.is_statement => {
                note(tag, &mut macros, &open)?;
                open.push(Body::Call);
            }
            [Word::Name("endmacro" | "endcall"), ..] if tag.is_statement => _ = open.pop(),
            _ => note(tag, &mut macros, &open)?,
        }
    }
    Ok(macros)
}

/// Notes what a tag in the body of a macro reads.
fn note(tag: &Tag<'_>, macros: &mut BTreeMap<String, Macro>, open: &[Body]) -> Result<(), String> {
    let Some(innermost) = open.last() else { return Ok(()) };
    for (at, word) in tag.words.iter().enumerate() {
        let Word::Name(name @ ("varargs" | "kwargs" | "caller")) = word else { continue };
        let is_attribute = at > 0 && tag.words[at - 1] == Word::Sign(".");
        let is_argument = tag.words.get(at + 1) == Some(&Word::Sign("="));
        let is_target = tag.is_statement
            && at == 1
            && matches!(tag.words.first(), Some(Word::Name("set" | "for" | "with")));
        if is_target && *name != "caller" {
            return Err(format!("{name} is set in a macro"));
        }
        if is_attribute || is_argument {
            continue;
        }
        match innermost {
            Body::Macro(of) => {
                let Some(it) = macros.get_mut(of) else { continue };
                match *name {
                    "varargs" => it.varargs = true,
                    "kwargs" => it.kwargs = true,
                    _ => it.caller = true,
                }
                if open.len() > 1 && *name != "caller" {
                    return Err(format!("{name} in a macro inside another"));
                }
            }
            Body::Call if *name != "caller" => return Err(format!("{name} in a call block")),
            Body::Call => {}
        }
    }
    Ok(())
}

fn parameters(signature: &[Word<'_>]) -> Vec<(String, bool)> {
    let mut parameters: Vec<(String, bool)> = Vec::new();
    let mut depth = 0usize;
    let mut begins = true;
    for word in signature {
        match word {
            Word::Sign("(" | "[" | "{") => depth += 1,
            Word::Sign(")") if depth == 0 => break,
            Word::Sign(")" | "]" | "}") => depth = depth.saturating_sub(1),
            Word::Sign(",") if depth == 0 => {
                begins = true;
                continue;
            }
            Word::Name(name) if begins => parameters.push(((*name).to_owned(), false)),
            Word::Sign("=") if depth == 0 => {
                if let Some((_, has_default)) = parameters.last_mut() {
                    *has_default = true;
                }
            }
            _ => {}
        }
        begins = false;
    }
    parameters
}
