//! Which files `fastokens` reads as the engine does.
//!
//! Those whose patterns it has a scanner for: merges of bytes, split by one of the patterns that most open models
//! have. What its other parts do is not known to be the same, nor is it faster than the alternative there.

use fastokens::{AddedTokenPolicy, Tokenizer, tiktoken};
use serde_json::Value;

/// Patterns that split text in one step.
const PATTERNS: [&str; 5] = [
    tiktoken::CL100K_BASE_PATTERN,
    tiktoken::QWEN2_PATTERN,
    tiktoken::QWEN35_PATTERN,
    tiktoken::O200K_BASE_PATTERN,
    tiktoken::TEKKEN_PATTERN,
];

/// DeepSeek's, which split what the one before has left.
const STEPS: [&str; 3] =
    [tiktoken::DEEPSEEK_SPLIT1_PATTERN, tiktoken::DEEPSEEK_SPLIT2_PATTERN, tiktoken::DEEPSEEK_SPLIT3_PATTERN];

/// Whether a `tokenizer.json` is of a kind for which ids are known to be the engine's.
pub(super) fn is_exact(file: &Value) -> bool {
    let composes = match has_kind(&file["normalizer"], "NFC") {
        true => Some(true),
        false => is_nothing(&file["normalizer"]).then_some(false),
    };
    composes.is_some_and(|composes| {
        splits(&file["pre_tokenizer"]) && merges(&file["model"]) && tokens(file, composes)
    })
}

fn has_kind(step: &Value, kind: &str) -> bool {
    step["type"] == kind
}

/// Nothing, or a sequence of nothing.
fn is_nothing(step: &Value) -> bool {
    step.is_null() || has_kind(step, "Sequence") && step["normalizers"].as_array().is_some_and(Vec::is_empty)
}

/// Splits by known patterns, of which bytes are made at last.
fn splits(step: &Value) -> bool {
    let Some([splits @ .., bytes]) = step["pretokenizers"].as_array().map(Vec::as_slice) else {
        return false;
    };
    let makes_bytes =
        has_kind(bytes, "ByteLevel") && bytes["use_regex"] == false && bytes["add_prefix_space"] == false;
    let pattern = |split: &Value| {
        let is_plain =
            has_kind(split, "Split") && split["behavior"] == "Isolated" && split["invert"] == false;
        split["pattern"]["Regex"].as_str().filter(|_| is_plain).map(str::to_owned)
    };
    let patterns: Option<Vec<_>> = splits.iter().map(pattern).collect();
    makes_bytes
        && patterns.is_some_and(|found| match &found[..] {
            [one] => PATTERNS.contains(&one.as_str()),
            found => found == STEPS,
        })
}

/// Merges of bytes and nothing beside them.
fn merges(model: &Value) -> bool {
    let is_unset = |name: &str| match &model[name] {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    };
    let others = [
        "dropout",
        "unk_token",
        "fuse_unk",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "byte_fallback",
    ];
    // A byte prints as itself or as one of the characters that follow: there are tokens for all.
    let bytes = ('!'..='~').chain('\u{a1}'..='\u{ac}').chain('\u{ae}'..='\u{143}');
    let has = |byte: char| model["vocab"].get(byte.encode_utf8(&mut [0; 2]) as &str).is_some();
    (model["type"] == "BPE" || model["type"].is_null())
        && others.into_iter().all(is_unset)
        && bytes.into_iter().all(has)
}

/// Added tokens that are found in the same places and have the same ids.
fn tokens(file: &Value, composes: bool) -> bool {
    let tokens = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let vocabulary = &file["model"]["vocab"];
    let is_plain = |token: &Value| {
        let Some(content) = token["content"].as_str().filter(|it| !it.is_empty()) else { return false };
        vocabulary.get(content).is_none_or(|id| *id == token["id"])
    };
    if !tokens.iter().all(is_plain) || !are_numbered_on(tokens, vocabulary) {
        return false;
    }
    // Those of normalised text are sought after the others, and `fastokens` seeks all at once where nothing is
    // normalised. It makes no difference if none minds what is beside it and none can stand across another.
    let minds = ["single_word", "lstrip", "rstrip"]
        .map(|flag| tokens.iter().any(|it| it[flag] == true))
        .contains(&true);
    let contents = |normalized: bool| {
        let tokens = tokens.iter().filter(move |it| (it["normalized"] == true) == normalized);
        tokens.filter_map(|it| it["content"].as_str())
    };
    composes || !contents(true).any(|one| contents(false).any(|other| minds || overlap(one, other)))
}

/// Whether the tokens that the vocabulary lacks have the ids that the engine gives them, which looks at no number of the
/// file: one after the other, from the vocabulary's size on.
fn are_numbered_on(tokens: &[Value], vocabulary: &Value) -> bool {
    let size = vocabulary.as_object().map_or(0, serde_json::Map::len) as u64;
    let mut ids: Vec<_> = tokens.iter().map(|token| (token["id"].as_u64(), token)).collect();
    ids.sort_by_key(|(id, _)| *id);
    let mut last: Option<u64> = None;
    ids.into_iter().all(|(id, token)| {
        let is_known = token["content"].as_str().is_some_and(|content| vocabulary.get(content).is_some());
        let next = last.filter(|last| size <= *last).map_or(size, |last| last + 1);
        last = last.max(id);
        is_known || id == Some(next)
    })
}

/// Whether two texts can stand in one place or share a part of it.
fn overlap(one: &str, other: &str) -> bool {
    let meets = |first: &str, second: &str| {
        (1..=first.len().min(second.len()))
            .any(|length| first.as_bytes()[first.len() - length..] == second.as_bytes()[..length])
    };
    one.contains(other) || other.contains(one) || meets(one, other) || meets(other, one)
}

/// Reads a file; what it cannot read is for the other library.
pub(super) fn load(file: &Value) -> Option<Tokenizer> {
    let mut tokenizer = Tokenizer::from_json(file.clone()).ok()?;
    // vLLM cuts and pads by its own rules, whatever the file says.
    tokenizer.set_truncation(None);
    tokenizer.set_padding(None);
    Some(tokenizer)
}

/// Ids of `text`.
pub(super) fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    add_special_tokens: bool,
    special_as_text: bool,
) -> Result<Vec<u32>, String> {
    let policy = if special_as_text { AddedTokenPolicy::SkipSpecial } else { AddedTokenPolicy::All };
    tokenizer.encode_with_policy(text, add_special_tokens, policy).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// A file with a token for each byte.
    fn file() -> Value {
        let vocabulary: Map<_, _> =
            ('!'..='\u{143}').zip(0..).map(|(byte, id)| (byte.to_string(), json!(id))).collect();
        let split = json!({
            "type": "Split", "pattern": {"Regex": tiktoken::QWEN2_PATTERN}, "behavior": "Isolated", "invert": false,
        });
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
        });
        json!({
            "added_tokens": [], "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes]},
            "model": {"type": "BPE", "dropout": null, "vocab": vocabulary, "merges": []},
        })
    }

    fn token(content: &str, id: u32, normalized: bool) -> Value {
        json!({"content": content, "id": id, "normalized": normalized})
    }

    #[test]
    fn known_kinds_are_for_the_fast_library() {
        assert!(is_exact(&file()) && load(&file()).is_some());
        let own = |tokens: &[Value]| (json!(tokens), "/added_tokens");
        for ((value, place), expected) in [
            ((Value::Null, "/normalizer"), true),
            ((json!({"type": "Sequence", "normalizers": []}), "/normalizer"), true),
            ((json!({"type": "NFKC"}), "/normalizer"), false),
            ((json!("[a-z]+"), "/pre_tokenizer/pretokenizers/0/pattern/Regex"), false),
            ((json!(tiktoken::TEKKEN_PATTERN), "/pre_tokenizer/pretokenizers/0/pattern/Regex"), true),
            ((json!("Removed"), "/pre_tokenizer/pretokenizers/0/behavior"), false),
            ((json!(true), "/pre_tokenizer/pretokenizers/1/add_prefix_space"), false),
            ((json!({"type": "Metaspace"}), "/pre_tokenizer"), false),
            ((json!("Unigram"), "/model/type"), false),
            ((json!(0.1), "/model/dropout"), false),
            ((json!({"a": 0}), "/model/vocab"), false),
            (own(&[token("<a>", 291, false), token("a>b", 292, true)]), true),
            (own(&[token("<a>", 291, false), token("<b>", 293, false)]), false),
            (own(&[token("!", 0, false)]), true),
            (own(&[token("!", 400, false)]), false),
        ] {
            let mut file = file();
            *file.pointer_mut(place).expect("a place of the file") = value.clone();
            assert_eq!(is_exact(&file), expected, "{place} {value}");
        }
        let mut file = file();
        file["normalizer"] = Value::Null;
        file["added_tokens"] = json!([token("<a>", 291, false), token("a>b", 292, true)]);
        assert!(!is_exact(&file), "they overlap, and nothing is normalised between them");
        file["added_tokens"] = json!([token("<a>", 291, false), token("bb", 292, true)]);
        assert!(is_exact(&file));
    }
}
