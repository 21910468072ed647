//! Text to token ids, by the model's own tokenizer.

mod unicode;

use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

use serde_json::{Map, Value, json};

use super::{LoadError, PromptError, build::given};
use crate::request::json::{Json, Object};

/// A model's tokenizer, as its `tokenizer.json` describes it.
pub(super) struct Tokenizer {
    inner: PipelineTokenizer,
    /// Whether text is split where symbols or punctuation begin and end.
    splits_at_symbols: bool,
    /// Added tokens that are not special: they are cut out of any text.
    never_ordinary: Vec<String>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` of any version. Tokens that only `config`, the `tokenizer_config.json`, has are added, as
    /// transformers does.
    pub(super) fn new(json: &[u8], config: &Object) -> Result<Self, LoadError> {
        let failed = |error: &dyn std::fmt::Display| LoadError::Tokenizer(error.to_string());
        let mut file: Value = serde_json::from_slice(json).map_err(|error| failed(&error))?;
        add_tokens(&mut file, config);
        tokenizers::canonicalize_value(&mut file).map_err(|error| failed(&error))?;
        let canonical = file.to_string();
        let inner = tokenizers::from_json(&canonical).map_err(|error| failed(&error))?;
        let added = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        let plain = added.iter().filter(|token| token["special"] != true);
        let plain = plain.filter_map(|token| token["content"].as_str().map(str::to_owned));
        Ok(Self {
            inner,
            splits_at_symbols: unicode::splits_at_symbols(&canonical),
            never_ordinary: plain.filter(|content| !content.is_empty()).collect(),
        })
    }

    /// Ids of `text`. Special tokens that stand in it as text become their ids; `add_special_tokens` is whether the
    /// post-processor may add any around it.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        self.ids(text, add_special_tokens, false)
    }

    /// Ids of `text` as ordinary text: special tokens that stand in it are text like any other. An added token that is
    /// not special cannot be, and is an error.
    pub(super) fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        if self.never_ordinary.iter().any(|token| text.contains(token.as_str())) {
            return Err(PromptError::Tokenizer("the text has an added token that is not special".to_owned()));
        }
        self.ids(text, false, true)
    }

    fn ids(
        &self,
        text: &str,
        add_special_tokens: bool,
        encode_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        if unicode::has_new(text, self.splits_at_symbols) {
            let problem = "a character of the text is newer than the engine's Unicode".to_owned();
            return Err(PromptError::Tokenizer(problem));
        }
        // vLLM cuts and pads by its own rules, whatever the file says.
        let options = EncodeOptions {
            add_special_tokens,
            encode_special_tokens,
            padding: Override::Off,
            truncation: Override::Off,
        };
        let mut tokens = Vec::with_capacity(text.len() / 3);
        self.inner
            .encode_into(text, &options, &mut tokens)
            .map_err(|error| PromptError::Tokenizer(error.to_string()))?;
        Ok(tokens.into_iter().map(u32::from).collect())
    }

    /// Text of `ids`, special tokens included.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, false).unwrap_or_default()
    }
}

/// Names under which a config has the special tokens that every tokenizer may have.
const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Adds to the tokens of `file` those that only `config` has: by number first, then those with a role, which are
/// special. A token that the vocabulary has keeps its id; others follow the last one.
fn add_tokens(file: &mut Value, config: &Object) {
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
