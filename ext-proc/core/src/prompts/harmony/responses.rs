//! The input of `/v1/responses` as a Harmony conversation.
//!
//! vLLM has a way of its own for this: a role's text is taken from parts of several types, an answer's words stand in
//! the final channel even beside calls, and a function's output names the function whose call came before it.

use std::collections::BTreeMap;

use super::{
    bad,
    message::{Kind, Message},
    preamble::{self, Preamble},
};
use crate::{
    prompts::{
        PromptError, Settings,
        build::{given, text_of},
    },
    request::json::{Json, Object},
};

/// The conversation of a request that brings its whole history along.
pub(super) fn conversation(body: &Object, settings: &Settings) -> Result<Vec<Message>, PromptError> {
    let of_engine = |value: &&Json| value.as_array() != Some(&[]);
    for name in ["previous_response_id", "previous_input_messages"] {
        if given(body, name).filter(of_engine).is_some() {
            return Err(bad(name, "goes on from what an engine holds"));
        }
    }
    let (input, text) = match body.get("input") {
        Some(Json::Array(items)) => (&items[..], None),
        Some(Json::String(text)) => (&[][..], Some(text)),
        Some(Json::Object(none)) if none.is_empty() => (&[][..], None),
        _ => return Err(bad("input", "want a string or an array of items")),
    };
    let items: Vec<Item<'_>> =
        input.iter().enumerate().map(|(at, item)| Item::new(at, item)).collect::<Result<_, _>>()?;
    let (instructions, items) = match (given(body, "instructions"), &items[..]) {
        (Some(Json::String(text)), all) => (Some(text.clone()), all),
        (Some(_), _) => return Err(bad("instructions", "want a string")),
        (None, [first, rest @ ..]) if first.is_instruction() => (first.flat()?, rest),
        (None, all) => (None, all),
    };
    let effort = match given(body, "reasoning") {
        None => None,
        Some(Json::Object(reasoning)) => reasoning.get("effort"),
        Some(_) => return Err(bad("reasoning", "want an object")),
    };
    let functions = preamble::tools(body)?.into_iter().map(|(path, tool)| match text_of(tool, "type") {
        Some("function") => preamble::function(tool, &path),
        // What an engine says of the tools that it has built in depends on its tool server.
        _ => Err(bad(path, "type: only functions are known here")),
    });
    let functions = functions.collect::<Result<Vec<_>, _>>()?;
    let mut preamble = Preamble::new(instructions.as_deref(), &functions, effort, settings)?;
    let mut out = std::mem::take(&mut preamble.messages);
    out.extend(text.map(|text| Message::new(Kind::User, text)));
    let mut names = BTreeMap::new();
    for item in items {
        out.extend(item.convert(&preamble, &mut names)?);
    }
    Ok(out)
}

/// One item of the input.
struct Item<'a> {
    at: usize,
    kind: &'a str,
    object: &'a Object,
}

impl<'a> Item<'a> {
    fn new(at: usize, item: &'a Json) -> Result<Self, PromptError> {
        let object = item.as_object().ok_or_else(|| bad(format!("input[{at}]"), "want an object"))?;
        let kind = match object.get("type") {
            None => "message",
            Some(Json::String(kind)) => kind,
            Some(_) => return Err(bad(format!("input[{at}].type"), "want a string")),
        };
        Ok(Self { at, kind, object })
    }

    fn is_instruction(&self) -> bool {
        matches!(text_of(self.object, "role"), Some("system" | "developer"))
    }

    /// The item's message, if it has any; `names` are those of functions by the ids of their calls so far.
    fn convert(
        &self,
        preamble: &Preamble,
        names: &mut BTreeMap<&'a str, &'a str>,
    ) -> Result<Option<Message>, PromptError> {
        match self.kind {
            "message" => self.message(preamble),
            "reasoning" => self.thoughts(),
            "function_call" => {
                if given(self.object, "namespace").is_some() {
                    return Err(self.bad("namespace", "is not known here"));
                }
                let name = self.text("name")?;
                names.insert(self.text("call_id")?, name);
                Ok(Some(Message::new(Kind::Call(name.to_owned()), self.text("arguments")?)))
            }
            "function_call_output" => {
                let name = names.get(self.text("call_id")?);
                let name = name.ok_or_else(|| self.bad("call_id", "no call before it has this id"))?;
                let kind = Kind::Answer(format!("functions.{name}"));
                Ok(Some(Message::new(kind, self.text("output")?)))
            }
            _ => Err(self.bad("type", "no item of which Harmony makes a message")),
        }
    }

    fn message(&self, preamble: &Preamble) -> Result<Option<Message>, PromptError> {
        let kind = match self.text("role")? {
            role @ ("system" | "developer") => {
                let text = self.flat()?.filter(|text| !text.is_empty());
                return text.map(|text| preamble.later(role, &text)).transpose();
            }
            "user" => Kind::User,
            "assistant" => Kind::Final,
            _ => return Err(self.bad("role", "no role that Harmony knows")),
        };
        let parts = match self.object.get("content") {
            Some(Json::String(text)) => vec![text.clone()],
            Some(Json::Array(parts)) => {
                let text = |part| Ok(self.text_of(part)?.unwrap_or_default().to_owned());
                parts.iter().map(text).collect::<Result<_, _>>()?
            }
            _ => return Err(self.bad("content", "want a string or an array")),
        };
        Ok(Some(Message { kind, parts }))
    }

    /// The texts of the content, in one: `None` where there is none at all.
    fn flat(&self) -> Result<Option<String>, PromptError> {
        match self.object.get("content") {
            Some(Json::String(text)) => Ok(Some(text.clone())),
            Some(Json::Array(parts)) => {
                let texts = parts.iter().map(|part| self.text_of(part));
                let texts: Vec<&str> = texts.filter_map(Result::transpose).collect::<Result<_, _>>()?;
                Ok((!texts.is_empty()).then(|| texts.concat()))
            }
            _ => Err(self.bad("content", "want a string or an array")),
        }
    }

    /// The text of a part; refusals and media have none and leave nothing in the prompt.
    fn text_of<'p>(&self, part: &'p Json) -> Result<Option<&'p str>, PromptError> {
        let part = part.as_object().ok_or_else(|| self.bad("content", "want parts that are objects"))?;
        let is_answer = text_of(self.object, "role") == Some("assistant");
        let is_text = match text_of(part, "type") {
            Some("input_text") => true,
            Some("output_text") if is_answer => true,
            Some("refusal") if is_answer => false,
            Some("input_image" | "input_file" | "input_audio") => false,
            _ => return Err(self.bad("content", "no kind of part that is known")),
        };
        match part.get("text") {
            Some(Json::String(text)) => Ok(Some(text)),
            None if !is_text => Ok(None),
            _ => Err(self.bad("content", "a part's text: want a string")),
        }
    }

    /// What the model thought, where the item holds it as text.
    fn thoughts(&self) -> Result<Option<Message>, PromptError> {
        let parts = match given(self.object, "content") {
            None => return Ok(None),
            Some(Json::Array(parts)) if parts.is_empty() => return Ok(None),
            Some(Json::Array(parts)) => parts,
            Some(_) => return Err(self.bad("content", "want an array")),
        };
        let texts = parts.iter().map(|part| part.as_object().and_then(|part| text_of(part, "text")));
        let texts = texts.collect::<Option<Vec<_>>>();
        let texts = texts.ok_or_else(|| self.bad("content", "want parts with a text"))?;
        Ok(Some(Message::new(Kind::Analysis, texts.join("\n"))))
    }

    fn text(&self, name: &str) -> Result<&'a str, PromptError> {
        text_of(self.object, name).ok_or_else(|| self.bad(name, "want a string"))
    }

    fn bad(&self, field: &str, problem: &'static str) -> PromptError {
        bad(format!("input[{}].{field}", self.at), problem)
    }
}
