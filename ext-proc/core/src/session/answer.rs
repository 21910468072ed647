//! The answer's way through an exchange.

use super::{Action, BodyMode, MOST_SOUGHT, Served, Session, pieces};
use crate::{
    reply::Reply,
    request::{Api, json},
};

impl Session {
    pub(super) fn on_answer_headers(&mut self, served: Served) -> Vec<Action> {
        let evidence = self.evidence.clone();
        self.sought = (self.path == Api::Responses.path() && served.is_success()).then(Vec::new);
        vec![Action::Observe(served), Action::Reply(Reply::ResponseHeaders(evidence))]
    }

    pub(super) fn on_answer_body(&mut self, bytes: Vec<u8>, end: bool) -> Vec<Action> {
        // Before the bytes go on: a client that has the id may use it at once.
        let mut actions: Vec<_> = self.seek_id(&bytes).map(Action::Named).into_iter().collect();
        actions.extend(match self.response_mode {
            BodyMode::FullDuplexStreamed => {
                pieces(bytes, end, |bytes, end| Reply::ResponseBodyPiece { bytes, end })
            }
            _ => vec![Action::Reply(Reply::ResponseBody)],
        });
        actions
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
