//! What must be known of the rest of a template where an expression is read.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    lexer::{Tag, Tokens, Word, tags},
    macros::{Macro, macros},
};

/// Macros of the template, and the blocks that are open.
pub(super) struct Outline {
    /// The macros, by name.
    pub(super) macros: BTreeMap<String, Macro>,
    open: Vec<Open>,
    /// For each loop whether it has `break` or `continue` and an `else`: to Jinja a round that does not come to its
    /// end is none, and the `else` follows.
    noted: Vec<bool>,
    loops: usize,
    elifs: usize,
}

/// `elif` in a template beyond which it cannot mean them.
const MOST_ELIFS: usize = 500;

/// A block that may have an `else`.
enum Open {
    If,
    For {
        is_recursive: bool,
        /// Its number, where rounds that come to their end are noted.
        noted: Option<usize>,
        /// Whether its `else` is open.
        is_else: bool,
    },
}

impl Outline {
    /// An error says what can't be written for the engine.
    pub(super) fn of(template: &str) -> Result<Self, String> {
        let tags = tags(template);
        check_blocks(&tags)?;
        Ok(Self { macros: macros(&tags)?, open: Vec::new(), noted: noted_loops(&tags), loops: 0, elifs: 0 })
    }

    /// Notes a statement that is read next.
    pub(super) fn enter(&mut self, tokens: &Tokens<'_>) {
        let is_recursive = tokens.list.last().is_some_and(|token| token.text(tokens.tag) == "recursive");
        match tokens.list.first().map_or("", |token| token.text(tokens.tag)) {
            "for" => {
                let noted = self.noted.get(self.loops).is_some_and(|noted| *noted).then_some(self.loops);
                self.loops += 1;
                self.open.push(Open::For { is_recursive, noted, is_else: false });
            }
            "if" => self.open.push(Open::If),
            "elif" => self.elifs += 1,
            _ => {}
        }
    }

    /// Whether there are more `elif` than a template can mean: the engine takes them one inside the other.
    pub(super) fn is_too_deep(&self) -> bool {
        MOST_ELIFS < self.elifs
    }

    /// Notes that a statement was read. Answers `written` with a scope of its own for what it begins or ends, where
    /// Jinja has one: what is set there is not seen outside.
    pub(super) fn scoped(&mut self, written: String) -> Result<String, String> {
        Ok(match (written.as_str(), self.open.last_mut()) {
            (_, Some(Open::For { is_recursive, noted: Some(number), is_else: false }))
                if written.starts_with("for ") =>
            {
                if *is_recursive {
                    return Err("a recursive loop with break or continue that has an else".into());
                }
                format!("set _rounds{number} = namespace(ended=false) %}}{{% {written}")
            }
            ("else", Some(Open::For { noted: Some(number), is_else, .. })) => {
                *is_else = true;
                format!(
                    "set _rounds{number}.ended = true %}}{{% endfor %}}{{% if not _rounds{number}.ended %}}{{% with"
                )
            }
            ("endfor", Some(Open::For { noted: Some(_), .. })) => {
                self.open.pop();
                "endwith %}{% endif".to_owned()
            }
            ("else", Some(Open::For { is_else, .. })) => {
                *is_else = true;
                format!("{written} %}}{{% with")
            }
            ("endfor", Some(Open::For { is_else, .. })) => {
                let ends_else = *is_else;
                self.open.pop();
                if ends_else { format!("endwith %}}{{% {written}") } else { written }
            }
            ("endif", _) => {
                self.open.pop();
                written
            }
            ("endset" | "endfilter", _) => format!("endwith %}}{{% {written}"),
            _ if is_captured(&written) => format!("{written} %}}{{% with"),
            _ => written,
        })
    }

    /// Whether the innermost loop is inside another one that is recursive: the engine counts their depths together.
    pub(super) fn is_deep_in_recursion(&self) -> bool {
        let mut loops = self.open.iter().rev().filter_map(|open| match open {
            Open::For { is_recursive, .. } => Some(*is_recursive),
            Open::If => None,
        });
        loops.next();
        loops.any(|is_recursive| is_recursive)
    }
}

/// Whether a written statement begins a block whose text is not printed but set, or goes through filters.
fn is_captured(written: &str) -> bool {
    let target = written.split(['|', '"']).next().unwrap_or_default();
    written.starts_with("filter ") || written.starts_with("set ") && !target.contains(" = ")
}

/// That each `block` can be a plain scope: there is no other template that would fill it in, and it stands where Jinja lets
/// it see what is around it.
fn check_blocks(tags: &[Tag<'_>]) -> Result<(), String> {
    let (mut names, mut open) = (BTreeSet::new(), Vec::new());
    let mut depth = 0usize;
    for tag in tags.iter().filter(|tag| tag.is_statement) {
        let is_block_of_set = || !tag.words.contains(&Word::Sign("="));
        match tag.words.first() {
            Some(Word::Name("for" | "macro" | "call" | "filter" | "with")) => depth += 1,
            Some(Word::Name("set")) if is_block_of_set() => depth += 1,
            Some(Word::Name("endfor" | "endmacro" | "endcall" | "endfilter" | "endwith" | "endset")) => {
                depth = depth.saturating_sub(1);
            }
            Some(Word::Name("block")) => {
                if depth > 0 {
                    return Err("a block that does not see all that is around it".into());
                }
                if !names.insert(tag.words.get(1).copied()) {
                    return Err("a block that is defined twice".into());
                }
                open.push(tag.words.get(1).copied());
            }
            Some(Word::Name("endblock")) => {
                let (begun, ended) = (open.pop().flatten(), tag.words.get(1).copied());
                if ended.is_some_and(|it| Some(it) != begun) {
                    return Err("a block that ends by another name".into());
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// For each loop whether it has `break` or `continue` and an `else`.
fn noted_loops(tags: &[Tag<'_>]) -> Vec<bool> {
    let (mut jumps, mut elses): (Vec<bool>, Vec<bool>) = (Vec::new(), Vec::new());
    // Numbers of the loops that are open, and `None` for conditions.
    let mut open: Vec<Option<usize>> = Vec::new();
    for tag in tags.iter().filter(|tag| tag.is_statement) {
        match (tag.words.first(), open.last()) {
            (Some(Word::Name("for")), _) => {
                open.push(Some(jumps.len()));
                jumps.push(false);
                elses.push(false);
            }
            (Some(Word::Name("if")), _) => open.push(None),
            (Some(Word::Name("endfor" | "endif")), _) => _ = open.pop(),
            (Some(Word::Name("break" | "continue")), _) => {
                if let Some(number) = open.iter().rev().find_map(|open| *open) {
                    jumps[number] = true;
                }
            }
            (Some(Word::Name("else")), Some(Some(number))) => elses[*number] = true,
            _ => {}
        }
    }
    jumps.iter().zip(elses).map(|(jump, has_else)| *jump && has_else).collect()
}
