//! `/v1/responses` as the chat that vLLM makes of it.

use super::{
    PromptError,
    build::{field, filled, given, list, object, text, text_of},
};
use crate::request::json::{Json, Object};

/// The chat's body. Unlike other chats its text is encoded with the special tokens that a tokenizer adds, also where
/// the template writes them itself.
pub(super) fn to_chat(body: &Object) -> Result<Object, PromptError> {
    if given(body, "previous_response_id").is_some() {
        return Err(PromptError::Stateful);
    }
    let mut messages = Vec::new();
    match given(body, "instructions") {
        None => {}
        Some(Json::String(text)) if text.is_empty() => {}
        Some(given @ Json::String(_)) => messages.push(message("system", given.clone())),
        Some(_) => return Err(field("instructions", "want a string")),
    }
    let mut continues = false;
    match body.get("input") {
        Some(given @ Json::String(_)) => messages.push(message("user", given.clone())),
        Some(Json::Array(items)) => {
            let mut chat = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let path = format!("input[{index}]");
                let item = item.as_object().ok_or_else(|| field(&path, "want an object"))?;
                add(item, &path, &mut chat)?;
            }
            messages.extend(chat);
            continues = items.last().and_then(Json::as_object).is_some_and(is_unfinished);
        }
        Some(Json::Object(none)) if none.is_empty() => {}
        _ => return Err(field("input", "want a string or an array")),
    }
    let mut chat = Object::new();
    chat.insert("messages".into(), Json::Array(messages.into_iter().map(Json::Object).collect()));
    chat.insert("add_special_tokens".into(), Json::Bool(true));
    chat.insert("add_generation_prompt".into(), Json::Bool(!continues));
    chat.insert("continue_final_message".into(), Json::Bool(continues));
    if let Some(effort) = body.get("reasoning").and_then(Json::as_object).and_then(|it| it.get("effort")) {
        chat.insert("reasoning_effort".into(), effort.clone());
    }
    if let Some(tools) = tools(body)? {
        chat.insert("tools".into(), Json::Array(tools));
    }
    for name in ["tool_choice", "chat_template_kwargs", "kv_transfer_params"] {
        if let Some(value) = body.get(name) {
            chat.insert(name.into(), value.clone());
        }
    }
    Ok(chat)
}

/// Adds an item to `chat`. What an assistant said, thought and called may come as several items of one message.
fn add(item: &Object, path: &str, chat: &mut Vec<Object>) -> Result<(), PromptError> {
    let role = text_of(item, "role");
    match text_of(item, "type").unwrap_or("message") {
        "function_call" => {
            let (Some(name), Some(arguments)) = (text_of(item, "name"), text_of(item, "arguments")) else {
                return Err(field(path, "name, arguments: want strings"));
            };
            let name = match filled(item, "namespace") {
                Some(namespace) => in_namespace(namespace, name),
                None => name.to_owned(),
            };
            call(item, path, name, text(arguments), chat)
        }
        "custom_tool_call" => {
            let name = text_of(item, "name").ok_or_else(|| field(path, "name: want a string"))?;
            let input = text(text_of(item, "input").unwrap_or_default());
            let arguments = Json::Object(object([(CUSTOM_INPUT, input)]));
            call(item, path, name.to_owned(), arguments, chat)
        }
        "reasoning" => {
            set_or_push(chat, "reasoning", text(reasoning(item, path)?));
            Ok(())
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = item.get("output").ok_or_else(|| field(path, "output: missing"))?;
            let mut out = message("tool", output.clone());
            out.insert("tool_call_id".into(), item.get("call_id").cloned().unwrap_or(Json::Null));
            chat.push(out);
            Ok(())
        }
        "message" if role == Some("assistant") => {
            match item.get("content") {
                Some(said @ Json::String(_)) => set_or_push(chat, "content", said.clone()),
                Some(Json::Array(parts)) => {
                    let first = parts.first().and_then(Json::as_object);
                    match first.and_then(|it| text_of(it, "text")) {
                        // Whatever follows the first part is lost.
                        Some(said) => set_or_push(chat, "content", text(said)),
                        None => chat.push(as_message(item)),
                    }
                }
                _ => return Err(field(path, "content: want a text")),
            }
            Ok(())
        }
        "message" => {
            if role.is_none() {
                return Err(field(path, "role: want a string"));
            }
            if !item.contains_key("content") {
                return Err(field(path, "content: missing"));
            }
            chat.push(as_message(item));
            Ok(())
        }
        _ => Err(field(path, "type: no kind of item that becomes a message")),
    }
}

/// An item that is a chat's message already, with whatever else the client gave it; the older name of what an assistant
/// thought is known in chats alone.
fn as_message(item: &Object) -> Object {
    let mut out = item.clone();
    out.shift_remove("reasoning_content");
    out
}

fn call(
    item: &Object,
    path: &str,
    name: String,
    arguments: Json,
    chat: &mut Vec<Object>,
) -> Result<(), PromptError> {
    let id = text_of(item, "call_id").ok_or_else(|| field(path, "call_id: want a string"))?;
    let function = Json::Object(object([("name", text(name)), ("arguments", arguments)]));
    let call = Json::Object(object([("id", text(id)), ("function", function), ("type", text("function"))]));
    match last_assistant(chat) {
        Some(last) => match last.get_mut("tool_calls") {
            Some(Json::Array(calls)) => calls.push(call),
            _ => _ = last.insert("tool_calls".into(), Json::Array(vec![call])),
        },
        None => {
            let mut out = role_alone("assistant");
            out.insert("tool_calls".into(), Json::Array(vec![call]));
            chat.push(out);
        }
    }
    Ok(())
}

fn reasoning(item: &Object, path: &str) -> Result<String, PromptError> {
    if filled(item, "encrypted_content").is_some() {
        return Err(field(path, "encrypted_content: can't be read"));
    }
    let first = |name: &str| item.get(name)?.as_array()?.first()?.as_object()?.get("text")?.as_str();
    Ok(first("content").or_else(|| first("summary")).unwrap_or_default().to_owned())
}

/// Gives the last message, if it is an assistant's that has none yet, the field; else adds a message with it.
fn set_or_push(chat: &mut Vec<Object>, name: &str, value: Json) {
    match last_assistant(chat).filter(|last| !last.contains_key(name)) {
        Some(last) => _ = last.insert(name.into(), value),
        None => {
            let mut out = role_alone("assistant");
            out.insert(name.into(), value);
            chat.push(out);
        }
    }
}

fn last_assistant(chat: &mut [Object]) -> Option<&mut Object> {
    chat.last_mut().filter(|last| text_of(last, "role") == Some("assistant"))
}

/// Whether the answer goes on where this item ends.
fn is_unfinished(item: &Object) -> bool {
    matches!(text_of(item, "status"), Some("in_progress" | "incomplete"))
        && matches!(text_of(item, "type"), None | Some("message" | "reasoning"))
}

/// Name of the one argument under which a model sees a custom tool's free text.
const CUSTOM_INPUT: &str = "input";

/// The tools in a chat's form; `None` where there are none. Kinds that a model is not shown are left out.
fn tools(body: &Object) -> Result<Option<Vec<Json>>, PromptError> {
    let Some(tools) = list(body, "tools")?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let mut out = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let path = format!("tools[{index}]");
        let tool = tool.as_object().ok_or_else(|| field(&path, "want an object"))?;
        let name = || text_of(tool, "name").ok_or_else(|| field(&path, "name: want a string"));
        match text_of(tool, "type") {
            Some("function") => out.push(function(tool, name()?.to_owned())),
            Some("custom") => out.push(function(&custom(tool), name()?.to_owned())),
            Some("namespace") => {
                let inner = tool.get("tools").and_then(Json::as_array).unwrap_or_default();
                for tool in inner.iter().filter_map(Json::as_object) {
                    if text_of(tool, "type") == Some("function")
                        && let Some(inner) = text_of(tool, "name")
                    {
                        out.push(function(tool, in_namespace(name()?, inner)));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(Some(out))
}

fn function(tool: &Object, name: String) -> Json {
    let mut function = tool.clone();
    function.insert("name".into(), text(name));
    Json::Object(object([("type", text("function")), ("function", Json::Object(function))]))
}

/// A custom tool as a function of one text.
fn custom(tool: &Object) -> Object {
    let input = [("type", text("string")), ("description", text("The freeform text payload for this tool."))];
    let parameters = [
        ("type", text("object")),
        ("properties", Json::Object(object([(CUSTOM_INPUT, Json::Object(object(input)))]))),
        ("required", Json::Array(vec![text(CUSTOM_INPUT)])),
        ("additionalProperties", Json::Bool(false)),
    ];
    object([
        ("description", tool.get("description").cloned().unwrap_or(Json::Null)),
        ("parameters", Json::Object(object(parameters))),
    ])
}

fn in_namespace(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

fn message(role: &str, content: Json) -> Object {
    object([("role", text(role)), ("content", content)])
}

fn role_alone(role: &str) -> Object {
    object([("role", text(role))])
}
