//! Numbers as the renderer's parser reads them: quickly, and now and then one digit off.
//!
//! It is `serde_json` as it is by default, whose other way, `float_roundtrip`, any crate of a build may switch on for all. So
//! its default way is written down here, and does not depend on what else is built.

use serde_json::{Map, Number, Value};

use crate::{
    prompts::python::print::float_repr,
    request::json::{Json, Object},
};

/// Puts such numbers into what was read of a schema's text.
pub(super) fn mend(read: &mut Map<String, Value>, schema: &Object) {
    for (key, value) in schema {
        if let Some(read) = read.get_mut(key) {
            mend_value(read, value);
        }
    }
}

fn mend_value(read: &mut Value, value: &Json) {
    match (read, value) {
        (Value::Object(read), Json::Object(value)) => mend(read, value),
        (Value::Array(read), Json::Array(values)) => {
            read.iter_mut().zip(values).for_each(|(read, value)| mend_value(read, value));
        }
        (Value::Number(read), value) if read.is_f64() => {
            let text = match value {
                Json::Float(it) => float_repr(*it),
                Json::Int(it) => it.to_string(),
                Json::BigInt(digits) => digits.to_string(),
                _ => return,
            };
            if let Some(number) = Number::from_f64(inexact(&text)) {
                *read = number;
            }
        }
        _ => {}
    }
}

/// A JSON number, by a product or quotient of its digits, as far as they fit 64 bits, and a power of ten, each rounded.
fn inexact(text: &str) -> f64 {
    let (sign, text) = text.strip_prefix('-').map_or((1.0, text), |it| (-1.0, it));
    let (digits, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let mut significand = 0_u64;
    let mut exponent = power.trim_start_matches('+').parse::<i32>().unwrap_or(0);
    let mut is_full = false;
    for (is_part, digit) in whole.bytes().map(|it| (false, it)).chain(part.bytes().map(|it| (true, it))) {
        let digit = u64::from(digit - b'0');
        let next = significand.checked_mul(10).and_then(|it| it.checked_add(digit)).filter(|_| !is_full);
        match next {
            Some(next) => {
                significand = next;
                exponent -= i32::from(is_part);
            }
            // What no longer fits is as many zeros, before the point.
            None => {
                is_full = true;
                exponent += i32::from(!is_part);
            }
        }
    }
    let mut number = significand as f64;
    while exponent < -308 && number != 0.0 {
        number /= 1e308;
        exponent += 308;
    }
    // The nearest to it: text is read exactly.
    let power: f64 = format!("1e{}", exponent.unsigned_abs().min(309)).parse().unwrap_or(f64::INFINITY);
    sign * if exponent < 0 { number / power } else { number * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_as_the_library_does_by_default() {
        for (text, want) in [
            ("7.038531e-26", 7.038_530_999_999_999e-26),
            ("0.1", 0.1),
            ("-2.5", -2.5),
            ("1e+16", 1e16),
            ("100000.0", 1e5),
            ("5e-324", 5e-324),
            ("1.7976931348623157e+308", f64::MAX),
            ("18446744073709551616", 18_446_744_073_709_552_000.0),
            ("123456789012345678901234.5", 123_456_789_012_345_670_000_000.0),
            ("0.0", 0.0),
        ] {
            assert_eq!(inexact(text), want, "{text}");
        }
        assert!(inexact("-0.0").is_sign_negative());
    }
}
