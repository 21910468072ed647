//! The gRPC service that agents talk to.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvpick_core::feed::{Close, StreamId};
use kvpick_kube::State;
use kvpick_proto::{
    pb::{self, feed_server::Feed},
    words::{AgentMessage, ServerMessage},
};
use kvpick_service::drain::Drain;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{listen::Peer, members, shared::Shared};

/// Messages to one agent that wait for it to read them.
const OUTBOX: usize = 64;

/// An agent that makes no room among them for this long does not read.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a stream is looked after when nothing comes in: heartbeats, news of what is in flight, silence.
const TICK: Duration = Duration::from_millis(250);

/// The service.
#[derive(Clone, Debug)]
pub struct Feeds {
    shared: Arc<Shared>,
    proof: Proof,
    drain: Drain,
}

/// How an agent proves which node is its own.
#[derive(Clone, Debug)]
pub enum Proof {
    /// It is believed.
    None,
    /// By its certificate.
    Certificate,
    /// By the address of its pod.
    Pod(watch::Receiver<State>),
}

impl Proof {
    /// # Errors
    /// When it is not that node's agent.
    fn check(&self, peer: &Peer, node: &str) -> Result<(), Close> {
        match self {
            Self::None => Ok(()),
            Self::Certificate if peer.is_of(node) => Ok(()),
            Self::Certificate => Err(Close::Unproven(node.to_owned())),
            Self::Pod(agents) => {
                let own = members::node_of(&agents.borrow(), peer.address.map(|it| it.ip()));
                match own.map_err(Close::NotThePod)? {
                    own if own == node => Ok(()),
                    own => Err(Close::NotThePod(format!(
                        "the agent says that it is of node {node}, and its pod is on {own}"
                    ))),
                }
            }
        }
    }
}

impl Feeds {
    /// The service around that world.
    #[must_use]
    pub const fn new(shared: Arc<Shared>, proof: Proof, drain: Drain) -> Self {
        Self { shared, proof, drain }
    }
}

#[tonic::async_trait]
impl Feed for Feeds {
    type StreamStream = ReceiverStream<Result<pb::ServerMessage, Status>>;

    async fn stream(
        &self,
        request: Request<Streaming<pb::AgentMessage>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let from = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        let peer = from.address.map_or_else(String::new, |it| it.to_string());
        let (outbox, stream) = mpsc::channel(OUTBOX);
        let connection = Connection {
            id: self.shared.world().open_stream(Instant::now()),
            shared: Arc::clone(&self.shared),
            peer: from,
            proof: self.proof.clone(),
            outbox,
        };
        let drain = self.drain.clone();
        self.drain.spawn("agent's stream", async move {
            tracing::info!(peer, "an agent has connected");
            let end = tokio::select! {
                end = connection.run(request.into_inner()) => end,
                () = drain.started() => End::Left,
            };
            match end {
                End::Left => tracing::info!(peer, "an agent's stream has ended"),
                End::Broken(status) => {
                    connection.shared.metrics.feed_closed.with_label_values(&["broken"]).inc();
                    tracing::warn!(peer, %status, "an agent's stream broke");
                }
                End::Closed(why) => {
                    connection.shared.metrics.feed_closed.with_label_values(&[why.label()]).inc();
                    if matches!(why, Close::Superseded(_)) {
                        tracing::info!(peer, %why, "an agent's stream is closed");
                    } else {
                        tracing::warn!(peer, %why, "an agent's stream is closed");
                    }
                    let end = Err(Status::failed_precondition(why.to_string()));
                    connection.outbox.send_timeout(end, PATIENCE).await.ok();
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

struct Connection {
    id: StreamId,
    shared: Arc<Shared>,
    peer: Peer,
    proof: Proof,
    outbox: mpsc::Sender<Result<pb::ServerMessage, Status>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.world().close_stream(self.id, Instant::now());
    }
}

enum End {
    /// The agent, or this server, went away in good order.
    Left,
    /// The transport failed.
    Broken(Status),
    /// The agent may not go on.
    Closed(Close),
}

impl Connection {
    async fn run(&self, mut inbound: Streaming<pb::AgentMessage>) -> End {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = inbound.message() => match message {
                    Ok(Some(message)) => {
                        if let Err(end) = self.on_message(message) {
                            return end;
                        }
                    }
                    Ok(None) => return End::Left,
                    Err(status) => return End::Broken(status),
                },
                _ = tick.tick() => (),
                () = self.outbox.closed() => return End::Left,
            }
            let said = self.shared.world().poll_stream(self.id, Instant::now());
            match said {
                Ok(messages) => {
                    for message in messages {
                        if !self.say(message).await {
                            return End::Closed(Close::NotReading);
                        }
                    }
                }
                Err(why) => return End::Closed(why),
            }
        }
    }

    fn on_message(&self, message: pb::AgentMessage) -> Result<(), End> {
        let message = AgentMessage::try_from(message)
            .map_err(|it| End::Broken(Status::invalid_argument(it.to_string())))?;
        if let AgentMessage::Hello(hello) = &message {
            self.proof.check(&self.peer, &hello.node).map_err(End::Closed)?;
        }
        self.shared.world().on_message(self.id, message, Instant::now()).map_err(End::Closed)
    }

    /// Returns whether the agent still reads what it is sent.
    async fn say(&self, message: ServerMessage) -> bool {
        self.outbox.send_timeout(Ok(message.into()), PATIENCE).await.is_ok()
    }
}
