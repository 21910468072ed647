//! Python's `text % values` and `text.format(…)`.

use minijinja::{
    Error,
    value::{Kwargs, Value, ValueKind},
};

use super::{
    numbers::{Spec, float_text, int_text, wrong},
    objects::{Type, type_of},
    print,
};

/// Widths and precisions beyond which a template cannot mean it.
const WIDEST: usize = 4_096;

/// What is left of a format.
struct Rest<'t>(&'t str);

impl<'t> Rest<'t> {
    fn next_if(&mut self, takes: impl Fn(char) -> bool) -> Option<char> {
        let char = self.0.chars().next().filter(|char| takes(*char))?;
        self.0 = &self.0[char.len_utf8()..];
        Some(char)
    }

    fn skip(&mut self, char: char) -> bool {
        self.next_if(|it| it == char).is_some()
    }

    fn digits(&mut self) -> Result<Option<usize>, Error> {
        let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        if digits.is_empty() {
            return Ok(None);
        }
        let number = digits.parse().ok().filter(|number| *number <= WIDEST);
        number.map(Some).ok_or_else(|| wrong("a width or precision is too large"))
    }

    /// Up to `close`, which is taken too; `open` before it needs one more.
    fn until(&mut self, open: char, close: char) -> Result<&'t str, Error> {
        let mut depth = 1usize;
        let end = self.0.char_indices().find(|(_, char)| {
            if *char == open {
                depth += 1;
            } else if *char == close {
                depth -= 1;
            }
            depth == 0
        });
        let (end, _) = end.ok_or_else(|| wrong(format!("no {close} for a {open}")))?;
        let (inside, rest) = self.0.split_at(end);
        self.0 = &rest[close.len_utf8()..];
        Ok(inside)
    }
}

/// `text % values`.
pub(crate) fn percent(text: &str, values: &Value) -> Result<String, Error> {
    let kind = type_of(values);
    let given = if kind == Type::Tuple { values.try_iter()?.collect() } else { vec![values.clone()] };
    let mut given = given.into_iter();
    let mut out = String::with_capacity(text.len());
    let mut rest = Rest(text);
    while let Some((before, after)) = rest.0.split_once('%') {
        out.push_str(before);
        rest.0 = after;
        let named = match rest.skip('(') {
            true if kind != Type::Dict => return Err(wrong("a mapping is needed")),
            true => Some(values.get_item(&Value::from(rest.until('(', ')')?))?),
            false => None,
        };
        let mut next = || given.next().ok_or_else(|| wrong("not enough arguments"));
        let (mut spec, precision) = flags(&mut rest, &mut next)?;
        spec.precision = precision;
        rest.next_if(|char| matches!(char, 'h' | 'l' | 'L'));
        let conversion = rest.next_if(|_| true).ok_or_else(|| wrong("incomplete format"))?;
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let value = match named {
            Some(value) if value.is_undefined() => return Err(wrong("no such key")),
            Some(value) => value,
            None => next()?,
        };
        out.push_str(&converted(&value, conversion, spec)?);
    }
    out.push_str(rest.0);
    // Whatever has items need not be used up, as a dictionary whose values are named.
    let has_items = matches!(kind, Type::Dict | Type::List | Type::Range | Type::Undefined | Type::Namespace);
    if given.next().is_some() && !has_items {
        return Err(wrong("not all arguments are converted"));
    }
    Ok(out)
}

/// Flags, width and precision.
fn flags(
    rest: &mut Rest<'_>,
    next: &mut impl FnMut() -> Result<Value, Error>,
) -> Result<(Spec, Option<usize>), Error> {
    let mut spec = Spec { align: '>', ..Spec::default() };
    let (mut is_left, mut zeros) = (false, false);
    while let Some(flag) = rest.next_if(|char| "-+ #0".contains(char)) {
        match flag {
            '-' => is_left = true,
            '#' => spec.alternate = true,
            '0' => zeros = true,
            '+' => spec.sign = Some('+'),
            _ => spec.sign = spec.sign.or(Some(' ')),
        }
    }
    let star = |value: Value| {
        let number = if value.kind() == ValueKind::Number { i64::try_from(value).ok() } else { None };
        let number = number.filter(|number| number.unsigned_abs() <= WIDEST as u64);
        number.ok_or_else(|| wrong("* wants an integer that is not too large"))
    };
    if rest.skip('*') {
        let width = star(next()?)?;
        is_left |= width < 0;
        spec.width = usize::try_from(width.unsigned_abs()).unwrap_or_default();
    } else {
        spec.width = rest.digits()?.unwrap_or_default();
    }
    if zeros && !is_left {
        (spec.align, spec.fill) = ('=', '0');
    } else if is_left {
        spec.align = '<';
    }
    let precision = match rest.skip('.') {
        true if rest.skip('*') => Some(usize::try_from(star(next()?)?).unwrap_or_default()),
        true => Some(rest.digits()?.unwrap_or_default()),
        false => None,
    };
    Ok((spec, precision))
}

fn converted(value: &Value, conversion: char, mut spec: Spec) -> Result<String, Error> {
    let text = |text: String, spec: Spec| {
        let kept = match spec.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text,
        };
        let align = if spec.align == '<' { '<' } else { '>' };
        Spec { align, fill: ' ', ..spec }.padded("", &kept)
    };
    Ok(match conversion {
        's' => text(print::str(value)?, spec),
        'r' => text(print::repr(value)?, spec),
        'a' => text(ascii(value)?, spec),
        'c' => {
            let char = match value.as_str() {
                Some(text) => text.chars().next().filter(|char| char.len_utf8() == text.len()),
                None => u32::try_from(value.clone()).ok().and_then(char::from_u32),
            };
            spec.precision = None;
            text(char.ok_or_else(|| wrong("%c wants a character"))?.to_string(), spec)
        }
        'd' | 'i' | 'u' => match print::float(value) {
            Some(float) => {
                // Beyond this a float has more digits than the engine's integers.
                let whole = Some(float.trunc()).filter(|float| float.abs() < 1e38);
                let whole = whole.ok_or_else(|| wrong("a float too large for an integer"))?;
                int_text(&Value::from(whole as i128), 'd', &spec)?
            }
            None => int_text(value, 'd', &spec)?,
        },
        'x' | 'X' | 'o' => int_text(value, conversion, &spec)?,
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => float_text(value, Some(conversion), &spec)?,
        other => return Err(wrong(format!("%{other} is not supported"))),
    })
}

/// What Python's `ascii(value)` gives.
fn ascii(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for char in print::repr(value)?.chars() {
        match u32::from(char) {
            ..=0x7f => out.push(char),
            code @ ..=0xff => out.push_str(&format!("\\x{code:02x}")),
            code @ ..=0xffff => out.push_str(&format!("\\u{code:04x}")),
            code => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    Ok(out)
}

/// `text.format(places, **names)`.
pub(crate) fn format(text: &str, places: &[Value], names: &Kwargs) -> Result<String, Error> {
    let mut fields = Fields { places, names, next: Some(0) };
    fields.put_in(text, 2)
}

/// What is put into the fields of a format.
struct Fields<'v> {
    places: &'v [Value],
    names: &'v Kwargs,
    /// The place that a field without a number takes; `None` once a field had one.
    next: Option<usize>,
}

impl Fields<'_> {
    fn put_in(&mut self, text: &str, depth: usize) -> Result<String, Error> {
        let depth = depth.checked_sub(1).ok_or_else(|| wrong("fields are too deep in one another"))?;
        let mut out = String::with_capacity(text.len());
        let mut rest = Rest(text);
        while let Some(char) = rest.next_if(|_| true) {
            match char {
                '{' if !rest.skip('{') => {
                    let field = rest.until('{', '}')?;
                    out.push_str(&self.field(field, depth)?);
                }
                '}' if !rest.skip('}') => return Err(wrong("a single }")),
                char => out.push(char),
            }
        }
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        let bracket = field.find('[').unwrap_or(field.len());
        let from = field[bracket..].find(']').map_or(0, |end| bracket + end);
        let end = field[from..].find(['!', ':']).map_or(field.len(), |at| from + at);
        let (name, mut rest) = (&field[..end], Rest(&field[end..]));
        let value = self.value(name)?;
        let value = match rest.skip('!') {
            true => match rest.next_if(|_| true) {
                Some('r') => Value::from(print::repr(&value)?),
                Some('s') => Value::from(print::str(&value)?),
                Some('a') => Value::from(ascii(&value)?),
                _ => return Err(wrong("a conversion that is none")),
            },
            false => value,
        };
        if !rest.0.is_empty() && !rest.skip(':') {
            return Err(wrong("expected : after a conversion"));
        }
        let spec = if rest.0.is_empty() { String::new() } else { self.put_in(rest.0, depth)? };
        if spec.is_empty() { print::str(&value) } else { formatted(&value, &spec) }
    }

    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let (first, mut rest) = name.split_at(name.find(['.', '[']).unwrap_or(name.len()));
        let place = match first {
            "" => {
                let next = self.next.ok_or_else(|| wrong("fields with numbers and without"))?;
                self.next = Some(next + 1);
                Some(next)
            }
            first => first.parse::<usize>().ok(),
        };
        if !first.is_empty() && place.is_some() {
            if self.next.is_some_and(|next| next > 0) {
                return Err(wrong("fields with numbers and without"));
            }
            self.next = None;
        }
        let mut value = match place {
            Some(place) => self.places.get(place).cloned().ok_or_else(|| wrong("no argument for a field"))?,
            None => self.names.get::<Value>(first)?,
        };
        while !rest.is_empty() {
            let key = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let (key, behind) = key.ok_or_else(|| wrong("attributes in fields are not supported"))?;
            let key = key.parse::<i64>().map_or_else(|_| Value::from(key), Value::from);
            value = value.get_item(&key)?;
            if value.is_undefined() {
                return Err(wrong("no such item"));
            }
            rest = behind;
        }
        Ok(value)
    }
}

/// Python's `format(value, spec)`.
fn formatted(value: &Value, text: &str) -> Result<String, Error> {
    let mut rest = Rest(text);
    let is_align = |char: char| "<>=^".contains(char);
    let mut spec = Spec::default();
    let mut align = None;
    let mut chars = text.chars();
    if let (Some(fill), Some(second)) = (chars.next(), chars.next())
        && is_align(second)
    {
        (spec.fill, align) = (fill, Some(second));
        rest.0 = chars.as_str();
    } else if let Some(first) = rest.next_if(is_align) {
        align = Some(first);
    }
    spec.sign = rest.next_if(|char| "+- ".contains(char)).filter(|sign| *sign != '-');
    let has_sign = spec.sign.is_some();
    spec.alternate = rest.skip('#');
    let is_text = value.kind() == ValueKind::String;
    if rest.skip('0') {
        if align.is_none() {
            spec.fill = '0';
        }
        align = align.or(Some(if is_text { '<' } else { '=' }));
    }
    spec.width = rest.digits()?.unwrap_or_default();
    spec.grouping = rest.next_if(|char| matches!(char, ',' | '_'));
    spec.precision = match rest.skip('.') {
        true => Some(rest.digits()?.ok_or_else(|| wrong("no precision behind a point"))?),
        false => None,
    };
    let kind = rest.next_if(|_| true);
    if !rest.0.is_empty() || spec.grouping.is_some() && spec.fill == '0' {
        return Err(wrong(format!("{text:?} is not supported")));
    }
    spec.align = align.unwrap_or(if is_text { '<' } else { '>' });
    match (type_of(value), kind) {
        (Type::Text, None | Some('s'))
            if !has_sign && !spec.alternate && spec.grouping.is_none() && spec.align != '=' =>
        {
            let text = value.as_str().unwrap_or_default();
            let kept: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
            Ok(spec.padded("", &kept))
        }
        (Type::Number, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) => float_text(value, kind, &spec),
        (Type::Number, None) if print::float(value).is_some() => float_text(value, None, &spec),
        (Type::Number | Type::BigInt, None | Some('d' | 'b' | 'o' | 'x' | 'X'))
            if spec.precision.is_none() && print::float(value).is_none() =>
        {
            int_text(value, kind.unwrap_or('d'), &spec)
        }
        _ => Err(wrong(format!("{text:?} does not fit the value"))),
    }
}
