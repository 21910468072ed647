//! `str()` and `repr()`.

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind,
    value::{Value, ValueKind},
};

use super::objects::{Range, Type, View, type_of};
use crate::prompts::template::LONGEST_TEXT;

/// Values in one another beyond which a template cannot mean to print them.
const DEEPEST: usize = 300;

/// What Python's `str(value)` gives; nothing for an undefined value.
///
/// # Errors
///
/// Values that print where they are in memory, as functions do, and lists of such.
pub(crate) fn str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_str(&mut out, value)?;
    Ok(out)
}

/// Appends what Python's `str(value)` gives.
pub(crate) fn write_str(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_repr(out, value, DEEPEST)?,
    }
    Ok(())
}

/// What Python's `repr(value)` gives.
pub(crate) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, DEEPEST)?;
    Ok(out)
}

/// Appends what Python's `repr(value)` gives.
fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    let depth = depth.checked_sub(1).filter(|_| out.len() <= LONGEST_TEXT).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "a value too long or too deep to be printed")
    })?;
    match type_of(value) {
        Type::Undefined => out.push_str("Undefined"),
        Type::None => out.push_str("None"),
        Type::Number if value.kind() == ValueKind::Bool => {
            out.push_str(if value.is_true() { "True" } else { "False" });
        }
        Type::Number => match float(value) {
            Some(float) => out.push_str(&float_repr(float)),
            None => _ = write!(out, "{value}"),
        },
        Type::Text if value.is_safe() => {
            out.push_str("Markup(");
            write_quoted(out, value.as_str().unwrap_or_default());
            out.push(')');
        }
        Type::Text => write_quoted(out, value.as_str().unwrap_or_default()),
        Type::List => write_items(out, '[', value, ']', depth)?,
        Type::Tuple => write_items(out, '(', value, ')', depth)?,
        Type::Dict => write_dict(out, value, depth)?,
        Type::Range => {
            let range = value.downcast_object_ref::<Range>().copied();
            let Range { start, stop, step } = range.unwrap_or(Range { start: 0, stop: 0, step: 1 });
            _ = match step {
                1 => write!(out, "range({start}, {stop})"),
                step => write!(out, "range({start}, {stop}, {step})"),
            };
        }
        Type::View => {
            let name = value.downcast_object_ref::<View>().map_or("", |view| view.name);
            out.push_str(name);
            out.push('(');
            write_items(out, '[', value, ']', depth)?;
            out.push(')');
        }
        Type::Macro => {
            out.push_str("<Macro ");
            write_repr(out, &value.get_attr("name")?, depth)?;
            out.push('>');
        }
        Type::Loop => {
            let (index, length) = (value.get_attr("index")?, value.get_attr("length")?);
            _ = write!(out, "<LoopContext {index}/{length}>");
        }
        // The engine forgets in which order the values of a namespace came.
        Type::Namespace if value.len().is_some_and(|len| len < 2) => {
            out.push_str("<Namespace ");
            write_dict(out, value, depth)?;
            out.push('>');
        }
        Type::BigInt => _ = write!(out, "{value}"),
        Type::Namespace | Type::Other => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("{} cannot be printed", value.kind()),
            ));
        }
    }
    Ok(())
}

fn write_items(out: &mut String, open: char, value: &Value, close: char, depth: usize) -> Result<(), Error> {
    out.push(open);
    let mut count = 0;
    for item in value.try_iter()? {
        out.push_str(if count > 0 { ", " } else { "" });
        write_repr(out, &item, depth)?;
        count += 1;
    }
    out.push_str(if open == '(' && count == 1 { "," } else { "" });
    out.push(close);
    Ok(())
}

fn write_dict(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    out.push('{');
    for (index, key) in value.try_iter()?.enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        write_repr(out, &key, depth)?;
        out.push_str(": ");
        write_repr(out, &value.get_item(&key)?, depth)?;
    }
    out.push('}');
    Ok(())
}

/// The number of a value that is a float and no integer.
pub(crate) fn float(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer())
        .then(|| f64::try_from(value.clone()).ok())
        .flatten()
}

/// Python's `repr` of a float: the shortest digits that read back the same, with an exponent from 1e16 on and below
/// 1e-4.
pub(crate) fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "nan".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => {
            let plain = float.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

/// A string as Python's `repr` writes it: single quotes unless only those are inside, and no character that does not
/// print.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            char if char == quote => {
                out.push('\\');
                out.push(char);
            }
            ' '..='~' => out.push(char),
            char if is_printable(char) => out.push(char),
            char => {
                let code = u32::from(char);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python prints what is no control, format, surrogate, private, unassigned or separator character, and so does
/// Rust's escaping of text. Combining marks print too, so the character stands behind another one here.
pub(super) fn is_printable(char: char) -> bool {
    if char.is_ascii() {
        return matches!(char, ' '..='~');
    }
    let mut pair = String::from("a");
    pair.push(char);
    pair.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (float, want) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e5, "100000.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_678.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e-7, "1e-07"),
            (5e-324, "5e-324"),
            (1e22, "1e+22"),
            (0.1 + 0.2, "0.30000000000000004"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_repr(float), want);
        }
    }

    #[test]
    fn strings_in_lists_are_quoted_as_in_python() {
        for (text, want) in [
            ("a'b", "\"a'b\""),
            ("a\"b", "'a\"b'"),
            ("both'\"", "'both\\'\"'"),
            ("\t\n\r\\", "'\\t\\n\\r\\\\'"),
            ("\u{e9}\u{1f468}e\u{301}", "'\u{e9}\u{1f468}e\u{301}'"),
            ("\u{200b}\u{a0}\u{7f}\u{2028}\u{0}", "'\\u200b\\xa0\\x7f\\u2028\\x00'"),
            ("\u{e0001}", "'\\U000e0001'"),
        ] {
            assert_eq!(str(&Value::from(vec![text])).ok(), Some(format!("[{want}]")));
        }
    }
}
