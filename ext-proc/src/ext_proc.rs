//! What Envoy's ext_proc filter talks to: one stream per HTTP request, open until its answer ends.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse;
use kvpick_core::{
    health::Failure,
    pins::{self, What},
    reply::Decision,
    session::{Action, Answer, Question, Served, Session, Settings},
};
use kvpick_service::drain::Drain;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::{
    answers::{self, Meaning},
    decide::Decider,
    messages::Messages,
    shared::{Shared, Underway},
    wire,
};

/// Answers that wait for Envoy to read them. A body that is sent back has a few more; they wait for room.
const ANSWERS: usize = 16;

/// Within this time an agent's sample shows a request that runs.
const SAMPLED: Duration = Duration::from_secs(1);

/// Longest time for which a request counts whose end is not seen, beyond [`SAMPLED`].
const LONGEST_COUNTED: Duration = Duration::from_secs(30);

/// The service.
#[derive(Clone, Debug)]
pub struct Picker {
    shared: Arc<Shared>,
    decider: Arc<Decider>,
    settings: Settings,
    /// The header that names a client's session.
    session_header: Option<Arc<str>>,
    /// Prompt tokens per second, where streams are left once the request is out.
    leaves_at: Option<f64>,
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
        Self { shared, decider, settings, session_header, leaves_at: None, drain }
    }

    /// The same, which leaves each stream once its request is out: nothing of the answer is seen. Until agents' samples
    /// show the request, it counts for as long as its prompt is thought to take at that many tokens per second.
    #[must_use]
    pub const fn leaving(mut self, prefill_rate: f64) -> Self {
        self.leaves_at = Some(prefill_rate);
        self
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
            by_picked: false,
            start: Instant::now(),
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
    /// Whether the picked replica gave the answer.
    by_picked: bool,
    start: Instant,
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
    async fn run(mut self, inbound: Messages) {
        self.converse(inbound).await;
        self.on_end();
    }

    async fn converse(&mut self, mut inbound: Messages) {
        loop {
            if let Some(rate) = self.picker.leaves_at.filter(|_| self.session.request_is_out()) {
                return self.leave(rate);
            }
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
                // What comes faster than it is decided about waits at Envoy, and not here.
                message = inbound.message(), if !self.session.has_enough() => match message {
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
                Action::FirstEvent => {
                    let took = self.start.elapsed().as_secs_f64();
                    self.picker.shared.metrics.answers.first_event_seconds.observe(took);
                }
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

    /// Leaves the stream; an end with OK lets Envoy go on without.
    fn leave(&mut self, prefill_rate: f64) {
        let Some(underway) = self.underway.take() else { return };
        let Decision { prompt_tokens, predicted_tokens, .. } = underway.decision;
        let prefill_s = prompt_tokens.saturating_sub(predicted_tokens) as f64 / prefill_rate;
        let counts_for =
            Duration::try_from_secs_f64(prefill_s).unwrap_or(LONGEST_COUNTED).min(LONGEST_COUNTED) + SAMPLED;
        let drain = self.picker.drain.clone();
        self.picker.drain.spawn("a request whose end is not seen", async move {
            tokio::select! {
                () = tokio::time::sleep(counts_for) => {}
                () = drain.started() => {}
            }
            drop(underway);
        });
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
    fn observe(&mut self, served: &Served) {
        let Some(underway) = &self.underway else { return };
        let Some(picked) = underway.decision.names.first() else { return };
        let address = picked.address.to_string();
        self.by_picked = served.address == address;
        tracing::debug!(?served, "answered");
        let meaning = answers::meaning(served, &address);
        if meaning == Meaning::Nothing {
            return;
        }
        if meaning == Meaning::Good {
            underway.on_success();
        }
        let now = Instant::now();
        let mut world = self.picker.shared.world();
        // Ranks behind one address have one HTTP server.
        let mut out = world.replicas.at(picked.address);
        out.retain(|id| match meaning {
            Meaning::Unreachable => world.on_failure(*id, Failure::Connection, now),
            Meaning::Lost => world.on_lost(*id, now),
            Meaning::Good => {
                world.on_good_answer(*id);
                false
            }
            Meaning::Nothing => false,
        });
        let out: Vec<_> = out.into_iter().map(|id| world.replicas[id].spec.name.to_string()).collect();
        drop(world);
        for replica in &out {
            let how = Failure::Connection.label();
            self.picker.shared.metrics.outs.with_label_values(&[replica.as_str(), how]).inc();
            tracing::warn!(replica, how, status = served.status, "replica is out until it answers a probe");
        }
    }

    /// The exchange has ended.
    fn on_end(&self) {
        let Some(underway) = self.underway.as_ref().filter(|it| it.decision.refusal.is_none()) else {
            return;
        };
        let answer = self.session.answer();
        let metrics = &self.picker.shared.metrics.answers;
        metrics.on_end(&answer, &underway.decision, self.by_picked);
        metrics.seconds.observe(self.start.elapsed().as_secs_f64());
        let Answer { status, end, usage } = answer;
        tracing::debug!(status, end = end.label(), ?usage, replica = ?underway.decision.names.first(), "ended");
    }
}
