//! One task per server address: a stream to it, for as long as its name stands for that address.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kvpick_agent_core::node::PeerId;
use kvpick_proto::{
    pb::{self, feed_client::FeedClient},
    words::{Hello, PROTOCOL, ServerMessage},
};
use kvpick_service::drain::Drain;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Endpoint};

use crate::{
    config::{TlsEntry, host_and_port},
    names::{self, Found},
    pauses::{self, Pauses},
    shared::{Link, Server, Shared, now, unix},
    tasks::Tasks,
    tls,
};

/// An address that led to a server which has a stream already is tried again so often.
const TWIN_AGAIN: Duration = Duration::from_secs(30);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Messages between the core and the network. Few: what waits here is not folded any more.
const IN_HAND: usize = 2;

/// What every stream needs.
#[derive(Debug)]
pub(crate) struct Speaker {
    shared: Arc<Shared>,
    node: String,
    tls: Option<TlsEntry>,
    /// Of the last stream. Larger on every new one, also after a restart of the agent.
    epoch: AtomicU64,
}

/// Keeps a stream to every address of every server, until the drain starts.
pub(crate) async fn run(speaker: Speaker, servers: Vec<String>, tasks: Tasks) {
    let speaker = Arc::new(speaker);
    let (sender, mut found) = watch::channel(Found::new());
    tokio::select! {
        () = tasks.drain().started() => (),
        () = names::resolve(servers, names::lookup, sender) => (),
        () = follow(&speaker, &mut found, &tasks) => (),
    }
}

/// Starts a stream to every address that is found, and lets go those that are not any more.
async fn follow(speaker: &Arc<Speaker>, found: &mut watch::Receiver<Found>, tasks: &Tasks) {
    let mut streams: BTreeMap<SocketAddr, watch::Sender<bool>> = BTreeMap::new();
    while found.changed().await.is_ok() {
        let wanted = hosts(&found.borrow_and_update());
        streams.retain(|address, is_wanted| {
            is_wanted.send_replace(wanted.contains_key(address));
            !is_wanted.is_closed()
        });
        for (address, host) in wanted {
            streams.entry(address).or_insert_with(|| {
                let (sender, is_wanted) = watch::channel(true);
                let drain = tasks.drain().clone();
                tasks.spawn_ending("stream", keep(Arc::clone(speaker), address, host, is_wanted, drain));
                sender
            });
        }
    }
}

/// The addresses to which streams are wanted, each with the host by which it was found.
fn hosts(found: &Found) -> BTreeMap<SocketAddr, String> {
    let host = |name: &str| host_and_port(name).map_or(name, |(host, _)| host).to_owned();
    found.iter().flat_map(|(name, addresses)| addresses.iter().map(move |it| (*it, host(name)))).collect()
}

/// Keeps a stream to one address. Once the address is not wanted any more, the stream lives as long as it lives.
async fn keep(
    speaker: Arc<Speaker>,
    address: SocketAddr,
    host: String,
    is_wanted: watch::Receiver<bool>,
    drain: Drain,
) {
    let mut pauses = Pauses::default();
    // The server that welcomed this stream and then put it off.
    let mut put_off_by: Option<String> = None;
    let mut is_twin = false;
    while *is_wanted.borrow() {
        let mut twin = put_off_by.as_deref().and_then(|it| speaker.twin(address, it));
        if let (Some(server), Some((other, _))) = (&put_off_by, twin) {
            if !std::mem::replace(&mut is_twin, true) {
                tracing::info!(%address, %other, server, "one server at two addresses; one stream is enough");
            }
            speaker.set(address, Link::Twin, None);
            tokio::select! {
                () = drain.started() => break,
                () = speaker.while_twin(address, server) => (),
            }
            twin = speaker.twin(address, server);
        }
        // By now it may be another server; if it is the same, it puts off the smaller epoch, and the stream that there
        // is goes on.
        let epoch = twin.map_or_else(|| speaker.next_epoch(), |(_, epoch)| epoch.saturating_sub(1));
        if twin.is_none() {
            speaker.set(address, Link::Connecting, None);
        }
        let ended = tokio::select! {
            () = drain.started() => break,
            it = speaker.stream(address, &host, epoch, &drain) => it,
        };
        let Err(ended) = ended else { break };
        let lasted = ended.welcomed.as_ref().map(|(_, lasted)| *lasted);
        let pause = pauses.after(lasted, ended.put_off);
        match ended {
            Ended { put_off: true, welcomed: None, .. } if twin.is_some() => continue,
            Ended { put_off: true, welcomed: Some((server, _)), .. } => put_off_by = Some(server),
            Ended { .. } => (put_off_by, is_twin) = (None, false),
        }
        speaker.set(address, Link::Waiting, Some(ended.reason));
        tokio::select! {
            () = drain.started() => break,
            () = sleep(pauses::jittered(pause)) => (),
        }
    }
    speaker.shared.lock().servers.remove(&address);
}

/// How a stream ended.
#[derive(Debug)]
struct Ended {
    reason: String,
    /// The server that welcomed it, if one did, and how long the stream lasted from then on.
    welcomed: Option<(String, Duration)>,
    /// Whether the server closed it on purpose, as when a newer stream of this node has come.
    put_off: bool,
}

impl From<String> for Ended {
    fn from(reason: String) -> Self {
        Self { reason, welcomed: None, put_off: false }
    }
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        let reason = format!("{}: {}", status.code(), status.message());
        Self { reason, welcomed: None, put_off: status.code() == Code::FailedPrecondition }
    }
}

/// Takes the peer out of the node however its stream ends.
struct Open<'a> {
    shared: &'a Shared,
    id: PeerId,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.lock().node.close(self.id);
        // What it had in flight is gone for the others too.
        self.shared.ring();
    }
}

impl Speaker {
    /// Who speaks for that node.
    pub(crate) const fn new(shared: Arc<Shared>, node: String, tls: Option<TlsEntry>) -> Self {
        Self { shared, node, tls, epoch: AtomicU64::new(0) }
    }

    /// Where a connection goes.
    async fn endpoint(&self, address: SocketAddr, host: &str) -> Result<Endpoint, String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let bare = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|it| it.to_string())?;
        let Some(tls) = &self.tls else { return Ok(bare) };
        bare.tls_config(tls::client(tls, host).await?).map_err(|error| cause(&error))
    }

    /// Connects, and talks until something ends it; `Ok` is the drain.
    async fn stream(&self, address: SocketAddr, host: &str, epoch: u64, drain: &Drain) -> Result<(), Ended> {
        let endpoint = self.endpoint(address, host).await?;
        let channel = endpoint
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .connect()
            .await
            .map_err(|error| cause(&error))?;
        let open =
            Open { shared: &self.shared, id: self.shared.lock().node.open(self.hello(epoch), now().0) };
        let (sender, receiver) = mpsc::channel(IN_HAND);
        // The hello has to be under way for a server that answers only then.
        if let Some(hello) = self.shared.lock().node.next_message(open.id, now().0) {
            sender.try_send(pb::AgentMessage::from(hello)).map_err(|error| error.to_string())?;
        }
        let mut client = FeedClient::new(channel);
        let call = timeout(CONNECT_TIMEOUT, client.stream(ReceiverStream::new(receiver)));
        let incoming = call
            .await
            .map_err(|_| format!("no answer to the call for {} s", CONNECT_TIMEOUT.as_secs()))??
            .into_inner();
        let mut welcomed = None;
        let result = tokio::select! {
            () = drain.started() => return Ok(()),
            it = self.talk(address, epoch, open.id, sender, incoming, &mut welcomed) => it,
        };
        let welcomed = welcomed.map(|(server, at): (String, Instant)| (server, at.elapsed()));
        result.map_err(|ended| Ended { welcomed, ..ended })
    }

    /// Talks until something ends the stream.
    async fn talk(
        &self,
        address: SocketAddr,
        epoch: u64,
        id: PeerId,
        sender: mpsc::Sender<pb::AgentMessage>,
        mut incoming: Streaming<pb::ServerMessage>,
        welcomed: &mut Option<(String, Instant)>,
    ) -> Result<(), Ended> {
        let mut news = self.shared.news();
        let mut has_more = true;
        loop {
            let now_ = now().0;
            let due = match self.shared.lock().node.peer(id) {
                Some(peer) if peer.is_silent(now_) => {
                    return Err("the server has been silent for too long".to_owned().into());
                }
                Some(peer) => peer.due(now_),
                None => return Err("the stream is closed".to_owned().into()),
            };
            tokio::select! {
                message = incoming.message() => {
                    let message = message?.ok_or_else(|| "the server ended the stream".to_owned())?;
                    let message = ServerMessage::try_from(message).map_err(|error| error.to_string())?;
                    if let ServerMessage::Refused(handle, reason) = &message {
                        self.log_refusal(address, *handle, reason);
                    }
                    let welcome = match &message {
                        ServerMessage::Welcome(it) => Some(it.server.clone()),
                        _ => None,
                    };
                    let heard = self.shared.lock().node.on_message(id, message, now().0);
                    if heard.map_err(|error| error.to_string())? {
                        self.shared.ring();
                    }
                    if let Some(server) = welcome {
                        tracing::info!(%address, server, "connected to a server");
                        self.set_connected(address, id, &server, epoch);
                        *welcomed = Some((server, Instant::now()));
                    }
                    has_more = true;
                }
                // Room first, then what to put there: what is not sent yet still folds.
                permit = sender.reserve(), if has_more => {
                    let permit = permit.map_err(|_| "the connection is lost".to_owned())?;
                    let message = self.shared.lock().node.next_message(id, now().0);
                    has_more = message.is_some();
                    if let Some(message) = message {
                        permit.send(message.into());
                    }
                }
                // The sender is in `self`, so that this can't fail.
                _ = news.changed() => has_more = true,
                () = sleep_until(due.into()) => has_more = true,
            }
        }
    }

    fn hello(&self, epoch: u64) -> Hello {
        Hello {
            protocol: PROTOCOL,
            node: self.node.clone(),
            epoch,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            token: String::new(),
        }
    }

    fn next_epoch(&self) -> u64 {
        let unix = u64::try_from(unix().as_nanos()).unwrap_or(u64::MAX);
        let next = |last: u64| unix.max(last.saturating_add(1));
        let last = self.epoch.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        next(last.unwrap_or_default())
    }

    /// Another address at which that server has a stream now, and that stream's epoch.
    fn twin(&self, address: SocketAddr, server: &str) -> Option<(SocketAddr, u64)> {
        let state = self.shared.lock();
        let mut others = state.servers.iter().filter(|(it, _)| **it != address);
        others.find_map(|(other, it)| {
            it.welcome.as_ref().filter(|(name, _)| name == server).map(|(_, epoch)| (*other, *epoch))
        })
    }

    /// Waits while that server has a stream at another address, but not for ever.
    async fn while_twin(&self, address: SocketAddr, server: &str) {
        let until = Instant::now() + TWIN_AGAIN;
        while Instant::now() < until && self.twin(address, server).is_some() {
            sleep(Duration::from_secs(1)).await;
        }
    }

    fn set(&self, address: SocketAddr, link: Link, error: Option<String>) {
        let mut state = self.shared.lock();
        let since_unix_ms = now().1;
        let server = state.servers.entry(address).or_insert_with(|| Server {
            link,
            since_unix_ms,
            last_error: None,
            peer: None,
            welcome: None,
            streams: 0,
        });
        let is_new_error = error.is_some() && server.last_error != error;
        (server.link, server.since_unix_ms) = (link, since_unix_ms);
        (server.peer, server.welcome) = (None, None);
        if let Some(error) = error {
            if is_new_error {
                tracing::warn!(%address, error, "no stream to this server; trying again");
            }
            server.last_error = Some(error);
        }
    }

    fn set_connected(&self, address: SocketAddr, peer: PeerId, name: &str, epoch: u64) {
        self.set(address, Link::Connected, None);
        if let Some(server) = self.shared.lock().servers.get_mut(&address) {
            server.last_error = None;
            server.peer = Some(peer);
            server.welcome = Some((name.to_owned(), epoch));
            server.streams += 1;
        }
    }

    fn log_refusal(&self, address: SocketAddr, handle: kvpick_proto::words::Handle, reason: &str) {
        let state = self.shared.lock();
        let name = state.node.engines().get(&handle).map(|it| it.config().name.to_string());
        tracing::warn!(%address, replica = name, reason, "the server does not take this replica from this agent");
    }
}

/// The innermost cause says most: "Connection refused".
fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
