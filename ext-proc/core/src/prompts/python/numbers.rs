//! Numbers as Python's formats write them.

use minijinja::{
    Error, ErrorKind,
    value::{Value, ValueKind},
};

use super::{
    objects::{Type, type_of},
    print,
};

pub(super) fn wrong(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("format: {}", problem.into()))
}

/// How one value is to be written.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) fill: char,
    /// `<`, `>`, `^` or `=`, which puts the fill behind the sign.
    pub(super) align: char,
    /// `+` or a space before numbers that are not negative.
    pub(super) sign: Option<char>,
    pub(super) alternate: bool,
    /// In characters.
    pub(super) width: usize,
    /// `,` or `_` between thousands.
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            fill: ' ',
            align: '>',
            sign: None,
            alternate: false,
            width: 0,
            grouping: None,
            precision: None,
        }
    }
}

impl Spec {
    /// `sign` and `text` in the width.
    pub(super) fn padded(&self, sign: &str, text: &str) -> String {
        let missing = self.width.saturating_sub(sign.chars().count() + text.chars().count());
        let fill = |count: usize| String::from(self.fill).repeat(count);
        match self.align {
            '<' => format!("{sign}{text}{}", fill(missing)),
            '^' => format!("{}{sign}{text}{}", fill(missing / 2), fill(missing - missing / 2)),
            '=' => format!("{sign}{}{text}", fill(missing)),
            _ => format!("{}{sign}{text}", fill(missing)),
        }
    }

    fn sign_of(&self, is_negative: bool) -> String {
        if is_negative { "-".into() } else { self.sign.map(String::from).unwrap_or_default() }
    }
}

/// An integer in the form that `kind` says, which is `d`, `b`, `o`, `x` or `X`.
pub(super) fn int_text(value: &Value, kind: char, spec: &Spec) -> Result<String, Error> {
    let no_int = || wrong("an integer is needed");
    let (is_negative, digits) = match type_of(value) {
        Type::BigInt if kind == 'd' => {
            let text = value.to_string();
            (text.starts_with('-'), text.trim_start_matches('-').to_owned())
        }
        Type::Number if print::float(value).is_none() => {
            let int = match value.kind() {
                ValueKind::Bool => i128::from(value.is_true()),
                _ => i128::try_from(value.clone()).map_err(|_| no_int())?,
            };
            let size = int.unsigned_abs();
            let digits = match kind {
                'b' => format!("{size:b}"),
                'o' => format!("{size:o}"),
                'x' => format!("{size:x}"),
                'X' => format!("{size:X}"),
                _ => size.to_string(),
            };
            (int < 0, digits)
        }
        _ => return Err(no_int()),
    };
    let digits = match spec.precision {
        Some(least) => "0".repeat(least.saturating_sub(digits.len())) + &digits,
        None => digits,
    };
    let digits = match spec.grouping {
        Some(between) if kind == 'd' => grouped(&digits, between),
        Some(_) => return Err(wrong("groups of digits that are not decimal")),
        None => digits,
    };
    let prefix = match kind {
        'd' => "",
        'b' => "0b",
        'o' => "0o",
        'x' => "0x",
        _ => "0X",
    };
    let sign = spec.sign_of(is_negative) + if spec.alternate { prefix } else { "" };
    Ok(spec.padded(&sign, &digits))
}

fn grouped(digits: &str, between: char) -> String {
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(between);
        }
        out.push(digit);
    }
    out
}

/// A number as a float in the form that `kind` says; without one as it prints.
pub(super) fn float_text(value: &Value, kind: Option<char>, spec: &Spec) -> Result<String, Error> {
    let float = match type_of(value) {
        Type::Number if value.kind() == ValueKind::Bool => f64::from(u8::from(value.is_true())),
        Type::Number => f64::try_from(value.clone())?,
        Type::BigInt => value.to_string().parse().map_err(|_| wrong("a number is needed"))?,
        _ => return Err(wrong("a number is needed")),
    };
    let float = if kind == Some('%') { float * 100.0 } else { float };
    if spec.alternate {
        return Err(wrong("# of a float is not supported"));
    }
    let size = float.abs();
    let precision = spec.precision.unwrap_or(6);
    let text = match kind {
        _ if size.is_infinite() => "inf".to_owned(),
        _ if size.is_nan() => "nan".to_owned(),
        Some('e' | 'E') => scientific(&format!("{size:.precision$e}")),
        Some('f' | 'F' | '%') => format!("{size:.precision$}"),
        Some('g' | 'G') => general(size, precision.max(1), false),
        _ if spec.precision.is_some() => general(size, precision.max(1), true),
        _ => print::float_repr(size),
    };
    let text = if matches!(kind, Some('E' | 'F' | 'G')) { text.to_uppercase() } else { text };
    let text = if kind == Some('%') { text + "%" } else { text };
    let text = match spec.grouping {
        Some(between) => {
            let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
            grouped(&text[..end], between) + &text[end..]
        }
        None => text,
    };
    let is_negative = float.is_sign_negative() && !float.is_nan();
    Ok(spec.padded(&spec.sign_of(is_negative), &text))
}

/// Rust's exponent as C writes it: with a sign, and two digits at least.
fn scientific(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// So many digits that tell something, with an exponent where it is shorter; `keeps_point` as in `1.0`.
fn general(size: f64, precision: usize, keeps_point: bool) -> String {
    let text = format!("{size:.*e}", precision - 1);
    let exponent: i64 =
        text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or_default();
    let stripped = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    let precision = i64::try_from(precision).unwrap_or(i64::MAX);
    if exponent < -4 || precision - i64::from(keeps_point) <= exponent {
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return scientific(&format!("{}e{exponent}", stripped(digits)));
    }
    let decimals = usize::try_from(precision - 1 - exponent).unwrap_or_default();
    let text = stripped(&format!("{size:.decimals$}"));
    if keeps_point && !text.contains('.') { text + ".0" } else { text }
}
