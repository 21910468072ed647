//! What is sent to a server that makes prompts.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{Failure, Reading};
use crate::{
    prompts::Prompt,
    request::{
        Api, Request, is_chats,
        json::{Json, Object},
    },
};

/// Which of a server's routes makes the prompt.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Form {
    /// The API's own path with `/render` behind it (vLLM 0.15 and later): exactly what an engine makes.
    Render,
    /// `/tokenize`, which all versions have. It passes over fields that change a prompt, so it is not for all requests.
    Tokenize,
}

/// What to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask<'a> {
    /// The path of the route.
    pub path: &'static str,
    /// JSON: the client's own body wherever it can be that.
    pub body: Cow<'a, [u8]>,
    /// Reads the answer.
    pub reading: Reading,
}

/// The prompts of a request that consists of token ids already: an engine takes them as they are, and nobody has to be
/// asked.
#[must_use]
pub fn known(request: &Request) -> Option<Vec<Prompt>> {
    let body = request.body();
    let field = match request.api {
        Api::Completions => "prompt",
        Api::Embeddings | Api::Pooling => "input",
        Api::ChatCompletions | Api::Responses | Api::Messages => return None,
    };
    let changes = ["truncate_prompt_tokens", "prompt_embeds", "padding", "data", "suffix"];
    if changes.iter().any(|it| given(body, it)) {
        return None;
    }
    let items = body.get(field)?.as_array()?;
    let prompt = |ids: &[Json]| -> Option<Prompt> {
        let ids = ids.iter().map(|it| it.as_int().and_then(|id| u32::try_from(id).ok()));
        ids.collect::<Option<Vec<u32>>>().filter(|it| !it.is_empty()).map(Prompt::from)
    };
    match items.first()? {
        Json::Int(_) => prompt(items).map(|it| vec![it]),
        Json::Array(_) => items.iter().map(|it| prompt(it.as_array()?)).collect(),
        _ => None,
    }
}

impl<'a> Ask<'a> {
    /// What to send for `request`, whose bytes are `body`, to a route of that form.
    ///
    /// # Errors
    /// Where no answer could be relied on: [`Failure::Stateful`], [`Failure::Inexact`], [`Failure::NoRoute`].
    pub fn new(request: &Request, body: &'a [u8], form: Form) -> Result<Self, Failure> {
        let fields = request.body();
        if given(fields, "previous_response_id") {
            return Err(Failure::Stateful);
        }
        if request.has_media && has_embeds(fields) {
            return Err(Failure::Inexact(
                "ready embeddings are hashed by their content, which no answer tells",
            ));
        }
        match (form, request.api) {
            (_, Api::Embeddings | Api::Pooling) => Self::texts(request, form),
            (Form::Render, _) => Self::render(request, body),
            (Form::Tokenize, Api::ChatCompletions | Api::Completions) => Self::tokenize(request, body),
            (Form::Tokenize, Api::Responses | Api::Messages) => Err(Failure::NoRoute),
        }
    }

    fn render(request: &Request, body: &'a [u8]) -> Result<Self, Failure> {
        let fields = request.body();
        let path = match request.api {
            Api::ChatCompletions => "/v1/chat/completions/render",
            Api::Completions => "/v1/completions/render",
            Api::Responses => "/v1/responses/render",
            Api::Messages => "/v1/messages/render",
            Api::Embeddings | Api::Pooling => return Err(Failure::NoRoute),
        };
        if request.api == Api::Messages && thinking_is_off(fields) {
            // The serving route tries what the template makes of it, the rendering one does not (0.32).
            return Err(Failure::Inexact("thinking that is switched off is rendered in another way there"));
        }
        let mut more = renamed(request);
        if request.has_media {
            // Without the tensors (0.32, and the name that this had before), of which there may be megabytes.
            more.push(("mm_payload", json!("none")));
            more.push(("return_mm_kwargs", json!(false)));
        }
        if given(fields, "use_beam_search") {
            // Refused there, and no matter to the prompt.
            more.push(("use_beam_search", json!(false)));
        }
        let prompts = if request.api == Api::Completions { prompts_of(fields.get("prompt")) } else { 1 };
        let reading = Reading { form: Form::Render, api: request.api, prompts, has_media: request.has_media };
        Ok(Self { path, body: with(body, &more), reading })
    }

    fn tokenize(request: &Request, body: &'a [u8]) -> Result<Self, Failure> {
        let inexact = |why| Err(Failure::Inexact(why));
        let fields = request.body();
        if request.has_media {
            return inexact("/tokenize does not tell which media it has put where");
        }
        // Of what changes prompts, these are not honoured there.
        let ignored =
            ["truncate_prompt_tokens", "reasoning_effort", "documents", "suffix", "kv_transfer_params"];
        if ignored.iter().any(|it| given(fields, it)) {
            return inexact("/tokenize passes over a field that changes the prompt");
        }
        if given(fields, "tools") && fields.get("tool_choice").and_then(Json::as_str) == Some("none") {
            return inexact("/tokenize keeps tools that an engine may leave out");
        }
        let is_renamed =
            |message: &Json| message.as_object().is_some_and(|it| given(it, "reasoning_content"));
        let messages = fields.get("messages").and_then(Json::as_array).unwrap_or_default();
        if messages.iter().any(is_renamed) {
            return inexact("/tokenize leaves reasoning_content out");
        }
        if request.api == Api::Completions && !matches!(fields.get("prompt"), Some(Json::String(_))) {
            return inexact("/tokenize takes one text");
        }
        let reading =
            Reading { form: Form::Tokenize, api: request.api, prompts: 1, has_media: request.has_media };
        Ok(Self { path: "/tokenize", body: with(body, &renamed(request)), reading })
    }

    /// Texts to embed. No route renders them; they are encoded as a completion's are.
    fn texts(request: &Request, form: Form) -> Result<Self, Failure> {
        let inexact = |why| Err(Failure::Inexact(why));
        let fields = request.body();
        if ["truncate_prompt_tokens", "padding", "data"].iter().any(|it| given(fields, it)) {
            return inexact("how texts to embed are cut or filled up is not told by other routes");
        }
        let texts: Vec<&str> = match fields.get("input") {
            Some(Json::String(text)) => vec![text],
            Some(input @ Json::Array(items)) if !is_chats(input) => {
                items.iter().filter_map(Json::as_str).collect()
            }
            _ => return inexact("no route renders chats to embed"),
        };
        let special = match fields.get("add_special_tokens") {
            None | Some(Json::Null | Json::Bool(true)) => true,
            Some(Json::Bool(false)) => false,
            Some(_) => return inexact("add_special_tokens is neither true nor false"),
        };
        if texts.is_empty() || texts.len() != prompts_of(fields.get("input")) {
            return inexact("not texts alone");
        }
        let (path, mut body) = match (form, texts.as_slice()) {
            (Form::Render, texts) => ("/v1/completions/render", json!({"prompt": texts, "max_tokens": 1})),
            (Form::Tokenize, [text]) => ("/tokenize", json!({"prompt": text})),
            (Form::Tokenize, _) => return inexact("/tokenize takes one text"),
        };
        body["add_special_tokens"] = json!(special);
        if let Some(model) = &request.model {
            body["model"] = json!(model);
        }
        let reading = Reading { form, api: request.api, prompts: texts.len(), has_media: false };
        Ok(Self { path, body: Cow::Owned(body.to_string().into_bytes()), reading })
    }
}

/// The model's name, where it is not the one in the body.
fn renamed(request: &Request) -> Vec<(&'static str, Value)> {
    match &request.model {
        Some(model) if request.body().get("model").and_then(Json::as_str) != Some(model) => {
            vec![("model", json!(model))]
        }
        _ => Vec::new(),
    }
}

/// `body`, a JSON object with members, and more of them behind. Of two with one name Python takes the last.
fn with<'a>(body: &'a [u8], more: &[(&str, Value)]) -> Cow<'a, [u8]> {
    let end = body.iter().rposition(|it| *it == b'}');
    match end {
        Some(end) if !more.is_empty() => {
            let mut whole = body[..end].to_vec();
            for (name, value) in more {
                whole.extend_from_slice(format!(",\"{name}\":{value}").as_bytes());
            }
            whole.push(b'}');
            Cow::Owned(whole)
        }
        _ => Cow::Borrowed(body),
    }
}

/// How many prompts a text, several, or the ids of one or several are.
fn prompts_of(value: Option<&Json>) -> usize {
    match value {
        Some(Json::Array(items)) if !matches!(items.first(), Some(Json::Int(_))) => items.len(),
        _ => 1,
    }
}

fn thinking_is_off(body: &Object) -> bool {
    let thinking = body.get("thinking").and_then(Json::as_object);
    thinking.and_then(|it| it.get("type")).and_then(Json::as_str) == Some("disabled")
}

/// Whether embeddings stand in for text anywhere.
fn has_embeds(fields: &Object) -> bool {
    const NAME: &str = "prompt_embeds";
    fields.iter().any(|(key, value)| {
        (key == NAME && *value != Json::Null)
            || match value {
                Json::String(text) => key == "type" && text == NAME,
                Json::Object(inner) => has_embeds(inner),
                Json::Array(items) => items.iter().any(in_item),
                _ => false,
            }
    })
}

fn in_item(item: &Json) -> bool {
    match item {
        Json::Object(inner) => has_embeds(inner),
        Json::Array(items) => items.iter().any(in_item),
        _ => false,
    }
}

fn given(body: &Object, name: &str) -> bool {
    !matches!(body.get(name), None | Some(Json::Null))
}
