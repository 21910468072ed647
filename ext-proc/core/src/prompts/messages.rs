//! A chat's messages in the form in which vLLM hands them to a template.
//!
//! vLLM parses messages twice, once against OpenAI's types and once into its own; what comes out has keys in a fixed
//! order and none but those it knows. A template that dumps a message shows that order.

use super::{
    PromptError,
    build::{self, field},
    media::{Kind, StandIn},
};
use crate::request::{
    is_media, is_text_part,
    json::{self, Json, JsonError, Object},
};

/// How a message's content reaches the template.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    /// One string: text parts joined by a line feed.
    Text,
    /// A list of parts, each with a `type`.
    Parts,
}

/// First words of a line that Claude Code puts before its system prompt; it differs from request to request, so
/// vLLM takes it out.
pub(super) const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Keys of a part that vLLM knows; any other one of a text part stays with it.
const PART_KEYS: [&str; 18] = [
    "type",
    "text",
    "refusal",
    "thinking",
    "closed",
    "image_url",
    "image_pil",
    "image_embeds",
    "audio_url",
    "input_audio",
    "audio_embeds",
    "video_url",
    "video_embeds",
    "data",
    "file",
    "name",
    "prompt_cache_breakpoint",
    "uuid",
];

/// What becomes of the media in a chat.
#[derive(Clone, Copy, Debug)]
pub(super) enum Media {
    /// They are an error.
    Refused,
    /// Each stays: in [`Form::Parts`] as a part that names its kind alone, as vLLM has it; in [`Form::Text`] as a text
    /// in place of the model's own, which is not known.
    Kept(StandIn),
}

/// How a chat's messages are handed to a template.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// How contents look.
    pub(super) form: Form,
    /// Whether the developer role stays. Without, and where it occurs, all system and developer messages become one
    /// system message at the front.
    pub(super) keeps_developer: bool,
    /// Whether calls of tools keep the order of their keys. Of most APIs they pass through OpenAI's types, which have
    /// an order of their own.
    pub(super) calls_as_given: bool,
    /// What becomes of media.
    pub(super) media: Media,
}

/// Brings `messages` into the form that a template gets.
pub(super) fn normalise(messages: &[Json], rules: Rules) -> Result<Vec<Json>, PromptError> {
    let mut chat = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let path = format!("messages[{index}]");
        let message = message.as_object().ok_or_else(|| field(&path, "want an object"))?;
        chat.push(one(message, rules, &path)?);
    }
    if !rules.keeps_developer && chat.iter().any(|message| role(message) == "developer") {
        chat = with_instructions_first(chat);
    }
    Ok(chat.into_iter().map(Json::Object).collect())
}

fn one(message: &Object, rules: Rules, path: &str) -> Result<Object, PromptError> {
    let role =
        message.get("role").and_then(Json::as_str).ok_or_else(|| field(path, "role: want a string"))?;
    let mut content = content(message.get("content"), role, rules, path)?;
    if role == "tool" {
        content = tool_content(content);
    }
    let mut out = Object::new();
    out.insert("role".into(), Json::String(role.into()));
    out.insert("content".into(), content);
    match role {
        "assistant" => {
            match message.get("tool_calls") {
                Some(Json::Array(calls)) if !calls.is_empty() => {
                    let calls = calls.iter().enumerate().map(|(at, call)| tool_call(call, rules, path, at));
                    out.insert("tool_calls".into(), Json::Array(calls.collect::<Result<_, _>>()?));
                }
                _ => {}
            }
            // Older clients send the second name; templates read either.
            let given = |name: &str| message.get(name).filter(|value| **value != Json::Null);
            if let Some(reasoning) = given("reasoning").or_else(|| given("reasoning_content")) {
                out.insert("reasoning".into(), reasoning.clone());
                out.insert("reasoning_content".into(), reasoning.clone());
            }
        }
        "tool" => {
            if let Some(id) = message.get("tool_call_id") {
                out.insert("tool_call_id".into(), id.clone());
            }
        }
        _ => {}
    }
    for name in ["name", "task"] {
        if let Some(text @ Json::String(_)) = message.get(name) {
            out.insert(name.into(), text.clone());
        }
    }
    if role == "developer" {
        out.insert("tools".into(), message.get("tools").map_or(Json::Null, developer_tools));
    }
    Ok(out)
}

fn content(content: Option<&Json>, role: &str, rules: Rules, path: &str) -> Result<Json, PromptError> {
    let mut parts = Vec::new();
    let mut media = 0;
    match content {
        None | Some(Json::Null) => {}
        Some(Json::String(text)) => push_text(&mut parts, text, None, role, rules.form),
        Some(Json::Array(given)) => {
            for (at, part) in given.iter().enumerate() {
                let path = || format!("{path}.content[{at}]");
                match part {
                    Json::String(text) => push_text(&mut parts, text, None, role, rules.form),
                    Json::Object(part) if is_media(part) => {
                        let (Media::Kept(stand_in), Some(kind)) = (rules.media, Kind::of(part)) else {
                            return Err(PromptError::Media(path()));
                        };
                        match rules.form {
                            Form::Parts => parts.push(medium(part, kind)),
                            Form::Text if stand_in.is_inline => {
                                parts.push(Json::String(stand_in.text.into()))
                            }
                            Form::Text => media += 1,
                        }
                    }
                    Json::Object(part) => push_part(&mut parts, part, role, rules.form, path)?,
                    _ => return Err(field(&path(), "want an object or a string")),
                }
            }
        }
        // Python goes through the keys of an object where a list is wanted.
        Some(Json::Object(entries)) => {
            for key in entries.keys() {
                push_text(&mut parts, key, None, role, rules.form);
            }
        }
        Some(_) => return Err(field(&format!("{path}.content"), "want a string, an array or null")),
    }
    Ok(match (rules.form, rules.media) {
        (Form::Parts, _) => Json::Array(parts),
        (Form::Text, Media::Kept(stand_in)) if 0 < media => {
            Json::String(stand_in.before(media, join(&parts, "\n")))
        }
        (Form::Text, _) => Json::String(join(&parts, "\n")),
    })
}

/// A medium as a template sees it: its kind, and what of the part vLLM does not know.
fn medium(part: &Object, kind: Kind) -> Json {
    let mut out = Object::new();
    out.insert("type".into(), Json::String(kind.name().into()));
    for (key, value) in part.iter().filter(|(key, _)| !PART_KEYS.contains(&key.as_str())) {
        out.insert(key.clone(), value.clone());
    }
    Json::Object(out)
}

fn push_part(
    parts: &mut Vec<Json>,
    object: &Object,
    role: &str,
    form: Form,
    path: impl Fn() -> String,
) -> Result<(), PromptError> {
    let kind =
        object.get("type").and_then(Json::as_str).ok_or_else(|| field(&path(), "type: want a string"))?;
    if !is_text_part(kind) {
        return Err(field(&path(), "type: no kind of part that is known"));
    }
    let key = match kind {
        "refusal" | "thinking" => kind,
        "tool_reference" => "name",
        _ => "text",
    };
    let text = match object.get(key) {
        None | Some(Json::Null) => {
            // Only these two kinds are left out where they are empty.
            if form == Form::Parts && !matches!(kind, "text" | "refusal") {
                push_null(parts, object, kind, key);
            }
            return Ok(());
        }
        Some(Json::String(text)) => text,
        Some(_) => return Err(field(&path(), "text: want a string")),
    };
    match (kind, form) {
        ("tool_reference", Form::Parts) => {
            let part = [("type", Json::String(kind.into())), ("name", Json::String(text.clone()))];
            parts.push(Json::Object(build::object(part)));
        }
        // The header is looked for in plain texts alone.
        _ => push_text(parts, text, Some(object), if kind == "text" { role } else { "" }, form),
    }
    Ok(())
}

/// Adds a text; `part` is the object that it came in, whose unknown keys stay.
fn push_text(parts: &mut Vec<Json>, text: &str, part: Option<&Object>, role: &str, form: Form) {
    let mut text = text;
    if role == "system" && text.starts_with(BILLING_HEADER) {
        match text.split_once('\n') {
            Some((_, rest)) if !rest.is_empty() => text = rest,
            _ => return,
        }
    }
    match form {
        // An empty text would add a line feed; vLLM drops it there.
        Form::Text if text.is_empty() => {}
        Form::Text => parts.push(Json::String(text.into())),
        Form::Parts => {
            let mut out =
                build::object([("type", Json::String("text".into())), ("text", Json::String(text.into()))]);
            extend_with_unknown(&mut out, part);
            parts.push(Json::Object(out));
        }
    }
}

/// Adds a part whose text is null.
fn push_null(parts: &mut Vec<Json>, part: &Object, kind: &str, key: &str) {
    let is_reference = kind == "tool_reference";
    let (kind, key) = if is_reference { (kind, key) } else { ("text", "text") };
    let mut out = build::object([("type", Json::String(kind.into())), (key, Json::Null)]);
    if !is_reference {
        extend_with_unknown(&mut out, Some(part));
    }
    parts.push(Json::Object(out));
}

fn extend_with_unknown(out: &mut Object, part: Option<&Object>) {
    let unknown = part.into_iter().flatten().filter(|(key, _)| !PART_KEYS.contains(&key.as_str()));
    out.extend(unknown.map(|(key, value)| (key.clone(), value.clone())));
}

/// A tool's answer is one string even where other roles have parts, unless it refers to tools.
fn tool_content(content: Json) -> Json {
    match content {
        Json::Array(parts) if parts.iter().all(|part| text_of(part).is_some()) => {
            Json::String(join(&parts, "\n"))
        }
        other => other,
    }
}

fn tool_call(call: &Json, rules: Rules, path: &str, at: usize) -> Result<Json, PromptError> {
    let path = format!("{path}.tool_calls[{at}]");
    let call = call.as_object().ok_or_else(|| field(&path, "want an object"))?;
    let function = call.get("function").and_then(Json::as_object);
    let function = function.ok_or_else(|| field(&format!("{path}.function"), "want an object"))?;
    let arguments = arguments(function.get("arguments"), &path)?;
    let (mut out, mut inner) = if rules.calls_as_given {
        (call.clone(), function.clone())
    } else {
        (sorted(call, ["id", "function", "type"]), sorted(function, ["arguments", "name"]))
    };
    inner.insert("arguments".into(), Json::Object(arguments));
    out.insert("function".into(), Json::Object(inner));
    Ok(Json::Object(out))
}

/// The entries of `object`, those of `keys` first and in that order.
fn sorted<const N: usize>(object: &Object, keys: [&str; N]) -> Object {
    let known = keys.into_iter().filter_map(|key| object.get_key_value(key));
    let others = object.iter().filter(|(key, _)| !keys.contains(&key.as_str()));
    known.chain(others).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// A developer message's own tools: in vLLM's order where all of them are of its type, else as they came.
fn developer_tools(given: &Json) -> Json {
    let Json::Array(tools) = given else { return given.clone() };
    let typed = |tool: &Json| {
        let tool =
            tool.as_object().filter(|tool| tool.get("type").and_then(Json::as_str) == Some("function"))?;
        let mut function =
            sorted(tool.get("function")?.as_object()?, ["name", "description", "parameters", "strict"]);
        let is_typed = matches!(function.get("name"), Some(Json::String(_)))
            && matches!(function.get("description"), None | Some(Json::String(_)))
            && matches!(function.get("parameters"), None | Some(Json::Object(_)));
        match function.get_mut("strict") {
            None | Some(Json::Null) => {}
            Some(strict) => *strict = Json::Bool(strict.as_flag()?),
        }
        let mut tool = sorted(tool, ["function", "type"]);
        tool.insert("function".into(), Json::Object(function));
        is_typed.then_some(Json::Object(tool))
    };
    tools.iter().map(typed).collect::<Option<_>>().map_or_else(|| given.clone(), Json::Array)
}

/// Arguments come as JSON in a string and reach the template as an object; what is no object there becomes an empty
/// one, so that a model's slip does not make its whole history unusable.
fn arguments(given: Option<&Json>, path: &str) -> Result<Object, PromptError> {
    match given {
        Some(Json::Object(arguments)) => Ok(arguments.clone()),
        Some(Json::String(text)) => match json::parse_text(text) {
            Ok(Json::Object(arguments)) => Ok(arguments),
            Err(JsonError::TooDeep) => Err(field(&format!("{path}.function.arguments"), "nested too deep")),
            _ => Ok(Object::new()),
        },
        _ => Ok(Object::new()),
    }
}

/// Developer messages become system messages; where one of those is not the first message, or not the only one, all
/// become one in front.
fn with_instructions_first(mut chat: Vec<Object>) -> Vec<Object> {
    let is_system = |message: &Object| role(message) == "system";
    for message in chat.iter_mut().filter(|message| role(message) == "developer") {
        message.insert("role".into(), Json::String("system".into()));
        message.shift_remove("tools");
    }
    if !chat.iter().skip(1).any(is_system) {
        return chat;
    }
    let (instructions, rest): (Vec<_>, Vec<_>) = chat.into_iter().partition(is_system);
    let texts = instructions.iter().map(|message| match message.get("content") {
        Some(Json::Array(parts)) => join(parts, "\n"),
        Some(Json::String(text)) => text.clone(),
        _ => String::new(),
    });
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    let first = [("role", Json::String("system".into())), ("content", Json::String(texts.join("\n\n")))];
    std::iter::once(build::object(first)).chain(rest).collect()
}

fn role(message: &Object) -> &str {
    message.get("role").and_then(Json::as_str).unwrap_or_default()
}

/// The text of a part in either form.
fn text_of(part: &Json) -> Option<&str> {
    match part {
        Json::String(text) => Some(text),
        Json::Object(object) => object.get("text").and_then(Json::as_str),
        _ => None,
    }
}

fn join(parts: &[Json], separator: &str) -> String {
    parts.iter().filter_map(text_of).collect::<Vec<_>>().join(separator)
}
