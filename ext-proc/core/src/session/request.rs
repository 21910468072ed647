//! The request's way through an exchange.

use bytes::Bytes;

use super::{Action, BEGINNING, Body, BodyMode, Owed, Phase, Question, Session, State};
use crate::{
    outcome::Reason,
    reply::{CHUNK, Changed, Decision, Destination, Reply, Way},
};

impl Session {
    pub(super) fn on_headers(&mut self, end: bool) -> Vec<Action> {
        if end {
            // A request without a body is none of those that a cache speeds up.
            return vec![self.ask(Phase::Headers, Some(Reason::NO_BODY))];
        }
        match self.request_mode {
            BodyMode::Buffered | BodyMode::BufferedPartial => {
                self.state = State::Body;
                vec![self.headers_reply(None)]
            }
            BodyMode::FullDuplexStreamed => {
                self.state = State::Body;
                Vec::new()
            }
            BodyMode::None | BodyMode::Streamed => {
                vec![self.ask(Phase::Headers, Some(Reason::BODY_NOT_SENT))]
            }
        }
    }

    pub(super) fn on_body(&mut self, bytes: Bytes, end: bool) -> Vec<Action> {
        if self.request_mode == BodyMode::FullDuplexStreamed {
            return self.on_piece(bytes, end);
        }
        match self.state {
            State::Body => {
                self.kept.push(bytes);
                // A whole body that trailers follow is not marked as the end.
                let is_cut = !end && self.request_mode == BodyMode::BufferedPartial;
                vec![self.ask(Phase::Body, is_cut.then_some(Reason::BODY_CUT))]
            }
            State::Deciding(_) => {
                self.owed.bodies += 1;
                Vec::new()
            }
            State::Refused => Vec::new(),
            State::Start | State::Passing | State::Done => vec![body_reply(None, None)],
        }
    }

    /// A piece of a body that is sent back.
    fn on_piece(&mut self, bytes: Bytes, end: bool) -> Vec<Action> {
        match self.state {
            State::Body => {
                self.kept.push(bytes);
                if !end && self.kept.len() <= self.settings.most_body {
                    return Vec::new();
                }
                vec![self.ask(Phase::Both { ended: end }, None)]
            }
            State::Deciding(Phase::Both { ended: false }) => {
                // What comes in while the shell thinks about a body that is too large to look at.
                self.kept.push(bytes);
                self.state = State::Deciding(Phase::Both { ended: end });
                Vec::new()
            }
            State::Passing => {
                if end {
                    self.state = State::Done;
                }
                let mut body = Body::default();
                body.push(bytes);
                pieces(body, end)
            }
            // The body has ended, or there was none; Envoy has been seen to send its last piece twice.
            State::Start | State::Deciding(_) | State::Done | State::Refused => Vec::new(),
        }
    }

    pub(super) fn on_trailers(&mut self) -> Vec<Action> {
        let is_first = !std::mem::replace(&mut self.trailers, true);
        let sends_back = self.request_mode == BodyMode::FullDuplexStreamed;
        if sends_back && !is_first {
            return Vec::new();
        }
        match self.state {
            State::Body if sends_back => vec![self.ask(Phase::Both { ended: true }, None)],
            State::Body => vec![self.ask(Phase::Trailers, Some(Reason::NO_BODY))],
            State::Deciding(Phase::Both { .. }) => {
                self.state = State::Deciding(Phase::Both { ended: true });
                Vec::new()
            }
            State::Deciding(_) => {
                self.owed.trailers += 1;
                Vec::new()
            }
            State::Refused => Vec::new(),
            State::Start | State::Passing | State::Done => {
                self.state = State::Done;
                vec![Action::Reply(Reply::RequestTrailers(None))]
            }
        }
    }

    pub(super) fn on_decided(&mut self, decision: &Decision) -> Vec<Action> {
        let State::Deciding(phase) = self.state else { return Vec::new() };
        let kept = std::mem::take(&mut self.kept);
        let owed = std::mem::take(&mut self.owed);
        self.evidence = self.settings.evidence_header.then(|| decision.evidence());
        if let Some(refusal) = decision.refusal {
            self.state = State::Refused;
            return vec![Action::Reply(Reply::Refuse(refusal))];
        }
        let destination = Destination::new(&decision.names, self.settings.destinations);
        let way = Way { destination, rank: decision.rank, echo: self.settings.conformance };
        self.state = if matches!(phase, Phase::Both { ended: false }) { State::Passing } else { State::Done };
        let mut actions = match phase {
            Phase::Headers => vec![self.headers_reply(Some(way))],
            Phase::Body => {
                let changed = || Changed {
                    bytes: kept.edited(&decision.edits).joined(),
                    has_length: self.has_length && self.request_mode == BodyMode::Buffered,
                };
                vec![body_reply(Some(way), (!decision.edits.is_empty()).then(changed))]
            }
            Phase::Trailers => vec![Action::Reply(Reply::RequestTrailers(way.destination))],
            Phase::Both { .. } if self.trailers && self.may_replace(&kept) => {
                let stripped = std::mem::take(&mut self.stripped);
                let bytes = kept.edited(&decision.edits).joined();
                vec![Action::Reply(Reply::RequestWhole { way, stripped, bytes })]
            }
            Phase::Both { ended } => {
                let mut actions = vec![self.headers_reply(Some(way))];
                let marked = ended && !self.trailers;
                if !kept.is_empty() || marked {
                    actions.extend(pieces(kept.edited(&decision.edits), marked));
                }
                if self.trailers {
                    actions.push(Action::Reply(Reply::RequestTrailers(None)));
                }
                actions
            }
        };
        let Owed { bodies, trailers } = owed;
        actions.extend((0..bodies).map(|_| body_reply(None, None)));
        actions.extend((0..trailers).map(|_| Action::Reply(Reply::RequestTrailers(None))));
        actions
    }

    /// Whether a body that trailers have ended goes back in one message, which has a limit.
    const fn may_replace(&self, body: &Body) -> bool {
        !body.is_empty() && body.len() <= self.settings.most_body
    }

    fn headers_reply(&mut self, way: Option<Way>) -> Action {
        Action::Reply(Reply::RequestHeaders { way, stripped: std::mem::take(&mut self.stripped) })
    }

    /// Asks about what has come. The body is wanted twice: to think about, and to send back.
    fn ask(&mut self, phase: Phase, lack: Option<Reason>) -> Action {
        self.state = State::Deciding(phase);
        let envoy_has_a_clock = self.request_mode != BodyMode::FullDuplexStreamed;
        let mut head = std::mem::take(&mut self.head);
        if let Some(selection) = head.selection.take().filter(|_| self.settings.conformance) {
            head.subset = selection;
        }
        let is_too_large = self.settings.most_body < self.kept.len();
        let shared = self.kept.shared();
        let body = if is_too_large { shared.beginning(BEGINNING) } else { shared };
        let lack = lack.or_else(|| is_too_large.then_some(Reason::BODY_TOO_LARGE));
        Action::Decide(Box::new(Question { head, body, lack, envoy_has_a_clock }))
    }
}

fn body_reply(way: Option<Way>, changed: Option<Changed>) -> Action {
    Action::Reply(Reply::RequestBody { way, changed })
}

/// A body in pieces; one empty piece for an empty body, since the end mark needs one.
fn pieces(body: Body, end: bool) -> Vec<Action> {
    let mut actions: Vec<_> = body
        .into_pieces(CHUNK)
        .map(|bytes| Action::Reply(Reply::RequestBodyPiece { bytes, end: false }))
        .collect();
    match actions.last_mut() {
        Some(Action::Reply(Reply::RequestBodyPiece { end: last, .. })) => *last = end,
        _ => actions.push(Action::Reply(Reply::RequestBodyPiece { bytes: Bytes::new(), end })),
    }
    actions
}
