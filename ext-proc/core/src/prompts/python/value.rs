//! JSON as values of the template engine.

use minijinja::value::Value;

use super::objects::BigInt;
use crate::request::json::Json;

/// The value of `json`; keys keep their order.
pub(crate) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(bool) => Value::from(*bool),
        Json::Int(int) => match i64::try_from(*int) {
            Ok(int) => Value::from(int),
            Err(_) => Value::from(*int),
        },
        Json::BigInt(digits) => Value::from_object(BigInt(digits.clone())),
        Json::Float(float) => Value::from(*float),
        Json::String(text) => Value::from(text.as_str()),
        // No template is given such a value.
        Json::NoText => Value::UNDEFINED,
        Json::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        Json::Object(entries) => {
            Value::from_pairs(entries.iter().map(|(key, value)| (key.as_str(), from_json(value))))
        }
    }
}
