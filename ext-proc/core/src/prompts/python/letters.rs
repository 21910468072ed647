//! Upper, lower and title case as Python has them.

use minijinja::{Error, ErrorKind};

/// Letters that are titles of two letters, as `ǅ`, and Greek ones with an iota below.
fn is_title(char: char) -> bool {
    matches!(u32::from(char), 0x1c5 | 0x1c8 | 0x1cb | 0x1f2 | 0x1f88..=0x1f8f | 0x1f98..=0x1f9f)
        || matches!(u32::from(char), 0x1fa8..=0x1faf | 0x1fbc | 0x1fcc | 0x1ffc)
}

pub(super) fn is_cased(char: char) -> bool {
    char.is_uppercase() || char.is_lowercase() || is_title(char)
}

/// Appends a letter as the first one of a word.
fn push_title(out: &mut String, char: char) -> Result<(), Error> {
    match u32::from(char) {
        0x1c4..=0x1c6 => out.push('\u{1c5}'),
        0x1c7..=0x1c9 => out.push('\u{1c8}'),
        0x1ca..=0x1cc => out.push('\u{1cb}'),
        0x1f1..=0x1f3 => out.push('\u{1f2}'),
        // Georgian has capitals for whole words only.
        0x10d0..=0x10fa | 0x10fd..=0x10ff => out.push(char),
        0x149 | 0x1f80..=0x1faf | 0x1fb2..=0x1ffc => {
            let problem = format!("a word that begins with {char:?} is not supported in title case");
            return Err(Error::new(ErrorKind::InvalidOperation, problem));
        }
        _ => {
            let mut upper = char.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
    Ok(())
}

/// `text.title()`: every run of letters that have a case starts with a capital, also behind an apostrophe.
pub(super) fn titled(text: &str) -> Result<String, Error> {
    let lower = text.to_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for (char, lower) in with_lower(text, &lower) {
        if in_word {
            out.push_str(lower)
        } else {
            push_title(&mut out, char)?
        }
        in_word = is_cased(char);
    }
    Ok(out)
}

/// `text.capitalize()`.
pub(super) fn capitalized(text: &str) -> Result<String, Error> {
    let lower = text.to_lowercase();
    let mut out = String::with_capacity(text.len());
    for (index, (char, lower)) in with_lower(text, &lower).enumerate() {
        if index == 0 { push_title(&mut out, char)? } else { out.push_str(lower) }
    }
    Ok(out)
}

/// `text.swapcase()`.
pub(super) fn swapped(text: &str) -> String {
    let lower = text.to_lowercase();
    let mut out = String::with_capacity(text.len());
    for (char, lower) in with_lower(text, &lower) {
        if char.is_uppercase() {
            out.push_str(lower);
        } else if char.is_lowercase() {
            out.extend(char.to_uppercase());
        } else {
            out.push(char);
        }
    }
    out
}

/// `text.casefold()`.
pub(super) fn folded(text: &str) -> Result<String, Error> {
    // Beyond these alphabets a letter may fold into something else than its lower case.
    let is_plain = |char: char| match u32::from(char) {
        0xb5 | 0xdf | 0x130 | 0x149 | 0x17f | 0x1f0 => false,
        ..0x250 | 0x400..=0x52f => true,
        _ => {
            !char.is_alphabetic()
                || matches!(u32::from(char), 0x3041..=0x30fa | 0x4e00..=0x9fff | 0xac00..=0xd7a3)
        }
    };
    match text.chars().find(|char| !is_plain(*char)) {
        None => Ok(text.chars().flat_map(char::to_lowercase).collect()),
        Some(char) => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("casefold of {char:?} is not supported")))
        }
    }
}

/// The characters of a text, each with its part of `lower`, which is all of it in lower case: there a sigma differs at
/// a word's end, but not in length.
fn with_lower<'l>(text: &'l str, lower: &'l str) -> impl Iterator<Item = (char, &'l str)> {
    let mut rest = lower;
    text.chars().map(move |char| {
        let length: usize = char.to_lowercase().map(char::len_utf8).sum();
        let (part, behind) = rest.split_at_checked(length).unwrap_or((rest, ""));
        rest = behind;
        (char, part)
    })
}

/// `text.islower()`, `isupper()` and `istitle()`.
pub(super) fn is_in_case(text: &str, method: &str) -> bool {
    let has_case = text.chars().any(is_cased);
    match method {
        "islower" => has_case && !text.chars().any(|char| char.is_uppercase() || is_title(char)),
        "isupper" => has_case && !text.chars().any(|char| char.is_lowercase() || is_title(char)),
        _ => {
            let mut in_word = false;
            has_case
                && text.chars().all(|char| {
                    let fits = match (char.is_uppercase() || is_title(char), char.is_lowercase()) {
                        (true, _) => !in_word,
                        (_, true) => in_word,
                        _ => true,
                    };
                    in_word = is_cased(char);
                    fits
                })
        }
    }
}

/// First of ten decimal digits, beyond ASCII and up to U+FFFF.
const ZEROS: &[u32] = &[
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50,
    0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
];

/// Digits that are no decimal ones, as in exponents and circles.
const OTHER_DIGITS: &[(u32, u32)] = &[
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
];

/// `text.isalpha()`, `isalnum()`, `isdigit()`, `isdecimal()`, `isnumeric()` and `isidentifier()`.
pub(super) fn is_of_kind(text: &str, method: &str) -> Result<bool, Error> {
    let starts_with_digit = text.starts_with(|char: char| char.is_ascii_digit());
    let mut fits = !(text.is_empty() || method == "isidentifier" && starts_with_digit);
    for char in text.chars() {
        fits &= match (method, char.is_ascii()) {
            ("isalpha", true) => char.is_ascii_alphabetic(),
            ("isalnum", true) => char.is_ascii_alphanumeric(),
            ("isidentifier", true) => char.is_ascii_alphanumeric() || char == '_',
            (_, true) => char.is_ascii_digit(),
            ("isdigit" | "isdecimal" | "isnumeric" | "isalnum" | "isalpha", _) if is_decimal(char) => {
                method != "isalpha"
            }
            ("isdigit" | "isdecimal" | "isnumeric", _) if is_other_digit(char) => method != "isdecimal",
            ("isalpha" | "isalnum", _) if is_plain_letter(char) => true,
            ("isdigit" | "isdecimal", _) if is_plain_letter(char) => false,
            ("isnumeric", _) if is_plain_letter(char) && u32::from(char) < 0x2e80 => false,
            ("isidentifier", _) if is_plain_letter(char) => true,
            ("isalpha", false) if !char.is_alphabetic() && !fits_marks(char) => false,
            (method, false) if method != "isidentifier" && !char.is_alphanumeric() && !fits_marks(char) => {
                false
            }
            _ => {
                let problem = format!("{method} of {char:?} is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        };
    }
    Ok(fits)
}

fn is_decimal(char: char) -> bool {
    let code = u32::from(char);
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&code))
}

fn is_other_digit(char: char) -> bool {
    let code = u32::from(char);
    OTHER_DIGITS.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

/// Letters of which the standard library and Python say the same: no marks, and no numbers that are letters too.
fn is_plain_letter(char: char) -> bool {
    let code = u32::from(char);
    let is_common = matches!(code, 0xc0..=0x24f | 0x370..=0x3ff | 0x400..=0x481 | 0x48a..=0x52f)
        || matches!(code, 0x3041..=0x3096 | 0x30a1..=0x30fa | 0x4e00..=0x9fff | 0xac00..=0xd7a3);
    is_common && char.is_alphabetic()
}

/// Whether the standard library may see no letter or digit where Python does.
fn fits_marks(char: char) -> bool {
    u32::from(char) > 0xffff
}
