//! A server that keeps what it is told, and does what a test wants of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
};

use kvpick_proto::{
    naming::BlockKey,
    pb::{
        self,
        feed_server::{Feed, FeedServer},
    },
    words::{
        AgentMessage, Description, Handle, Hello, InFlight, Load, PROTOCOL, Place, ServerMessage, Step,
        Welcome,
    },
};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, transport::server::TcpIncoming};

use super::LONG;

/// What was heard, of all streams.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) hellos: Vec<Hello>,
    pub(crate) replicas: BTreeMap<Handle, Replica>,
    /// Keys in all changes.
    pub(crate) changed_keys: usize,
    pub(crate) heartbeats: usize,
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) description: Description,
    pub(crate) held: BTreeSet<(Place, BlockKey)>,
    named: BTreeSet<(Place, BlockKey)>,
    pub(crate) applied: Option<u64>,
    pub(crate) copies: usize,
    pub(crate) load: Option<Load>,
    pub(crate) others: Option<InFlight>,
}

/// How the server behaves; may change while it runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    pub(crate) refuses: bool,
    pub(crate) reads_nothing: bool,
    pub(crate) says_nothing: bool,
}

#[derive(Clone)]
struct Service {
    /// Another one for each server.
    name: String,
    view: Arc<watch::Sender<View>>,
    manner: watch::Receiver<Manner>,
    /// What a test has it say on its newest stream.
    say: Arc<tokio::sync::Mutex<mpsc::Receiver<ServerMessage>>>,
}

pub(crate) struct Server {
    /// Its own, so that dropping it cuts every connection, as a killed process does.
    runtime: Option<Runtime>,
    pub(crate) address: SocketAddr,
    pub(crate) view: watch::Receiver<View>,
    pub(crate) manner: watch::Sender<Manner>,
    say: mpsc::Sender<ServerMessage>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap())
    }

    pub(crate) fn at(address: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, view) = watch::channel(View::default());
        let (manner, manners) = watch::channel(Manner::default());
        let (say, said) = mpsc::channel(16);
        let deadline = std::time::Instant::now() + LONG;
        let listener = loop {
            // The one before it at this address ends in the background.
            match std::net::TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(error) => assert!(std::time::Instant::now() < deadline, "{address}: {error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service {
            name: format!("test/{address}"),
            view: Arc::new(sender),
            manner: manners,
            say: Arc::new(tokio::sync::Mutex::new(said)),
        };
        runtime.spawn(async move {
            let incoming =
                TcpIncoming::from(TcpListener::from_std(listener).unwrap()).with_nodelay(Some(true));
            // The smallest window of HTTP/2, so that little is on its way to a server that does not read.
            let server = tonic::transport::Server::builder()
                .initial_stream_window_size(65_535)
                .add_service(FeedServer::new(service));
            server.serve_with_incoming(incoming).await
        });
        Self { runtime: Some(runtime), address, view, manner, say }
    }

    pub(crate) async fn say(&self, message: ServerMessage) {
        self.say.send(message).await.unwrap();
    }

    /// Waits until what was heard is as wanted.
    pub(crate) async fn until(&mut self, what: &str, is: impl FnMut(&View) -> bool) {
        let heard = timeout(LONG, self.view.wait_for(is)).await.is_ok();
        let text = if heard { String::new() } else { format!("{:#?}", self.view.borrow()) };
        assert!(heard, "waited for: {what}\n{:.4000}", text);
    }

    /// Waits until it holds exactly these, as of that batch.
    pub(crate) async fn holds(&mut self, held: &BTreeSet<(Place, BlockKey)>, applied: Option<u64>) {
        let is = |view: &View| view.replicas.values().any(|it| it.applied == applied && it.held == *held);
        let heard = timeout(LONG, self.view.wait_for(is)).await.is_ok();
        if !heard {
            let view = self.view.borrow();
            let now: Vec<_> =
                view.replicas.values().map(|it| (it.applied, it.held.len(), it.copies)).collect();
            panic!("waited for {} blocks as of {applied:?}; applied, held, copies: {now:?}", held.len());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[tonic::async_trait]
impl Feed for Service {
    type StreamStream = Pin<Box<dyn Stream<Item = Result<pb::ServerMessage, Status>> + Send>>;

    async fn stream(
        &self,
        request: Request<Streaming<pb::AgentMessage>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(self.clone().hear(request.into_inner(), sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

impl Service {
    async fn hear(
        mut self,
        mut incoming: Streaming<pb::AgentMessage>,
        sender: mpsc::Sender<Result<pb::ServerMessage, Status>>,
    ) {
        let mut handles = BTreeSet::new();
        let mut say = self.say.lock().await;
        let mut heartbeat = tokio::time::interval(kvpick_proto::words::HEARTBEAT);
        loop {
            let manner = *self.manner.borrow_and_update();
            let answer = tokio::select! {
                changed = self.manner.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                _ = heartbeat.tick(), if !handles.is_empty() => Some(ServerMessage::Heartbeat),
                message = say.recv() => message,
                message = incoming.message(), if !manner.reads_nothing => {
                    let Ok(Some(message)) = message else { return };
                    let message = AgentMessage::try_from(message).expect("a valid message");
                    let answer = match &message {
                        AgentMessage::Hello(_) => {
                            Some(ServerMessage::Welcome(Welcome { protocol: PROTOCOL, server: self.name.clone() }))
                        }
                        AgentMessage::Describe(handle, _) if manner.refuses => {
                            Some(ServerMessage::Refused(*handle, "not yours".to_owned()))
                        }
                        AgentMessage::Describe(handle, _) if handles.insert(*handle) => {
                            Some(ServerMessage::Accepted(*handle))
                        }
                        _ => None,
                    };
                    self.view.send_modify(|view| view.hear(message));
                    answer
                }
            };
            if let Some(answer) = answer.filter(|_| !manner.says_nothing)
                && sender.send(Ok(answer.into())).await.is_err()
            {
                return;
            }
        }
    }
}

impl View {
    fn hear(&mut self, message: AgentMessage) {
        match message {
            AgentMessage::Hello(hello) => self.hellos.push(hello),
            AgentMessage::Describe(handle, description) => match self.replicas.get_mut(&handle) {
                Some(replica) => replica.description = *description,
                None => {
                    let replica = Replica {
                        description: *description,
                        held: BTreeSet::new(),
                        named: BTreeSet::new(),
                        applied: None,
                        copies: 0,
                        load: None,
                        others: None,
                    };
                    self.replicas.insert(handle, replica);
                }
            },
            AgentMessage::Change(handle, change) => {
                let replica = self.replicas.get_mut(&handle).expect("described");
                let keys = |step: &Step| match step {
                    Step::Gained { keys, .. } | Step::Lost { keys, .. } => keys.len(),
                    Step::Cleared => 0,
                };
                self.changed_keys += change.steps.iter().map(keys).sum::<usize>();
                apply(&mut replica.held, &change.steps);
                let cleared = change.steps.contains(&Step::Cleared);
                replica.applied = change.applied.or_else(|| replica.applied.filter(|_| !cleared));
            }
            AgentMessage::Copy(handle, chunk) => {
                let replica = self.replicas.get_mut(&handle).expect("described");
                if chunk.first {
                    replica.named.clear();
                }
                apply(&mut replica.named, &chunk.steps);
                if chunk.last {
                    replica.held = std::mem::take(&mut replica.named);
                    replica.applied = chunk.applied;
                    replica.copies += 1;
                }
            }
            AgentMessage::Load(handle, load) => {
                self.replicas.get_mut(&handle).expect("described").load = Some(load);
            }
            AgentMessage::Others(handle, others) => {
                self.replicas.get_mut(&handle).expect("described").others = Some(others);
            }
            AgentMessage::Gone(handle) => {
                self.replicas.remove(&handle);
            }
            AgentMessage::Heartbeat => self.heartbeats += 1,
        }
    }
}

fn apply(held: &mut BTreeSet<(Place, BlockKey)>, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Gained { place, keys, .. } => held.extend(keys.iter().map(|it| (*place, *it))),
            Step::Lost { place, keys } => keys.iter().for_each(|it| {
                held.remove(&(*place, *it));
            }),
            Step::Cleared => held.clear(),
        }
    }
}
