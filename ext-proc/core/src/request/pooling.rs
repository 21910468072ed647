//! Bodies of `/v1/embeddings` and `/pooling`.

use super::{
    Fields, RequestError, chat,
    completions::check_texts_or_ids,
    given,
    json::{Json, Object},
};

pub(super) fn fields(body: &Object) -> Result<Fields, RequestError> {
    // A vector per token can't be had of tokens that are not run, and a plugin's own input is not known here.
    let task = body.get("task").and_then(Json::as_str);
    let per_token = matches!(task, Some("token_embed" | "token_classify" | "plugin"));
    Ok(Fields {
        has_media: check(body)?,
        max_tokens: Some(0),
        n: 1,
        stream: false,
        include_usage: false,
        reads_cache: !per_token && !given(body, "data"),
    })
}

/// Checks the shape of `input` or `messages`; answers whether a message carries a medium.
fn check(body: &Object) -> Result<bool, RequestError> {
    match (body.get("input"), body.get("messages")) {
        (None | Some(Json::Null), None | Some(Json::Null)) => Err(RequestError::NoInput),
        (None | Some(Json::Null), messages) => check_chats("messages", messages),
        (Some(Json::Array(items)), _) if items.is_empty() => Err(RequestError::NoInput),
        (Some(input), _) if is_chats(input) => check_chats("input", Some(input)),
        (Some(input), _) => check_texts_or_ids("input", input).map(|_| false),
    }
}

/// Whether this is a chat or a list of chats: its first item is a message, or the first item of that.
pub(crate) fn is_chats(input: &Json) -> bool {
    let first = input.as_array().and_then(<[_]>::first);
    match first {
        Some(Json::Array(items)) => matches!(items.first(), Some(Json::Object(_))),
        first => matches!(first, Some(Json::Object(_))),
    }
}

fn check_chats(name: &str, chats: Option<&Json>) -> Result<bool, RequestError> {
    match chats {
        Some(Json::Array(items)) if matches!(items.first(), Some(Json::Array(_))) => {
            items.iter().enumerate().try_fold(false, |media, (index, messages)| {
                Ok(media | chat::check(&format!("{name}[{index}]"), Some(messages))?)
            })
        }
        messages => chat::check(name, messages),
    }
}
