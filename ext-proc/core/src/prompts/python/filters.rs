//! Filters and tests whose result in Python differs from the engine's own.

use minijinja::{
    Error,
    value::{Value, ValueKind},
};

use super::{methods::is_space, print};

/// `trim`, with Python's idea of white space.
pub(crate) fn trim(value: &Value, chars: Option<&str>) -> String {
    let takes = |char: char| chars.map_or_else(|| is_space(char), |chars| chars.contains(char));
    match value.as_str() {
        Some(text) => text.trim_matches(takes).to_owned(),
        None => print::str(value).trim_matches(takes).to_owned(),
    }
}

/// `string`: what Python's `str` gives.
pub(crate) fn string(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => value.clone(),
        _ => Value::from(print::str(value)),
    }
}

/// `join`, with each item as Python prints it.
pub(crate) fn join(items: &Value, separator: Option<&str>, attribute: Option<&str>) -> Result<String, Error> {
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(separator.unwrap_or_default());
        }
        match attribute {
            Some(name) => print::write_str(&mut out, &item.get_attr(name)?),
            None => print::write_str(&mut out, &item),
        }
    }
    Ok(out)
}

/// Whether a loop can go over a value; `none` can be looped over by the engine, not in Python.
pub(crate) fn is_iterable(value: &Value) -> bool {
    !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain)
}

/// Whether a value has a length and items, as texts and dictionaries do in Python.
pub(crate) fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

/// Whether a value is a function or a macro.
pub(crate) fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain
}
