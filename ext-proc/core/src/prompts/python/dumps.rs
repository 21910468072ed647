//! `json.dumps(value)`, with all its defaults.

use std::fmt::Write;

use super::print::float_repr;
use crate::request::json::{Json, Object};

/// What Python makes of an object: spaces behind separators, and nothing but printing ASCII.
pub(crate) fn dumps(object: &Object) -> String {
    let mut out = String::new();
    write_object(&mut out, object);
    out
}

fn write(out: &mut String, value: &Json) {
    match value {
        // The second is not printed: a call with such a value in it is refused.
        Json::Null | Json::NoText => out.push_str("null"),
        Json::Bool(bool) => _ = write!(out, "{bool}"),
        Json::Int(int) => _ = write!(out, "{int}"),
        Json::BigInt(digits) => out.push_str(digits),
        Json::Float(float) if float.is_nan() => out.push_str("NaN"),
        Json::Float(float) if float.is_infinite() => {
            out.push_str(if *float > 0.0 { "Infinity" } else { "-Infinity" });
        }
        Json::Float(float) => out.push_str(&float_repr(*float)),
        Json::String(text) => write_text(out, text),
        Json::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                write(out, item);
            }
            out.push(']');
        }
        Json::Object(entries) => write_object(out, entries),
    }
}

fn write_object(out: &mut String, entries: &Object) {
    out.push('{');
    for (at, (key, value)) in entries.iter().enumerate() {
        out.push_str(if at == 0 { "" } else { ", " });
        write_text(out, key);
        out.push_str(": ");
        write(out, value);
    }
    out.push('}');
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(char),
            char => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::json::parse_text;

    #[test]
    fn values_print_as_in_python() {
        let given = r#"{"é\u007f\u0001":[1,-0.0,1E5,1e-7,null,true,"𝄞\n\"\\/"],"b":{},"c":[],"d":100000000000000000000,"e":NaN,"f":-1e400}"#;
        let want = concat!(
            r#"{"\u00e9\u007f\u0001": [1, -0.0, 100000.0, 1e-07, null, true, "\ud834\udd1e\n\"\\/"], "#,
            r#""b": {}, "c": [], "d": 100000000000000000000, "e": NaN, "f": -Infinity}"#
        );
        let Ok(Json::Object(given)) = parse_text(given) else { panic!("no object") };
        assert_eq!(dumps(&given), want);
    }
}
