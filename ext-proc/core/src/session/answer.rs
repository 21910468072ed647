//! The answer's way through an exchange.

use super::{Action, BodyMode, MOST_SOUGHT, Named, Served, Session, pieces};
use crate::{
    reply::{Reply, Shown},
    request::{Api, json},
    usage::{Reader, Usage},
};

/// How an answer went, as far as Envoy showed it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answer {
    /// `:status`; 0 where no headers came.
    pub status: u32,
    /// How it ended.
    pub end: End,
    /// What it told of itself.
    pub usage: Usage,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// All of it passed.
    Whole,
    /// Its body passed through here and its end did not come: the engine or the client has gone.
    Cut,
    /// It was not seen: the body does not pass through here.
    Unseen,
}

impl End {
    /// Label of metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Cut => "cut",
            Self::Unseen => "unseen",
        }
    }
}

/// As much as has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    status: u32,
    is_whole: bool,
    has_event: bool,
    /// Reads the body where it passes and tells something.
    reader: Option<Reader>,
}

impl Session {
    pub(super) fn on_answer_headers(&mut self, served: Served) -> Vec<Action> {
        self.sought = (self.path == Api::Responses.path() && served.is_success()).then(Vec::new);
        let is_read = served.is_success() && self.carries_response_body();
        self.progress = Progress {
            status: served.status,
            is_whole: served.end,
            has_event: false,
            reader: is_read.then(|| Reader::of(&served.content_type)).flatten(),
        };
        let shown = Shown {
            evidence: self.evidence.clone(),
            served: self.settings.conformance.then(|| told(&served.named)),
        };
        vec![Action::Observe(served), Action::Reply(Reply::ResponseHeaders(shown))]
    }

    pub(super) fn on_answer_body(&mut self, bytes: Vec<u8>, end: bool) -> Vec<Action> {
        // Before the bytes go on: a client that has the id may use it at once.
        let mut actions: Vec<_> = self.seek_id(&bytes).map(Action::Named).into_iter().collect();
        let progress = &mut self.progress;
        progress.is_whole |= end;
        let has_event = progress.reader.as_mut().is_some_and(|it| it.push(&bytes));
        if has_event && !std::mem::replace(&mut progress.has_event, true) {
            actions.push(Action::FirstEvent);
        }
        actions.extend(match self.response_mode {
            BodyMode::FullDuplexStreamed => {
                pieces(bytes, end, |bytes, end| Reply::ResponseBodyPiece { bytes, end })
            }
            _ => vec![Action::Reply(Reply::ResponseBody)],
        });
        actions
    }

    pub(super) fn on_answer_trailers(&mut self) -> Vec<Action> {
        self.progress.is_whole = true;
        vec![Action::Reply(Reply::ResponseTrailers)]
    }

    /// How the answer went so far; once the exchange has ended, how it went.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let Progress { status, is_whole, reader, .. } = &self.progress;
        let end = match (is_whole, *status) {
            (true, _) => End::Whole,
            (false, 1..) if self.carries_response_body() => End::Cut,
            (false, _) => End::Unseen,
        };
        let usage = reader.as_ref().map(Reader::usage).unwrap_or_default();
        Answer { status: *status, end, usage }
    }

    /// The response's id, once it is there. Nothing is held back for it.
    fn seek_id(&mut self, bytes: &[u8]) -> Option<String> {
        let sought = self.sought.as_mut()?;
        sought.extend_from_slice(&bytes[..bytes.len().min(MOST_SOUGHT - sought.len())]);
        let id = json::first_text(sought, "id");
        if id.is_some() || MOST_SOUGHT <= sought.len() {
            self.sought = None;
        }
        id
    }
}

/// What the conformance suite reads in its header: who served, or in its own words why that is not known.
fn told(named: &Named) -> String {
    match named {
        Named::NoMetadata => "fail: missing envoy lb metadata".to_owned(),
        Named::NoEndpoint => "fail: missing destination endpoint served metadata".to_owned(),
        Named::Endpoint(it) => it.clone(),
    }
}
