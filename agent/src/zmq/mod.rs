//! An engine's sockets. libzmq blocks, so each subscription has its own thread, and so has each replay.

mod connections;
mod replay;
mod room;
mod told;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kvpick_agent_core::sequence::ReplayRequest;
use tokio::sync::{mpsc, oneshot};
use zmq::{Context, PollItem, Socket, SocketType};

use crate::config::{EventsConfig, Source};
use connections::Connections;
use room::{Room, Taken};
pub(crate) use told::{Endpoints, Target};

/// Messages between the sockets and the engine's task, and their bytes. When either is too many the threads wait,
/// libzmq's own queue fills, then the publisher's, and then the publisher drops messages, which shows as a gap.
const HEARD: usize = 16_384;
const HEARD_BYTES: usize = 64 << 20;

/// Largest frame. A batch is some kilobytes; tens of megabytes are nothing that vLLM sends.
const MAX_FRAME: i64 = 16 << 20;

/// Messages that libzmq may keep for us. It counts messages, not bytes, so that this times the largest frame is what
/// an engine that means harm can make it keep: 512 MiB of events and as much of a replay, 1 GiB together. Fewer cost
/// nothing, as what is not taken waits at the publisher: vLLM keeps 100,000 batches there.
const HIGH_WATER: i32 = 32;

/// Messages read in one go while connected, so that a flood leaves time for the monitor.
const AT_ONCE: usize = 1_024;

/// Bound of what is read of a connection that is lost: more than the high-water mark of many of them.
const LEFT: usize = 64 * HIGH_WATER as usize;

/// A subscription that has had no connection for so long is made anew. libzmq connects again by itself after a lost
/// connection, but never after a peer that broke the protocol, as by a frame that is too large.
const RENEW_AFTER: Duration = Duration::from_secs(5);

/// vLLM's messages have 3 frames, and 4 in a replay; more are not kept.
const MAX_FRAMES: usize = 8;

/// How often a thread looks whether it has to end.
const LOOK: Duration = Duration::from_millis(100);

/// Between two attempts to bind.
const BIND_AGAIN: Duration = Duration::from_secs(2);

/// Where a subscription's connections are told of. One name is enough, as each subscription has its own context.
const MONITOR: &str = "inproc://monitor";

/// What the sockets of one engine say.
#[derive(Debug)]
pub(crate) enum Heard {
    Connected,
    Disconnected,
    Message(Vec<Vec<u8>>),
    /// It is known where to subscribe, and whether earlier events can be had again.
    Found {
        replay: bool,
    },
    /// The subscription can't be had, for now: why, and what to do.
    Failed(String, &'static str),
    Replay(u64, Vec<Vec<u8>>),
    ReplayFailed(u64, String),
}

/// What was heard, and the room that it takes until it is dropped.
pub(crate) type Item = (Heard, Taken);

/// The threads' side of the channel.
#[derive(Clone)]
struct Into {
    items: mpsc::Sender<Item>,
    room: Room,
}

/// The other side of the channel is gone.
struct Gone;

impl Into {
    /// Waits until there is room.
    fn send(&self, heard: Heard) -> Result<(), Gone> {
        let bytes = match &heard {
            Heard::Message(frames) | Heard::Replay(_, frames) => frames.iter().map(Vec::len).sum(),
            _ => 0,
        };
        let taken = self.room.take(bytes);
        self.items.blocking_send((heard, taken)).map_err(|_| Gone)
    }
}

/// One engine's sockets. Dropping it ends their threads.
pub(crate) struct Sockets {
    /// Of the replays.
    context: Context,
    stop: Arc<AtomicBool>,
    replay: Option<String>,
    /// Or where that is known by.
    target: Option<Target>,
    /// The replay request in force.
    current: Arc<AtomicU64>,
    into: Into,
    items: mpsc::Receiver<Item>,
    /// Closed once the subscription's thread has ended.
    ended: oneshot::Receiver<()>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A subscription not yet listened to.
pub(crate) struct Opened {
    context: Context,
    events: EventsConfig,
    socket: Result<(Socket, Socket), zmq::Error>,
    /// Whoever finds out where to subscribe says so here; `None` where that is configured.
    pub(crate) target: Option<Target>,
}

impl Opened {
    /// Connects or binds. A failure is kept, and tried again once it runs.
    pub(crate) fn open(events: &EventsConfig) -> Self {
        let context = Context::new();
        let socket = subscribe(&context, events);
        let target = (events.source == Source::Discover).then(Target::default);
        Self { context, events: events.clone(), socket, target }
    }

    /// Where it listens, if it does: the port may have been chosen by the system.
    pub(crate) fn listens_at(&mut self) -> Option<String> {
        let Source::Listen(_) = self.events.source else { return None };
        let endpoint = self.socket.as_ref().ok()?.0.get_last_endpoint().ok()?.ok()?;
        // What was chosen once has to stay, should it be bound again.
        self.events.source = Source::Listen(endpoint.clone());
        Some(endpoint)
    }

    /// Starts listening, on a thread of its own.
    ///
    /// # Errors
    ///
    /// The system has no thread to give.
    pub(crate) fn run(self) -> std::io::Result<Sockets> {
        let (sender, items) = mpsc::channel(HEARD);
        let into = Into { items: sender, room: Room::new(HEARD_BYTES) };
        let stop = Arc::new(AtomicBool::new(false));
        let (alive, ended) = oneshot::channel();
        let sockets = Sockets {
            context: Context::new(),
            stop: Arc::clone(&stop),
            replay: self.events.replay.clone(),
            target: self.target.clone(),
            current: Arc::new(AtomicU64::new(0)),
            into: into.clone(),
            items,
            ended,
        };
        std::thread::Builder::new().name("events".to_owned()).spawn(move || {
            // However this thread ends, this is dropped.
            let _alive: oneshot::Sender<()> = alive;
            // Ends when it is stopped, or when nobody listens any more.
            let _ended = match &self.target {
                Some(target) => told::listen(target, &into, &stop),
                None => listen(self, &into, &stop),
            };
        })?;
        Ok(sockets)
    }
}

impl Sockets {
    /// Takes up to `most` of what was heard, and waits for the first; 0 once the subscription's thread has ended, which
    /// it should not.
    pub(crate) async fn receive(&mut self, into: &mut Vec<Item>, most: usize) -> usize {
        tokio::select! {
            biased;
            count = self.items.recv_many(into, most) => count,
            _ = &mut self.ended => 0,
        }
    }

    /// Asks the replay socket, on a thread of its own. An earlier request is given up.
    ///
    /// # Errors
    ///
    /// The system has no thread to give.
    pub(crate) fn replay(&self, request: ReplayRequest) -> std::io::Result<()> {
        let told = || self.target.as_ref().and_then(Target::replay);
        let Some(endpoint) = self.replay.clone().or_else(told) else { return Ok(()) };
        self.current.store(request.id, Ordering::Relaxed);
        let (context, into) = (self.context.clone(), self.into.clone());
        let (stop, current) = (Arc::clone(&self.stop), Arc::clone(&self.current));
        let is_over = move || stop.load(Ordering::Relaxed) || current.load(Ordering::Relaxed) != request.id;
        let run = move || replay::run(&context, &endpoint, request, &into, is_over);
        std::thread::Builder::new().name("replay".to_owned()).spawn(run).map(drop)
    }
}

/// The subscription, and the monitor of its connections.
fn subscribe(context: &Context, events: &EventsConfig) -> Result<(Socket, Socket), zmq::Error> {
    let socket = context.socket(SocketType::SUB)?;
    socket.set_ipv6(matches!(&events.source, Source::Subscribe(it) if it.contains('[')))?;
    socket.set_linger(0)?;
    socket.set_rcvhwm(HIGH_WATER)?;
    socket.set_maxmsgsize(MAX_FRAME)?;
    socket.set_reconnect_ivl(100)?;
    socket.set_reconnect_ivl_max(1_000)?;
    // A connection that a firewall or a dead host dropped silently.
    socket.set_tcp_keepalive(1)?;
    socket.set_tcp_keepalive_idle(10)?;
    socket.set_tcp_keepalive_intvl(5)?;
    socket.monitor(MONITOR, Connections::events())?;
    let monitor = context.socket(SocketType::PAIR)?;
    monitor.set_linger(0)?;
    monitor.connect(MONITOR)?;
    socket.set_subscribe(events.topic.as_bytes())?;
    match &events.source {
        Source::Subscribe(endpoint) => socket.connect(endpoint)?,
        Source::Listen(endpoint) => socket.bind(endpoint)?,
        // It will be told where to go.
        Source::Discover => (),
    }
    Ok((socket, monitor))
}

/// Why a subscription is heard no more.
enum End {
    Stopped,
    Failed(zmq::Error),
    /// It has no connection, and may never have one again, or should not.
    Alone,
}

/// How a subscription comes to its connections.
#[derive(Clone, Copy)]
enum Manner<'a> {
    /// Whoever connects to a bound socket does so again by itself.
    Bound,
    Connects,
    /// It connects once, and only while this is where to go.
    Told(&'a Target, told::Version),
}

fn listen(mut opened: Opened, into: &Into, stop: &AtomicBool) -> Result<(), Gone> {
    let remedy = match opened.events.source {
        Source::Subscribe(_) => "check `subscribe` in the agent's configuration",
        Source::Listen(_) | Source::Discover => {
            "check that no other program has the port of `listen` in the agent's configuration"
        }
    };
    let manner = match opened.events.source {
        Source::Subscribe(_) => Manner::Connects,
        Source::Listen(_) | Source::Discover => Manner::Bound,
    };
    while !stop.load(Ordering::Relaxed) {
        let error = match &opened.socket {
            Ok((socket, monitor)) => match hear(socket, monitor, manner, stop, into)? {
                End::Stopped => return Ok(()),
                End::Failed(error) => Some(error),
                End::Alone => None,
            },
            Err(error) => Some(*error),
        };
        if let Some(error) = error {
            into.send(Heard::Failed(error.to_string(), remedy))?;
            told::pause(BIND_AGAIN, stop);
        }
        // A context of its own, as the monitor's name is taken for as long as the old socket lingers.
        opened.context = Context::new();
        opened.socket = subscribe(&opened.context, &opened.events);
    }
    Ok(())
}

/// Hears until something ends it.
fn hear(
    socket: &Socket,
    monitor: &Socket,
    manner: Manner<'_>,
    stop: &AtomicBool,
    into: &Into,
) -> Result<End, Gone> {
    let mut connections = Connections::default();
    let mut alone = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let mut items: [PollItem<'_>; 2] =
            [monitor.as_poll_item(zmq::POLLIN), socket.as_poll_item(zmq::POLLIN)];
        match zmq::poll(&mut items, i64::try_from(LOOK.as_millis()).unwrap_or(i64::MAX)) {
            Ok(_) | Err(zmq::Error::EINTR) => (),
            Err(error) => return Ok(End::Failed(error)),
        }
        let mut changes = Vec::new();
        while let Ok(frames) = receive(monitor, zmq::DONTWAIT) {
            changes.extend(connections.on_event(&frames));
        }
        // What came before a disconnection belongs before it, what came after a connection after it.
        let lost = changes.iter().any(|it| matches!(it, Heard::Disconnected));
        if lost {
            drain(socket, LEFT, into)?;
        }
        changes.into_iter().try_for_each(|it| into.send(it))?;
        drain(socket, AT_ONCE, into)?;
        if let Manner::Told(target, version) = manner
            && (lost || target.version() != version)
        {
            if !connections.is_empty() {
                drain(socket, LEFT, into)?;
                into.send(Heard::Disconnected)?;
            }
            return Ok(End::Alone);
        }
        if !connections.is_empty() {
            alone = Instant::now();
        } else if !matches!(manner, Manner::Bound) && alone.elapsed() >= RENEW_AFTER {
            return Ok(End::Alone);
        }
    }
    Ok(End::Stopped)
}

/// Passes on what has come, at most so many messages.
fn drain(socket: &Socket, most: usize, into: &Into) -> Result<(), Gone> {
    for _ in 0..most {
        match receive(socket, zmq::DONTWAIT) {
            Ok(frames) => into.send(Heard::Message(frames))?,
            Err(_) => break,
        }
    }
    Ok(())
}

/// One message; frames past the bound are read and left out.
fn receive(socket: &Socket, flags: i32) -> Result<Vec<Vec<u8>>, zmq::Error> {
    let mut frames = Vec::new();
    loop {
        let frame = socket.recv_bytes(flags)?;
        if frames.len() < MAX_FRAMES {
            frames.push(frame);
        }
        if !socket.get_rcvmore()? {
            return Ok(frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_the_system_chose_stays_when_it_is_bound_again() {
        let source = Source::Listen("tcp://127.0.0.1:0".to_owned());
        let mut opened = Opened::open(&EventsConfig { source, replay: None, topic: String::new() });
        let first = opened.listens_at().unwrap();
        assert_ne!(first, "tcp://127.0.0.1:0");
        // libzmq closes sockets in the background, and all of a context's before that ends.
        (opened.socket, opened.context) = (Err(zmq::Error::ENOTCONN), Context::new());
        opened.socket = subscribe(&opened.context, &opened.events);
        assert_eq!(opened.listens_at(), Some(first));
    }
}
