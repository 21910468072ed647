//! What stands before a conversation: the system message, and the developer's instructions and tools.

use super::{
    bad,
    message::{Kind, Message},
    typescript,
};
use crate::{
    prompts::{PromptError, Settings, build::HALF_PAIR},
    request::json::{Json, Object},
};

/// A function that the model may call.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    pub(super) description: &'a str,
    /// JSON schema of its arguments.
    pub(super) parameters: Option<&'a Object>,
}

/// What messages beyond a conversation's own words depend on.
#[derive(Debug)]
pub(super) struct Preamble {
    date: String,
    has_functions: bool,
    /// Whether instructions stand in the system message.
    in_system: bool,
    /// The messages.
    pub(super) messages: Vec<Message>,
}

impl Preamble {
    /// Of a request with these instructions, functions and reasoning effort.
    pub(super) fn new(
        instructions: Option<&str>,
        functions: &[Function<'_>],
        effort: Option<&Json>,
        settings: &Settings,
    ) -> Result<Self, PromptError> {
        let effort = match effort {
            None | Some(Json::Null) => MEDIUM,
            Some(Json::String(text)) if EFFORTS.contains(&text.as_str()) => text,
            Some(_) => return Err(bad("reasoning_effort", "want low, medium or high")),
        };
        let mut preamble = Self {
            date: date(settings)?,
            has_functions: !functions.is_empty(),
            in_system: settings.harmony_system_instructions,
            messages: Vec::new(),
        };
        let (for_system, for_developer) =
            if preamble.in_system { (instructions, None) } else { (None, instructions) };
        preamble.messages.push(preamble.system(for_system, effort));
        if preamble.has_functions || for_developer.is_some_and(|text| !text.is_empty()) {
            preamble.messages.push(developer(for_developer, functions)?);
        }
        Ok(preamble)
    }

    /// A system or developer message in the middle of a conversation.
    pub(super) fn later(&self, role: &str, instructions: &str) -> Result<Message, PromptError> {
        match (self.in_system, role) {
            (true, "system") => Ok(self.system(Some(instructions), MEDIUM)),
            // Where instructions belong into the system message, vLLM leaves them out here.
            (true, _) => developer(None, &[]),
            (false, _) => developer(Some(instructions), &[]),
        }
    }

    fn system(&self, instructions: Option<&str>, effort: &str) -> Message {
        let mut text = String::from("You are ChatGPT, a large language model trained by OpenAI.\n");
        if let Some(instructions) = instructions {
            text = text + instructions + "\n";
        }
        text = text + "Knowledge cutoff: 2024-06\nCurrent date: " + &self.date;
        text = text + "\n\nReasoning: " + effort + "\n\n# Valid channels: analysis, commentary, final. ";
        text += "Channel must be included for every message.";
        if self.has_functions {
            text += "\nCalls to these tools must go to the commentary channel: 'functions'.";
        }
        Message::new(Kind::System, text)
    }
}

const MEDIUM: &str = "medium";

/// Reasoning efforts that the format knows.
const EFFORTS: [&str; 3] = ["low", MEDIUM, "high"];

fn date(settings: &Settings) -> Result<String, PromptError> {
    if let Some(date) = settings.start_date.as_ref().filter(|date| !date.is_empty()) {
        return Ok(date.clone());
    }
    let clock = settings.clock.as_ref().ok_or_else(|| bad("start_date", "no date is set, and no clock"))?;
    let now = clock();
    Ok(format!("{:04}-{:02}-{:02}", now.year, now.month, now.day))
}

fn developer(instructions: Option<&str>, functions: &[Function<'_>]) -> Result<Message, PromptError> {
    let mut sections = Vec::new();
    if let Some(instructions) = instructions {
        sections.push(format!("# Instructions\n\n{instructions}"));
    }
    if !functions.is_empty() {
        sections.push(typescript::functions(functions)?);
    }
    Ok(Message::new(Kind::Developer, sections.join("\n\n")))
}

/// The entries of a list of tools, each with its path for errors.
pub(super) fn tools<'a>(body: &'a Object) -> Result<Vec<(String, &'a Object)>, PromptError> {
    let tools = match body.get("tools") {
        None | Some(Json::Null) => return Ok(Vec::new()),
        Some(Json::Array(tools)) => tools,
        Some(_) => return Err(bad("tools", "want an array")),
    };
    let tool = |(at, tool): (usize, &'a Json)| {
        let path = format!("tools[{at}]");
        match tool {
            Json::Object(tool) => Ok((path, tool)),
            _ => Err(bad(path, "want an object")),
        }
    };
    tools.iter().enumerate().map(tool).collect()
}

/// A function as `given` describes it.
pub(super) fn function<'a>(given: &'a Object, path: &str) -> Result<Function<'a>, PromptError> {
    let name = given.get("name").and_then(Json::as_str).ok_or_else(|| bad(path, "name: want a string"))?;
    let description = match given.get("description") {
        None | Some(Json::Null) => "",
        Some(Json::String(text)) => text,
        Some(_) => return Err(bad(path, "description: want a string")),
    };
    let parameters = match given.get("parameters") {
        None | Some(Json::Null) => None,
        Some(parameters) if !parameters.is_all_text() => return Err(bad(path, HALF_PAIR)),
        Some(Json::Object(parameters)) => Some(parameters),
        Some(_) => return Err(bad(path, "parameters: want an object")),
    };
    Ok(Function { name, description, parameters })
}
