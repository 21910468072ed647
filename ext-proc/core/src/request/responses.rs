//! Bodies of `/v1/responses`.

use super::{
    Fields, RequestError, chat, count, flag,
    json::{Json, Object},
    wrong,
};

pub(super) fn fields(body: &Object) -> Result<Fields, RequestError> {
    let stream = flag(body, "stream");
    Ok(Fields {
        has_media: check(body)?,
        max_tokens: count(body, "max_output_tokens"),
        n: 1,
        stream,
        include_usage: stream,
        reads_cache: true,
    })
}

/// Checks the shape of `input`; answers whether an item carries a medium.
fn check(body: &Object) -> Result<bool, RequestError> {
    let items = match body.get("input") {
        None | Some(Json::Null) => return Err(RequestError::NoInput),
        Some(Json::String(_)) => return Ok(false),
        // Python goes through it as through an empty list.
        Some(Json::Object(none)) if none.is_empty() => return Ok(false),
        Some(Json::Array(items)) => items,
        Some(other) => return Err(wrong("input", other, "a string or an array of items")),
    };
    let mut has_media = false;
    for (index, item) in items.iter().enumerate() {
        let Json::Object(item) = item else {
            return Err(wrong(format!("input[{index}]"), item, "an object"));
        };
        for parts in ["content", "output"].into_iter().filter_map(|name| item.get(name)?.as_array()) {
            has_media |= parts.iter().filter_map(Json::as_object).any(chat::is_media);
        }
    }
    Ok(has_media)
}
