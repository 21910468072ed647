//! Filters and tests whose result in Python differs from the engine's own.

use minijinja::{
    Error, ErrorKind, State,
    value::{Kwargs, Rest, Value, ValueKind},
};

use super::{
    args::{Args, int_or, is_given},
    methods::is_space,
    print,
};

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
pub(crate) fn join(items: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let [separator, attribute] = Args::new(args, kwargs).bind(["d", "attribute"])?;
    let separator = print::str(&separator);
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        match attribute.as_str() {
            Some(name) => print::write_str(&mut out, &item.get_attr(name)?),
            None if is_given(&attribute) => print::write_str(&mut out, &item.get_item(&attribute)?),
            None => print::write_str(&mut out, &item),
        }
    }
    Ok(out)
}

/// `sort`, by place too.
pub(crate) fn sort(
    state: &State<'_, '_>,
    items: Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let kwargs = Args::new(args, kwargs).named(["reverse", "case_sensitive", "attribute"])?;
    minijinja::filters::sort(state, items, kwargs)
}

/// `unique`, by place too.
pub(crate) fn unique(
    state: &State<'_, '_>,
    items: Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    minijinja::filters::unique(state, items, Args::new(args, kwargs).named(["case_sensitive", "attribute"])?)
}

/// `dictsort`, by place too.
pub(crate) fn dictsort(entries: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    minijinja::filters::dictsort(entries, Args::new(args, kwargs).named(["case_sensitive", "by", "reverse"])?)
}

/// `default`, also for what is false where `boolean` says so.
pub(crate) fn default(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [other, boolean] = Args::new(args, kwargs).bind(["default_value", "boolean"])?;
    if value.is_undefined() || boolean.is_true() && !value.is_true() {
        Ok(if other.is_undefined() { Value::from("") } else { other })
    } else {
        Ok(value.clone())
    }
}

/// `int`, of which nothing fails: what is no number is the default.
pub(crate) fn int(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [default, base] = Args::new(args, kwargs).bind(["default", "base"])?;
    let default = if default.is_undefined() { Value::from(0) } else { default };
    let base = u32::try_from(int_or(&base, 10)?).ok().filter(|base| (2..=36).contains(base));
    let base =
        base.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "int() base must be >= 2 and <= 36"))?;
    let of_float = |float: f64| {
        // Beyond this a float has more digits than the engine's integers.
        (float.abs() < 1e38).then(|| Value::from(float.trunc() as i128))
    };
    let int = match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Some(value.clone()),
        ValueKind::Number => print::float(value).and_then(of_float),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            int_of_text(text, base).map(Value::from).or_else(|| float_of_text(text).and_then(of_float))
        }
        _ => None,
    };
    Ok(int.unwrap_or(default))
}

/// `float`, likewise.
pub(crate) fn float(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [default] = Args::new(args, kwargs).bind(["default"])?;
    let float = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => float_of_text(value.as_str().unwrap_or_default()),
        _ => None,
    };
    Ok(match float {
        Some(float) => Value::from(float),
        None if default.is_undefined() => Value::from(0.0),
        None => default,
    })
}

/// Python's `int(text, base)`.
fn int_of_text(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixes: &[&str] = match base {
        16 => &["0x", "0X"],
        8 => &["0o", "0O"],
        2 => &["0b", "0B"],
        _ => &[],
    };
    let digits = prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
    let digits = without_underscores(digits)?;
    // A second sign is none to Python.
    digits.starts_with(|char: char| char.is_digit(base)).then_some(())?;
    Some(sign * i128::from_str_radix(&digits, base).ok()?)
}

/// Python's `float(text)`.
fn float_of_text(text: &str) -> Option<f64> {
    without_underscores(text.trim_matches(is_space))?.parse().ok()
}

/// Digits without the underscores that may stand between two of them.
fn without_underscores(text: &str) -> Option<String> {
    let is_apart = text.split('_').skip(1).all(|part| part.starts_with(|char: char| char.is_alphanumeric()));
    (is_apart && !text.starts_with('_')).then(|| text.replace('_', ""))
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
