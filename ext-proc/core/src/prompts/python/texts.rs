//! Jinja's filters of texts that the engine lacks or gives other arguments, and Python's `%`.

use std::fmt::Write as _;

use minijinja::{
    Error, ErrorKind, State,
    value::{Kwargs, Rest, Value, ValueKind},
};

use super::{
    args::{Args, int_or, is_given},
    methods::{padded, split_lines},
    print,
};

/// `text % values`, with the values as Python prints them.
pub(crate) fn percent(state: &mut State<'_, '_>, text: &Value, values: &Value) -> Result<Value, Error> {
    let printed = |value: Value| match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::None => {
            Value::from(print::str(&value))
        }
        _ => value,
    };
    let mut args = vec![text.clone()];
    if values.is_tuple() {
        args.extend(values.try_iter()?.map(printed));
    } else if values.kind() == ValueKind::Map && print::str(text).contains("%(") {
        let named = values.try_iter()?.map(|key| Ok((print::str(&key), printed(values.get_item(&key)?))));
        args.push(named.collect::<Result<Kwargs, Error>>()?.into());
    } else {
        args.push(printed(values.clone()));
    }
    state.apply_filter("format", &args)
}

/// `indent`: all lines but the first, and but empty ones.
pub(crate) fn indent(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let [width, first, blank] = Args::new(args, kwargs).bind(["width", "first", "blank"])?;
    let by = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(int_or(&width, 4)?.clamp(0, WIDEST_INDENT)).unwrap_or_default()),
    };
    // A line feed at the end stays, as the line behind it is one.
    let text = print::str(value) + "\n";
    let mut out = if first.is_true() { by.clone() } else { String::new() };
    for (index, line) in split_lines(&text, &[])?.into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
            if blank.is_true() || !line.is_empty() {
                out.push_str(&by);
            }
        }
        out.push_str(line);
    }
    Ok(out)
}

/// Spaces per line beyond which a template cannot mean it.
const WIDEST_INDENT: i64 = 1_024;

/// `truncate`: at a space unless words may be cut, and only what is longer by more than a few characters.
pub(crate) fn truncate(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kills_words, end, leeway] = Args::new(args, kwargs).bind(names)?;
    let text = print::str(value);
    let end = if is_given(&end) { print::str(&end) } else { "...".to_owned() };
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
pub(crate) fn center(state: &State<'_, '_>, value: &Value, width: Option<Value>) -> Result<Value, Error> {
    let width = int_or(&width.unwrap_or_default(), 80)?;
    padded(state, &print::str(value), "center", &[Value::from(width)])
}

/// `wordcount`: runs of letters, digits and underscores.
pub(crate) fn wordcount(value: &Value) -> usize {
    let text = print::str(value);
    text.split(|char: char| !char.is_alphanumeric() && char != '_').filter(|word| !word.is_empty()).count()
}

/// `urlencode`: a text, or pairs of keys and values as a query.
pub(crate) fn urlencode(value: &Value) -> Result<String, Error> {
    let pair = |key: &Value, value: &Value| format!("{}={}", quoted(key, true), quoted(value, true));
    let pairs: Vec<String> = match value.kind() {
        ValueKind::Map => value
            .try_iter()?
            .map(|key| Ok(pair(&key, &value.get_item(&key)?)))
            .collect::<Result<_, Error>>()?,
        ValueKind::Seq | ValueKind::Iterable => value
            .try_iter()?
            .map(|it| Ok(pair(&it.get_item_by_index(0)?, &it.get_item_by_index(1)?)))
            .collect::<Result<_, Error>>()?,
        _ => return Ok(quoted(value, false)),
    };
    Ok(pairs.join("&"))
}

fn quoted(value: &Value, in_query: bool) -> String {
    let mut out = String::new();
    for byte in print::str(value).bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

/// `escape`: for HTML, unless that is done.
pub(crate) fn escape(value: &Value) -> Value {
    if value.is_safe() { value.clone() } else { forceescape(value) }
}

/// `forceescape`: for HTML, whatever was escaped before.
pub(crate) fn forceescape(value: &Value) -> Value {
    let mut out = String::new();
    for char in print::str(value).chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            char => out.push(char),
        }
    }
    Value::from_safe_string(out)
}

/// `wordwrap`: each line by itself, at spaces.
pub(crate) fn wordwrap(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, breaks_words, between, _] = Args::new(args, kwargs).bind(names)?;
    let text = print::str(value);
    if text.contains(['-', '\u{2014}']) {
        return Err(Error::new(ErrorKind::InvalidOperation, "wordwrap: text with hyphens is not supported"));
    }
    let width = usize::try_from(int_or(&width, 79)?).unwrap_or_default().max(1);
    let breaks_words = breaks_words.is_undefined() || breaks_words.is_true();
    let between = if is_given(&between) { print::str(&between) } else { "\n".to_owned() };
    let lines =
        split_lines(&text, &[])?.into_iter().map(|line| wrapped(line, width, breaks_words).join(&between));
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
