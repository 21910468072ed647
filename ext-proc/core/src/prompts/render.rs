//! A chat's text, as its template prints it.

use super::{
    Kind, PromptError, Prompter,
    build::{field, given},
    chat::Chat,
    messages::{self, Media, Rules},
    template::Template,
};
use crate::request::json::{Json, Object};

/// Longest template of a request's own, in bytes: compiling one takes time by the square of its length.
const LONGEST_OWN: usize = 32 << 10;

/// A chat for which the template and its variables are known.
pub(super) struct Sheet<'p> {
    prompter: &'p Prompter,
    /// What prints it.
    pub(super) template: Template,
    /// Its messages as they came.
    pub(super) given: &'p [Json],
    variables: Object,
    continues: bool,
    calls_as_given: bool,
}

impl<'p> Sheet<'p> {
    /// Of a chat's `body`.
    pub(super) fn new(prompter: &'p Prompter, body: &'p Object, kind: Kind) -> Result<Self, PromptError> {
        prompter.check_mode(true)?;
        let none = serde_json::Map::new();
        let settings = &prompter.settings;
        let defaults = if kind.has_defaults { &settings.default_chat_template_kwargs } else { &none };
        let chat = Chat::of(body, defaults, settings)?;
        let template = choose(prompter, body, chat.has_tools())?;
        let mut variables = prompter.special_tokens.clone();
        variables.extend(chat.variables);
        let given = body.get("messages").and_then(Json::as_array).unwrap_or_default();
        let (continues, calls_as_given) = (chat.continues, kind.calls_as_given);
        Ok(Self { prompter, template, given, variables, continues, calls_as_given })
    }

    /// The messages in the form in which the template gets them.
    pub(super) fn messages(&self, media: Media) -> Result<Vec<Json>, PromptError> {
        let keeps_developer = self.prompter.settings.keeps_developer_role || self.template.knows_developer();
        let rules =
            Rules { form: self.template.form(), keeps_developer, calls_as_given: self.calls_as_given, media };
        let messages = messages::normalise(self.given, rules)?;
        if messages.is_empty() { Err(PromptError::NoMessages) } else { Ok(messages) }
    }

    /// The text with those messages.
    pub(super) fn print(&self, messages: Vec<Json>) -> Result<String, PromptError> {
        self.prompter.templates.render(&self.template, messages, self.variables.clone(), self.continues)
    }

    /// The text with other messages, of which the last one is not to be continued.
    pub(super) fn print_new(&self, messages: Vec<Json>) -> Result<String, PromptError> {
        self.prompter.templates.render(&self.template, messages, self.variables.clone(), false)
    }
}

/// The request's own template if the engine would trust it, else the model's.
fn choose(prompter: &Prompter, body: &Object, has_tools: bool) -> Result<Template, PromptError> {
    let in_kwargs = body.get("chat_template_kwargs").and_then(Json::as_object);
    let in_kwargs = in_kwargs.and_then(|kwargs| given(kwargs, "chat_template"));
    let own = given(body, "chat_template");
    if own.or(in_kwargs).is_some() && !prompter.settings.trust_request_chat_template {
        return Err(PromptError::UntrustedTemplate);
    }
    let own = own.filter(|it| it.as_str() != Some(""));
    let in_kwargs =
        in_kwargs.filter(|it| it.as_str() != Some("auto") && !prompter.settings.chat_template_is_servers);
    match own.or(in_kwargs) {
        None => prompter.templates.choose(has_tools),
        Some(Json::String(text)) if LONGEST_OWN < text.len() => {
            Err(PromptError::Template("the request's own is longer than 32 KiB".to_owned()))
        }
        Some(Json::String(text)) => Ok(prompter.templates.described(text)),
        Some(_) => Err(field("chat_template", "want a string")),
    }
}
