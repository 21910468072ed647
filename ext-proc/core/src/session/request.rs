//! The request's way through an exchange.

use super::{Action, BEGINNING, BodyMode, Phase, Question, Session, State, pieces};
use crate::{
    outcome::Reason,
    reply::{Decision, Destination, Reply, Way},
};

impl Session {
    pub(super) fn on_headers(&mut self, end: bool) -> Vec<Action> {
        if end {
            // A request without a body is none of those that a cache speeds up.
            self.state = State::Deciding(Phase::Headers);
            return vec![self.question(Vec::new(), Some(Reason::NO_BODY))];
        }
        match self.request_mode {
            BodyMode::Buffered | BodyMode::BufferedPartial => {
                self.state = State::Body;
                vec![Action::Reply(Reply::RequestHeaders(None))]
            }
            BodyMode::FullDuplexStreamed => {
                self.state = State::Body;
                Vec::new()
            }
            BodyMode::None | BodyMode::Streamed => {
                self.state = State::Deciding(Phase::Headers);
                vec![self.question(Vec::new(), Some(Reason::BODY_NOT_SENT))]
            }
        }
    }

    pub(super) fn on_body(&mut self, bytes: Vec<u8>, end: bool) -> Vec<Action> {
        match (self.state, self.request_mode) {
            (State::Body, BodyMode::FullDuplexStreamed) => {
                if self.kept.is_empty() {
                    self.kept = bytes;
                } else {
                    self.kept.extend_from_slice(&bytes);
                }
                if !end && self.kept.len() <= self.settings.most_body {
                    return Vec::new();
                }
                self.state = State::Deciding(Phase::Both { ended: end });
                vec![self.question_about_kept()]
            }
            (State::Body, _) => {
                self.state = State::Deciding(Phase::Body);
                // A whole body that trailers follow is not marked as the end.
                let lack = if !end && self.request_mode == BodyMode::BufferedPartial {
                    Some(Reason::BODY_CUT)
                } else if self.settings.most_body < bytes.len() {
                    Some(Reason::BODY_TOO_LARGE)
                } else {
                    None
                };
                vec![self.question(bytes, lack)]
            }
            (State::Done | State::Deciding(Phase::Both { ended: true }), BodyMode::FullDuplexStreamed) => {
                // The body has ended; Envoy has been seen to send its last piece twice.
                Vec::new()
            }
            (State::Deciding(Phase::Both { .. }), _) => {
                // What comes in while the shell thinks about a body that is too large to look at.
                self.kept.extend_from_slice(&bytes);
                self.state = State::Deciding(Phase::Both { ended: end });
                Vec::new()
            }
            (_, BodyMode::FullDuplexStreamed) => {
                if end {
                    self.state = State::Done;
                }
                pieces(bytes, end, |bytes, end| Reply::RequestBodyPiece { bytes, end })
            }
            _ => vec![Action::Reply(Reply::RequestBody(None))],
        }
    }

    pub(super) fn on_trailers(&mut self) -> Vec<Action> {
        match (self.state, self.request_mode) {
            (State::Body, BodyMode::FullDuplexStreamed) => {
                self.trailers = true;
                self.state = State::Deciding(Phase::Both { ended: true });
                vec![self.question_about_kept()]
            }
            (State::Deciding(Phase::Both { .. }), _) => {
                self.trailers = true;
                self.state = State::Deciding(Phase::Both { ended: true });
                Vec::new()
            }
            _ => {
                self.state = if self.state == State::Passing { State::Done } else { self.state };
                vec![Action::Reply(Reply::RequestTrailers)]
            }
        }
    }

    pub(super) fn on_decided(&mut self, decision: &Decision) -> Vec<Action> {
        let State::Deciding(phase) = self.state else { return Vec::new() };
        let destination = Destination::new(&decision.names, self.settings.destinations);
        let way = Some(Way { destination, rank: decision.rank });
        self.evidence = self.settings.evidence_header.then(|| decision.evidence());
        match phase {
            Phase::Headers => {
                self.state = State::Done;
                vec![Action::Reply(Reply::RequestHeaders(way))]
            }
            Phase::Body => {
                self.state = State::Done;
                vec![Action::Reply(Reply::RequestBody(way))]
            }
            Phase::Both { ended } => {
                let kept = std::mem::take(&mut self.kept);
                let mut actions = vec![Action::Reply(Reply::RequestHeaders(way))];
                let marked = ended && !self.trailers;
                if !kept.is_empty() || marked {
                    actions.extend(pieces(kept, marked, |bytes, end| Reply::RequestBodyPiece { bytes, end }));
                }
                if self.trailers {
                    actions.push(Action::Reply(Reply::RequestTrailers));
                }
                self.state = if ended { State::Done } else { State::Passing };
                actions
            }
        }
    }

    fn question(&mut self, body: Vec<u8>, lack: Option<Reason>) -> Action {
        let envoy_has_a_clock = self.request_mode != BodyMode::FullDuplexStreamed;
        let (path, session) = (self.path.clone(), self.session.take());
        Action::Decide(Question { path, session, body, lack, envoy_has_a_clock })
    }

    /// The body is wanted twice: to think about, and to send back.
    fn question_about_kept(&mut self) -> Action {
        if self.settings.most_body < self.kept.len() {
            let beginning = self.kept[..self.kept.len().min(BEGINNING)].to_vec();
            self.question(beginning, Some(Reason::BODY_TOO_LARGE))
        } else {
            let body = self.kept.clone();
            self.question(body, None)
        }
    }
}
