//! Literals: read as Jinja does, written as the engine does.

use std::fmt::Write;

/// What a string literal says, `text` being what stands between its quotes.
pub(super) fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            out.push(char);
            continue;
        }
        let escaped = chars.next().ok_or("a string ends with a backslash")?;
        match escaped {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(escaped),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\x0b'),
            '0'..='7' => {
                let rest = chars.as_str();
                let more = rest.bytes().take(2).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
                let digits = format!("{escaped}{}", &rest[..more]);
                out.push(code(&digits, 8)?);
                chars = rest[more..].chars();
            }
            'x' | 'u' | 'U' => {
                let length = match escaped {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let rest = chars.as_str();
                let digits = rest.get(..length).ok_or("a string has an escape that is cut short")?;
                out.push(code(digits, 16)?);
                chars = rest[length..].chars();
            }
            'N' => return Err("a string names a character, which is not supported".into()),
            // Jinja turns what is not ASCII into an escape before it looks for escapes.
            other if !other.is_ascii() => return Err("a backslash before a letter that is not ASCII".into()),
            other => {
                out.push('\\');
                out.push(other);
            }
        }
    }
    Ok(out)
}

fn code(digits: &str, radix: u32) -> Result<char, String> {
    let code = u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'));
    code.and_then(char::from_u32)
        .ok_or_else(|| format!("a string has the escape {digits}, which is no character"))
}

/// `text` as a string literal of the engine.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => {
                out.push('\\');
                out.push(char);
            }
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            char => out.push(char),
        }
    }
    out.push('"');
    out
}

/// The number that `text` is.
pub(super) fn number(text: &str) -> Result<String, String> {
    let bad = || format!("{text} is no number");
    let lower = text.to_ascii_lowercase();
    let radix = match lower.get(..2) {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    let digits = if radix == 10 { lower.as_str() } else { lower[2..].trim_start_matches('_') };
    let apart = digits.split('_').all(|part| part.starts_with(|char: char| char.is_ascii_hexdigit()));
    if !apart || digits.split('_').any(|part| part.is_empty()) {
        return Err(bad());
    }
    let digits = digits.replace('_', "");
    let mut out = String::new();
    if radix == 10 && digits.contains(['.', 'e']) {
        let float: f64 = digits.parse().map_err(|_| bad())?;
        if !float.is_finite() {
            return Err(format!("{text} is too large"));
        }
        out.push_str(&digits);
    } else {
        if radix == 10 && digits.starts_with('0') && digits.contains(|char: char| char != '0') {
            return Err(bad());
        }
        let int =
            i128::from_str_radix(&digits, radix).map_err(|_| format!("{text} is no number of 128 bits"))?;
        _ = write!(out, "{int}");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_as_in_python() {
        for (text, want) in [
            (r"a\n\t\\\'", "a\n\t\\'"),
            (r"\x41\u00e9\U0001D11E\101\0", "Aé𝄞A\0"),
            (r"\d\w{2}\ /", r"\d\w{2}\ /"),
            ("a\\\nb", "ab"),
        ] {
            assert_eq!(unescaped(text).as_deref(), Ok(want));
        }
        for text in [r"\x4", r"\ud834", r"\N{DASH}"] {
            assert!(unescaped(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_read_as_in_jinja() {
        for (text, want) in
            [("1_000", "1000"), ("0x_ff", "255"), ("0b11", "3"), ("00", "0"), ("1_0.5e-3", "10.5e-3")]
        {
            assert_eq!(number(text).as_deref(), Ok(want));
        }
        for text in ["1__0", "1_", "012", "0x", "1e999", "5x"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
