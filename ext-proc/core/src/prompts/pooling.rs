//! `/v1/embeddings` and `/pooling`: texts and ids like a completion's, or chats.

use super::{
    PromptError,
    build::{field, given},
};
use crate::request::{
    is_chats,
    json::{Json, Object},
};

/// What such a request asks to be turned into vectors.
pub(super) enum Inputs<'a> {
    /// As a completion's prompt.
    Prompts(&'a Json),
    /// The body of a chat for each.
    Chats(Vec<Object>),
}

pub(super) fn inputs(body: &Object) -> Result<Inputs<'_>, PromptError> {
    if body.get("padding").and_then(Json::as_str) == Some("max_length") {
        return Err(field("padding", "fills the prompt up to a length that is not known here"));
    }
    if given(body, "data").is_some() {
        return Err(field("data", "is read by a plugin of the engine"));
    }
    let chats = match (given(body, "input"), given(body, "messages")) {
        (Some(input), _) if is_chats(input) => input,
        (Some(input), _) => return Ok(Inputs::Prompts(input)),
        (None, Some(messages)) => messages,
        (None, None) => return Err(field("input", "missing")),
    };
    let chats = chats.as_array().ok_or_else(|| field("messages", "want an array"))?;
    Ok(Inputs::Chats(match chats.first() {
        Some(Json::Array(_)) => chats.iter().map(|messages| chat(body, messages.clone())).collect(),
        _ => vec![chat(body, Json::Array(chats.to_vec()))],
    }))
}

/// The fields of a chat that count here. No answer is begun unless the request says so.
fn chat(body: &Object, messages: Json) -> Object {
    const FIELDS: [&str; 5] = [
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
    ];
    let mut chat = Object::new();
    chat.insert("messages".into(), messages);
    chat.insert("add_generation_prompt".into(), Json::Bool(false));
    for name in FIELDS {
        if let Some(value) = given(body, name) {
            chat.insert(name.into(), value.clone());
        }
    }
    chat
}
