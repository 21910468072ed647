//! One message of a conversation, and how it becomes tokens.

use super::bad;
use crate::prompts::{PromptError, tokens::Tokenizer};

/// A message between its control tokens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Texts that follow each other, each encoded on its own.
    pub(super) parts: Vec<String>,
}

/// Who speaks to whom, in which channel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    System,
    Developer,
    User,
    /// The assistant's thoughts.
    Analysis,
    /// What the assistant says beside a tool call.
    Commentary,
    /// The assistant's answer.
    Final,
    /// The assistant calls the function of this name, which stands there without its namespace.
    Call(String),
    /// What the function of this name answers.
    Answer(String),
}

impl Message {
    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, parts: vec![text.into()] }
    }
}

/// Turns messages into ids. What every header has is encoded once.
pub(super) struct Writer {
    start: u32,
    end: u32,
    call: u32,
    system: Vec<u32>,
    developer: Vec<u32>,
    user: Vec<u32>,
    analysis: Vec<u32>,
    commentary: Vec<u32>,
    answer: Vec<u32>,
    /// What follows the name of a function that is called.
    called: Vec<u32>,
    /// What follows the name of a function that answers.
    answered: Vec<u32>,
    /// Where the model goes on.
    next: Vec<u32>,
}

impl Writer {
    /// `control` are the ids of the control tokens, in their order in [`super::CONTROL`].
    pub(super) fn new(tokenizer: &Tokenizer, control: [u32; 5]) -> Result<Self, PromptError> {
        let [start, channel, message, end, call] = control;
        let text = |text: &str| tokenizer.encode_ordinary(text);
        let head = |role: &str| Ok([vec![start], text(role)?, vec![message]].concat());
        let tail = |name: &str| Ok([vec![channel], text(name)?, vec![message]].concat());
        let next = [vec![start], text("assistant")?].concat();
        let in_channel = |name: &str| Ok([next.clone(), tail(name)?].concat());
        Ok(Self {
            start,
            end,
            call,
            system: head("system")?,
            developer: head("developer")?,
            user: head("user")?,
            analysis: in_channel("analysis")?,
            commentary: in_channel("commentary")?,
            answer: in_channel("final")?,
            called: tail("commentary json")?,
            answered: tail("commentary to=assistant")?,
            next,
        })
    }

    /// Ids of a conversation up to where the assistant is to speak.
    pub(super) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        mut messages: Vec<Message>,
    ) -> Result<Vec<u32>, PromptError> {
        drop_old_thoughts(&mut messages);
        Tokenizer::check(messages.iter().flat_map(|it| it.parts.iter().map(String::as_str)))?;
        let mut ids = Vec::new();
        for message in &messages {
            self.head(tokenizer, &message.kind, &mut ids)?;
            for part in &message.parts {
                ids.extend(tokenizer.encode_ordinary(part)?);
            }
            ids.push(if matches!(message.kind, Kind::Call(_)) { self.call } else { self.end });
        }
        ids.extend(&self.next);
        Ok(ids)
    }

    fn head(&self, tokenizer: &Tokenizer, kind: &Kind, ids: &mut Vec<u32>) -> Result<(), PromptError> {
        let fixed = match kind {
            Kind::System => &self.system,
            Kind::Developer => &self.developer,
            Kind::User => &self.user,
            Kind::Analysis => &self.analysis,
            Kind::Commentary => &self.commentary,
            Kind::Final => &self.answer,
            Kind::Call(name) => {
                // vLLM writes this header anew and fails on a name with a control token's text in it.
                if name.contains("<|") {
                    return Err(bad("messages", "a called function's name has a control token in it"));
                }
                ids.push(self.start);
                ids.extend(tokenizer.encode_ordinary(&format!("assistant to=functions.{name}"))?);
                &self.called
            }
            Kind::Answer(name) => {
                ids.push(self.start);
                ids.extend(tokenizer.encode_ordinary(name)?);
                &self.answered
            }
        };
        ids.extend(fixed);
        Ok(())
    }
}

/// The model is not shown how it came to an answer that it has given: thoughts before the last one go.
fn drop_old_thoughts(messages: &mut Vec<Message>) {
    let last = messages.iter().rposition(|message| message.kind == Kind::Final).unwrap_or(0);
    let mut at = 0;
    messages.retain(|message| {
        at += 1;
        at > last || message.kind != Kind::Analysis
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_thoughts_after_the_last_answer_stay() {
        let kinds = [Kind::Analysis, Kind::Final, Kind::Analysis, Kind::Final, Kind::User, Kind::Analysis];
        let mut messages: Vec<Message> = kinds.into_iter().map(|kind| Message::new(kind, "x")).collect();
        drop_old_thoughts(&mut messages);
        let left: Vec<Kind> = messages.into_iter().map(|message| message.kind).collect();
        assert_eq!(left, [Kind::Final, Kind::Final, Kind::User, Kind::Analysis]);

        let mut messages = vec![Message::new(Kind::Analysis, "x"), Message::new(Kind::Commentary, "y")];
        drop_old_thoughts(&mut messages);
        assert_eq!(messages.len(), 2);
    }
}
