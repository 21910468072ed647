//! A client's request as far as routing needs it: which API, which model, what decides its tokens and its cache use.
//!
//! Parsing is as tolerant as vLLM is: unknown fields are kept and ignored, and what only the engine may refuse (a
//! wrong `temperature`, say) is not looked at. The body itself is kept in the order given, since key order inside
//! tool schemas reaches the prompt.

pub mod json;

use json::{Json, Object};

/// The routes whose prompts can be made here.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Api {
    /// `/v1/chat/completions`: messages, rendered by the model's chat template.
    ChatCompletions,
    /// `/v1/completions`: text or token ids as they are.
    Completions,
}

impl Api {
    /// The API served at `path`, which carries no query string; `None` if this is none of ours.
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::ChatCompletions),
            "/v1/completions" => Some(Self::Completions),
            _ => None,
        }
    }

    /// The path at which engines serve this API.
    pub fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
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
    /// Most tokens to generate; `None` means as many as fit. Completions have vLLM's default of 16.
    pub max_tokens: Option<u32>,
    /// Number of answers per prompt, at least 1.
    pub n: u32,
    /// False where vLLM skips reading its prefix cache (prompt log probabilities are asked for).
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
    /// A chat without `messages`, or with none in it.
    #[error("messages: missing or empty; a chat needs at least one message")]
    NoMessages,
    /// A completion without `prompt`, or with an empty one.
    #[error("prompt: missing or empty; send a string, a list of strings, or token ids")]
    NoPrompt,
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
        let has_media = match api {
            Api::ChatCompletions => check_messages(&body)?,
            Api::Completions => check_prompt(&body)?,
        };
        let text = |name: &str| body.get(name).and_then(Json::as_str).filter(|text| !text.is_empty());
        let flag = |name: &str| body.get(name).is_some_and(Json::is_true);
        let count =
            |name: &str| body.get(name).and_then(Json::as_int).and_then(|int| u32::try_from(int).ok());
        Ok(Self {
            api,
            model: optional_text(&body, "model")?.map(str::to_owned),
            cache_salt: text("cache_salt").map(str::to_owned),
            stream: flag("stream"),
            include_usage: (body.get("stream_options").and_then(Json::as_object))
                .and_then(|options| options.get("include_usage"))
                .is_some_and(Json::is_true),
            max_tokens: match api {
                Api::ChatCompletions => count("max_completion_tokens").or_else(|| count("max_tokens")),
                Api::Completions => Some(count("max_tokens").unwrap_or(COMPLETION_MAX_TOKENS)),
            },
            n: count("n").unwrap_or(1).max(1),
            reads_cache: !wants_prompt_logprobs(api, &body),
            has_media,
            body,
        })
    }

    /// The whole body, in the order given.
    pub fn body(&self) -> &Object {
        &self.body
    }
}

/// Tokens that vLLM generates for a completion that does not say how many.
const COMPLETION_MAX_TOKENS: u32 = 16;

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

/// Checks the shape of `messages`; answers whether any of them carries a medium.
fn check_messages(body: &Object) -> Result<bool, RequestError> {
    let messages = match body.get("messages") {
        None | Some(Json::Null) => return Err(RequestError::NoMessages),
        Some(Json::Array(messages)) if messages.is_empty() => return Err(RequestError::NoMessages),
        Some(Json::Array(messages)) => messages,
        Some(other) => return Err(wrong("messages", other, "an array of messages")),
    };
    let mut has_media = false;
    for (index, message) in messages.iter().enumerate() {
        let Json::Object(message) = message else {
            return Err(wrong(format!("messages[{index}]"), message, "an object"));
        };
        match message.get("role") {
            Some(Json::String(_)) => {}
            other => {
                return Err(wrong(
                    format!("messages[{index}].role"),
                    other.unwrap_or(&Json::Null),
                    "a string",
                ));
            }
        }
        match message.get("content") {
            None | Some(Json::Null | Json::String(_)) => {}
            Some(Json::Array(parts)) => {
                for (at, part) in parts.iter().enumerate() {
                    match part {
                        Json::String(_) => {}
                        Json::Object(part) => has_media |= is_media(part),
                        other => {
                            let field = format!("messages[{index}].content[{at}]");
                            return Err(wrong(field, other, "an object or a string"));
                        }
                    }
                }
            }
            Some(other) => {
                return Err(wrong(format!("messages[{index}].content"), other, "a string, an array or null"));
            }
        }
        match message.get("tool_calls") {
            None | Some(Json::Null | Json::Array(_)) => {}
            Some(other) => {
                return Err(wrong(format!("messages[{index}].tool_calls"), other, "an array or null"));
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

/// Checks the shape of `prompt`; answers whether embeddings stand in for text.
fn check_prompt(body: &Object) -> Result<bool, RequestError> {
    const WANT: &str = "a string, an array of strings, an array of token ids, or an array of such arrays";
    if !matches!(body.get("prompt_embeds"), None | Some(Json::Null)) {
        return Ok(true);
    }
    match body.get("prompt") {
        None | Some(Json::Null) => Err(RequestError::NoPrompt),
        Some(Json::String(text)) if text.is_empty() => Err(RequestError::NoPrompt),
        Some(Json::Array(prompts)) if prompts.is_empty() => Err(RequestError::NoPrompt),
        Some(Json::String(_)) => Ok(false),
        Some(Json::Array(prompts)) => {
            // The first item says which of the three kinds of list this is.
            let is_ids = matches!(prompts[0], Json::Int(_));
            for (index, prompt) in prompts.iter().enumerate() {
                let field = format!("prompt[{index}]");
                match (&prompts[0], prompt) {
                    (Json::Array(_), Json::Array(ids)) if ids.is_empty() => {
                        return Err(RequestError::NoPrompt);
                    }
                    (Json::String(_), Json::String(_)) => {}
                    (Json::Int(_), id) => check_id(field, id)?,
                    (Json::Array(_), Json::Array(ids)) => {
                        ids.iter()
                            .enumerate()
                            .try_for_each(|(at, id)| check_id(format!("{field}[{at}]"), id))?;
                    }
                    (_, other) => return Err(wrong(field, other, if is_ids { "a token id" } else { WANT })),
                }
            }
            Ok(false)
        }
        Some(other) => Err(wrong("prompt", other, WANT)),
    }
}

fn check_id(field: String, id: &Json) -> Result<(), RequestError> {
    match id.as_int().map(u32::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(wrong(field, id, "a token id (an integer from 0 to 4294967295)")),
    }
}

/// A text that may be absent, null or empty, all of which mean none.
fn optional_text<'a>(body: &'a Object, name: &'static str) -> Result<Option<&'a str>, RequestError> {
    match body.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => Err(wrong(name, other, "a string")),
    }
}

/// vLLM computes log probabilities of a prompt by running all of it, so such a request skips cache reads. `echo`
/// asks for them along with those of the answer; a chat's `top_logprobs` is 0, not absent, by default.
fn wants_prompt_logprobs(api: Api, body: &Object) -> bool {
    let given = |name: &str| !matches!(body.get(name), None | Some(Json::Null));
    let echo = body.get("echo").is_some_and(Json::is_true);
    given("prompt_logprobs")
        || echo
            && match api {
                Api::ChatCompletions => body.get("top_logprobs") != Some(&Json::Null),
                Api::Completions => given("logprobs"),
            }
}

fn wrong(field: impl Into<String>, got: &Json, want: &'static str) -> RequestError {
    RequestError::WrongType { field: field.into(), got: got.kind(), want }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &str) -> Result<Request, RequestError> {
        Request::parse(Api::ChatCompletions, body.as_bytes())
    }

    fn completion(body: &str) -> Result<Request, RequestError> {
        Request::parse(Api::Completions, body.as_bytes())
    }

    #[test]
    fn fields_that_routing_reads() {
        let request = chat(
            r#"{"model":"m","messages":[{"role":"user","content":"x"}],"cache_salt":"s","stream":true,
               "stream_options":{"include_usage":true},"max_tokens":7,"max_completion_tokens":5,"n":3}"#,
        )
        .unwrap();
        assert_eq!((request.model.as_deref(), request.cache_salt.as_deref()), (Some("m"), Some("s")));
        assert_eq!((request.stream, request.include_usage), (true, true));
        assert_eq!(
            (request.max_tokens, request.n, request.reads_cache, request.has_media),
            (Some(5), 3, true, false)
        );

        let request = completion(r#"{"prompt":"x","model":"","max_tokens":null}"#).unwrap();
        assert_eq!((request.model, request.max_tokens, request.n), (None, Some(16), 1));
    }

    #[test]
    fn prompt_log_probabilities_skip_the_cache() {
        let reads = |body: &str| completion(body).unwrap().reads_cache;
        assert!(reads(r#"{"prompt":"x","echo":true}"#));
        assert!(reads(r#"{"prompt":"x","logprobs":1}"#));
        assert!(!reads(r#"{"prompt":"x","echo":true,"logprobs":0}"#));
        assert!(!reads(r#"{"prompt":"x","prompt_logprobs":1}"#));
    }

    #[track_caller]
    fn refused(result: Result<Request, RequestError>, label: &str, message: &str) {
        let error = result.unwrap_err();
        assert_eq!((error.label(), error.to_string().as_str()), (label, message));
    }

    #[test]
    fn bad_bodies_name_the_field() {
        refused(chat("{"), "not_json", "body is not JSON: expected a key in double quotes at byte 1");
        refused(chat("[]"), "not_object", "body is an array, want a JSON object");
        let none = "messages: missing or empty; a chat needs at least one message";
        refused(chat("{}"), "no_messages", none);
        refused(chat(r#"{"messages":[]}"#), "no_messages", none);
        refused(
            chat(r#"{"messages":"x"}"#),
            "wrong_type",
            "messages: is a string, want an array of messages",
        );
        refused(chat(r#"{"messages":[1]}"#), "wrong_type", "messages[0]: is an integer, want an object");
        let message = "messages[0].role: is null, want a string";
        refused(chat(r#"{"messages":[{"content":"x"}]}"#), "wrong_type", message);
        let message = "messages[0].content: is an object, want a string, an array or null";
        refused(chat(r#"{"messages":[{"role":"user","content":{}}]}"#), "wrong_type", message);
        let message = "model: is an integer, want a string";
        refused(chat(r#"{"model":1,"messages":[{"role":"user"}]}"#), "wrong_type", message);

        let none = "prompt: missing or empty; send a string, a list of strings, or token ids";
        for body in [r"{}", r#"{"prompt":""}"#, r#"{"prompt":[]}"#, r#"{"prompt":[[]]}"#] {
            refused(completion(body), "no_prompt", none);
        }
        let message = "prompt[1]: is a string, want a token id (an integer from 0 to 4294967295)";
        refused(completion(r#"{"prompt":[1,"a"]}"#), "wrong_type", message);
        let message = "prompt[0][0]: is an integer, want a token id (an integer from 0 to 4294967295)";
        refused(completion(r#"{"prompt":[[-1]]}"#), "wrong_type", message);
    }

    #[test]
    fn media_are_seen() {
        let part = |part: &str| {
            chat(&format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#)).unwrap().has_media
        };
        assert!(part(r#"{"type":"image_url","image_url":{"url":"u"}}"#));
        assert!(part(r#"{"image_url":"u"}"#));
        assert!(part(r#"{"type":"input_audio","input_audio":{}}"#));
        assert!(part(r#"{"type":"text","text":"x","uuid":"u","image_url":"u"}"#));
        assert!(!part(r#"{"type":"text","text":"image_url","image_url":null}"#));
    }
}
