//! Texts that a library may not read as the engine does.

use std::collections::BTreeSet;

use serde_json::Value;

use super::unicode;

/// What a tokenizer has doubts about.
pub(super) struct Doubts {
    /// ASCII characters that a token joins to an apostrophe after them, if text is split by a pattern whose words end
    /// in contractions of any case.
    joined: Option<BTreeSet<char>>,
    /// Added tokens that the engine may find in other places.
    tokens: Vec<String>,
    /// Whether the library has a newer Unicode than the engine.
    is_newer: bool,
    /// Whether text is split where symbols or punctuation begin and end.
    splits_at_symbols: bool,
    /// Whether text is brought into one of Unicode's normal forms.
    composes: bool,
}

impl Doubts {
    /// Those about a `tokenizer.json` where the fast library reads it, or else the other.
    pub(super) fn of(file: &Value, is_fast: bool) -> Self {
        let splitter = file["pre_tokenizer"].to_string();
        Self {
            joined: splitter.contains("'d)?").then(|| joined(&file["model"]["vocab"])),
            tokens: tokens(file, is_fast),
            is_newer: !is_fast,
            splits_at_symbols: unicode::splits_at_symbols(&splitter),
            composes: unicode::composes(&file["normalizer"].to_string()),
        }
    }

    /// Why the ids of `text` might not be the engine's.
    pub(super) fn about(&self, text: &str) -> Option<&'static str> {
        // Where case does not matter, the long s is an s; neither library's splitter has that. Then a word ends before
        // the apostrophe that should go on, which makes a difference if a token would reach across.
        if let Some(joined) = &self.joined {
            let mut before =
                text.match_indices("'\u{17f}").filter_map(|(at, _)| text[..at].chars().next_back());
            if before.any(|char| !char.is_ascii() || joined.contains(&char)) {
                return Some("a long s as a contraction");
            }
        }
        if self.tokens.iter().any(|token| text.contains(token.as_str())) {
            return Some("an added token that takes in or minds what is beside it");
        }
        let is_new = |text: &str| {
            unicode::has_new(text, self.splits_at_symbols) || self.composes && unicode::has_recomposed(text)
        };
        (self.is_newer && is_new(text))
            .then_some("a character of the text is newer than the engine's Unicode")
    }
}

/// What stands before an apostrophe that ends a token, or that a long s may follow within one.
fn joined(vocabulary: &Value) -> BTreeSet<char> {
    let tokens = vocabulary.as_object().into_iter().flatten();
    let pairs = tokens.flat_map(|(token, _)| {
        token.match_indices('\'').filter_map(|(at, _)| {
            let after = &token[at + 1..];
            let reaches = after.is_empty() || after.starts_with('\u{c5}');
            token[..at].chars().next_back().filter(|_| reaches)
        })
    });
    pairs.collect()
}

/// Added tokens that mind what is beside them in a way that the library has not.
fn tokens(file: &Value, is_fast: bool) -> Vec<String> {
    let tokens = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_bare = |token: &Value| token["content"].as_str().is_none_or(|content| content.trim() == content);
    let has_spaces = !tokens.iter().all(is_bare);
    let starts_with_mark = file["pre_tokenizer"].to_string().contains(r#""prepend_scheme":"first""#);
    let is_doubted = |token: &&Value| {
        let flag = |name: &str| token[name] == true;
        let strips = has_spaces && (flag("lstrip") || flag("rstrip"));
        strips || !is_fast && (flag("single_word") || starts_with_mark && flag("normalized"))
    };
    let contents = tokens.iter().filter(is_doubted).filter_map(|token| token["content"].as_str());
    contents.filter(|content| !content.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(content: &str, flag: &str) -> Value {
        let mut token = json!({"content": content, "special": true});
        token[flag] = true.into();
        token
    }

    #[test]
    fn texts_of_doubt_are_seen() {
        let pattern = |text: &str| json!({"type": "Split", "pattern": {"Regex": text}});
        let added = |tokens: &[Value]| json!({"added_tokens": tokens});
        let vocabulary = json!({"vocab": {"I'": 0, "t'a": 1}});
        let metaspace = json!({"type": "Metaspace", "prepend_scheme": "first"});
        let (strip, spaces, word) = (token("<a>", "rstrip"), token(" \n", "x"), token("one", "single_word"));
        for (file, text, fast, general) in [
            (json!({}), "'\u{17f} \u{88f} \u{9fe} \u{20c1} <a>", false, true),
            (
                json!({"pre_tokenizer": pattern("(?i:'s|'d)?| "), "model": vocabulary}),
                "I'\u{17f}",
                true,
                true,
            ),
            (
                json!({"pre_tokenizer": pattern("(?i:'s|'d)?| "), "model": vocabulary}),
                "it'\u{17f}",
                false,
                false,
            ),
            (json!({"pre_tokenizer": pattern("(?i:'s|'d)?| ")}), "I'\u{fb06} \u{17f}'s", false, false),
            (json!({"pre_tokenizer": pattern(r"\p{L}")}), "\u{20c1}", false, false),
            (json!({"pre_tokenizer": pattern(r"\p{P}")}), "\u{20c1}", false, true),
            (json!({"normalizer": {"type": "NFC"}}), "\u{9fe}", false, true),
            (json!({"normalizer": {"type": "Lowercase"}}), "\u{9fe}", false, false),
            (added(std::slice::from_ref(&strip)), "<a>", false, false),
            (added(&[strip.clone(), spaces.clone()]), "x<a>", true, true),
            (added(&[strip, spaces]), "x \n", false, false),
            (added(std::slice::from_ref(&word)), "no one.", false, true),
            (
                json!({"added_tokens": [token("<b>", "normalized")], "pre_tokenizer": metaspace}),
                "<b>",
                false,
                true,
            ),
        ] {
            let found = [true, false].map(|is_fast| Doubts::of(&file, is_fast).about(text).is_some());
            assert_eq!(found, [fast, general], "{file}, {text:?}");
        }
    }
}
