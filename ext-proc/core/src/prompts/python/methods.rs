//! Methods of Python's strings, where the engine's own differ from them or are missing.

use minijinja::{
    Error, ErrorKind, State,
    value::{Tuple, Value, ValueKind, from_args},
};
use minijinja_contrib::pycompat;

use super::{
    args::{Args, is_given},
    print::write_str,
};

/// White space to Python's `str.strip` and `str.split`: Unicode's, and four separators of ASCII.
pub(crate) fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\x1c'..='\x1f')
}

/// Calls a method that a value does not have by itself.
pub(crate) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return match (value.kind(), method) {
            (ValueKind::Seq | ValueKind::Map, "copy") => from_args::<()>(args).map(|()| value.clone()),
            _ => pycompat::unknown_method_callback(state, value, method, args),
        };
    };
    Ok(match method {
        "strip" => Value::from(strip(text, args, true, true)?),
        "lstrip" => Value::from(strip(text, args, true, false)?),
        "rstrip" => Value::from(strip(text, args, false, true)?),
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "splitlines" => list(split_lines(text, args)?),
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found =
                if method == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match (found, method) {
                (Some((before, after)), _) => [before, separator, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "title" => {
            from_args::<()>(args)?;
            Value::from(title(text))
        }
        "swapcase" => {
            from_args::<()>(args)?;
            let swap =
                |char: char| if char.is_uppercase() { char.to_lowercase().to_string() } else { upper(char) };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(args)?;
            Value::from(expand_tabs(text, size.unwrap_or(8).min(MAX_TAB)))
        }
        "zfill" | "center" | "ljust" | "rjust" => padded(state, text, method, args)?,
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let mut out = String::new();
            for (index, item) in items.try_iter()?.enumerate() {
                if item.as_str().is_none() {
                    let problem = format!("sequence item {index}: expected a string, found {}", item.kind());
                    return Err(Error::new(ErrorKind::InvalidOperation, problem));
                }
                if index > 0 {
                    state.consume_fuel(1 + text.len() as u64 / 64)?;
                    out.push_str(text);
                }
                write_str(&mut out, &item);
            }
            Value::from(out)
        }
        _ => return pycompat::unknown_method_callback(state, value, method, args),
    })
}

/// `strip` and its halves; `args` may name the characters to take off.
fn strip<'t>(text: &'t str, args: &[Value], left: bool, right: bool) -> Result<&'t str, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let takes = |char: char| chars.map_or_else(|| is_space(char), |chars| chars.contains(char));
    let text = if left { text.trim_start_matches(takes) } else { text };
    Ok(if right { text.trim_end_matches(takes) } else { text })
}

fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
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

fn list(texts: Vec<&str>) -> Value {
    texts.into_iter().map(Value::from).collect()
}

/// Runs of white space cut; none is left at the ends, but the last part keeps what is inside it.
fn split_at_space(text: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(is_space);
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

pub(super) fn split_lines<'t>(text: &'t str, args: &[Value]) -> Result<Vec<&'t str>, Error> {
    let (keep,): (Option<bool>,) = from_args(args)?;
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(if keep == Some(true) { &rest[..at + width] } else { &rest[..at] });
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    Ok(lines)
}

fn upper(char: char) -> String {
    char.to_uppercase().to_string()
}

/// Every run of letters starts with a capital, also behind an apostrophe.
fn title(text: &str) -> String {
    let mut in_word = false;
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if in_word {
            out.extend(char.to_lowercase())
        } else {
            out.push_str(&upper(char))
        }
        in_word = char.is_alphabetic();
    }
    out
}

/// Columns per tab beyond which a template cannot mean it.
const MAX_TAB: usize = 64;

fn expand_tabs(text: &str, size: usize) -> String {
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
) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let width = usize::try_from(width).unwrap_or_default();
    let missing = width.saturating_sub(text.chars().count());
    let fill = fill.unwrap_or(" ");
    state.consume_fuel((missing as u64).saturating_mul(fill.len() as u64) / 64)?;
    Ok(Value::from(match method {
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
    }))
}
