//! Bodies of `/v1/chat/completions`.

use super::{
    Fields, RequestError, count, flag, given,
    json::{Json, Object},
    wants_usage, wrong,
};

pub(super) fn fields(body: &Object) -> Result<Fields, RequestError> {
    Ok(Fields {
        has_media: check("messages", body.get("messages"))?,
        max_tokens: count(body, "max_completion_tokens").or_else(|| count(body, "max_tokens")),
        n: count(body, "n").unwrap_or(1).max(1),
        stream: flag(body, "stream"),
        include_usage: wants_usage(body),
        // Log probabilities of a prompt come of running all of it. `echo` asks for them along with those of the
        // answer, whose number is 0, not absent, by default.
        reads_cache: !(given(body, "prompt_logprobs")
            || flag(body, "echo") && body.get("top_logprobs") != Some(&Json::Null)),
    })
}

/// Parts of a message that carry text alone, as vLLM reads them.
const TEXT_PARTS: [&str; 6] = ["text", "input_text", "output_text", "refusal", "thinking", "tool_reference"];

/// Types of parts that are media, and the keys that hold them.
const MEDIA_KEYS: [&str; 11] = [
    "image_url",
    "input_image",
    "image_pil",
    "image_embeds",
    "audio_url",
    "input_audio",
    "audio_embeds",
    "video_url",
    "video_embeds",
    "prompt_embeds",
    "file",
];

/// Checks the shape of `messages`, found in the field of that name; answers whether any carries a medium.
pub(super) fn check(name: &str, messages: Option<&Json>) -> Result<bool, RequestError> {
    let messages = match messages {
        None | Some(Json::Null) => return Err(RequestError::NoMessages),
        Some(Json::Array(messages)) => messages,
        Some(other) => return Err(wrong(name, other, "an array of messages")),
    };
    let mut has_media = false;
    for (index, message) in messages.iter().enumerate() {
        let Json::Object(message) = message else {
            return Err(wrong(format!("{name}[{index}]"), message, "an object"));
        };
        match message.get("role") {
            Some(Json::String(_)) => {}
            other => {
                return Err(wrong(format!("{name}[{index}].role"), other.unwrap_or(&Json::Null), "a string"));
            }
        }
        match message.get("content") {
            // Python goes through the keys of an object where a list is wanted.
            None | Some(Json::Null | Json::String(_) | Json::Object(_)) => {}
            Some(Json::Array(parts)) => {
                for (at, part) in parts.iter().enumerate() {
                    match part {
                        Json::String(_) => {}
                        Json::Object(part) => has_media |= is_media(part),
                        other => {
                            let field = format!("{name}[{index}].content[{at}]");
                            return Err(wrong(field, other, "an object or a string"));
                        }
                    }
                }
            }
            Some(other) => {
                return Err(wrong(format!("{name}[{index}].content"), other, "a string, an array or null"));
            }
        }
        match message.get("tool_calls") {
            None | Some(Json::Null | Json::Array(_)) => {}
            Some(Json::Object(none)) if none.is_empty() => {}
            Some(Json::String(none)) if none.is_empty() => {}
            Some(other) => {
                return Err(wrong(format!("{name}[{index}].tool_calls"), other, "an array or null"));
            }
        }
    }
    Ok(has_media)
}

/// Whether a part's tokens depend on more than its text. Its type says so; a part without one, or with an id for the
/// engine's cache of media, goes by its keys.
pub(crate) fn is_media(part: &Object) -> bool {
    let kind = part.get("type").and_then(Json::as_str);
    let by_keys = || MEDIA_KEYS.iter().any(|key| part.contains_key(*key));
    match kind {
        Some(kind) if !is_text_part(kind) => MEDIA_KEYS.contains(&kind),
        Some(_) => !matches!(part.get("uuid"), None | Some(Json::Null)) && by_keys(),
        None => by_keys(),
    }
}

/// Whether vLLM reads a part of this type as text.
pub(crate) fn is_text_part(kind: &str) -> bool {
    TEXT_PARTS.contains(&kind)
}
