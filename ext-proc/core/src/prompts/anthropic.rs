//! `/v1/messages` as the chat that vLLM makes of it.

use indexmap::IndexMap;

use super::{
    PromptError,
    build::{HALF_PAIR, field, filled, given, list, object, text, text_of},
    messages::BILLING_HEADER,
    python::{print, value},
};
use crate::request::json::{Json, Object};

/// What a model's templates decide about the conversion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// Whether system messages in mid-conversation go into the first one, as a template refuses them elsewhere.
    pub(super) merges_inline_system: bool,
    /// The effort that a template is told where the request switches thinking off.
    pub(super) effort_of_disabled: &'static str,
    /// Stands for the id that vLLM makes of the time for a call which has none.
    pub(super) made_up_id: &'static str,
}

/// Ids such as vLLM makes up. A template that prints the same with either of them does not show them.
pub(super) const MADE_UP_IDS: [&str; 2] = ["call_1111111111", "call_2222222222"];

/// Whether a call has no id.
pub(super) fn lacks_id(body: &Object) -> bool {
    let messages = body.get("messages").and_then(Json::as_array).unwrap_or_default();
    let blocks = messages.iter().filter_map(|it| it.as_object()?.get("content")?.as_array()).flatten();
    let mut calls = blocks.filter_map(Json::as_object).filter(|it| kind(it) == "tool_use");
    calls.any(|call| filled(call, "id").is_none())
}

/// A message of the chat in the making.
type Message = Object;

/// The chat's body: messages, tools and what else its template sees.
pub(super) fn to_chat(body: &Object, traits: Traits) -> Result<Object, PromptError> {
    let given = body.get("messages").and_then(Json::as_array).unwrap_or_default();
    let mut messages = Vec::new();
    let system = system(body, given, traits)?;
    if !system.is_empty() {
        messages.push(message("system", Json::String(system.concat())));
    }
    for (index, given) in given.iter().enumerate() {
        let path = format!("messages[{index}]");
        let given = given.as_object().ok_or_else(|| field(&path, "want an object"))?;
        convert(given, &path, traits, &mut messages)?;
    }
    let mut chat = Object::new();
    chat.insert("messages".into(), Json::Array(messages.into_iter().map(Json::Object).collect()));
    if let Some(effort) = effort(body, traits) {
        chat.insert("reasoning_effort".into(), text(effort));
    }
    if let Some(tools) = tools(body, given)? {
        chat.insert("tools".into(), Json::Array(tools));
    }
    let choice = body.get("tool_choice").and_then(Json::as_object).and_then(|choice| choice.get("type"));
    if let Some(choice) = choice {
        chat.insert("tool_choice".into(), choice.clone());
    }
    for name in ["chat_template_kwargs", "kv_transfer_params"] {
        if let Some(value) = body.get(name) {
            chat.insert(name.into(), value.clone());
        }
    }
    Ok(chat)
}

/// The pieces of the first system message. They are put together with nothing between.
fn system(body: &Object, messages: &[Json], traits: Traits) -> Result<Vec<String>, PromptError> {
    let mut pieces = match given(body, "system") {
        None => Vec::new(),
        Some(Json::String(text)) if text.is_empty() => Vec::new(),
        // A header at its start is taken off later, where all chats lose theirs.
        Some(Json::String(text)) => vec![text.clone()],
        Some(Json::Array(blocks)) => texts(blocks),
        Some(_) => return Err(field("system", "want a string or an array")),
    };
    if traits.merges_inline_system {
        let inline = messages.iter().filter_map(Json::as_object).filter(|it| role(it) == "system");
        pieces.extend(inline.filter_map(system_text));
    }
    Ok(pieces)
}

/// The text of a system message in the conversation, if it has any.
fn system_text(message: &Object) -> Option<String> {
    let text = match message.get("content") {
        Some(Json::String(text)) if !text.starts_with(BILLING_HEADER) => text.clone(),
        Some(Json::Array(blocks)) => texts(blocks).concat(),
        _ => String::new(),
    };
    Some(text).filter(|text| !text.is_empty())
}

/// The texts among `blocks`, without those that change from request to request.
fn texts(blocks: &[Json]) -> Vec<String> {
    let blocks = blocks.iter().filter_map(Json::as_object).filter(|block| kind(block) == "text");
    let texts = blocks.filter_map(|block| text_of(block, "text"));
    texts.filter(|text| !text.is_empty() && !text.starts_with(BILLING_HEADER)).map(str::to_owned).collect()
}

fn convert(
    given: &Object,
    path: &str,
    traits: Traits,
    messages: &mut Vec<Message>,
) -> Result<(), PromptError> {
    let role = role(given);
    if role == "system" {
        if !traits.merges_inline_system
            && let Some(text) = system_text(given)
        {
            messages.push(message("system", Json::String(text)));
        }
        return Ok(());
    }
    let blocks = match given.get("content") {
        Some(content @ Json::String(_)) => {
            messages.push(message(role, content.clone()));
            return Ok(());
        }
        Some(Json::Array(blocks)) => blocks,
        _ => return Err(field(&format!("{path}.content"), "want a string or an array")),
    };
    let mut turn = Turn::default();
    for (at, block) in blocks.iter().enumerate() {
        let path = || format!("{path}.content[{at}]");
        let block = block.as_object().ok_or_else(|| field(&path(), "want an object"))?;
        turn.add(block, role, traits.made_up_id, path, messages)?;
    }
    let mut out = Object::new();
    out.insert("role".into(), text(role));
    if !turn.reasoning.is_empty() {
        out.insert("reasoning".into(), Json::String(turn.reasoning.concat()));
    }
    if !turn.calls.is_empty() {
        out.insert("tool_calls".into(), Json::Array(turn.calls));
    }
    if let Some(content) = content(turn.parts) {
        out.insert("content".into(), content);
    }
    // A user's turn of nothing but tools' results has become messages of its own.
    if role != "user" || out.contains_key("content") {
        messages.push(out);
    }
    Ok(())
}

/// What the blocks of one message come to.
#[derive(Default)]
struct Turn {
    parts: Vec<Json>,
    calls: Vec<Json>,
    reasoning: Vec<String>,
}

impl Turn {
    fn add(
        &mut self,
        block: &Object,
        role: &str,
        made_up_id: &str,
        path: impl Fn() -> String,
        messages: &mut Vec<Message>,
    ) -> Result<(), PromptError> {
        match kind(block) {
            "text" => self.parts.extend(filled(block, "text").map(text_part)),
            "image" if matches!(block.get("source"), Some(Json::Object(_))) => self.parts.push(image()),
            "thinking" => self.reasoning.extend(text_of(block, "thinking").map(str::to_owned)),
            "tool_use" => self.calls.push(call(block, made_up_id, &path())?),
            "tool_result" if role == "user" => result(block, &path(), messages)?,
            "tool_result" => {
                let content = block.get("content").filter(|content| is_truthy(content));
                if content.is_some_and(|content| !content.is_all_text()) {
                    return Err(field(&path(), HALF_PAIR));
                }
                let text = content.map(|it| print::str(&value::from_json(it))).transpose();
                let text =
                    text.map_err(|error| PromptError::Template(error.to_string()))?.unwrap_or_default();
                self.parts.push(text_part(&format!("Tool result: {text}")));
            }
            "image" | "redacted_thinking" | "tool_reference" => {}
            _ => return Err(field(&path(), "type: no kind of block that is known")),
        }
        Ok(())
    }
}

/// One text is a string, else there are parts.
fn content(parts: Vec<Json>) -> Option<Json> {
    let alone = match parts.as_slice() {
        [] => return None,
        [Json::Object(part)] => part.get("text").cloned(),
        _ => None,
    };
    Some(alone.unwrap_or(Json::Array(parts)))
}

fn text_part(it: &str) -> Json {
    Json::Object(object([("type", text("text")), ("text", text(it))]))
}

/// A picture. Which one does not matter here: only the engine can count its tokens.
fn image() -> Json {
    Json::Object(object([("type", text("image_url"))]))
}

fn call(block: &Object, made_up_id: &str, path: &str) -> Result<Json, PromptError> {
    let id = filled(block, "id").unwrap_or(made_up_id);
    let input = match given(block, "input") {
        None => Object::new(),
        Some(Json::Object(input)) => input.clone(),
        Some(_) => return Err(field(path, "input: want an object")),
    };
    let name = text(text_of(block, "name").unwrap_or_default());
    let function = object([("name", name), ("arguments", Json::Object(input))]);
    let call = [("id", text(id)), ("type", text("function")), ("function", Json::Object(function))];
    Ok(Json::Object(object(call)))
}

/// A tool's result is a message of its own, before what else the user says in that turn.
fn result(block: &Object, path: &str, messages: &mut Vec<Message>) -> Result<(), PromptError> {
    let mut texts = Vec::new();
    let mut references = Vec::new();
    let mut images = 0;
    match block.get("content") {
        Some(Json::String(text)) => texts.push(text.as_str()),
        Some(Json::Array(items)) => {
            for item in items.iter().filter_map(Json::as_object) {
                match kind(item) {
                    "text" => match item.get("text") {
                        None => texts.push(""),
                        Some(Json::String(text)) => texts.push(text),
                        Some(_) => return Err(field(path, "content: text: want a string")),
                    },
                    "image" => images += usize::from(!has_empty_url(item)),
                    "tool_reference" => {
                        references.extend(filled(item, "tool_name").or_else(|| filled(item, "name")));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    let id = text(text_of(block, "tool_use_id").unwrap_or_default());
    let answer = |content| {
        let mut out = message("tool", content);
        out.insert("tool_call_id".into(), id.clone());
        out
    };
    messages.push(answer(Json::String(texts.join("\n"))));
    if 0 < images {
        // A tool cannot answer in pictures: they are shown as if the user had sent them.
        messages.push(message("user", Json::Array(std::iter::repeat_with(image).take(images).collect())));
    }
    if !references.is_empty() {
        let part = |name| Json::Object(object([("type", text("tool_reference")), ("name", text(name))]));
        messages.push(answer(Json::Array(references.into_iter().map(part).collect())));
    }
    Ok(())
}

/// Whether a picture is to be fetched from nowhere, which vLLM leaves out of a tool's result.
fn has_empty_url(item: &Object) -> bool {
    let source = item.get("source").and_then(Json::as_object);
    source.is_some_and(|it| kind(it) == "url" && filled(it, "url").is_none())
}

fn effort(body: &Object, traits: Traits) -> Option<&str> {
    let object = |name: &str| body.get(name).and_then(Json::as_object);
    match object("thinking").map(kind) {
        Some("disabled") => Some(traits.effort_of_disabled),
        _ => text_of(object("output_config")?, "effort"),
    }
}

/// The tools in force at the end of the conversation: system messages may declare and remove some.
fn tools(body: &Object, messages: &[Json]) -> Result<Option<Vec<Json>>, PromptError> {
    let given = list(body, "tools")?;
    let blocks = messages.iter().filter_map(|it| it.as_object()?.get("content")?.as_array()).flatten();
    let blocks = blocks.filter_map(Json::as_object);
    let changes: Vec<_> = blocks.filter(|it| matches!(kind(it), "tool_addition" | "tool_removal")).collect();
    if changes.is_empty() {
        let tools = given.map(|tools| tools.iter().map(|tool| declared(tool, true)).collect());
        return tools.transpose();
    }
    // Name -> declaration, and whether it may be deferred.
    let mut declarations: IndexMap<&str, (&Json, bool)> = IndexMap::new();
    for tool in given.unwrap_or_default() {
        let name = tool.as_object().and_then(|tool| text_of(tool, "name"));
        declarations.insert(name.ok_or_else(|| field("tools", "name: want a string"))?, (tool, true));
    }
    let mut removed: Vec<&str> = Vec::new();
    for change in changes {
        let bad = || field("messages", "a change of tools names none that is declared");
        let tool = change.get("tool").and_then(Json::as_object).ok_or_else(bad)?;
        let is_removal = kind(change) == "tool_removal";
        let name = if kind(tool) == "tool_definition" {
            let definition = tool.get("definition").ok_or_else(bad)?;
            let name = definition.as_object().and_then(|it| text_of(it, "name")).ok_or_else(bad)?;
            declarations.insert(name, (definition, true));
            name
        } else {
            let name = text_of(tool, "name").ok_or_else(bad)?;
            let (_, may_defer) = declarations.get_mut(name).ok_or_else(bad)?;
            *may_defer &= is_removal;
            name
        };
        removed.retain(|it| *it != name);
        if is_removal {
            removed.push(name);
        }
    }
    declarations.retain(|name, _| !removed.contains(name));
    declarations
        .into_values()
        .map(|(tool, may_defer)| declared(tool, may_defer))
        .collect::<Result<_, _>>()
        .map(Some)
}

/// A tool in OpenAI's form.
fn declared(tool: &Json, may_defer: bool) -> Result<Json, PromptError> {
    let tool = tool.as_object().ok_or_else(|| field("tools", "want objects"))?;
    let Some(Json::Object(schema)) = tool.get("input_schema") else {
        return Err(field("tools", "input_schema: want an object"));
    };
    let mut schema = schema.clone();
    schema.entry("type".into()).or_insert_with(|| text("object"));
    let mut function = Object::new();
    let value = |name: &str| tool.get(name).cloned().unwrap_or(Json::Null);
    for name in ["name", "description", "strict"] {
        function.insert(name.into(), value(name));
    }
    function.insert("parameters".into(), Json::Object(schema));
    if may_defer {
        function.insert("defer_loading".into(), value("defer_loading"));
    }
    Ok(Json::Object(object([("type", text("function")), ("function", Json::Object(function))])))
}

fn message(role: &str, content: Json) -> Message {
    object([("role", text(role)), ("content", content)])
}

fn role(message: &Object) -> &str {
    text_of(message, "role").unwrap_or_default()
}

fn kind(block: &Object) -> &str {
    text_of(block, "type").unwrap_or_default()
}

fn is_truthy(content: &Json) -> bool {
    match content {
        Json::String(text) => !text.is_empty(),
        Json::Array(items) => !items.is_empty(),
        _ => false,
    }
}
