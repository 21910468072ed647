//! Bodies of `/v1/messages`.

use super::{
    Fields, RequestError, count, flag,
    json::{Json, Object},
    wrong,
};

pub(super) fn fields(body: &Object) -> Result<Fields, RequestError> {
    let stream = flag(body, "stream");
    Ok(Fields {
        has_media: check(body)?,
        max_tokens: count(body, "max_tokens"),
        n: 1,
        stream,
        include_usage: stream,
        reads_cache: true,
    })
}

/// Checks the shape of `messages`; answers whether any of them carries a picture.
fn check(body: &Object) -> Result<bool, RequestError> {
    let messages = match body.get("messages") {
        None | Some(Json::Null) => return Err(RequestError::NoMessages),
        Some(Json::Array(messages)) => messages,
        Some(other) => return Err(wrong("messages", other, "an array of messages")),
    };
    let mut has_media = false;
    for (index, message) in messages.iter().enumerate() {
        let Json::Object(message) = message else {
            return Err(wrong(format!("messages[{index}]"), message, "an object"));
        };
        let field = |name: &str| format!("messages[{index}].{name}");
        let other = match (message.get("role"), message.get("content")) {
            (Some(Json::String(_)), Some(Json::String(_))) => continue,
            (Some(Json::String(_)), Some(Json::Array(blocks))) => {
                for (at, block) in blocks.iter().enumerate() {
                    let Json::Object(block) = block else {
                        return Err(wrong(format!("{}[{at}]", field("content")), block, "an object"));
                    };
                    has_media |=
                        message.get("role") != Some(&Json::String("system".into())) && is_media(block);
                }
                continue;
            }
            (Some(Json::String(_)), content) => {
                return Err(wrong(field("content"), content.unwrap_or(&Json::Null), "a string or an array"));
            }
            (other, _) => other,
        };
        return Err(wrong(field("role"), other.unwrap_or(&Json::Null), "a string"));
    }
    Ok(has_media)
}

/// Whether a block is a picture or the result of a tool with one in it.
fn is_media(block: &Object) -> bool {
    let is = |block: &Object, kind: &str| block.get("type").and_then(Json::as_str) == Some(kind);
    let is_image = |block: &Object| is(block, "image");
    match block.get("content") {
        Some(Json::Array(items)) if is(block, "tool_result") => {
            items.iter().filter_map(Json::as_object).any(is_image)
        }
        _ => is_image(block) && matches!(block.get("source"), Some(Json::Object(_))),
    }
}
