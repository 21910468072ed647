//! One server at two addresses, which takes one stream of a node and puts off the older one, by epoch.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use kvpick_proto::{
    pb::{
        self,
        feed_server::{Feed, FeedServer},
    },
    words::{AgentMessage, HEARTBEAT, PROTOCOL, ServerMessage, Welcome},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, transport::server::TcpIncoming};

#[derive(Clone)]
struct Service {
    epoch: Arc<watch::Sender<u64>>,
    welcomes: Arc<AtomicUsize>,
}

pub(crate) struct Twins {
    pub(crate) addresses: [SocketAddr; 2],
    welcomes: Arc<AtomicUsize>,
}

impl Twins {
    pub(crate) async fn start() -> Self {
        let welcomes = Arc::new(AtomicUsize::new(0));
        let service = Service { epoch: Arc::new(watch::channel(0).0), welcomes: Arc::clone(&welcomes) };
        let mut addresses = Vec::new();
        for _ in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap());
            let server = tonic::transport::Server::builder().add_service(FeedServer::new(service.clone()));
            tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        }
        Self { addresses: [addresses[0], addresses[1]], welcomes }
    }

    /// Streams that were taken.
    pub(crate) fn welcomes(&self) -> usize {
        self.welcomes.load(Ordering::Relaxed)
    }
}

fn put_off() -> Status {
    Status::failed_precondition("a newer stream")
}

#[tonic::async_trait]
impl Feed for Service {
    type StreamStream = Pin<Box<dyn Stream<Item = Result<pb::ServerMessage, Status>> + Send>>;

    async fn stream(
        &self,
        request: Request<Streaming<pb::AgentMessage>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let (sender, receiver) = mpsc::channel(64);
        let service = self.clone();
        tokio::spawn(async move {
            // An agent that is gone need not be told.
            let end = service.hear(request.into_inner(), &sender).await;
            let _gone = sender.send(Err(end)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

impl Service {
    async fn hear(
        self,
        mut incoming: Streaming<pb::AgentMessage>,
        sender: &mpsc::Sender<Result<pb::ServerMessage, Status>>,
    ) -> Status {
        let mut epoch = 0;
        let mut epochs = self.epoch.subscribe();
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        loop {
            let answer = tokio::select! {
                Ok(newer) = epochs.wait_for(|it| epoch > 0 && *it > epoch) => {
                    drop(newer);
                    return put_off();
                }
                _ = heartbeat.tick(), if epoch > 0 => ServerMessage::Heartbeat,
                message = incoming.message() => {
                    let Ok(Some(message)) = message else { return Status::cancelled("gone") };
                    match AgentMessage::try_from(message).unwrap() {
                        AgentMessage::Hello(hello) => {
                            epoch = hello.epoch;
                            if !self.epoch.send_if_modified(|it| *it < epoch && { *it = epoch; true }) {
                                return put_off();
                            }
                            self.welcomes.fetch_add(1, Ordering::Relaxed);
                            ServerMessage::Welcome(Welcome { protocol: PROTOCOL, server: "twins".to_owned() })
                        }
                        AgentMessage::Describe(handle, _) => ServerMessage::Accepted(handle),
                        _ => continue,
                    }
                }
            };
            if sender.send(Ok(answer.into())).await.is_err() {
                return Status::cancelled("gone");
            }
        }
    }
}
