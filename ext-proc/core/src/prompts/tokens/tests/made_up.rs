//! Small tokenizers, one for each way in which texts are cut or may not be.

use serde_json::{Value, json};

use super::super::{Tokenizer, known};
use crate::request::json::Object;

/// A tokenizer whose vocabulary has every pair of the characters of `letters`, so that two that come to stand side by
/// side within a word become one token.
pub(super) fn made_up(letters: &str, changes: Value) -> Value {
    // What byte-level vocabularies call bytes: printing ones stand for themselves, the others follow.
    let names = (0..=u8::MAX).filter(|it| matches!(it, 33..=126 | 161..=172 | 174..=255)).map(char::from);
    let names = names.chain(('\u{100}'..).take(68)).map(String::from);
    let mut vocabulary = serde_json::Map::new();
    let mut add = |text: String| {
        let id = vocabulary.len();
        vocabulary.entry(text).or_insert_with(|| id.into());
    };
    add("<unk>".to_owned());
    names.chain(letters.chars().map(String::from)).for_each(&mut add);
    let pairs = || letters.chars().flat_map(|a| letters.chars().map(move |b| (a, b)));
    pairs().for_each(|(a, b)| add(format!("{a}{b}")));
    let merges: Vec<_> = pairs().map(|(a, b)| json!([a.to_string(), b.to_string()])).collect();
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges,
        },
    });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Object(fields) if name == "model" => {
                fields.iter().for_each(|(field, value)| file[name][field] = value.clone());
            }
            _ => file[name] = value.clone(),
        }
    }
    file
}

/// Added tokens with ids above all others; each with its flags, as `"lstrip"`.
pub(super) fn added(tokens: &[(&str, &[&str])]) -> Value {
    tokens
        .iter()
        .zip(100_000..)
        .map(|((content, flags), id)| {
            let has = |flag: &str| flags.contains(&flag);
            json!({
                "id": id, "content": content, "single_word": has("single_word"), "lstrip": has("lstrip"),
                "rstrip": has("rstrip"), "normalized": has("normalized"), "special": !has("plain"),
            })
        })
        .collect()
}

/// Names of the bytes of some letters in byte-level vocabularies.
pub(super) const BYTE_LETTERS: &str = "abAB1'./<>|sĠĊčĉãĢĤĤäÌģ";
const LETTERS: &str = "abAB1'./<>|s▁\n字";

pub(super) fn by_regex(patterns: &[&str]) -> Value {
    let split = |it: &&str| json!({"type": "Split", "pattern": {"Regex": it}, "behavior": "Isolated", "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let parts: Vec<_> = patterns.iter().map(split).chain([bytes]).collect();
    json!({"type": "Sequence", "pretokenizers": parts})
}

fn metaspace(scheme: &str) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false})
}

const MARKS: &[(&str, &[&str])] = &[("<s>", &[]), ("</s>", &[]), ("<|a|>", &["plain"])];

/// Made-up tokenizers that load, each with how its texts are cut.
fn made_up_files() -> Vec<(&'static str, &'static str, Value)> {
    let bytes = |changes| made_up(BYTE_LETTERS, changes);
    let words = |changes| made_up(LETTERS, changes);
    let stripped: &[(&str, &[&str])] =
        &[("<s>", &["lstrip"]), ("</s>", &["rstrip"]), ("<|a|>", &["lstrip", "rstrip"])];
    let normalized: &[(&str, &[&str])] = &[("<s>", &[]), ("abA", &["normalized"]), ("éa", &["normalized"])];
    let overlapping: &[(&str, &[&str])] = &[
        ("<s>", &[]),
        ("<s><s>", &[]),
        ("s><", &[]),
        ("a <s", &[]),
        ("b\n", &[]),
        ("\n\n", &[]),
        ("> ", &[]),
    ];
    let qwen = by_regex(known::PATTERNS[0]);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]});
    let around = json!({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<s>": {"id": "<s>", "ids": [100_000], "tokens": ["<s>"]},
        "</s>": {"id": "</s>", "ids": [100_001], "tokens": ["</s>"]},
    }});
    let cut = json!({"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0});
    let pad = json!({"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<unk>"});
    let mut files = vec![
        (
            "gpt-2",
            "anywhere",
            bytes(json!({"added_tokens": added(MARKS), "pre_tokenizer":
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}})),
        ),
        (
            "nfc",
            "anywhere",
            bytes(json!({"added_tokens": added(MARKS), "pre_tokenizer": qwen,
            "normalizer": {"type": "NFC"}})),
        ),
        (
            "nfkc",
            "anywhere",
            bytes(json!({"added_tokens": added(MARKS), "pre_tokenizer": qwen,
            "normalizer": {"type": "NFKC"}})),
        ),
        (
            "nfc and normalized tokens",
            "added_tokens",
            bytes(json!({"added_tokens": added(normalized),
            "pre_tokenizer": qwen, "normalizer": {"type": "NFC"}})),
        ),
        (
            "unknown pattern",
            "added_tokens",
            bytes(json!({"added_tokens": added(MARKS), "pre_tokenizer":
            {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]}})),
        ),
        ("strips", "added_tokens", bytes(json!({"added_tokens": added(stripped), "pre_tokenizer": qwen}))),
        (
            "overlapping",
            "added_tokens",
            bytes(json!({"added_tokens": added(overlapping), "pre_tokenizer": qwen})),
        ),
        (
            "cut and padded",
            "anywhere",
            bytes(json!({"added_tokens": added(MARKS), "pre_tokenizer": qwen,
            "truncation": cut, "padding": pad})),
        ),
        (
            "around",
            "anywhere",
            bytes(json!({"added_tokens": added(MARKS), "pre_tokenizer": qwen,
            "post_processor": around})),
        ),
        ("prepend", "added_tokens", words(json!({"added_tokens": added(MARKS), "normalizer": prepend}))),
        ("no tokens", "whole", words(json!({"normalizer": prepend}))),
    ];
    for scheme in ["first", "always", "never"] {
        let file = words(json!({"added_tokens": added(MARKS), "pre_tokenizer": metaspace(scheme)}));
        files.push((scheme, "added_tokens", file));
    }
    for (name, patterns) in [("qwen3.5", 1), ("llama", 2), ("gpt-oss", 3), ("tekken", 4), ("deepseek", 5)] {
        let pre_tokenizer = by_regex(known::PATTERNS[patterns]);
        let file = bytes(json!({"added_tokens": added(MARKS), "pre_tokenizer": pre_tokenizer}));
        files.push((name, "anywhere", file));
    }
    // One word as a whole, of a vocabulary in which not all pairs are.
    let mut gemma = words(json!({"added_tokens": added(MARKS), "normalizer": replace}));
    for (a, b) in [("b", "▁"), ("\n", "b"), (".", "▁")] {
        gemma["model"]["vocab"].as_object_mut().unwrap().shift_remove(&format!("{a}{b}"));
        gemma["model"]["merges"].as_array_mut().unwrap().retain(|it| *it != json!([a, b]));
    }
    files.push(("gemma", "anywhere", gemma));
    files
}

pub(super) fn made_up_tokenizers() -> Vec<(&'static str, Tokenizer)> {
    let load = |(name, label, file): (&'static str, &str, Value)| {
        let tokenizer = Tokenizer::new(file.to_string().as_bytes(), &Object::new())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tokenizer.cut_label(), label, "{name}");
        (name, tokenizer)
    };
    made_up_files().into_iter().map(load).collect()
}
