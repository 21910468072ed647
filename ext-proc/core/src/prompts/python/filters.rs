//! Filters and tests whose result in Python differs from the engine's own.

use minijinja::{
    Error, ErrorKind, State,
    value::{Kwargs, Rest, Value, ValueKind},
};

use super::{
    args::{Args, int_or, is_given},
    kept,
    methods::is_space,
    objects::{Generator, Type, type_of},
    print,
};
use crate::prompts::template::LONGEST_TEXT;

/// `string`: what Python's `str` gives.
pub(crate) fn string(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => print::str(value).map(Value::from),
    }
}

/// `join`, with each item as Python prints it.
pub(crate) fn join(items: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let [separator, attribute] = Args::new(args, kwargs).bind(["d", "attribute"])?;
    let separator = print::str(&separator)?;
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        match attribute.as_str() {
            Some(name) => print::write_str(&mut out, &item.get_attr(name)?)?,
            None if is_given(&attribute) => print::write_str(&mut out, &item.get_item(&attribute)?)?,
            None => print::write_str(&mut out, &item)?,
        }
        if LONGEST_TEXT < out.len() {
            return Err(Error::new(ErrorKind::InvalidOperation, "a text too long for any model"));
        }
    }
    Ok(out)
}

/// `sort`, by place too.
pub(crate) fn sort(
    state: &mut State<'_, '_>,
    items: Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let kwargs = Args::new(args, kwargs).named(["reverse", "case_sensitive", "attribute"])?;
    kept::look_through(state, &items)?;
    kept::compared(state, &items)?;
    minijinja::filters::sort(state, items, kwargs)
}

/// `unique`, by place too.
pub(crate) fn unique(
    state: &mut State<'_, '_>,
    items: Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let kwargs = Args::new(args, kwargs).named(["case_sensitive", "attribute"])?;
    kept::look_through(state, &items)?;
    kept::compared(state, &items)?;
    Ok(Generator::of(minijinja::filters::unique(state, items, kwargs)?.try_iter()?.collect()))
}

/// `min`.
pub(crate) fn min(state: &mut State<'_, '_>, items: Value, kwargs: Kwargs) -> Result<Value, Error> {
    kept::compared(state, &items)?;
    minijinja::filters::min(state, items, kwargs)
}

/// `max`.
pub(crate) fn max(state: &mut State<'_, '_>, items: Value, kwargs: Kwargs) -> Result<Value, Error> {
    kept::compared(state, &items)?;
    minijinja::filters::max(state, items, kwargs)
}

/// `dictsort`, by place too.
pub(crate) fn dictsort(
    state: &mut State<'_, '_>,
    entries: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    kept::compared(state, entries)?;
    minijinja::filters::dictsort(entries, Args::new(args, kwargs).named(["case_sensitive", "by", "reverse"])?)
}

/// `default`, also for what is false where `boolean` says so.
pub(crate) fn default(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let is_given = !args.is_empty() || kwargs.has("default_value");
    let [other, boolean] = Args::new(args, kwargs).bind(["default_value", "boolean"])?;
    if value.is_undefined() || boolean.is_true() && !value.is_true() {
        Ok(if is_given { other } else { Value::from("") })
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
    if type_of(value) == Type::BigInt {
        return Ok(value.clone());
    }
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
        _ if type_of(value) == Type::BigInt => value.to_string().parse().ok(),
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

/// Whether a loop can go over a value.
pub(crate) fn is_iterable(value: &Value) -> bool {
    match type_of(value) {
        Type::None | Type::Number | Type::BigInt | Type::Macro | Type::Namespace => false,
        Type::Other => value.kind() == ValueKind::Iterable,
        _ => true,
    }
}

/// Whether a value has a length and items, as texts and dictionaries do in Python.
pub(crate) fn is_sequence(value: &Value) -> bool {
    use Type::{Dict, List, Range, Text, Tuple, Undefined};
    matches!(type_of(value), Undefined | Text | List | Tuple | Range | Dict)
}

/// Whether a value is a number, as `true` is too.
pub(crate) fn is_number(value: &Value) -> bool {
    matches!(type_of(value), Type::Number | Type::BigInt)
}

/// Whether a value is an integer, and no `true` or `false`.
pub(crate) fn is_integer(value: &Value) -> bool {
    type_of(value) == Type::BigInt || value.kind() == ValueKind::Number && value.is_integer()
}

/// Whether a value is a dictionary.
pub(crate) fn is_mapping(value: &Value) -> bool {
    type_of(value) == Type::Dict
}

/// Whether a value is a function or a macro; what is undefined counts as one, as Python can call it and fail.
pub(crate) fn is_callable(value: &Value) -> bool {
    match type_of(value) {
        Type::Undefined | Type::Macro | Type::Loop => true,
        Type::Other => value.kind() == ValueKind::Plain,
        _ => false,
    }
}
