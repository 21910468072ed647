//! How long what an engine says may be. What is said goes on to every server and into every status, so that one text of
//! some megabytes would cut a whole node off.

/// Longest text that is taken from an engine, in bytes; a longer one counts as absent.
pub(crate) const MAX_TEXT: usize = 256;

/// Longest list that is taken from an engine; what comes after is left out.
pub(crate) const MAX_LIST: usize = 1_024;

/// Whether a text is short enough to be taken.
pub(crate) const fn fits(text: &str) -> bool {
    text.len() <= MAX_TEXT
}
