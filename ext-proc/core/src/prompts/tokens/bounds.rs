//! Which texts are left to the engine, as reading them takes longer than a decision may.

/// Bytes of the longest text that is read: about a million tokens.
const MOST_TEXT: usize = 4 << 20;

/// Words longer than this, in bytes, are merged at a tenth of the usual speed.
const LONG_WORD: usize = 1 << 10;

/// Most bytes of a text that may be in long words: about a third of a second.
const MOST_IN_LONG_WORDS: usize = 256 << 10;

/// Why the texts of a request are not read, if they are not.
pub(super) fn problem<'t>(texts: impl Iterator<Item = &'t str> + Clone) -> Option<&'static str> {
    let all: usize = texts.clone().map(str::len).sum();
    if MOST_TEXT < all {
        return Some("the text is longer than 4 MiB");
    }
    // To look at each character takes longer than to find what a memo has of it.
    let is_too_much =
        MOST_IN_LONG_WORDS < all && MOST_IN_LONG_WORDS < texts.map(in_long_words).sum::<usize>();
    is_too_much.then_some("more than 256 KiB of the text are in words of more than 1 KiB")
}

/// Bytes in long runs of characters of one class, which no tokenizer that splits text would split.
fn in_long_words(text: &str) -> usize {
    let (mut sum, mut start, mut last) = (0, 0, None);
    for (at, character) in text.char_indices() {
        let class = Some(Class::of(character));
        if class != last {
            sum += long(at - start);
            (start, last) = (at, class);
        }
    }
    sum + long(text.len() - start)
}

const fn long(word: usize) -> usize {
    if LONG_WORD < word { word } else { 0 }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Class {
    Letter,
    Digit,
    Space,
    Other,
}

impl Class {
    fn of(character: char) -> Self {
        match character {
            'a'..='z' | 'A'..='Z' => Self::Letter,
            '0'..='9' => Self::Digit,
            _ if character.is_whitespace() => Self::Space,
            _ if character.is_alphabetic() => Self::Letter,
            _ if character.is_numeric() => Self::Digit,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Option<&'static str> {
        super::problem(std::iter::once(text))
    }

    #[test]
    fn ordinary_texts_of_any_length_are_read() {
        let prose = "It rains in Bergen, 3 days of 4; the sea is 8 degrees cold.\n".repeat(50_000);
        assert!(MOST_IN_LONG_WORDS < prose.len() && prose.len() < MOST_TEXT);
        assert_eq!(problem(&prose), None);
        let han = "海边下雨，水很冷。".repeat(50_000);
        assert_eq!(problem(&han), None);
        assert_eq!(problem(&"a".repeat(MOST_IN_LONG_WORDS)), None);
    }

    #[test]
    fn what_would_hold_a_worker_for_long_is_not() {
        for word in ["a", "\u{6d77}", " ", "=", "7"] {
            let long = word.repeat(MOST_IN_LONG_WORDS + 1);
            assert!(problem(&long).is_some(), "{word:?}");
            let some = format!("{} ", word.repeat(LONG_WORD + 1)).repeat(MOST_IN_LONG_WORDS / LONG_WORD);
            assert!(problem(&some).is_some(), "{word:?}");
        }
        assert!(problem(&"a b ".repeat(MOST_TEXT / 4 + 1)).is_some());
        let parts = vec!["a".repeat(MOST_IN_LONG_WORDS / 8); 9];
        assert!(super::problem(parts.iter().map(String::as_str)).is_some(), "together they are too much");
    }
}
