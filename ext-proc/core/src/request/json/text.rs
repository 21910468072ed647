//! The text of a body, whose encoding Python's parser finds by its first bytes.

use std::borrow::Cow;

use super::JsonError;

/// A byte order mark, in UTF-8.
pub(super) const MARK: &[u8] = "\u{feff}".as_bytes();

/// Whether it is in an encoding with more than one byte for each character.
pub(super) fn is_wide(bytes: &[u8]) -> bool {
    Wide::of(bytes).is_some()
}

/// An encoding with more than one byte for each character, and where the text begins.
struct Wide {
    /// Bytes of a unit: 2 or 4.
    unit: usize,
    is_big_endian: bool,
    mark: usize,
}

/// The text of `bytes`, without a byte order mark.
pub(super) fn decoded(bytes: &[u8]) -> Result<Cow<'_, str>, JsonError> {
    match Wide::of(bytes) {
        Some(wide) => wide.text(&bytes[wide.mark..]).map(Cow::Owned).ok_or(JsonError::NotUtf8(0)),
        None => {
            let text = std::str::from_utf8(bytes).map_err(|error| JsonError::NotUtf8(error.valid_up_to()))?;
            Ok(Cow::Borrowed(text.strip_prefix('\u{feff}').unwrap_or(text)))
        }
    }
}

impl Wide {
    /// By a mark, or by the zeros among the first bytes: JSON begins with a character of ASCII.
    fn of(bytes: &[u8]) -> Option<Self> {
        let found = |unit, is_big_endian, mark| Some(Self { unit, is_big_endian, mark });
        match bytes {
            [0xff, 0xfe, 0, 0, ..] => found(4, false, 4),
            [0, 0, 0xfe, 0xff, ..] => found(4, true, 4),
            [0xff, 0xfe, ..] => found(2, false, 2),
            [0xfe, 0xff, ..] => found(2, true, 2),
            [0, 0, _, _, ..] => found(4, true, 0),
            [0, _, _, _, ..] | [0, _] => found(2, true, 0),
            [_, 0, 0, 0, ..] => found(4, false, 0),
            [_, 0, _, _, ..] | [_, 0] => found(2, false, 0),
            _ => None,
        }
    }

    fn text(&self, bytes: &[u8]) -> Option<String> {
        let units = bytes.chunks(self.unit).map(|unit| {
            let fold = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
            let value =
                if self.is_big_endian { unit.iter().fold(0, fold) } else { unit.iter().rev().fold(0, fold) };
            (unit.len() == self.unit).then_some(value)
        });
        if self.unit == 4 {
            return units.map(|unit| unit.and_then(char::from_u32)).collect();
        }
        let units: Vec<u16> = units.map(|unit| u16::try_from(unit?).ok()).collect::<Option<_>>()?;
        String::from_utf16(&units).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "{\"é\": \"🌊\"}";

    fn wide(unit: usize, is_big_endian: bool, mark: bool) -> Vec<u8> {
        let text: String = mark.then_some('\u{feff}').into_iter().chain(TEXT.chars()).collect();
        let units: Vec<u32> = match unit {
            2 => text.encode_utf16().map(u32::from).collect(),
            _ => text.chars().map(u32::from).collect(),
        };
        let bytes = |value: u32| {
            let bytes = value.to_be_bytes()[4 - unit..].to_vec();
            if is_big_endian { bytes } else { bytes.into_iter().rev().collect() }
        };
        units.into_iter().flat_map(bytes).collect()
    }

    #[test]
    fn every_encoding_that_python_finds_is_read() {
        assert_eq!(decoded(TEXT.as_bytes()).as_deref(), Ok(TEXT));
        assert_eq!(decoded(format!("\u{feff}{TEXT}").as_bytes()).as_deref(), Ok(TEXT));
        for unit in [2, 4] {
            for is_big_endian in [false, true] {
                for mark in [false, true] {
                    let bytes = wide(unit, is_big_endian, mark);
                    assert_eq!(decoded(&bytes).as_deref(), Ok(TEXT), "{unit} {is_big_endian} {mark}");
                    assert!(decoded(&bytes[..bytes.len() - 1]).is_err(), "{unit} {is_big_endian} {mark}");
                }
            }
        }
    }

    #[test]
    fn short_and_broken_ones_are_no_texts() {
        assert_eq!(decoded(b"").as_deref(), Ok(""));
        assert_eq!(decoded(b"1").as_deref(), Ok("1"));
        assert_eq!(decoded(b"1\0").as_deref(), Ok("1"));
        assert_eq!(decoded(b"\xff\xfe").as_deref(), Ok(""));
        assert_eq!(decoded(b"\xff\xfe\x00\xd8"), Err(JsonError::NotUtf8(0)));
        assert_eq!(decoded(b"{\"\xff"), Err(JsonError::NotUtf8(2)));
    }
}
