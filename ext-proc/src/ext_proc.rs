//! What Envoy's ext_proc filter talks to: one stream per HTTP request, open until its answer ends.

use std::{pin::Pin, sync::Arc, time::Instant};

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse;
use kvpick_core::{
    health::Failure,
    pins::{self, What},
    session::{Action, Question, Served, Session, Settings},
};
use kvpick_service::drain::Drain;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::{
    decide::Decider,
    messages::Messages,
    shared::{Shared, Underway},
    wire,
};

/// Answers that wait for Envoy to read them. A body that is sent back has a few more; they wait for room.
const ANSWERS: usize = 16;

/// Envoy's response flags for a connection that failed: remote reset, connection failure, connection termination
/// (`source/common/stream_info`, the legacy bit set of the `response.flags` attribute).
const CONNECTION_FLAGS: u64 = 0x10 | 0x20 | 0x40;

/// The service.
#[derive(Clone, Debug)]
pub struct Picker {
    shared: Arc<Shared>,
    decider: Arc<Decider>,
    settings: Settings,
    /// The header that names a client's session.
    session_header: Option<Arc<str>>,
    drain: Drain,
}

impl Picker {
    /// The service around that decider.
    #[must_use]
    pub const fn new(
        shared: Arc<Shared>,
        decider: Arc<Decider>,
        settings: Settings,
        session_header: Option<Arc<str>>,
        drain: Drain,
    ) -> Self {
        Self { shared, decider, settings, session_header, drain }
    }

    /// Begins an exchange; returns its answers.
    #[must_use]
    pub fn process(&self, inbound: Messages) -> ReceiverStream<Result<ProcessingResponse, Status>> {
        let (answers, stream) = mpsc::channel(ANSWERS);
        let exchange = Exchange {
            picker: self.clone(),
            session: Session::new(self.settings),
            answers,
            deciding: None,
            underway: None,
            answered: None,
            response_begun: false,
        };
        self.drain.spawn("exchange with Envoy", exchange.run(inbound));
        ReceiverStream::new(stream)
    }
}

/// A decision in the making.
type Deciding = Pin<Box<dyn Future<Output = Underway> + Send>>;

/// Waits for the decision in the making; for ever where there is none.
async fn made(deciding: &mut Option<Deciding>) -> Underway {
    match deciding {
        Some(deciding) => deciding.await,
        None => std::future::pending().await,
    }
}

struct Exchange {
    picker: Picker,
    session: Session,
    answers: mpsc::Sender<Result<ProcessingResponse, Status>>,
    deciding: Option<Deciding>,
    underway: Option<Underway>,
    /// To whom the answer's id is pinned, where it is kept.
    answered: Option<pins::Pin>,
    response_begun: bool,
}

/// The stream can't go on.
struct Gone;

impl Drop for Exchange {
    fn drop(&mut self) {
        // A bug. An end with OK would be taken for an answer: the request would go on, in some modes without its body.
        if std::thread::panicking() {
            self.picker.shared.metrics.stream_errors.inc();
            self.answers.try_send(Err(Status::internal("kvpick has failed; see its log"))).ok();
        }
    }
}

impl Exchange {
    async fn run(mut self, mut inbound: Messages) {
        loop {
            let may_leave = self.may_leave();
            tokio::select! {
                // A decision that is made goes out before more is read; an end of the stream ends all.
                biased;
                underway = made(&mut self.deciding) => {
                    self.deciding = None;
                    let decided = kvpick_core::session::Input::Decided(underway.decision.clone());
                    self.underway = Some(underway);
                    if self.handle(decided).await.is_err() {
                        return;
                    }
                }
                message = inbound.message() => match message {
                    Ok(Some(message)) => {
                        let Some(input) = wire::input(message, self.picker.session_header.as_deref()) else { continue };
                        self.response_begun |=
                            matches!(input, kvpick_core::session::Input::ResponseHeaders(_));
                        if self.handle(input).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(status) => return self.on_error(&status).await,
                },
                () = self.picker.drain.started(), if may_leave => return,
                () = self.answers.closed() => return,
            }
        }
    }

    async fn handle(&mut self, input: kvpick_core::session::Input) -> Result<(), Gone> {
        for action in self.session.on(input) {
            match action {
                Action::Decide(question) => self.deciding = Some(self.decide(*question)),
                Action::Reply(reply) => {
                    self.answers.send(Ok(wire::response(reply))).await.map_err(|_| Gone)?;
                }
                Action::Observe(served) => {
                    self.learn(&served);
                    self.observe(&served);
                }
                Action::Named(id) => self.learn_id(&id),
                Action::Fail(why) => {
                    self.picker.shared.metrics.stream_errors.inc();
                    tracing::warn!(why, "an exchange with Envoy makes no sense");
                    self.answers.send(Err(Status::failed_precondition(why))).await.ok();
                    return Err(Gone);
                }
            }
        }
        Ok(())
    }

    fn decide(&self, question: Question) -> Deciding {
        let decider = Arc::clone(&self.picker.decider);
        Box::pin(async move { decider.decide(question).await })
    }

    /// While the server shuts down, a stream on which nothing is owed any more may end: Envoy goes on without.
    /// Where bodies of answers pass through here, what is on its way would be lost, so those run to their end.
    const fn may_leave(&self) -> bool {
        self.session.request_is_out() && (self.response_begun || !self.session.carries_response_body())
    }

    /// Envoy ends most streams by a reset of its own; only what breaks the protocol is an error.
    async fn on_error(&mut self, status: &Status) {
        use tonic::Code;
        match status.code() {
            Code::OutOfRange => {
                self.picker.shared.metrics.stream_errors.inc();
                tracing::warn!(%status, "a message was too large; raise max_body_bytes to Envoy's own limit");
            }
            _ => tracing::debug!(%status, "the stream has ended"),
        }
        if !self.session.request_is_out() {
            // If Envoy is still there, an end with OK would make it go on with what was answered, and lose the rest.
            self.answers.send(Err(Status::new(status.code(), status.message()))).await.ok();
        }
    }

    /// Learns who keeps the response.
    fn learn(&mut self, served: &Served) {
        let Some(Underway { links: Some(links), decision, .. }) = &self.underway else { return };
        let picked = decision.names.first().copied();
        self.answered = self.picker.shared.world().on_answered(links, served, picked, Instant::now());
    }

    fn learn_id(&self, id: &str) {
        if let Some(pin) = self.answered {
            self.picker.shared.world().pins.learn(What::Response(id), pin, Instant::now());
        }
    }

    /// Learns from how Envoy fared with the replica.
    fn observe(&self, served: &Served) {
        let Some(underway) = &self.underway else { return };
        let Some(picked) = underway.decision.names.first() else { return };
        let by_picked = served.address == picked.address.to_string();
        if by_picked && (200..300).contains(&served.status) {
            underway.on_success();
        }
        let elsewhere = !served.address.is_empty() && !by_picked;
        // Named first and not the one that answered: Envoy tried it in vain. Without retries the flags tell.
        let failed = if 1 < served.attempts && elsewhere {
            true
        } else {
            served.flags & CONNECTION_FLAGS != 0 && !elsewhere && 500 <= served.status
        };
        if !failed {
            return;
        }
        let mut world = self.picker.shared.world();
        // Ranks behind one address have one HTTP server.
        let mut out = world.replicas.at(picked.address);
        out.retain(|id| world.on_failure(*id, Failure::Connection, Instant::now()));
        let out: Vec<_> = out.into_iter().map(|id| world.replicas[id].spec.name.to_string()).collect();
        drop(world);
        for replica in &out {
            let how = Failure::Connection.label();
            self.picker.shared.metrics.outs.with_label_values(&[replica.as_str(), how]).inc();
            tracing::warn!(replica, how, status = served.status, "replica is out until it answers a probe");
        }
    }
}
