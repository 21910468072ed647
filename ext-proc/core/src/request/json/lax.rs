//! Values as vLLM's own types take them: pydantic lets another type of the same meaning stand for a flag or a number.

use super::Json;

/// Texts that are true, and those that are false, in any case.
const FLAGS: [(&str, bool); 12] = [
    ("1", true),
    ("on", true),
    ("t", true),
    ("true", true),
    ("y", true),
    ("yes", true),
    ("0", false),
    ("off", false),
    ("f", false),
    ("false", false),
    ("n", false),
    ("no", false),
];

impl Json {
    /// A flag: a boolean, a number that is 0 or 1, or a word for either.
    pub fn as_flag(&self) -> Option<bool> {
        match self {
            Self::Bool(flag) => Some(*flag),
            Self::Int(0) => Some(false),
            Self::Int(1) => Some(true),
            Self::Float(0.0) => Some(false),
            Self::Float(1.0) => Some(true),
            Self::String(text) => {
                FLAGS.iter().find(|(word, _)| text.eq_ignore_ascii_case(word)).map(|(_, flag)| *flag)
            }
            _ => None,
        }
    }

    /// A whole number of at most 128 bits, or what stands for one: a boolean, a float without a fraction, a text of
    /// digits.
    pub fn as_number(&self) -> Option<i128> {
        match self {
            Self::Int(int) => Some(*int),
            Self::Bool(flag) => Some(i128::from(*flag)),
            Self::Float(float) => of_float(*float),
            Self::String(text) => of_text(text),
            _ => None,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the value is whole and fits, as is checked before")]
fn of_float(float: f64) -> Option<i128> {
    // Larger ones are not taken, exact or not.
    let fits = float.fract() == 0.0 && float.abs() < 9_223_372_036_854_775_807.0;
    fits.then_some(float as i128)
}

/// Space may surround it, a point and zeros may follow, and single underscores may stand between digits.
fn of_text(text: &str) -> Option<i128> {
    let text = text.trim();
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => ("-", &text[1..]),
        b'+' => ("", &text[1..]),
        _ => ("", text),
    };
    let digits = match digits.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|it| it == b'0') => whole,
        Some(_) => return None,
        None => digits,
    };
    let is_whole = digits.split('_').all(|run| !run.is_empty() && run.bytes().all(|it| it.is_ascii_digit()));
    if is_whole { format!("{sign}{}", digits.replace('_', "")).parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Json {
        Json::String(text.into())
    }

    /// Answers of pydantic 2.14 to the same values.
    #[test]
    fn flags_are_those_of_pydantic() {
        for word in ["true", "TRUE", "tRue", "1", "on", "oN", "t", "T", "y", "yes"] {
            assert_eq!(text(word).as_flag(), Some(true), "{word:?}");
        }
        for word in ["false", "0", "OFF", "f", "n", "N", "nO"] {
            assert_eq!(text(word).as_flag(), Some(false), "{word:?}");
        }
        for word in [" true", "1.0", "2", "", "none"] {
            assert_eq!(text(word).as_flag(), None, "{word:?}");
        }
        assert_eq!(Json::Int(1).as_flag(), Some(true));
        assert_eq!(Json::Float(-0.0).as_flag(), Some(false));
        assert_eq!(Json::Float(1.0).as_flag(), Some(true));
        for other in [Json::Int(2), Json::Int(-1), Json::Float(0.5), Json::Null, Json::Array(Vec::new())] {
            assert_eq!(other.as_flag(), None, "{other:?}");
        }
    }

    #[test]
    fn whole_numbers_are_those_of_pydantic() {
        for (given, want) in [
            ("5", 5),
            (" 5 ", 5),
            ("\u{3000}5\n", 5),
            ("+5", 5),
            ("-5", -5),
            ("05", 5),
            ("1_0", 10),
            ("1_0.0", 10),
            ("+1_0", 10),
            ("5.00", 5),
            ("-0.0", 0),
            ("0_0", 0),
            ("999999999999999999999999", 999_999_999_999_999_999_999_999),
        ] {
            assert_eq!(text(given).as_number(), Some(want), "{given:?}");
        }
        for given in [
            "", " ", "- 5", "1__0", "_1", "1_", "-_1", "5.", "5.5", ".0", "5.0_0", "5.000_", "1_.0", "5.0.0",
            "0x5", "1e3", "\u{ff15}", "1 0", "--5", "+-5", "+",
        ] {
            assert_eq!(text(given).as_number(), None, "{given:?}");
        }
        for (given, want) in [(5.0, Some(5)), (-0.0, Some(0)), (1e18, Some(10_i128.pow(18)))] {
            assert_eq!(Json::Float(given).as_number(), want, "{given}");
        }
        for given in [5.5, 1e20, 9.3e18, f64::INFINITY, f64::NAN] {
            assert_eq!(Json::Float(given).as_number(), None, "{given}");
        }
        assert_eq!(Json::Bool(true).as_number(), Some(1));
        assert_eq!(Json::Null.as_number(), None);
    }
}
