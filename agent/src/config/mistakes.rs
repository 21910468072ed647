//! What is wrong with a configuration.

use std::fmt;

/// One thing that is wrong, with its field and what to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    /// As a path: `engines[1].listen`.
    pub field: String,
    /// What is wrong, and the remedy.
    pub what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.what)
    }
}

/// All that is wrong.
#[derive(Debug, Default)]
pub struct Mistakes(pub(super) Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(Mistake::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Mistakes {
    pub(super) fn add(&mut self, field: &str, what: impl Into<String>) {
        self.0.push(Mistake { field: field.to_owned(), what: what.into() });
    }
}
