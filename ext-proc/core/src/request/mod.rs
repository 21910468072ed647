//! A client's request as far as routing needs it: which API, which model, what decides its tokens and its cache use.
//!
//! Parsing is as tolerant as vLLM is: unknown fields are kept and ignored, and what only the engine may refuse (a
//! wrong `temperature`, say) is not looked at. The body itself is kept in the order given, since key order inside
//! tool schemas reaches the prompt.

mod chat;
mod completions;
pub mod json;
mod messages;
mod pooling;
mod responses;

use json::{Json, Object};

pub(crate) use chat::{is_media, is_text_part};
pub(crate) use pooling::is_chats;

/// The routes whose prompts can be made here.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Api {
    /// `/v1/chat/completions`: messages, rendered by the model's chat template.
    ChatCompletions,
    /// `/v1/completions`: text or token ids as they are.
    Completions,
    /// `/v1/responses`: OpenAI's newer form of a chat.
    Responses,
    /// `/v1/messages`: Anthropic's form of a chat.
    Messages,
    /// `/v1/embeddings`: texts, token ids or chats to be turned into vectors.
    Embeddings,
    /// `/pooling`: the same, for any task of a model that generates nothing.
    Pooling,
}

impl Api {
    /// Every one of them.
    pub const ALL: [Self; 6] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Pooling,
    ];

    /// The API served at `path`, which carries no query string; `None` if this is none of ours.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.path() == path)
    }

    /// The path at which engines serve this API.
    pub const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
            Self::Pooling => "/pooling",
        }
    }
}

/// Whether vLLM reads the header that names a data-parallel rank at `path`, which carries no query string. Elsewhere
/// it passes over it without a word (0.32: `/v1/responses`, `/v1/embeddings`, `/pooling` and the rest).
#[must_use]
pub fn honours_rank(path: &str) -> bool {
    matches!(path, "/v1/chat/completions" | "/v1/completions" | "/v1/messages")
}

/// One parsed request. The fields are those that routing or an engine's scheduler reads; all else stays in the body.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Which API it was sent to.
    pub api: Api,
    /// Model or adapter asked for; `None` where the client leaves it to the server (absent, null or empty).
    pub model: Option<String>,
    /// Salt that keeps this client's blocks apart from others' (first block's extra key).
    pub cache_salt: Option<String>,
    /// Whether the answer is wanted as a stream of events.
    pub stream: bool,
    /// Whether a streamed answer ends with a usage event.
    pub include_usage: bool,
    /// Most tokens to generate; `None` means as many as fit. Completions have vLLM's default of 16; embeddings and
    /// other pooled answers have 0.
    pub max_tokens: Option<u32>,
    /// Number of answers per prompt, at least 1.
    pub n: u32,
    /// False where vLLM skips reading its prefix cache: prompt log probabilities or a vector per token are asked for.
    pub reads_cache: bool,
    /// Whether a message carries a picture, sound or other medium, whose tokens only the engine can count.
    pub has_media: bool,
    body: Object,
}

/// Why a body is no request. The engine is left to answer the client; routing goes on without the prompt.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// The bytes are not JSON as Python's parser takes it.
    #[error("body is not JSON: {0}")]
    NotJson(#[from] json::JsonError),
    /// JSON, but not an object at the top.
    #[error("body is {0}, want a JSON object")]
    NotAnObject(&'static str),
    /// A chat without `messages`.
    #[error("messages: missing; a chat needs at least one message")]
    NoMessages,
    /// A completion without `prompt`, or with an empty one.
    #[error("prompt: missing or empty; send a string, a list of strings, or token ids")]
    NoPrompt,
    /// A request for a response without `input`, or for vectors without one or with none in it.
    #[error("input: missing or empty; send a string or a list")]
    NoInput,
    /// A field that decides the prompt or the route has a type that vLLM refuses.
    #[error("{field}: is {got}, want {want}")]
    WrongType {
        /// Path of the field, as `messages[3].content`.
        field: String,
        /// What was found.
        got: &'static str,
        /// What is accepted there.
        want: &'static str,
    },
}

impl RequestError {
    /// Short fixed name for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotJson(error) => error.label(),
            Self::NotAnObject(_) => "not_object",
            Self::NoMessages => "no_messages",
            Self::NoPrompt => "no_prompt",
            Self::NoInput => "no_input",
            Self::WrongType { .. } => "wrong_type",
        }
    }
}

impl Request {
    /// Reads `body` as a request to `api`.
    ///
    /// # Errors
    ///
    /// Bytes that are not JSON, nest too deep, or lack what a prompt is made of, see [`RequestError`].
    pub fn parse(api: Api, body: &[u8]) -> Result<Self, RequestError> {
        let body = match json::parse(body)? {
            Json::Object(object) => object,
            other => return Err(RequestError::NotAnObject(other.kind())),
        };
        let fields = match api {
            Api::ChatCompletions => chat::fields(&body)?,
            Api::Completions => completions::fields(&body)?,
            Api::Responses => responses::fields(&body)?,
            Api::Messages => messages::fields(&body)?,
            Api::Embeddings | Api::Pooling => pooling::fields(&body)?,
        };
        let Fields { has_media, max_tokens, n, stream, include_usage, reads_cache } = fields;
        let salt = body.get("cache_salt").and_then(Json::as_str).filter(|salt| !salt.is_empty());
        Ok(Self {
            api,
            model: optional_text(&body, "model")?.map(str::to_owned),
            cache_salt: salt.map(str::to_owned),
            stream,
            include_usage,
            max_tokens,
            n,
            reads_cache,
            has_media,
            body,
        })
    }

    /// The whole body, in the order given.
    pub fn body(&self) -> &Object {
        &self.body
    }
}

/// What an API's own file reads from a body.
struct Fields {
    has_media: bool,
    max_tokens: Option<u32>,
    n: u32,
    stream: bool,
    include_usage: bool,
    reads_cache: bool,
}

/// Whether a field is there and not null.
fn given(body: &Object, name: &str) -> bool {
    !matches!(body.get(name), None | Some(Json::Null))
}

/// Whether a field is true.
fn flag(body: &Object, name: &str) -> bool {
    body.get(name).and_then(Json::as_flag).unwrap_or(false)
}

/// A field that is a number of things.
fn count(body: &Object, name: &str) -> Option<u32> {
    body.get(name).and_then(Json::as_number).and_then(|number| u32::try_from(number).ok())
}

/// Whether a streamed answer is asked to end with a usage event.
fn wants_usage(body: &Object) -> bool {
    let options = body.get("stream_options").and_then(Json::as_object);
    options.is_some_and(|options| flag(options, "include_usage"))
}

/// A text that may be absent, null or empty, all of which mean none.
fn optional_text<'a>(body: &'a Object, name: &'static str) -> Result<Option<&'a str>, RequestError> {
    match body.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => Err(wrong(name, other, "a string")),
    }
}

fn wrong(field: impl Into<String>, got: &Json, want: &'static str) -> RequestError {
    RequestError::WrongType { field: field.into(), got: got.kind(), want }
}

#[cfg(test)]
mod tests;
