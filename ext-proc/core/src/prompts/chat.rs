//! What a chat hands to its template: the variables beside the messages.

use super::{
    PromptError, Settings,
    build::{field as bad, flag, list},
};
use crate::request::json::{Json, Object};

/// A chat request's template variables, without messages and special tokens.
#[derive(Debug)]
pub(super) struct Chat {
    /// Everything that the template may read, by name; `tools` and `documents` are always there.
    pub(super) variables: Object,
    /// Whether the last message is to be continued, not answered.
    pub(super) continues: bool,
}

impl Chat {
    /// The variables that vLLM makes of `body`: `defaults` go under the request's `chat_template_kwargs`, those
    /// under its own fields, where null and `"auto"` count as unset.
    pub(super) fn of(
        body: &Object,
        defaults: &serde_json::Map<String, serde_json::Value>,
        settings: &Settings,
    ) -> Result<Self, PromptError> {
        let mut variables: Object = defaults.iter().map(|(key, value)| (key.clone(), value.into())).collect();
        overlay(&mut variables, [("tools", tools(body, settings)?)]);
        let mut thinking_given = false;
        match body.get("chat_template_kwargs") {
            None | Some(Json::Null) => {}
            Some(Json::Object(kwargs)) => {
                thinking_given = kwargs.contains_key("enable_thinking");
                overlay(&mut variables, kwargs.iter().map(|(key, value)| (key.as_str(), value.clone())));
            }
            Some(_) => return Err(bad("chat_template_kwargs", "want an object")),
        }
        let or_null = |name: &str| body.get(name).cloned().unwrap_or(Json::Null);
        let effort = or_null("reasoning_effort");
        if effort != Json::Null && !thinking_given {
            let thinks = effort.as_str() != Some("none");
            variables.insert("enable_thinking".into(), Json::Bool(thinks));
        }
        let generates = flag(body, "add_generation_prompt", true)?;
        let continues = flag(body, "continue_final_message", false)?;
        if generates && continues {
            let problem = "cannot go with add_generation_prompt, which is true by default; set that to false";
            return Err(bad("continue_final_message", problem));
        }
        overlay(&mut variables, [("documents", or_null("documents")), ("reasoning_effort", effort)]);
        variables.insert("add_generation_prompt".into(), Json::Bool(generates));
        variables.entry("documents".into()).or_insert(Json::Null);
        variables.entry("tools".into()).or_insert(Json::Null);
        // Python goes through an empty object as through an empty list.
        if let Some(Json::Object(none)) = variables.get("tools")
            && none.is_empty()
        {
            variables.insert("tools".into(), Json::Array(Vec::new()));
        }
        if !matches!(variables.get("tools"), Some(Json::Null | Json::Array(_))) {
            return Err(bad("chat_template_kwargs.tools", "want an array"));
        }
        for name in NO_VARIABLES {
            variables.shift_remove(name);
        }
        Ok(Self { variables, continues })
    }

    /// Whether the template is rendered with tools.
    pub(super) fn has_tools(&self) -> bool {
        matches!(self.variables.get("tools"), Some(Json::Array(_)))
    }
}

/// Names under which a template sees nothing of a request: the renderer's own arguments, and Jinja's functions.
const NO_VARIABLES: [&str; 18] = [
    "chat_template",
    "continue_final_message",
    "conversation",
    "cycler",
    "dict",
    "joiner",
    "lipsum",
    "max_length",
    "messages",
    "namespace",
    "padding",
    "range",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
];

/// Whether the request has the renderer encode the text, which then adds no special tokens.
pub(super) fn is_encoded_by_renderer(body: &Object) -> Result<bool, PromptError> {
    const MORE: [&str; 5] = ["max_length", "padding", "return_tensors", "tokenizer_kwargs", "truncation"];
    let kwargs = body.get("chat_template_kwargs").and_then(Json::as_object);
    let is_set = |name: &str| kwargs.and_then(|kwargs| kwargs.get(name)).is_some_and(is_truthy);
    if is_set("tokenize") && MORE.into_iter().any(is_set) {
        return Err(bad("chat_template_kwargs.tokenize", "goes along with more arguments of a tokenizer"));
    }
    Ok(is_set("tokenize"))
}

/// Whether Python takes a value that is set for true.
fn is_truthy(value: &Json) -> bool {
    match value {
        Json::Null => false,
        Json::String(text) => !matches!(text.as_str(), "" | "auto"),
        Json::Array(items) => !items.is_empty(),
        Json::Object(entries) => !entries.is_empty(),
        number => number.as_flag() != Some(false),
    }
}

/// Sets what is given in `over`, where null and `"auto"` are not.
fn overlay<'a>(variables: &mut Object, over: impl IntoIterator<Item = (&'a str, Json)>) {
    for (key, value) in over {
        if value != Json::Null && value.as_str() != Some("auto") {
            variables.insert(key.to_owned(), value);
        }
    }
}

/// The request's tools as vLLM's own types print them: fixed key order, null where something is absent.
fn tools(body: &Object, settings: &Settings) -> Result<Json, PromptError> {
    let unused = settings.exclude_tools_when_tool_choice_none
        && body.get("tool_choice").and_then(Json::as_str) == Some("none");
    let Some(given) = list(body, "tools")?.filter(|_| !unused) else { return Ok(Json::Null) };
    let tools = given.iter().enumerate().map(|(index, tool)| {
        let path = || format!("tools[{index}]");
        let tool = tool.as_object().ok_or_else(|| bad(&path(), "want an object"))?;
        let function = tool.get("function").and_then(Json::as_object);
        let function = function.ok_or_else(|| bad(&path(), "function: want an object"))?;
        let mut inner = Object::new();
        for name in ["name", "description", "parameters"] {
            inner.insert(name.into(), function.get(name).cloned().unwrap_or(Json::Null));
        }
        copy_given(&mut inner, function, &["strict"]);
        // Said of the tool, it holds for its function too.
        copy_given(&mut inner, tool, &["defer_loading"]);
        copy_given(&mut inner, function, &["defer_loading"]);
        let mut out = Object::new();
        let kind = tool.get("type").cloned().unwrap_or_else(|| Json::String("function".into()));
        out.insert("type".into(), kind);
        out.insert("function".into(), Json::Object(inner));
        copy_given(&mut out, tool, &["defer_loading"]);
        Ok(Json::Object(out))
    });
    Ok(Json::Array(tools.collect::<Result<_, _>>()?))
}

/// Copies flags that are given.
fn copy_given(to: &mut Object, from: &Object, names: &[&str]) {
    for name in names {
        if let Some(value) = from.get(*name).filter(|value| **value != Json::Null) {
            to.insert((*name).into(), value.as_flag().map_or_else(|| value.clone(), Json::Bool));
        }
    }
}
