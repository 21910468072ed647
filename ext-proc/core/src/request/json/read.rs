//! The parser: one pass over the text, depth counted, nothing looked at twice.

use super::{Json, JsonError, MAX_DEPTH, MAX_VALUES, Object};

/// The one value that fills `text`.
pub(super) fn all(text: &str) -> Result<Json, JsonError> {
    let mut reader = Reader { text, at: 0, values: 0 };
    let value = reader.value(0)?;
    reader.skip_space();
    if reader.at < text.len() { Err(reader.want("the end of the body")) } else { Ok(value) }
}

struct Reader<'a> {
    text: &'a str,
    /// Offset of the next byte; always on a character boundary.
    at: usize,
    /// Values begun so far.
    values: usize,
}

impl Reader<'_> {
    fn want(&self, want: &'static str) -> JsonError {
        JsonError::Syntax { at: self.at, want }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes `token` if it comes next.
    fn take(&mut self, token: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(token.as_bytes());
        if found {
            self.at += token.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.values += 1;
        if MAX_VALUES < self.values {
            return Err(JsonError::TooMany);
        }
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => {
                self.at += 1;
                Ok(self.string()?.map_or(Json::NoText, Json::String))
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.take("null") => Ok(Json::Null),
            _ if self.take("true") => Ok(Json::Bool(true)),
            _ if self.take("false") => Ok(Json::Bool(false)),
            _ if self.take("NaN") => Ok(Json::Float(f64::NAN)),
            _ if self.take("Infinity") => Ok(Json::Float(f64::INFINITY)),
            _ => Err(self.want("a value")),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, JsonError> {
        if depth > MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.take("]") {
            return Ok(Json::Array(items));
        }
        // Most arrays of arrays have one item; the usual first allocation has room for four.
        items.reserve_exact(1);
        loop {
            items.push(self.value(depth)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.want("',' or ']'")),
            }
        }
        self.at += 1;
        Ok(Json::Array(items))
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        if depth > MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        self.at += 1;
        let mut object = Object::new();
        let mut is_text = true;
        self.skip_space();
        if self.take("}") {
            return Ok(Json::Object(object));
        }
        loop {
            self.skip_space();
            if !self.take("\"") {
                return Err(self.want("a key in double quotes"));
            }
            let key = self.string()?;
            self.skip_space();
            if !self.take(":") {
                return Err(self.want("':'"));
            }
            let value = self.value(depth)?;
            match key {
                Some(key) => _ = object.insert(key, value),
                None => is_text = false,
            }
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.want("',' or '}'")),
            }
        }
        self.at += 1;
        Ok(if is_text { Json::Object(object) } else { Json::NoText })
    }

    /// The rest of a string whose opening quote was taken; `None` where it is no text.
    fn string(&mut self) -> Result<Option<String>, JsonError> {
        let mut text = String::new();
        let mut is_text = true;
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let Some(plain) = plain_length(rest) else {
                return Err(self.want("the closing quote of this string"));
            };
            text.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain;
            match rest[plain] {
                b'"' => {
                    self.at += 1;
                    return Ok(is_text.then_some(text));
                }
                b'\\' => {
                    self.at += 1;
                    match self.escape()? {
                        Some(char) => text.push(char),
                        None => is_text = false,
                    }
                }
                _ => return Err(self.want("an escape instead of a bare control character")),
            }
        }
    }

    /// What stands behind a backslash; `None` for half a surrogate pair.
    fn escape(&mut self) -> Result<Option<char>, JsonError> {
        let byte = self.peek().ok_or_else(|| self.want("an escape"))?;
        let plain = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.want("one of \"\\/bfnrtu")),
        };
        self.at += 1;
        Ok(Some(plain))
    }

    /// Four hexadecimal digits, or a pair of surrogates. Half a pair has no place in UTF-8.
    fn unicode_escape(&mut self) -> Result<Option<char>, JsonError> {
        let first = self.hex4()?;
        let behind = self.at;
        if !(0xd800..0xdc00).contains(&first) || !self.take("\\u") {
            return Ok(char::from_u32(first));
        }
        let second = self.hex4()?;
        if !(0xdc00..0xe000).contains(&second) {
            // It stands for itself.
            self.at = behind;
            return Ok(None);
        }
        Ok(char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)))
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let code = digits.and_then(|digits| {
            digits.iter().try_fold(0, |code, digit| Some(code * 16 + char::from(*digit).to_digit(16)?))
        });
        let code = code.ok_or_else(|| self.want("four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }

    fn digits(&mut self) -> usize {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - from
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let from = self.at;
        if self.take("-Infinity") {
            return Ok(Json::Float(f64::NEG_INFINITY));
        }
        let negative = self.take("-");
        // A zero ends the integer part: what follows "0" in "01" is for the caller to refuse.
        if !self.take("0") && self.digits() == 0 {
            return Err(self.want("a digit"));
        }
        let int_end = self.at;
        if self.take(".") && self.digits() == 0 {
            return Err(self.want("a digit"));
        }
        if self.take("e") || self.take("E") {
            let _ = self.take("+") || self.take("-");
            if self.digits() == 0 {
                return Err(self.want("a digit"));
            }
        }
        let text = &self.text[from..self.at];
        if self.at > int_end {
            return text
                .parse()
                .map(Json::Float)
                .map_err(|_| JsonError::Syntax { at: from, want: "a number" });
        }
        if let Ok(int) = text.parse() {
            return Ok(Json::Int(int));
        }
        // Python refuses to read longer ones.
        let digits = text.len() - usize::from(negative);
        if digits > 4300 {
            Err(self.want("an integer of at most 4300 digits"))
        } else {
            Ok(Json::BigInt(text.into()))
        }
    }
}

/// Bytes before the first one that does not stand for itself in a string; `None` where all of them do.
fn plain_length(bytes: &[u8]) -> Option<usize> {
    const EACH: u64 = u64::MAX / 0xff;
    const HIGH: u64 = EACH << 7;
    // Eight bytes at once: subtracting from a byte what is more than it sets its high bit. That a byte borrows from the
    // next one matters only behind the first that is found.
    let below = |word: u64, bound: u64| word.wrapping_sub(EACH * bound) & !word & HIGH;
    let is = |word: u64, byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
    let (words, rest) = bytes.as_chunks();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = below(word, 0x20) | is(word, b'"') | is(word, b'\\');
        if found != 0 {
            return Some(8 * i + found.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?;
    Some(8 * words.len() + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::json::{parse, parse_text};

    #[track_caller]
    fn reads(text: &str, want: Json) {
        let got = parse_text(text).unwrap();
        match (&got, &want) {
            (Json::Float(got), Json::Float(want)) => assert_eq!(got.to_bits(), want.to_bits(), "{text}"),
            _ => assert_eq!(got, want, "{text}"),
        }
    }

    #[test]
    fn numbers_are_those_of_python() {
        reads("-0", Json::Int(0));
        reads("-0.0", Json::Float(-0.0));
        reads("1.0", Json::Float(1.0));
        reads("1E5", Json::Float(1e5));
        reads("1e309", Json::Float(f64::INFINITY));
        reads("-Infinity", Json::Float(f64::NEG_INFINITY));
        reads("100000000000000000000", Json::Int(100_000_000_000_000_000_000));
        let huge = "9".repeat(60);
        reads(&huge, Json::BigInt(huge.clone().into()));
        assert_eq!(parse_text(&"9".repeat(4301)).unwrap_err().label(), "not_json");
    }

    #[test]
    fn the_last_of_duplicate_keys_wins_at_the_first_ones_place() {
        let Json::Object(object) = parse_text(r#"{"a":1,"b":2,"a":3}"#).unwrap() else { panic!("no object") };
        let entries: Vec<_> = object.iter().map(|(key, value)| (key.as_str(), value.as_int())).collect();
        assert_eq!(entries, [("a", Some(3)), ("b", Some(2))]);
    }

    #[test]
    fn strings_are_unescaped() {
        reads(
            r#""\u00e9\ud83c\udf0a\"\\\/\b\f\n\r\t\u0000""#,
            Json::String("\u{e9}\u{1f30a}\"\\/\u{8}\u{c}\n\r\t\0".into()),
        );
    }

    #[test]
    fn half_a_surrogate_pair_is_read_and_is_no_text() {
        for text in [
            r#""\ud800""#,
            r#""a\udc00b""#,
            r#""\ud800\u0041""#,
            r#""\ud83d\ud83d\udf0a""#,
            r#"{"a":1,"\ud800":{}}"#,
        ] {
            reads(text, Json::NoText);
        }
        let inside = parse_text(r#"{"a":["b","\udfff"],"c":1}"#).unwrap();
        assert!(!inside.is_all_text());
        assert!(parse_text(r#"{"a":["b","\ud83c\udf0a"],"c":1}"#).unwrap().is_all_text());
    }

    #[test]
    fn strings_of_any_length_end_where_they_end() {
        for (before, letter) in
            (0..30).flat_map(|before| ["x", " ", "!", "#", "[", "\u{7f}", "é", "潮"].map(|it| (before, it)))
        {
            let plain = letter.repeat(before);
            reads(&format!("\"{plain}\\n{plain}\""), Json::String(format!("{plain}\n{plain}")));
            assert!(parse_text(&format!("\"{plain}\n\"")).is_err(), "{before}");
            assert!(parse_text(&format!("\"{plain}")).is_err(), "{before}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        for text in [
            "",
            " ",
            "{",
            "[1,",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "-",
            "nul",
            "\"\t\"",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\\u12\"",
            "1 2",
        ] {
            assert!(parse_text(text).is_err(), "{text:?} was taken");
        }
        assert_eq!(parse(b"[1, x]"), Err(JsonError::Syntax { at: 4, want: "a value" }));
        assert_eq!(parse(b"\"\xff\""), Err(JsonError::NotUtf8(1)));
    }

    #[test]
    fn values_are_counted() {
        let many = |n: usize| format!("[{}0]", "0,".repeat(n - 2));
        assert!(parse_text(&many(MAX_VALUES)).is_ok());
        assert_eq!(parse_text(&many(MAX_VALUES + 1)), Err(JsonError::TooMany));
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse_text(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(parse_text(&nested(MAX_DEPTH + 1)), Err(JsonError::TooDeep));
        assert_eq!(parse_text(&"[".repeat(1_000_000)), Err(JsonError::TooDeep));
        assert_eq!(parse_text(&"{\"a\":".repeat(1_000_000)), Err(JsonError::TooDeep));
    }
}
