//! One task per server address: a stream to it, for as long as its name stands for that address.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher as _, RandomState},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
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
use tonic::transport::Endpoint;

use crate::shared::{Link, Server, Shared, now, unix};

/// Names are resolved this often, and after a failure sooner.
const RESOLVE_EVERY: Duration = Duration::from_secs(5);
const RESOLVE_AGAIN: Duration = Duration::from_secs(1);

/// Pause before a new attempt: doubling between these, less a random part, so that the agents of a whole cluster do not
/// come back to a server in one moment.
const BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Messages between the core and the network. Few: what waits here is not folded any more.
const IN_HAND: usize = 2;

/// What every stream needs.
#[derive(Debug)]
struct Speaker {
    shared: Arc<Shared>,
    node: String,
    /// Of the last stream. Larger on every new one, also after a restart of the agent.
    epoch: AtomicU64,
}

/// Keeps a stream to every address of every server, until the drain starts.
pub(crate) async fn run(shared: Arc<Shared>, node: String, servers: Vec<String>, drain: Drain) {
    let speaker = Arc::new(Speaker { shared, node, epoch: AtomicU64::new(0) });
    let mut known: BTreeMap<&str, BTreeSet<SocketAddr>> = BTreeMap::new();
    let mut failed = BTreeSet::new();
    let mut streams: BTreeMap<SocketAddr, watch::Sender<bool>> = BTreeMap::new();
    loop {
        for server in &servers {
            let found = tokio::select! {
                () = drain.started() => return,
                it = tokio::net::lookup_host(server) => it,
            };
            match found {
                Ok(addresses) => {
                    failed.remove(server);
                    known.insert(server, addresses.collect());
                }
                // What it stood for last stays.
                Err(error) if failed.insert(server) => {
                    tracing::warn!(server, %error, "a server's name can't be resolved")
                }
                Err(_) => (),
            }
        }
        let wanted: BTreeSet<_> = known.values().flatten().copied().collect();
        streams.retain(|address, is_wanted| {
            is_wanted.send_replace(wanted.contains(address));
            !is_wanted.is_closed()
        });
        for address in wanted {
            streams.entry(address).or_insert_with(|| {
                let (sender, is_wanted) = watch::channel(true);
                drain.spawn("stream", keep(Arc::clone(&speaker), address, is_wanted, drain.clone()));
                sender
            });
        }
        let pause = if failed.is_empty() { RESOLVE_EVERY } else { RESOLVE_AGAIN };
        tokio::select! {
            () = drain.started() => return,
            () = sleep(pause) => (),
        }
    }
}

/// Keeps a stream to one address. Once the address is not wanted any more, the stream lives as long as it lives.
async fn keep(speaker: Arc<Speaker>, address: SocketAddr, is_wanted: watch::Receiver<bool>, drain: Drain) {
    let mut backoff = BACKOFF;
    while *is_wanted.borrow() {
        speaker.set(address, Link::Connecting, None);
        let ended = tokio::select! {
            () = drain.started() => break,
            it = speaker.stream(address, &drain) => it,
        };
        let Err(ended) = ended else { break };
        if ended.was_welcomed {
            backoff = BACKOFF;
        }
        speaker.set(address, Link::Waiting, Some(ended.reason));
        tokio::select! {
            () = drain.started() => break,
            () = sleep(jittered(backoff)) => (),
        }
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
    speaker.shared.lock().servers.remove(&address);
}

/// Between half of it and all.
fn jittered(pause: Duration) -> Duration {
    // The standard library's hash keys are the one source of randomness that needs no further package.
    let random = RandomState::new().hash_one(0_u8) % 1_000;
    pause / 2 + pause.mul_f64(random as f64 / 2_000.0)
}

struct Ended {
    reason: String,
    was_welcomed: bool,
}

impl From<String> for Ended {
    fn from(reason: String) -> Self {
        Self { reason, was_welcomed: false }
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
    /// Connects, and talks until something ends it; `Ok` is the drain.
    async fn stream(&self, address: SocketAddr, drain: &Drain) -> Result<(), Ended> {
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| error.to_string())?
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .connect()
            .await
            .map_err(|error| cause(&error))?;
        let open = Open { shared: &self.shared, id: self.shared.lock().node.open(self.hello(), now().0) };
        let (sender, receiver) = mpsc::channel(IN_HAND);
        // The hello has to be under way for a server that answers only then.
        if let Some(hello) = self.shared.lock().node.next_message(open.id, now().0) {
            sender.try_send(pb::AgentMessage::from(hello)).map_err(|error| error.to_string())?;
        }
        let mut client = FeedClient::new(channel);
        let call = timeout(CONNECT_TIMEOUT, client.stream(ReceiverStream::new(receiver)));
        let mut incoming = call
            .await
            .map_err(|_| format!("no answer to the call for {} s", CONNECT_TIMEOUT.as_secs()))?
            .map_err(|status| status_text(&status))?
            .into_inner();
        let mut news = self.shared.news();
        let mut has_more = true;
        let mut was_welcomed = false;
        let end = |reason: String, was_welcomed| Ended { reason, was_welcomed };
        loop {
            let now_ = now().0;
            let due = match self.shared.lock().node.peer(open.id) {
                Some(peer) if peer.is_silent(now_) => {
                    return Err(end("the server has been silent for too long".to_owned(), was_welcomed));
                }
                Some(peer) => peer.due(now_),
                None => return Err(end("the stream is closed".to_owned(), was_welcomed)),
            };
            tokio::select! {
                () = drain.started() => return Ok(()),
                message = incoming.message() => {
                    let message = message
                        .map_err(|status| end(status_text(&status), was_welcomed))?
                        .ok_or_else(|| end("the server ended the stream".to_owned(), was_welcomed))?;
                    let message = ServerMessage::try_from(message).map_err(|error| end(error.to_string(), was_welcomed))?;
                    if let ServerMessage::Welcome(welcome) = &message {
                        was_welcomed = true;
                        tracing::info!(%address, server = welcome.server, "connected to a server");
                        self.set_connected(address, open.id);
                    }
                    if let ServerMessage::Refused(handle, reason) = &message {
                        self.log_refusal(address, *handle, reason);
                    }
                    let heard = self.shared.lock().node.on_message(open.id, message, now().0);
                    if heard.map_err(|error| end(error.to_string(), was_welcomed))? {
                        self.shared.ring();
                    }
                    has_more = true;
                }
                // Room first, then what to put there: what is not sent yet still folds.
                permit = sender.reserve(), if has_more => {
                    let permit = permit.map_err(|_| end("the connection is lost".to_owned(), was_welcomed))?;
                    let message = self.shared.lock().node.next_message(open.id, now().0);
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

    fn hello(&self) -> Hello {
        let unix = u64::try_from(unix().as_nanos()).unwrap_or(u64::MAX);
        let epoch = |last: u64| Some(unix.max(last + 1));
        let last = self.epoch.fetch_update(Ordering::Relaxed, Ordering::Relaxed, epoch).unwrap_or_default();
        Hello {
            protocol: PROTOCOL,
            node: self.node.clone(),
            epoch: unix.max(last + 1),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            token: String::new(),
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
            streams: 0,
        });
        let is_new_error = error.is_some() && server.last_error != error;
        (server.link, server.since_unix_ms, server.peer) = (link, since_unix_ms, None);
        if let Some(error) = error {
            if is_new_error {
                tracing::warn!(%address, error, "no stream to this server; trying again");
            }
            server.last_error = Some(error);
        }
    }

    fn set_connected(&self, address: SocketAddr, peer: PeerId) {
        self.set(address, Link::Connected, None);
        if let Some(server) = self.shared.lock().servers.get_mut(&address) {
            server.last_error = None;
            server.peer = Some(peer);
            server.streams += 1;
        }
    }

    fn log_refusal(&self, address: SocketAddr, handle: kvpick_proto::words::Handle, reason: &str) {
        let state = self.shared.lock();
        let name = state.node.engines().get(&handle).map(|it| it.config().name.to_string());
        tracing::warn!(%address, replica = name, reason, "the server does not take this replica from this agent");
    }
}

fn status_text(status: &tonic::Status) -> String {
    format!("{}: {}", status.code(), status.message())
}

/// The innermost cause says most: "Connection refused".
fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
