//! What must be known of the rest of a template where an expression is read.

use std::collections::BTreeMap;

use super::lexer::{Tokens, Word, tags};

/// Macros of the template, and the blocks that are open.
pub(super) struct Outline {
    /// For each macro its parameters, and whether they have a default.
    pub(super) macros: BTreeMap<String, Vec<(String, bool)>>,
    open: Vec<Open>,
}

/// A block that may have an `else`.
enum Open {
    If,
    For {
        is_recursive: bool,
        /// Whether its `else` is open.
        is_else: bool,
    },
}

impl Outline {
    pub(super) fn of(template: &str) -> Self {
        let mut macros = BTreeMap::new();
        for tag in tags(template).iter().filter(|tag| tag.is_statement) {
            let [Word::Name("macro"), Word::Name(name), Word::Sign("("), signature @ ..] =
                tag.words.as_slice()
            else {
                continue;
            };
            macros.insert((*name).to_owned(), parameters(signature));
        }
        Self { macros, open: Vec::new() }
    }

    /// Notes a statement that is read next.
    pub(super) fn enter(&mut self, tokens: &Tokens<'_>) {
        let is_recursive = tokens.list.last().is_some_and(|token| token.text(tokens.tag) == "recursive");
        match tokens.list.first().map_or("", |token| token.text(tokens.tag)) {
            "for" => self.open.push(Open::For { is_recursive, is_else: false }),
            "if" => self.open.push(Open::If),
            _ => {}
        }
    }

    /// Notes that a statement was read. Answers `written` with a scope of its own for what it begins or ends, where
    /// Jinja has one: what is set there is not seen outside.
    pub(super) fn scoped(&mut self, written: String) -> String {
        match (written.as_str(), self.open.last_mut()) {
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
        }
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
