//! `str()` and `repr()`.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};

/// What Python's `str(value)` gives; nothing for an undefined value.
pub(crate) fn str(value: &Value) -> String {
    let mut out = String::new();
    write_str(&mut out, value);
    out
}

/// Appends what Python's `str(value)` gives.
pub(crate) fn write_str(out: &mut String, value: &Value) {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None => write_repr(out, value),
    }
}

fn write_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match float(value) {
            Some(float) => out.push_str(&float_repr(float)),
            None => _ = write!(out, "{value}"),
        },
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let is_tuple = value.is_tuple();
            out.push(if is_tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter().into_iter().flatten() {
                if count > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item);
                count += 1;
            }
            if is_tuple && count == 1 {
                out.push(',');
            }
            out.push(if is_tuple { ')' } else { ']' });
        }
        // Slices and repeated lists are lazy here, and lists in Python.
        ValueKind::Iterable if value.len().is_some() => {
            let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            write_repr(out, &Value::from(items));
        }
        ValueKind::Map if !value.is_kwargs() => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or_default());
            }
            out.push('}');
        }
        _ => _ = write!(out, "{value}"),
    }
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
fn is_printable(char: char) -> bool {
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
            assert_eq!(str(&Value::from(vec![text])), format!("[{want}]"));
        }
    }
}
