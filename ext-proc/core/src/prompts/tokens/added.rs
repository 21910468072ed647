//! Added tokens that a `tokenizer.json` lacks and its `tokenizer_config.json` has.

use serde_json::{Map, Value, json};

use crate::{
    prompts::build::given,
    request::json::{Json, Object},
};

/// Names under which a config has the special tokens that every tokenizer may have.
const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Adds to the tokens of `file` those that only `config` has: by number first, then those with a role, which are
/// special. A token that the vocabulary has keeps its id; others follow the last one.
pub(super) fn add_tokens(file: &mut Value, config: &Object) {
    let vocabulary = &file["model"]["vocab"];
    let id_of = |token: &str| match vocabulary {
        Value::Object(ids) => ids.get(token).and_then(Value::as_u64),
        // Pairs of token and score, in the order of ids.
        Value::Array(pairs) => pairs.iter().position(|pair| pair[0] == token).map(|at| at as u64),
        _ => None,
    };
    let size = vocabulary.as_object().map_or_else(|| vocabulary.as_array().map_or(0, Vec::len), Map::len);
    let known = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let last = known.iter().filter_map(|token| token["id"].as_u64()).max();
    let mut next = last.map_or(size as u64, |last| (last + 1).max(size as u64));
    let mut added: Vec<Value> = Vec::new();
    for token in wanted(config) {
        let is_same = |other: &Value| other["content"] == token["content"];
        let Some(content) = token["content"].as_str().filter(|content| !content.is_empty()) else { continue };
        if known.iter().chain(&added).any(is_same) {
            continue;
        }
        let id = id_of(content).unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        let mut token = token;
        token["id"] = id.into();
        added.push(token);
    }
    if added.is_empty() {
        return;
    }
    match file.get_mut("added_tokens") {
        Some(Value::Array(known)) => known.extend(added),
        _ => file["added_tokens"] = added.into(),
    }
}

/// The tokens that `config` names, in the order in which they are added.
fn wanted(config: &Object) -> Vec<Value> {
    let numbered = config.get("added_tokens_decoder").and_then(Json::as_object);
    let mut numbered: Vec<_> = numbered
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse::<u64>().ok()?, token)))
        .collect();
    numbered.sort_by_key(|(id, _)| *id);
    let numbered = numbered.into_iter().map(|(_, it)| token(it, false));
    let standard = ROLES.iter().filter_map(|name| given(config, name));
    // A model may have roles of its own, named likewise or in one object; in a list they have no names.
    let own = config.iter().filter(|(name, _)| name.ends_with("_token") && !ROLES.contains(&name.as_str()));
    let extra = given(config, "extra_special_tokens").or_else(|| config.get("additional_special_tokens"));
    let named = extra.and_then(Json::as_object).into_iter().flatten();
    let listed = extra.and_then(Json::as_array).into_iter().flatten();
    let own = own.chain(named).map(|(_, token)| token);
    let roles = standard.chain(own).chain(listed).map(|it| token(it, true));
    numbered.chain(roles).flatten().collect()
}

/// A token as `tokenizer.json` has it: of a text, or of an object with some of its fields.
fn token(given: &Json, has_role: bool) -> Option<Value> {
    let fields = given.as_object();
    let content = fields.map_or(Some(given), |fields| fields.get("content"))?.as_str()?;
    let flag = |name: &str| fields.and_then(|fields| fields.get(name)).is_some_and(Json::is_true);
    let special = has_role || flag("special");
    // Where it is not said, it is true of tokens that are not special.
    let says_normalized = fields.is_some_and(|fields| fields.contains_key("normalized"));
    let normalized = if says_normalized { flag("normalized") } else { !special };
    Some(json!({
        "content": content, "single_word": flag("single_word"), "lstrip": flag("lstrip"),
        "rstrip": flag("rstrip"), "normalized": normalized, "special": special,
    }))
}
