//! Python's operators, items, slices and attributes.

use minijinja::{
    Error, ErrorKind, State,
    value::{Rest, Tuple, Value, ValueKind},
};

use super::{
    super::template::LONGEST_TEXT,
    objects::{BigInt, Type, type_of},
    print, printf,
    texts::{escaped, like},
};

/// Items beyond which a template cannot mean a list.
const LONGEST_LIST: usize = 1 << 20;

/// A number of a template.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Self::Int(i128::from(value.is_true()))),
            ValueKind::Number => match print::float(value) {
                Some(float) => Some(Self::Float(float)),
                None => i128::try_from(value.clone()).ok().map(Self::Int),
            },
            _ => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }
}

fn wrong(sign: &str, left: &Value, right: &Value) -> Error {
    let problem = format!("unsupported operands for {sign}: {} and {}", left.kind(), right.kind());
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// A float that Python has as the result of floats that are none too large.
fn finite(float: f64, of: [f64; 2]) -> Result<Value, Error> {
    if !float.is_finite() && of.into_iter().all(f64::is_finite) {
        return Err(Error::new(ErrorKind::InvalidOperation, "a result too large, or no real number"));
    }
    Ok(Value::from(float))
}

fn int(int: Option<i128>) -> Result<Value, Error> {
    let int =
        int.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "an integer of more than 128 bits"))?;
    Ok(match i64::try_from(int) {
        Ok(int) => Value::from(int),
        Err(_) => Value::from(int),
    })
}

/// Calculates with two numbers.
fn arithmetic(
    sign: &str,
    left: &Value,
    right: &Value,
    ints: impl Fn(i128, i128) -> Result<Value, Error>,
    floats: impl Fn(f64, f64) -> Result<Value, Error>,
) -> Result<Value, Error> {
    match (Number::of(left), Number::of(right)) {
        (Some(Number::Int(left)), Some(Number::Int(right))) => ints(left, right),
        (Some(left), Some(right)) => floats(left.float(), right.float()),
        _ => Err(wrong(sign, left, right)),
    }
}

fn no_zero() -> Error {
    Error::new(ErrorKind::InvalidOperation, "division by zero")
}

/// Pays for a list of `len` items.
pub(super) fn pay_list(state: &State<'_, '_>, len: usize) -> Result<(), Error> {
    if len > LONGEST_LIST {
        return Err(Error::new(ErrorKind::InvalidOperation, "a list is too long"));
    }
    state.consume_fuel(len as u64 / 16)
}

fn joined(state: &State<'_, '_>, left: &Value, right: &Value) -> Result<Vec<Value>, Error> {
    pay_list(state, left.len().unwrap_or_default().saturating_add(right.len().unwrap_or_default()))?;
    Ok(left.try_iter()?.chain(right.try_iter()?).collect())
}

/// `left + right`.
pub(crate) fn add(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    match (type_of(left), type_of(right)) {
        (Type::Text, Type::Text) => {
            let texts = [left, right].map(|it| it.as_str().unwrap_or_default());
            Ok(match [left.is_safe(), right.is_safe()] {
                [false, false] => Value::from(texts.concat()),
                [true, true] => Value::from_safe_string(texts.concat()),
                [true, false] => Value::from_safe_string(format!("{}{}", texts[0], escaped(texts[1]))),
                [false, true] => Value::from_safe_string(format!("{}{}", escaped(texts[0]), texts[1])),
            })
        }
        (Type::List, Type::List) => Ok(Value::from(joined(state, left, right)?)),
        (Type::Tuple, Type::Tuple) => Ok(Value::from(Tuple::from(joined(state, left, right)?))),
        _ => arithmetic(
            "+",
            left,
            right,
            |left, right| int(left.checked_add(right)),
            |left, right| Ok(Value::from(left + right)),
        ),
    }
}

/// `left - right`.
pub(crate) fn sub(left: &Value, right: &Value) -> Result<Value, Error> {
    arithmetic(
        "-",
        left,
        right,
        |left, right| int(left.checked_sub(right)),
        |left, right| Ok(Value::from(left - right)),
    )
}

/// `left * right`.
pub(crate) fn mul(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let is_sequence = |it: &Value| matches!(type_of(it), Type::Text | Type::List | Type::Tuple);
    let (sequence, times) = if is_sequence(left) { (left, right) } else { (right, left) };
    if !is_sequence(sequence) {
        return arithmetic(
            "*",
            left,
            right,
            |left, right| int(left.checked_mul(right)),
            |left, right| Ok(Value::from(left * right)),
        );
    }
    let Some(Number::Int(times)) = Number::of(times) else { return Err(wrong("*", left, right)) };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = sequence.as_str() {
        let bytes = text.len().checked_mul(times).filter(|bytes| *bytes <= LONGEST_TEXT);
        let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a text is too long"))?;
        state.consume_fuel(bytes as u64 / 64)?;
        return Ok(like(sequence, text.repeat(times)));
    }
    let items: Vec<Value> = sequence.try_iter()?.collect();
    pay_list(state, items.len().saturating_mul(times))?;
    let times = if items.is_empty() { 0 } else { times };
    let items: Vec<Value> = std::iter::repeat_n(&items, times).flatten().cloned().collect();
    Ok(if type_of(sequence) == Type::Tuple { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

/// `left / right`.
pub(crate) fn div(left: &Value, right: &Value) -> Result<Value, Error> {
    // Up to here integers are floats exactly, and so is the quotient rounded once only.
    const EXACT: u128 = 1 << 53;
    let floats = |left: f64, right: f64| {
        if right == 0.0 { Err(no_zero()) } else { finite(left / right, [left, right]) }
    };
    let ints = |left: i128, right: i128| {
        if left.unsigned_abs() > EXACT || right.unsigned_abs() > EXACT {
            return Err(Error::new(ErrorKind::InvalidOperation, "a quotient of integers beyond 53 bits"));
        }
        floats(left as f64, right as f64)
    };
    arithmetic("/", left, right, ints, floats)
}

/// `left // right`.
pub(crate) fn floor_div(left: &Value, right: &Value) -> Result<Value, Error> {
    let ints = |left: i128, right: i128| {
        if right == 0 {
            return Err(no_zero());
        }
        let rest = left.checked_rem(right);
        let below = rest.is_some_and(|rest| rest != 0 && (rest < 0) != (right < 0));
        int(left.checked_div(right).and_then(|it| it.checked_sub(i128::from(below))))
    };
    arithmetic("//", left, right, ints, |left, right| Ok(Value::from(divided(left, right)?.0)))
}

/// `left % right`: the rest of a division, or a text with its values put in.
pub(crate) fn modulo(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        if left.is_safe() {
            return Err(Error::new(ErrorKind::InvalidOperation, "% of a text that is marked as safe"));
        }
        return Ok(Value::from(printf::percent(text, right)?));
    }
    let ints = |left: i128, right: i128| {
        if right == 0 {
            return Err(no_zero());
        }
        let rest = left.checked_rem(right).unwrap_or(0);
        int(Some(if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest }))
    };
    arithmetic("%", left, right, ints, |left, right| Ok(Value::from(divided(left, right)?.1)))
}

/// Quotient and rest of floats.
fn divided(left: f64, right: f64) -> Result<(f64, f64), Error> {
    if right == 0.0 {
        return Err(no_zero());
    }
    let mut rest = left % right;
    let mut quotient = (left - rest) / right;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(right);
    } else if (rest < 0.0) != (right < 0.0) {
        rest += right;
        quotient -= 1.0;
    }
    let floor = quotient.floor();
    let quotient = match quotient {
        0.0 => 0.0_f64.copysign(left / right),
        quotient if quotient - floor > 0.5 => floor + 1.0,
        _ => floor,
    };
    Ok((quotient, rest))
}

/// `left ** right`.
///
/// `is_plain` says that Jinja surely has brackets around a negative number on the left; where it was calculated from
/// constants alone, there are none, and the sign is taken after the power.
pub(crate) fn pow(left: &Value, right: &Value, is_plain: bool) -> Result<Value, Error> {
    if !is_plain && Number::of(left).is_some_and(|left| left.float() < 0.0) {
        return Err(Error::new(ErrorKind::InvalidOperation, "a power of a negative number"));
    }
    let floats = |left: f64, right: f64| {
        if left == 0.0 && right < 0.0 { Err(no_zero()) } else { finite(left.powf(right), [left, right]) }
    };
    let ints = |left: i128, right: i128| match u32::try_from(right) {
        Ok(right) => int(left.checked_pow(right)),
        Err(_) if right < 0 => floats(left as f64, right as f64),
        Err(_) => int(left.checked_pow(u32::MAX)),
    };
    arithmetic("**", left, right, ints, floats)
}

/// `-value`.
pub(crate) fn neg(value: &Value) -> Result<Value, Error> {
    match Number::of(value) {
        Some(Number::Int(value)) => int(value.checked_neg()),
        Some(Number::Float(float)) => Ok(Value::from(-float)),
        None if type_of(value) == Type::BigInt => {
            let digits = value.to_string();
            let digits = digits.strip_prefix('-').map_or_else(|| format!("-{digits}"), str::to_owned);
            Ok(Value::from_object(BigInt(digits.into())))
        }
        None => Err(wrong("-", value, value)),
    }
}

/// `+value`.
pub(crate) fn pos(value: &Value) -> Result<Value, Error> {
    match Number::of(value) {
        Some(Number::Int(value)) => int(Some(value)),
        Some(Number::Float(float)) => Ok(Value::from(float)),
        None if type_of(value) == Type::BigInt => Ok(value.clone()),
        None => Err(wrong("+", value, value)),
    }
}

/// `first ~ others`, all as they print.
pub(crate) fn concat(first: &Value, others: Rest<Value>) -> Result<String, Error> {
    let mut out = print::str(first)?;
    for value in others.iter() {
        print::write_str(&mut out, value)?;
    }
    Ok(out)
}
