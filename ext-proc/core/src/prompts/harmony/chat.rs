//! A chat's messages as a Harmony conversation.

use std::collections::BTreeMap;

use super::{
    bad,
    message::{Kind, Message},
    preamble::{self, Function, Preamble},
};
use crate::{
    prompts::{PromptError, Settings, python::dumps::dumps},
    request::{
        is_media, is_text_part,
        json::{Json, Object},
    },
};

/// The conversation of a chat request.
pub(super) fn conversation(body: &Object, settings: &Settings) -> Result<Vec<Message>, PromptError> {
    let messages = body.get("messages").and_then(Json::as_array).unwrap_or_default();
    let messages: Vec<Given<'_>> =
        messages.iter().enumerate().map(|(at, message)| Given::new(at, message)).collect::<Result<_, _>>()?;
    let (instructions, rest) = match &messages[..] {
        [first, rest @ ..] if first.is_instruction() => (first.flat()?, rest),
        all => (None, all),
    };
    let functions = functions(body, settings)?;
    let mut preamble =
        Preamble::new(instructions.as_deref(), &functions, body.get("reasoning_effort"), settings)?;
    let mut out = std::mem::take(&mut preamble.messages);
    let names = called(rest)?;
    for message in rest {
        message.convert(&preamble, &names, &mut out)?;
    }
    Ok(out)
}

fn functions<'a>(body: &'a Object, settings: &Settings) -> Result<Vec<Function<'a>>, PromptError> {
    let choice = body.get("tool_choice").and_then(Json::as_str);
    if settings.exclude_tools_when_tool_choice_none && choice == Some("none") {
        return Ok(Vec::new());
    }
    let function = |(path, tool): (String, &'a Object)| {
        if !matches!(tool.get("type").map(Json::as_str), None | Some(Some("function"))) {
            return Err(bad(path, "type: want function"));
        }
        match tool.get("function") {
            Some(Json::Object(function)) => preamble::function(function, &path),
            _ => Err(bad(path, "function: want an object")),
        }
    };
    preamble::tools(body)?.into_iter().map(function).collect()
}

/// Names of functions by the ids of their calls, the last one's where ids repeat.
type Names<'a> = BTreeMap<Option<&'a str>, &'a str>;

fn called<'a>(messages: &[Given<'a>]) -> Result<Names<'a>, PromptError> {
    let mut names = Names::new();
    for message in messages {
        for call in message.calls()? {
            names.insert(call.id, call.name);
        }
    }
    Ok(names)
}

/// A message as the request has it.
struct Given<'a> {
    at: usize,
    role: &'a str,
    object: &'a Object,
}

struct Call<'a> {
    id: Option<&'a str>,
    name: &'a str,
    arguments: String,
}

impl<'a> Given<'a> {
    fn new(at: usize, message: &'a Json) -> Result<Self, PromptError> {
        let object = message.as_object().ok_or_else(|| bad(format!("messages[{at}]"), "want an object"))?;
        let role = object.get("role").and_then(Json::as_str).unwrap_or_default();
        if !["user", "assistant", "system", "developer", "tool"].contains(&role) {
            return Err(bad(format!("messages[{at}].role"), "no role that Harmony knows"));
        }
        // A message in parts that is not of vLLM's own type loses them without a word.
        let is_text_or_null = |name| matches!(object.get(name), None | Some(Json::Null | Json::String(_)));
        let is_plain = ["task", "reasoning", "tool_call_id"].into_iter().all(is_text_or_null)
            && matches!(object.get("tools"), None | Some(Json::Null));
        if !is_plain && matches!(object.get("content"), Some(Json::Array(_))) {
            return Err(bad(format!("messages[{at}]"), "has parts beside fields of which they may be lost"));
        }
        Ok(Self { at, role, object })
    }

    fn is_instruction(&self) -> bool {
        matches!(self.role, "system" | "developer")
    }

    fn convert(
        &self,
        preamble: &Preamble,
        names: &Names<'_>,
        out: &mut Vec<Message>,
    ) -> Result<(), PromptError> {
        match self.role {
            "assistant" => return self.convert_assistant(out),
            "tool" => {
                let id = match self.object.get("tool_call_id") {
                    None => Some(""),
                    Some(Json::Null) => None,
                    Some(Json::String(id)) => Some(id.as_str()),
                    Some(_) => return Err(self.bad("tool_call_id", "want a string")),
                };
                let name = names.get(&id).copied().unwrap_or_default();
                let kind = Kind::Answer(format!("functions.{name}"));
                out.push(Message::new(kind, self.flat()?.unwrap_or_default()));
            }
            "user" => out.push(Message { kind: Kind::User, parts: self.parts()? }),
            role => {
                if let Some(instructions) = self.flat()? {
                    out.push(preamble.later(role, &instructions)?);
                }
            }
        }
        Ok(())
    }

    fn convert_assistant(&self, out: &mut Vec<Message>) -> Result<(), PromptError> {
        let thoughts = self.thoughts()?.filter(|thoughts| !thoughts.is_empty());
        let thoughts = thoughts.map(|thoughts| Message::new(Kind::Analysis, thoughts));
        let calls = self.calls()?;
        if calls.is_empty() {
            out.extend(thoughts);
            let parts = self.parts()?;
            // The first part alone decides whether there is an answer.
            if parts.first().is_some_and(|part| !part.is_empty()) {
                out.push(Message { kind: Kind::Final, parts });
            }
            return Ok(());
        }
        let said = self.flat()?.filter(|said| !said.is_empty());
        out.extend(said.map(|said| Message::new(Kind::Commentary, said)));
        out.extend(thoughts);
        out.extend(
            calls.into_iter().map(|call| Message::new(Kind::Call(call.name.to_owned()), call.arguments)),
        );
        Ok(())
    }

    fn thoughts(&self) -> Result<Option<&'a str>, PromptError> {
        // Older clients send the second name.
        let given = |name: &str| self.object.get(name).filter(|value| **value != Json::Null);
        match given("reasoning").or_else(|| given("reasoning_content")) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.bad("reasoning", "want a string")),
        }
    }

    fn calls(&self) -> Result<Vec<Call<'a>>, PromptError> {
        let calls = match self.object.get("tool_calls") {
            None | Some(Json::Null) => return Ok(Vec::new()),
            Some(Json::Array(calls)) => calls,
            Some(Json::Object(none)) if none.is_empty() => return Ok(Vec::new()),
            Some(Json::String(none)) if none.is_empty() => return Ok(Vec::new()),
            Some(_) => return Err(self.bad("tool_calls", "want an array")),
        };
        let call = |call: &'a Json| {
            let text = |object: &'a Object, name: &str| object.get(name).and_then(Json::as_str);
            let call = call.as_object()?;
            let function = call.get("function")?.as_object()?;
            let arguments = match function.get("arguments")? {
                Json::String(text) => text.clone(),
                // As they are in a chat that was made of another API's.
                given @ Json::Object(arguments) if given.is_all_text() => dumps(arguments),
                _ => return None,
            };
            Some(Call { id: text(call, "id"), name: text(function, "name")?, arguments })
        };
        let want = "want calls of functions with a name and arguments, both strings";
        calls.iter().map(|given| call(given).ok_or_else(|| self.bad("tool_calls", want))).collect()
    }

    /// The texts of the content, in one: `None` where there is none at all.
    fn flat(&self) -> Result<Option<String>, PromptError> {
        match self.object.get("content") {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.clone())),
            Some(Json::Array(parts)) => {
                let texts = parts.iter().map(|part| self.text_of(part));
                let texts: Vec<&str> = texts.filter_map(Result::transpose).collect::<Result<_, _>>()?;
                Ok((!texts.is_empty()).then(|| texts.concat()))
            }
            Some(_) => Err(self.bad("content", "want a string, an array or null")),
        }
    }

    /// The texts of the content, one by one: at least one, which may be empty.
    fn parts(&self) -> Result<Vec<String>, PromptError> {
        match self.object.get("content") {
            Some(Json::Array(parts)) if !parts.is_empty() => {
                let text = |part| Ok(self.text_of(part)?.unwrap_or_default().to_owned());
                parts.iter().map(text).collect()
            }
            _ => Ok(vec![self.flat()?.unwrap_or_default()]),
        }
    }

    /// The text of a part. A part of another kind, media among them, has none as a rule and leaves nothing in the
    /// prompt. A kind that vLLM does not know can make it drop the whole content without a word; that is refused.
    fn text_of<'p>(&self, part: &'p Json) -> Result<Option<&'p str>, PromptError> {
        let part = part.as_object().ok_or_else(|| self.bad("content", "want parts that are objects"))?;
        let kind = part.get("type").and_then(Json::as_str);
        let is_text = kind == Some("text");
        let is_known = match kind {
            Some("input_text" | "output_text") => false,
            Some(kind) => is_text_part(kind) || is_media(part),
            None => is_media(part),
        };
        match part.get("text") {
            _ if !is_known => Err(self.bad("content", "no kind of part that is known")),
            Some(Json::String(text)) => Ok(Some(text)),
            None if !is_text => Ok(None),
            _ => Err(self.bad("content", "a part's text: want a string")),
        }
    }

    fn bad(&self, field: &str, problem: &'static str) -> PromptError {
        bad(format!("messages[{}].{field}", self.at), problem)
    }
}
