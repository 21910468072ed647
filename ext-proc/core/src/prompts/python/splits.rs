//! Methods of strings that take them apart, strip them and fill them up.

use minijinja::{
    Error, ErrorKind, State,
    value::{Value, from_args},
};

use super::{
    args::{Args, is_given},
    methods::is_space,
};

/// `strip` and its halves; `args` may name the characters to take off.
pub(super) fn strip<'t>(text: &'t str, args: &[Value], left: bool, right: bool) -> Result<&'t str, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let takes = |char: char| chars.map_or_else(|| is_space(char), |chars| chars.contains(char));
    let text = if left { text.trim_start_matches(takes) } else { text };
    Ok(if right { text.trim_end_matches(takes) } else { text })
}

pub(super) fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let [separator, most] = Args::of_method(args)?.bind(["sep", "maxsplit"])?;
    let most = if is_given(&most) { Some(i64::try_from(most)?) } else { None };
    let separator = separator.as_str();
    // A negative number of cuts means no limit.
    let most =
        most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(separator) if from_right => text.rsplitn(most, separator).collect(),
        Some(separator) => text.splitn(most, separator).collect(),
        None => split_at_space(text, most, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(list(parts))
}

pub(super) fn list(texts: Vec<&str>) -> Value {
    texts.into_iter().map(Value::from).collect()
}

/// Runs of white space cut, which the last part keeps where there are no more cuts.
fn split_at_space(text: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest =
        if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() + 1 < most) else {
            parts.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        if from_right {
            parts.push(&rest[at + width..]);
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            parts.push(&rest[..at]);
            rest = rest[at + width..].trim_start_matches(is_space);
        }
    }
    parts
}

/// Lines by all of Unicode's line ends, with these where `keeps` says so.
pub(super) fn split_lines(text: &str, keeps: bool) -> Vec<&str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(if keeps { &rest[..at + width] } else { &rest[..at] });
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Columns per tab beyond which a template cannot mean it.
pub(super) const MAX_TAB: usize = 64;

pub(super) fn expand_tabs(text: &str, size: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for char in text.chars() {
        match char {
            '\t' => {
                let width = if size == 0 { 0 } else { size - column % size };
                out.push_str(&" ".repeat(width));
                column += width;
            }
            '\n' | '\r' => {
                out.push(char);
                column = 0;
            }
            _ => {
                out.push(char);
                column += 1;
            }
        }
    }
    out
}

pub(super) fn padded(
    state: &State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<String, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let width = usize::try_from(width).unwrap_or_default();
    let missing = width.saturating_sub(text.chars().count());
    let fill = fill.unwrap_or(" ");
    state.consume_fuel((missing as u64).saturating_mul(fill.len() as u64) / 64)?;
    Ok(match method {
        "ljust" => format!("{text}{}", fill.repeat(missing)),
        "rjust" => format!("{}{text}", fill.repeat(missing)),
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        _ => {
            // An odd space goes left where the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))
        }
    })
}
