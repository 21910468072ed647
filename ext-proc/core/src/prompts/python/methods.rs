//! Methods and attributes of Python's own types.

use minijinja::{
    Error, ErrorKind, State,
    value::{Kwargs, Tuple, Value, from_args},
};

use super::{
    args::{Args, int_or, is_given},
    compare::equals,
    kept, letters,
    objects::{Type, View, type_of},
    print, printf,
    splits::{MAX_TAB, expand_tabs, list, padded, split, split_lines, strip},
    texts::replaced,
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
    if ["count", "index"].contains(&method) {
        kept::compared(state, value)?;
    }
    match (type_of(value), method) {
        (Type::Text, _) => {
            let result = of_text(state, value.as_str().unwrap_or_default(), method, args)?;
            if value.is_safe() { safe_result(result, method, args) } else { Ok(result) }
        }
        (Type::List | Type::Dict, "copy") => from_args::<()>(args).map(|()| value.clone()),
        (Type::Dict, "keys" | "values" | "items") => {
            from_args::<()>(args)?;
            state.consume_fuel(value.len().unwrap_or_default() as u64 / 16)?;
            View::of(value, method)
        }
        (Type::Dict, "get") => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let item = value.get_item(key)?;
            Ok(if item.is_undefined() { default.unwrap_or_else(|| Value::from(())) } else { item })
        }
        (Type::List | Type::Tuple | Type::Range, "count") => {
            let (wanted,): (&Value,) = from_args(args)?;
            let mut count = 0;
            for item in value.try_iter()? {
                count += usize::from(equals(&item, wanted)?);
            }
            Ok(Value::from(count))
        }
        (Type::List | Type::Tuple | Type::Range, "index") => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (at, item) in value.try_iter()?.enumerate() {
                if equals(&item, wanted)? {
                    return Ok(Value::from(at));
                }
            }
            Err(Error::new(ErrorKind::InvalidOperation, "not in the list"))
        }
        (Type::Number, "is_integer") if print::float(value).is_some() => {
            from_args::<()>(args)?;
            Ok(Value::from(
                print::float(value).is_some_and(|float| float.is_finite() && float.fract() == 0.0),
            ))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// What the method of a text that needs no escaping gives, which needs none either.
fn safe_result(result: Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if matches!(method, "join" | "replace" | "format" | "encode")
        || method.ends_with("just") && args.len() > 1
    {
        let problem = format!("{method} of a text that is marked as safe");
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    let safe = |value: Value| match value.as_str() {
        Some(text) => Value::from_safe_string(text.to_owned()),
        None => value,
    };
    Ok(match type_of(&result) {
        Type::Tuple => Value::from(Tuple::from(result.try_iter()?.map(safe).collect::<Vec<_>>())),
        Type::List => result.try_iter()?.map(safe).collect(),
        _ => safe(result),
    })
}

fn of_text(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let no_args = || from_args::<()>(args);
    Ok(match method {
        "strip" => Value::from(strip(text, args, true, true)?),
        "lstrip" => Value::from(strip(text, args, true, false)?),
        "rstrip" => Value::from(strip(text, args, false, true)?),
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "splitlines" => {
            let [keeps] = Args::of_method(args)?.bind(["keepends"])?;
            list(split_lines(text, keeps.is_true()))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
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
        "find" | "rfind" | "index" | "rindex" | "count" => found(text, method, args)?,
        "startswith" | "endswith" => is_at_end(text, method, args)?,
        "replace" => {
            let [old, new, count] = Args::of_method(args)?.bind(["old", "new", "count"])?;
            match (old.as_str(), new.as_str()) {
                (Some(old), Some(new)) => Value::from(replaced(state, text, old, new, int_or(&count, -1)?)?),
                _ => return Err(Error::new(ErrorKind::InvalidOperation, "replace: texts are needed")),
            }
        }
        "upper" => no_args().map(|()| Value::from(text.to_uppercase()))?,
        "lower" => no_args().map(|()| Value::from(text.to_lowercase()))?,
        "title" => no_args().and_then(|()| letters::titled(text)).map(Value::from)?,
        "capitalize" => no_args().and_then(|()| letters::capitalized(text)).map(Value::from)?,
        "swapcase" => no_args().map(|()| Value::from(letters::swapped(text)))?,
        "casefold" => no_args().and_then(|()| letters::folded(text)).map(Value::from)?,
        "islower" | "isupper" | "istitle" => {
            no_args().map(|()| Value::from(letters::is_in_case(text, method)))?
        }
        "isalpha" | "isalnum" | "isdigit" | "isdecimal" | "isnumeric" | "isidentifier" => {
            no_args().and_then(|()| letters::is_of_kind(text, method)).map(Value::from)?
        }
        "isspace" => no_args().map(|()| Value::from(!text.is_empty() && text.chars().all(is_space)))?,
        "isascii" => no_args().map(|()| Value::from(text.is_ascii()))?,
        "isprintable" => no_args().map(|()| Value::from(text.chars().all(print::is_printable)))?,
        "expandtabs" => {
            let [size] = Args::of_method(args)?.bind(["tabsize"])?;
            let size = usize::try_from(int_or(&size, 8)?).unwrap_or_default();
            Value::from(expand_tabs(text, size.min(MAX_TAB)))
        }
        "zfill" | "center" | "ljust" | "rjust" => Value::from(padded(state, text, method, args)?),
        "format" => {
            let (places, names) = match args.split_last() {
                Some((names, places)) if names.is_kwargs() => (places, Kwargs::try_from(names.clone())?),
                _ => (args, Kwargs::from_iter::<[(&str, Value); 0]>([])),
            };
            Value::from(printf::format(text, places, &names)?)
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let mut out = String::new();
            for (index, item) in items.try_iter()?.enumerate() {
                let Some(item) = item.as_str() else {
                    let problem = format!("sequence item {index}: expected a string, found {}", item.kind());
                    return Err(Error::new(ErrorKind::InvalidOperation, problem));
                };
                if index > 0 {
                    state.consume_fuel(1 + text.len() as u64 / 64)?;
                    out.push_str(text);
                }
                out.push_str(item);
            }
            Value::from(out)
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// The part of `text` that `start` and `end` leave, and where it begins, in characters; `None` where it begins behind
/// the end.
fn part<'t>(text: &'t str, start: &Value, end: &Value) -> Result<Option<(&'t str, usize)>, Error> {
    if !is_given(start) && !is_given(end) {
        return Ok(Some((text, 0)));
    }
    let len = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let bound = |value: &Value, default: i64| -> Result<i64, Error> {
        let at = int_or(value, default)?;
        Ok(if at < 0 { (at.saturating_add(len)).max(0) } else { at })
    };
    let (start, end) = (bound(start, 0)?, bound(end, len)?.min(len));
    if end < start {
        return Ok(None);
    }
    let byte = |at: i64| {
        let at = usize::try_from(at).unwrap_or_default();
        text.char_indices().nth(at).map_or(text.len(), |(at, _)| at)
    };
    Ok(Some((&text[byte(start)..byte(end)], usize::try_from(start).unwrap_or_default())))
}

/// `find`, `index`, `count` and the like.
fn found(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&str, Option<Value>, Option<Value>) = from_args(args)?;
    let part = part(text, &start.unwrap_or_default(), &end.unwrap_or_default())?;
    let at = part.and_then(|(part, offset)| {
        let at = if method.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
        at.map(|at| offset + part[..at].chars().count())
    });
    Ok(match (method, at) {
        ("count", _) => Value::from(part.map_or(0, |(part, _)| part.matches(wanted).count())),
        (_, Some(at)) => Value::from(at),
        ("find" | "rfind", None) => Value::from(-1),
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
    })
}

/// `startswith` and `endswith`, of one text or a tuple of them.
fn is_at_end(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&Value, Option<Value>, Option<Value>) = from_args(args)?;
    let part = part(text, &start.unwrap_or_default(), &end.unwrap_or_default())?;
    let fits = |wanted: &Value| {
        let wanted = wanted.as_str().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("{method}: a text is needed, or a tuple of texts"),
            )
        })?;
        Ok(part.is_some_and(|(part, _)| {
            if method == "startswith" { part.starts_with(wanted) } else { part.ends_with(wanted) }
        }))
    };
    if type_of(wanted) != Type::Tuple {
        return fits(wanted).map(Value::from);
    }
    for wanted in wanted.try_iter()? {
        if fits(&wanted)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}
