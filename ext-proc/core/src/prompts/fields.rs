//! Fields of a request's body.

use super::{PromptError, build::field};
use crate::request::{
    Api, Request,
    json::{Json, Object},
};

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
    let echoes = body.get("echo").is_some_and(Json::is_true);
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

pub(super) fn ids(name: &str, items: &[Json]) -> Result<Vec<u32>, PromptError> {
    let ids = items.iter().map(|item| item.as_int().and_then(|id| u32::try_from(id).ok()));
    ids.collect::<Option<_>>().ok_or_else(|| field(name, "want token ids, integers from 0 on"))
}

pub(super) fn flag(body: &Object, name: &str, default: bool) -> Result<bool, PromptError> {
    match body.get(name) {
        None | Some(Json::Null) => Ok(default),
        Some(Json::Bool(flag)) => Ok(*flag),
        Some(_) => Err(field(name, "want true or false")),
    }
}
