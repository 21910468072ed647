//! What a `tokenizer.json` says about where texts may be cut.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::cuts::{Cuts, Places, Splitter, Strips};

/// Pairs of added tokens beyond which it is not looked whether they overlap.
const MOST_PAIRS: usize = 1 << 20;

/// Patterns that are known, each as the regular expressions that split one after the other.
///
/// Before a space that follows a printable character, and after a newline before a printable character, all of them end
/// one match and begin another: a space stands in a match only as its first character or among white space alone; a run
/// of white space with newlines in it ends with the last one. The exception is `/`, which some take along.
pub(super) const PATTERNS: [&[&str]; 6] = [
    // Qwen 2 to 3.
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // Qwen 3.5.
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // Llama 3.
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // gpt-oss.
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // Mistral's Tekken.
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // DeepSeek V3.
    &[
        r"\p{N}{1,3}",
        "[一-龥\u{3040}-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ],
];

/// Components that work on each part of a text by itself, whatever stands beside it.
const NORMALIZERS: [&str; 13] = [
    "Sequence",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Lowercase",
    "Strip",
    "StripAccents",
    "Prepend",
    "Replace",
    "BertNormalizer",
    "Precompiled",
    "Nmt",
];
const PRE_TOKENIZERS: [&str; 10] = [
    "Sequence",
    "ByteLevel",
    "Metaspace",
    "Split",
    "Whitespace",
    "WhitespaceSplit",
    "Punctuation",
    "BertPreTokenizer",
    "Digits",
    "CharDelimiterSplit",
];
const MODELS: [&str; 4] = ["BPE", "Unigram", "WordPiece", "WordLevel"];

/// An added token, as far as it matters here.
struct Added<'a> {
    content: &'a str,
    strips: Strips,
    is_normalized: bool,
}

/// How texts of that tokenizer are cut, or a short name of what forbids it: then a piece need not have the ids that it
/// has in a whole text.
pub(super) fn cuts(file: &Value) -> Result<Cuts, &'static str> {
    let model = &file["model"];
    if !model["dropout"].is_null() && model["dropout"] != 0.0 {
        return Err("dropout");
    }
    let listed = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut added = Vec::with_capacity(listed.len());
    for token in listed {
        let Some(content) = token["content"].as_str() else { return Err("added_tokens") };
        if token["single_word"] == true {
            return Err("single_word");
        }
        if content.is_empty() {
            continue;
        }
        // Libraries differ in which of both ids they take.
        if model["vocab"].get(content).is_some_and(|id| *id != token["id"]) {
            return Err("foreign_ids");
        }
        let strips = Strips { left: token["lstrip"] == true, right: token["rstrip"] == true };
        added.push(Added { content, strips, is_normalized: token["normalized"] == true });
    }
    let (normalizer, pre_tokenizer) = (&file["normalizer"], &file["pre_tokenizer"]);
    let are_known = is_known(normalizer, "normalizers", &NORMALIZERS)
        && is_known(pre_tokenizer, "pretokenizers", &PRE_TOKENIZERS)
        && model["type"].as_str().is_some_and(|it| MODELS.contains(&it));
    if !are_known {
        return Err("unknown_parts");
    }
    let is_wide = |it: &Added<'_>| it.content.trim().len() != it.content.len();
    if added.iter().any(|it| it.strips != Strips::default()) && added.iter().any(is_wide) {
        return Err("strips_beside_whitespace");
    }
    let places = places(normalizer, pre_tokenizer, model).filter(|it| spares(it, &added, normalizer));
    if let Some(places) = places {
        return Ok(Cuts::Places(Box::new(places)));
    }
    if is_empty(normalizer) && overlap(&added) {
        return Err("overlapping_tokens");
    }
    let raw: Vec<_> = added.iter().filter(|it| !it.is_normalized).map(|it| (it.content, it.strips)).collect();
    Ok(Splitter::new(&raw).map_or(Cuts::Nowhere, Cuts::Tokens))
}

/// Whether a component, with all that a sequence has, is one of `types`.
fn is_known(component: &Value, parts: &str, types: &[&str]) -> bool {
    match (component, component["type"].as_str()) {
        (Value::Null, _) => true,
        (_, Some("Sequence")) => {
            component[parts].as_array().is_some_and(|all| all.iter().all(|it| is_known(it, parts, types)))
        }
        (_, Some(kind)) => types.contains(&kind),
        _ => false,
    }
}

fn is_empty(normalizer: &Value) -> bool {
    normalizer.is_null()
        || normalizer["type"] == "Sequence" && normalizer["normalizers"].as_array().is_some_and(Vec::is_empty)
}

/// The places that pattern or vocabulary allow.
fn places(normalizer: &Value, pre_tokenizer: &Value, model: &Value) -> Option<Places> {
    let mut places = match normalizer["type"].as_str() {
        Some("Replace") => return places_of_vocabulary(normalizer, pre_tokenizer, model),
        _ if is_empty(normalizer) => by_pattern(pre_tokenizer)?,
        Some("NFC") => by_pattern(pre_tokenizer)?,
        Some("NFKC") => {
            // It makes some letters begin with a space.
            Places { after_newline_wide: false, ..by_pattern(pre_tokenizer)? }
        }
        _ => return None,
    };
    // One pattern or another takes it along with the newline before.
    places.after_newline[usize::from(b'/')] = false;
    Some(places)
}

fn by_pattern(pre_tokenizer: &Value) -> Option<Places> {
    let printable = std::array::from_fn(|byte| (0x21..0x7f).contains(&byte));
    let whole = Places {
        before_space: printable,
        after_newline: printable,
        after_newline_wide: true,
        before_stop: true,
    };
    let is_byte_level = |it: &Value, splits: bool| {
        it["type"] == "ByteLevel"
            && it["add_prefix_space"] == false
            && it["use_regex"].as_bool().unwrap_or(true) == splits
    };
    if is_byte_level(pre_tokenizer, true) {
        // GPT-2's gives the last newline of a run to what follows.
        return Some(Places { after_newline: [false; 128], after_newline_wide: false, ..whole });
    }
    let [splits @ .., bytes] = pre_tokenizer["pretokenizers"].as_array()?.as_slice() else { return None };
    let patterns: Option<Vec<&str>> = splits
        .iter()
        .map(|it| {
            let is_plain = it["type"] == "Split" && it["behavior"] == "Isolated" && it["invert"] == false;
            it["pattern"]["Regex"].as_str().filter(|_| is_plain)
        })
        .collect();
    let is_known = is_byte_level(bytes, false) && PATTERNS.contains(&patterns?.as_slice());
    is_known.then_some(whole)
}

/// Places in texts that are merged as one word (Gemma): where no entry of the vocabulary has both characters side by
/// side, no merge crosses.
fn places_of_vocabulary(normalizer: &Value, pre_tokenizer: &Value, model: &Value) -> Option<Places> {
    const SPACE: char = '▁';
    let replaces = normalizer["pattern"]["String"] == " " && normalizer["content"] == SPACE.to_string();
    // What splits at spaces finds none.
    let splits_nothing = pre_tokenizer.is_null()
        || pre_tokenizer["type"] == "Split" && pre_tokenizer["pattern"]["String"] == " ";
    let vocabulary = model["vocab"].as_object()?;
    let is_plain = model["type"] == "BPE"
        && model["ignore_merges"] != true
        && has_no_affixes(model)
        && (model["fuse_unk"] != true || has_all_bytes(vocabulary, model));
    if !(replaces && splits_nothing && is_plain) {
        return None;
    }
    let mut places = Places::NONE;
    let has = |letter: char| vocabulary.contains_key(letter.encode_utf8(&mut [0; 4]) as &str);
    for byte in 0x21..0x7f_u8 {
        places.before_space[usize::from(byte)] = has(char::from(byte)) && has(SPACE);
        places.after_newline[usize::from(byte)] = has(char::from(byte)) && has('\n');
    }
    for entry in vocabulary.keys() {
        let mut before = None;
        for letter in entry.chars() {
            match (before, letter) {
                (Some(left @ '\0'..='\x7f'), SPACE) => places.before_space[left as usize] = false,
                (Some('\n'), right @ '\0'..='\x7f') => places.after_newline[right as usize] = false,
                _ => {}
            }
            before = Some(letter);
        }
    }
    Some(places)
}

fn has_no_affixes(model: &Value) -> bool {
    ["continuing_subword_prefix", "end_of_word_suffix"]
        .iter()
        .all(|it| model[it].as_str().unwrap_or_default().is_empty())
}

/// Whether no character is unknown, as each byte has a token.
fn has_all_bytes(vocabulary: &Map<String, Value>, model: &Value) -> bool {
    model["byte_fallback"] == true
        && (0..=u8::MAX).all(|byte| vocabulary.contains_key(&format!("<0x{byte:02X}>")))
}

/// Whether no added token reaches over one of the places, nor takes what stands beside it.
fn spares(places: &Places, added: &[Added<'_>], normalizer: &Value) -> bool {
    added.iter().all(|it| {
        // A token that is looked for in normalised text is normalised itself.
        let may_change = it.is_normalized && !is_empty(normalizer) && !it.content.is_ascii();
        let is_replaced = it.is_normalized && normalizer["type"] == "Replace";
        it.strips == Strips::default() && !may_change && !is_replaced && !places.cuts(it.content)
    })
}

/// Whether a token that is looked for in raw text and one that is looked for in normalised text may claim the same
/// characters: libraries differ in which comes first.
fn overlap(added: &[Added<'_>]) -> bool {
    let (normalized, raw): (Vec<_>, Vec<_>) = added.iter().partition(|it| it.is_normalized);
    if MOST_PAIRS < normalized.len().saturating_mul(raw.len()) {
        return true;
    }
    let starts = |text: &str| -> BTreeSet<usize> { text.char_indices().map(|(at, _)| at).skip(1).collect() };
    let reaches = |left: &str, right: &str| starts(left).iter().any(|at| right.starts_with(&left[*at..]));
    normalized.iter().any(|a| {
        raw.iter().any(|b| {
            let (a, b) = (a.content, b.content);
            a.contains(b) || b.contains(a) || reaches(a, b) || reaches(b, a)
        })
    })
}
