//! JSON as Python's `json.loads` reads it, since that is what stands before vLLM's prompt.
//!
//! Differences from a strict parser that reach the prompt: integers of any size stay exact, a float keeps its kind
//! (`1.0` is not `1`), `NaN` and `Infinity` are numbers, and `1e309` is `Infinity`. Of duplicate keys the last value
//! wins at the first one's place.

mod lax;
mod model;
mod read;
mod splice;
mod text;

pub use model::{first_text, for_each_member, model_of};
pub use splice::{Edit, applied, edits};

/// One JSON value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the JSON kind of that name")]
pub enum Json {
    Null,
    Bool(bool),
    /// An integer that fits 128 bits.
    Int(i128),
    /// An integer that does not: its digits, with a sign if negative.
    BigInt(Box<str>),
    /// May be infinite or not a number.
    Float(f64),
    String(String),
    /// A string with half a surrogate pair, or an object with such a key: Python reads it, but it is no text, and
    /// where it would come into a prompt vLLM refuses it.
    NoText,
    Array(Vec<Self>),
    Object(Object),
}

/// A JSON object in the order in which its keys were first seen.
pub type Object = indexmap::IndexMap<String, Json>;

/// Why bytes are not JSON.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JsonError {
    /// The bytes are no text, which is UTF-8 where nothing else is marked.
    #[error("not UTF-8 from byte {0} on")]
    NotUtf8(usize),
    /// Something else was expected at this byte.
    #[error("expected {want} at byte {at}")]
    Syntax {
        /// Offset into the body.
        at: usize,
        /// What may stand there.
        want: &'static str,
    },
    /// Arrays and objects nest deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// More values than [`MAX_VALUES`].
    #[error("more than {MAX_VALUES} values")]
    TooMany,
}

impl JsonError {
    /// Short fixed name for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotUtf8(_) | Self::Syntax { .. } => "not_json",
            Self::TooDeep => "too_deep",
            Self::TooMany => "too_many_values",
        }
    }
}

/// Deepest nesting read. Values are walked recursively later on, on threads with 2 MiB of stack.
pub const MAX_DEPTH: usize = 128;

/// Most values read, about 100 bytes each: what a body of small values costs in memory is many times its size.
/// Two prompts of a million token ids pass.
pub const MAX_VALUES: usize = 2_000_000;

/// Reads one JSON value that fills `bytes`; a byte order mark before it is allowed. Like Python's parser it takes UTF-16
/// and UTF-32 too.
///
/// # Errors
///
/// See [`JsonError`]. Never panics, whatever the bytes.
pub fn parse(bytes: &[u8]) -> Result<Json, JsonError> {
    parse_text(&text::decoded(bytes)?)
}

/// As [`parse`], for text.
///
/// # Errors
///
/// See [`JsonError`].
pub fn parse_text(text: &str) -> Result<Json, JsonError> {
    read::all(text)
}

impl Json {
    /// What kind of value this is, in words for an error message.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::BigInt(_) => "an integer",
            Self::Float(_) => "a float",
            Self::String(_) => "a string",
            Self::NoText => "a string with half a surrogate pair",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The items of an array.
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The entries of an object.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// An integer of at most 128 bits.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// Whether every string in it is text.
    pub fn is_all_text(&self) -> bool {
        match self {
            Self::NoText => false,
            Self::Array(items) => items.iter().all(Self::is_all_text),
            Self::Object(entries) => entries.values().all(Self::is_all_text),
            _ => true,
        }
    }

    /// Whether this is `true`.
    pub fn is_true(&self) -> bool {
        matches!(self, Self::Bool(true))
    }
}

impl From<&serde_json::Value> for Json {
    fn from(value: &serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(bool) => Self::Bool(*bool),
            serde_json::Value::Number(number) => match number.as_i128() {
                Some(int) => Self::Int(int),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Self::String(text.clone()),
            serde_json::Value::Array(items) => Self::Array(items.iter().map(Self::from).collect()),
            serde_json::Value::Object(entries) => {
                Self::Object(entries.iter().map(|(key, value)| (key.clone(), Self::from(value))).collect())
            }
        }
    }
}
