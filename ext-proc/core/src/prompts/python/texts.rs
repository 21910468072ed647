//! Jinja's filters of texts.

use std::fmt::Write as _;

use minijinja::{
    Error, ErrorKind, State,
    value::{Kwargs, Rest, Tuple, Value, ValueKind},
};

use super::{
    args::{Args, int_or, is_given},
    letters,
    methods::is_space,
    objects::{Type, type_of},
    print, printf,
    splits::{padded, split_lines},
};

/// `indent`: all lines but the first, and but empty ones.
pub(crate) fn indent(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [width, first, blank] = Args::new(args, kwargs).bind(["width", "first", "blank"])?;
    let by = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(int_or(&width, 4)?.clamp(0, WIDEST_INDENT)).unwrap_or_default()),
    };
    // A line feed at the end stays, as the line behind it is one.
    let text = print::str(value)? + "\n";
    let mut out = if first.is_true() { by.clone() } else { String::new() };
    for (index, line) in split_lines(&text, false).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
            if blank.is_true() || !line.is_empty() {
                out.push_str(&by);
            }
        }
        out.push_str(line);
    }
    Ok(like(value, out))
}

/// Spaces per line beyond which a template cannot mean it.
const WIDEST_INDENT: i64 = 1_024;

/// `truncate`: at a space unless words may be cut, and only what is longer by more than a few characters.
pub(crate) fn truncate(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kills_words, end, leeway] = Args::new(args, kwargs).bind(names)?;
    if value.kind() != ValueKind::String {
        return Err(Error::new(ErrorKind::InvalidOperation, "truncate: a text is needed"));
    }
    let text = print::str(value)?;
    let end = if is_given(&end) { print::str(&end)? } else { "...".to_owned() };
    let (length, leeway) = (int_or(&length, 255)?, int_or(&leeway, 5)?);
    let room = length - i64::try_from(end.chars().count()).unwrap_or(i64::MAX);
    let Ok(room) = usize::try_from(room) else {
        return Err(Error::new(ErrorKind::InvalidOperation, "truncate: no room for the end"));
    };
    if i64::try_from(text.chars().count()).is_ok_and(|count| count <= length.saturating_add(leeway)) {
        return Ok(text);
    }
    let kept: String = text.chars().take(room).collect();
    let kept = if kills_words.is_true() {
        kept.as_str()
    } else {
        kept.rsplit_once(' ').map_or(kept.as_str(), |it| it.0)
    };
    Ok(format!("{kept}{end}"))
}

/// `center`, 80 wide by default.
pub(crate) fn center(
    state: &State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let [width] = Args::new(args, kwargs).bind(["width"])?;
    let width = int_or(&width, 80)?;
    Ok(like(value, padded(state, &print::str(value)?, "center", &[Value::from(width)])?))
}

/// `text`, which needs no escaping where `value` needs none.
pub(super) fn like(value: &Value, text: String) -> Value {
    if value.is_safe() { Value::from_safe_string(text) } else { Value::from(text) }
}

/// `trim`, with Python's idea of white space.
pub(crate) fn trim(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [chars] = Args::new(args, kwargs).bind(["chars"])?;
    let chars = if is_given(&chars) { Some(print::str(&chars)?) } else { None };
    let takes = |char: char| chars.as_ref().map_or_else(|| is_space(char), |chars| chars.contains(char));
    Ok(like(value, print::str(value)?.trim_matches(takes).to_owned()))
}

/// `upper`.
pub(crate) fn upper(value: &Value) -> Result<Value, Error> {
    Ok(like(value, print::str(value)?.to_uppercase()))
}

/// `lower`.
pub(crate) fn lower(value: &Value) -> Result<Value, Error> {
    Ok(like(value, print::str(value)?.to_lowercase()))
}

/// `capitalize`.
pub(crate) fn capitalize(value: &Value) -> Result<Value, Error> {
    Ok(like(value, letters::capitalized(&print::str(value)?)?))
}

/// `title`: what comes before a word is white space, a hyphen or an opening bracket.
pub(crate) fn title(value: &Value) -> Result<Value, Error> {
    let text = print::str(value)?;
    let mut out = String::with_capacity(text.len());
    for part in text.split_inclusive(|char: char| is_space(char) || "-({[<".contains(char)) {
        let end = part.find(|char: char| is_space(char) || "-({[<".contains(char)).unwrap_or(part.len());
        let mut word = part[..end].chars();
        out.extend(word.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&word.as_str().to_lowercase());
        out.push_str(&part[end..]);
    }
    Ok(like(value, out))
}

/// `replace`.
pub(crate) fn replace(
    state: &State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let [old, new, count] = Args::new(args, kwargs).bind(["old", "new", "count"])?;
    let count = int_or(&count, -1)?;
    let (text, old, new) = (print::str(value)?, print::str(&old)?, print::str(&new)?);
    replaced(state, &text, &old, &new, count).map(Value::from)
}

/// `text.replace(old, new, count)`; a negative count means all.
pub(super) fn replaced(
    state: &State<'_, '_>,
    text: &str,
    old: &str,
    new: &str,
    count: i64,
) -> Result<String, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let most = (text.len() / old.len().max(1)).saturating_add(1).min(count);
    state.consume_fuel(most.saturating_mul(new.len().saturating_sub(old.len())) as u64 / 64)?;
    Ok(text.replacen(old, new, count))
}

/// `format`: the value with `%` and its arguments.
pub(crate) fn format(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    if value.is_safe() {
        return Err(Error::new(ErrorKind::InvalidOperation, "format of a text that is marked as safe"));
    }
    let text = print::str(value)?;
    let mut names = Vec::new();
    for name in kwargs.args() {
        names.push((Value::from(name), kwargs.get::<Value>(name)?));
    }
    let values = match (names.is_empty(), args.is_empty()) {
        (true, _) => Value::from(Tuple::from(args.0)),
        (false, true) => Value::from_pairs(names),
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "arguments by place and by name")),
    };
    printf::percent(&text, &values).map(Value::from)
}

/// `wordcount`: runs of letters, digits and underscores.
pub(crate) fn wordcount(value: &Value) -> Result<usize, Error> {
    let text = print::str(value)?;
    let words =
        text.split(|char: char| !char.is_alphanumeric() && char != '_').filter(|word| !word.is_empty());
    Ok(words.count())
}

/// `urlencode`: a text, or pairs of keys and values as a query.
pub(crate) fn urlencode(value: &Value) -> Result<String, Error> {
    let pair = |key: &Value, value: &Value| -> Result<String, Error> {
        Ok(format!("{}={}", quoted(key, true)?, quoted(value, true)?))
    };
    let pairs: Vec<String> = match value.kind() {
        ValueKind::Map => {
            value.try_iter()?.map(|key| pair(&key, &value.get_item(&key)?)).collect::<Result<_, Error>>()?
        }
        ValueKind::Seq | ValueKind::Iterable => value
            .try_iter()?
            .map(|it| pair(&it.get_item_by_index(0)?, &it.get_item_by_index(1)?))
            .collect::<Result<_, Error>>()?,
        _ => return quoted(value, false),
    };
    Ok(pairs.join("&"))
}

fn quoted(value: &Value, in_query: bool) -> Result<String, Error> {
    let mut out = String::new();
    for byte in print::str(value)?.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    Ok(out)
}

/// `escape`: for HTML, unless that is done.
pub(crate) fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { forceescape(value) }
}

/// `forceescape`: for HTML, whatever was escaped before.
pub(crate) fn forceescape(value: &Value) -> Result<Value, Error> {
    Ok(Value::from_safe_string(escaped(&print::str(value)?)))
}

/// `safe`: needs no escaping.
pub(crate) fn safe(value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { Ok(Value::from_safe_string(print::str(value)?)) }
}

/// `text` for HTML.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            char => out.push(char),
        }
    }
    out
}

/// Whether what a value prints is all in lower or in upper case.
pub(crate) fn is_in_case(value: &Value, method: &str) -> Result<bool, Error> {
    Ok(letters::is_in_case(&print::str(value)?, method))
}

/// `filesizeformat`.
pub(crate) fn filesizeformat(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let [binary] = Args::new(args, kwargs).bind(["binary"])?;
    let bytes = match value.kind() {
        ValueKind::Number => f64::try_from(value.clone())?,
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "filesizeformat: a number is needed")),
    };
    let (base, ends) = if binary.is_true() { (1024.0, "iB") } else { (1000.0, "B") };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc() as i128));
    }
    let letters = if binary.is_true() { "KMGTPEZY" } else { "kMGTPEZY" };
    let mut unit: f64 = base;
    for (index, letter) in letters.chars().enumerate() {
        unit *= base;
        if bytes < unit || index == 7 {
            return Ok(format!("{:.1} {letter}{ends}", base * bytes / unit));
        }
    }
    Err(Error::from(ErrorKind::InvalidOperation))
}

/// `pprint`, of what fits one line.
pub(crate) fn pprint(value: &Value) -> Result<String, Error> {
    const WIDTH: usize = 80;
    if print::repr(value)?.chars().count() > WIDTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "pprint of more than a line"));
    }
    print::repr(&with_sorted_keys(value)?)
}

fn with_sorted_keys(value: &Value) -> Result<Value, Error> {
    Ok(match type_of(value) {
        Type::Dict => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if keys.len() > 1 && keys.iter().any(|key| key.as_str().is_none()) {
                return Err(Error::new(ErrorKind::InvalidOperation, "pprint of keys that are no texts"));
            }
            keys.sort();
            let pair = |key: Value| Ok((key.clone(), with_sorted_keys(&value.get_item(&key)?)?));
            Value::from_pairs(keys.into_iter().map(pair).collect::<Result<Vec<_>, Error>>()?)
        }
        Type::List => value.try_iter()?.map(|it| with_sorted_keys(&it)).collect::<Result<Value, Error>>()?,
        Type::Tuple => {
            let items =
                value.try_iter()?.map(|it| with_sorted_keys(&it)).collect::<Result<Vec<_>, Error>>()?;
            Value::from(Tuple::from(items))
        }
        _ => value.clone(),
    })
}

/// `xmlattr`: a dictionary as attributes of an element.
pub(crate) fn xmlattr(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let [space] = Args::new(args, kwargs).bind(["autospace"])?;
    if type_of(value) != Type::Dict {
        return Err(Error::new(ErrorKind::InvalidOperation, "xmlattr: a dictionary is needed"));
    }
    let mut out = String::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        let name = key.as_str().filter(|name| !name.contains(|char| is_space(char) || "/>=".contains(char)));
        let name = name.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "xmlattr: no name"))?;
        if is_given(&item) {
            let text = escape(&item)?;
            let separator = if !out.is_empty() || space.is_undefined() || space.is_true() { " " } else { "" };
            _ = write!(out, "{separator}{}=\"{}\"", escaped(name), text.as_str().unwrap_or_default());
        }
    }
    Ok(out)
}

/// `wordwrap`: each line by itself, at spaces.
pub(crate) fn wordwrap(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, breaks_words, between, _] = Args::new(args, kwargs).bind(names)?;
    let text = print::str(value)?;
    if text.contains(['-', '\u{2014}']) {
        return Err(Error::new(ErrorKind::InvalidOperation, "wordwrap: text with hyphens is not supported"));
    }
    let width = usize::try_from(int_or(&width, 79)?).unwrap_or_default().max(1);
    let breaks_words = breaks_words.is_undefined() || breaks_words.is_true();
    let between = if is_given(&between) { print::str(&between)? } else { "\n".to_owned() };
    let lines =
        split_lines(&text, false).into_iter().map(|line| wrapped(line, width, breaks_words).join(&between));
    Ok(lines.collect::<Vec<_>>().join(&between))
}

/// The words and spaces of `line` put into lines as Python's `textwrap` does.
fn wrapped(line: &str, width: usize, breaks_words: bool) -> Vec<String> {
    let is_space = |char: char| matches!(char, ' ' | '\t' | '\x0b' | '\x0c');
    let mut chunks: Vec<Vec<char>> = Vec::new();
    for char in line.chars() {
        match chunks.last_mut() {
            Some(last) if is_space(last[0]) == is_space(char) => last.push(char),
            _ => chunks.push(vec![char]),
        }
    }
    chunks.reverse();
    let blank = |chunk: &Vec<char>| chunk.iter().copied().all(is_space);
    let mut lines: Vec<String> = Vec::new();
    while let Some(next) = chunks.last() {
        if !lines.is_empty() && blank(next) {
            chunks.pop();
        }
        let mut taken: Vec<Vec<char>> = Vec::new();
        let mut length = 0;
        while let Some(chunk) = chunks.pop_if(|chunk| length + chunk.len() <= width) {
            length += chunk.len();
            taken.push(chunk);
        }
        if let Some(mut long) = chunks.pop_if(|chunk| chunk.len() > width) {
            if breaks_words {
                let rest = long.split_off(width - length);
                taken.push(long);
                chunks.push(rest);
            } else if taken.is_empty() {
                taken.push(long);
            } else {
                chunks.push(long);
            }
        }
        taken.pop_if(|last| blank(last));
        if !taken.is_empty() {
            lines.push(taken.concat().into_iter().collect());
        }
    }
    lines
}
