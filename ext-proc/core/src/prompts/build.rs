//! Pieces of JSON, taken apart and put together.

use super::PromptError;
use crate::request::json::{Json, Object};

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

/// Whether a field is there and not null.
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
