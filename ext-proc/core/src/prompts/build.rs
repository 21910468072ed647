//! Pieces of JSON, taken apart and put together.

use super::PromptError;
use crate::request::{
    Api, Request,
    json::{Json, Object},
};

/// What is wrong with a value that is not text throughout.
pub(super) const HALF_PAIR: &str = "has half a surrogate pair in it";

pub(super) fn object<const N: usize>(entries: [(&str, Json); N]) -> Object {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

pub(super) fn text(text: impl Into<String>) -> Json {
    Json::String(text.into())
}

/// The text in a field, if it is one.
pub(super) fn text_of<'a>(object: &'a Object, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Json::as_str)
}

/// The same where a text that is there has something in it.
pub(super) fn filled<'a>(object: &'a Object, name: &str) -> Option<&'a str> {
    text_of(object, name).filter(|text| !text.is_empty())
}

/// A field that is there and not null.
pub(super) fn given<'a>(object: &'a Object, name: &str) -> Option<&'a Json> {
    object.get(name).filter(|value| **value != Json::Null)
}

pub(super) fn field(path: &str, problem: &'static str) -> PromptError {
    PromptError::Field { field: path.to_owned(), problem }
}

/// A field that is a list; `None` where it is absent or null.
pub(super) fn list<'a>(object: &'a Object, name: &str) -> Result<Option<&'a [Json]>, PromptError> {
    match given(object, name) {
        None => Ok(None),
        Some(Json::Array(items)) => Ok(Some(items)),
        Some(_) => Err(field(name, "want an array")),
    }
}

/// Where a request of that API carries media.
pub(super) fn media_field(request: &Request) -> &'static str {
    match request.api {
        Api::ChatCompletions | Api::Messages => "messages",
        Api::Completions => "prompt_embeds",
        Api::Responses | Api::Embeddings | Api::Pooling => "input",
    }
}

/// Token ids that a client had made before and sends with a chat, in place of rendering and encoding it.
pub(super) fn ready_ids(body: &Object) -> Result<Option<Vec<u32>>, PromptError> {
    let given = body.get("kv_transfer_params").and_then(Json::as_object);
    let given = given.and_then(|params| params.get("prompt_token_ids"));
    let echoes = body.get("echo").and_then(Json::as_flag).unwrap_or(false);
    match given {
        None | Some(Json::Null) => Ok(None),
        Some(_) if echoes => Ok(None),
        Some(Json::Array(items)) if !items.is_empty() => {
            ids("kv_transfer_params.prompt_token_ids", items).map(Some)
        }
        Some(_) => {
            Err(field("kv_transfer_params.prompt_token_ids", "want a list of token ids that is not empty"))
        }
    }
}

/// Items of a field of that name as token ids.
pub(super) fn ids(name: &str, items: &[Json]) -> Result<Vec<u32>, PromptError> {
    let ids = items.iter().map(|item| item.as_number().and_then(|id| u32::try_from(id).ok()));
    ids.collect::<Option<_>>().ok_or_else(|| field(name, "want token ids, integers from 0 on"))
}

/// A flag of a body.
pub(super) fn flag(body: &Object, name: &str, default: bool) -> Result<bool, PromptError> {
    match body.get(name) {
        None | Some(Json::Null) => Ok(default),
        Some(given) => given.as_flag().ok_or_else(|| field(name, "want true or false")),
    }
}
