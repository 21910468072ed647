//! What must be known of the rest of a template where an expression is read.

use std::collections::BTreeMap;

use super::lexer::{Tag, Tokens, Word, tags};

/// Macros of the template, and the blocks that are open.
pub(super) struct Outline {
    /// For each macro its parameters, and whether they have a default.
    pub(super) macros: BTreeMap<String, Vec<(String, bool)>>,
    open: Vec<Open>,
    /// For each loop whether it has `break` or `continue` and an `else`: to Jinja a round that does not come to its
    /// end is none, and the `else` follows.
    noted: Vec<bool>,
    loops: usize,
}

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
    pub(super) fn of(template: &str) -> Self {
        let mut macros = BTreeMap::new();
        let tags = tags(template);
        for tag in tags.iter().filter(|tag| tag.is_statement) {
            let [Word::Name("macro"), Word::Name(name), Word::Sign("("), signature @ ..] =
                tag.words.as_slice()
            else {
                continue;
            };
            macros.insert((*name).to_owned(), parameters(signature));
        }
        Self { macros, open: Vec::new(), noted: noted_loops(&tags), loops: 0 }
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
            _ => {}
        }
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
