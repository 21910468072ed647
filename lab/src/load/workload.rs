//! What clients say: sessions of several turns, in groups that share a system prompt. Everything follows from the seed.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    seeded::Seeded,
    words::{self, WORDS},
};

/// Sizes of a workload. Lengths of text are in words, which are about as many tokens.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Workload {
    /// Model that is asked for.
    pub model: String,
    /// System prompts; sessions are dealt out to them in turn.
    pub groups: u32,
    /// Tokens in a system prompt.
    pub system_tokens: u32,
    /// Chats.
    pub sessions: u32,
    /// Questions in a chat.
    pub turns: u32,
    /// Tokens in a question.
    pub question_tokens: u32,
    /// Tokens in an answer.
    pub output_tokens: u32,
    /// Mean time between an answer and the next question, and before the first, in milliseconds.
    pub think_ms: u64,
    /// What all texts and think times follow from.
    pub seed: u64,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            model: String::new(),
            groups: 4,
            system_tokens: 1024,
            sessions: 32,
            turns: 4,
            question_tokens: 64,
            output_tokens: 64,
            think_ms: 1000,
            seed: 0,
        }
    }
}

impl Workload {
    /// Session `index`, at its first question.
    #[must_use]
    pub fn session(&self, index: u32) -> Session {
        let group = index % self.groups.max(1);
        let system = self.text(&[SYSTEM_STREAM, u64::from(group)], self.system_tokens);
        Session {
            workload: self.clone(),
            index,
            turn: 0,
            messages: vec![json!({"role": "system", "content": system})],
        }
    }

    /// Requests in the whole workload, when none fails.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.sessions as u64 * self.turns as u64
    }

    fn text(&self, stream: &[u64], tokens: u32) -> String {
        words::text(&mut self.seeded(stream), tokens.max(1) as usize)
    }

    fn seeded(&self, stream: &[u64]) -> Seeded {
        let mut seeded = Seeded::new(&[self.seed]);
        stream.iter().for_each(|part| seeded.mix(*part));
        seeded
    }
}

/// One chat: [`Session::ask`], then [`Session::answered`] or [`Session::failed`], until `ask` has no more to say.
#[derive(Clone, Debug)]
pub struct Session {
    workload: Workload,
    index: u32,
    turn: u32,
    messages: Vec<Value>,
}

impl Session {
    /// Its number in the workload.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Number of the question that is asked next, from 0.
    #[must_use]
    pub const fn turn(&self) -> u32 {
        self.turn
    }

    /// How long the client thinks before the next question: half to one and a half times the mean.
    #[must_use]
    pub fn think_time(&self) -> Duration {
        let mut seeded = self.workload.seeded(&[THINK_STREAM, u64::from(self.index), u64::from(self.turn)]);
        Duration::from_millis(self.workload.think_ms).mul_f64(0.5 + seeded.unit())
    }

    /// The body of the next request, or `None` when all questions were asked. Appends the question to the history.
    pub fn ask(&mut self) -> Option<Value> {
        if self.workload.turns <= self.turn {
            return None;
        }
        let place = [QUESTION_STREAM, u64::from(self.index), u64::from(self.turn)];
        let text = self.workload.text(&place, self.workload.question_tokens);
        // Words that number the question: no two are alike, however short they are.
        let question = format!("{} {} {text}", number(self.index), number(self.turn));
        self.messages.push(json!({"role": "user", "content": question}));
        self.turn += 1;
        Some(json!({
            "model": self.workload.model,
            "messages": self.messages,
            "max_tokens": self.workload.output_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
        }))
    }

    /// Appends what the model said to the history.
    pub fn answered(&mut self, content: &str) {
        self.messages.push(json!({"role": "assistant", "content": content}));
    }

    /// Takes back the question that got no answer; the chat goes on with the next one.
    pub fn failed(&mut self) {
        self.messages.pop();
    }
}

/// A number in words: digits to the base of the word list.
fn number(mut value: u32) -> String {
    let base = u32::try_from(WORDS.len()).unwrap_or(u32::MAX);
    let mut digits = Vec::new();
    loop {
        digits.push(WORDS[(value % base) as usize]);
        value /= base;
        if value == 0 {
            return digits.join(" ");
        }
    }
}

/// Keep system prompts, questions and think times apart.
const SYSTEM_STREAM: u64 = 1;
const QUESTION_STREAM: u64 = 2;
const THINK_STREAM: u64 = 3;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn workload() -> Workload {
        Workload { groups: 3, sessions: 7, turns: 3, question_tokens: 1, ..Workload::default() }
    }

    fn play(session: &mut Session) -> Vec<Value> {
        let mut bodies = Vec::new();
        while let Some(body) = session.ask() {
            session.answered(&format!(" answer {}", session.turn()));
            bodies.push(body);
        }
        bodies
    }

    #[test]
    fn is_the_same_for_the_same_seed() {
        let other = Workload { seed: 1, ..workload() };
        assert_eq!(play(&mut workload().session(2)), play(&mut workload().session(2)));
        assert_ne!(play(&mut workload().session(2)), play(&mut other.session(2)));
    }

    #[test]
    fn groups_share_a_system_prompt_and_nothing_else() {
        let system = |index| workload().session(index).messages[0].clone();
        assert_eq!(system(0), system(3));
        assert_ne!(system(0), system(1));
        let mut questions = BTreeSet::new();
        for index in 0..7 {
            for body in play(&mut workload().session(index)) {
                let last = body["messages"].as_array().unwrap().last().unwrap();
                assert!(questions.insert(last["content"].as_str().unwrap().to_owned()), "{last}");
            }
        }
        assert_eq!(questions.len() as u64, workload().requests());
    }

    #[test]
    fn each_turn_extends_the_one_before() {
        let bodies = play(&mut workload().session(0));
        assert_eq!(bodies.len(), 3);
        for pair in bodies.windows(2) {
            let (before, after) =
                (pair[0]["messages"].as_array().unwrap(), pair[1]["messages"].as_array().unwrap());
            assert_eq!(before[..], after[..before.len()]);
            assert_eq!(after[before.len()]["role"], "assistant");
            assert_eq!(after.len(), before.len() + 2);
        }
    }

    #[test]
    fn a_failed_question_leaves_no_trace() {
        let mut session = workload().session(0);
        session.ask();
        session.failed();
        assert_eq!(session.ask().unwrap()["messages"].as_array().unwrap().len(), 2);
    }
}
