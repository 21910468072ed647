//! An engine's sockets. libzmq blocks, so each subscription has its own thread, and so has each replay.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use kvpick_agent_core::{decode::is_replay_end, sequence::ReplayRequest};
use tokio::sync::mpsc;
use zmq::{Context, PollItem, Socket, SocketEvent, SocketType};

use crate::config::{EventsConfig, Source};

/// Messages between the sockets and the engine's task. When it is full the threads wait, libzmq's own queue fills, and
/// then the publisher drops messages, which shows as a gap.
pub(crate) const HEARD: usize = 1_024;

/// Messages that libzmq may keep for us: vLLM's own default for a subscriber that is slow.
const HIGH_WATER: i32 = 100_000;

/// Largest frame. A batch is some kilobytes; tens of megabytes are nothing that vLLM sends.
const MAX_FRAME: i64 = 64 << 20;

/// vLLM's messages have 3 frames, and 4 in a replay; more are not kept.
const MAX_FRAMES: usize = 8;

/// How often a thread looks whether it has to end.
const LOOK: Duration = Duration::from_millis(100);

/// A replay that says nothing for so long will not go on: the publisher serves it between two batches.
const REPLAY_PATIENCE: Duration = Duration::from_secs(5);

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
    /// The subscription can't be had, for now: why, and what to do.
    Failed(String, &'static str),
    Replay(u64, Vec<Vec<u8>>),
    ReplayFailed(u64, String),
}

/// One engine's sockets. Dropping it ends their threads.
pub(crate) struct Sockets {
    context: Context,
    stop: Arc<AtomicBool>,
    replay: Option<String>,
    /// The replay request in force.
    current: Arc<AtomicU64>,
    into: mpsc::Sender<Heard>,
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
}

impl Opened {
    /// Connects or binds. A failure is kept, and tried again once it runs.
    pub(crate) fn open(events: &EventsConfig) -> Self {
        let context = Context::new();
        let socket = subscribe(&context, events);
        Self { context, events: events.clone(), socket }
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
    pub(crate) fn run(self) -> std::io::Result<(Sockets, mpsc::Receiver<Heard>)> {
        let (into, heard) = mpsc::channel(HEARD);
        let stop = Arc::new(AtomicBool::new(false));
        let sockets = Sockets {
            context: self.context.clone(),
            stop: Arc::clone(&stop),
            replay: self.events.replay.clone(),
            current: Arc::new(AtomicU64::new(0)),
            into: into.clone(),
        };
        std::thread::Builder::new().name("events".to_owned()).spawn(move || {
            // Ends when it is stopped, or when nobody listens any more.
            let _ended = listen(self, &into, &stop);
        })?;
        Ok((sockets, heard))
    }
}

impl Sockets {
    /// Asks the replay socket, on a thread of its own. An earlier request is given up.
    pub(crate) fn replay(&self, request: ReplayRequest) {
        let Some(endpoint) = self.replay.clone() else { return };
        self.current.store(request.id, Ordering::Relaxed);
        let (context, into) = (self.context.clone(), self.into.clone());
        let (stop, current) = (Arc::clone(&self.stop), Arc::clone(&self.current));
        let is_over = move || stop.load(Ordering::Relaxed) || current.load(Ordering::Relaxed) != request.id;
        let spawned = std::thread::Builder::new().name("replay".to_owned()).spawn(move || {
            if let Err(error) = replay(&context, &endpoint, request, &into, is_over) {
                let reason = match error {
                    zmq::Error::EAGAIN => format!("no answer for {} s", REPLAY_PATIENCE.as_secs()),
                    other => other.to_string(),
                };
                // If nobody listens any more, nobody has to know.
                let _gone = into.blocking_send(Heard::ReplayFailed(request.id, reason));
            }
        });
        if let Err(error) = spawned {
            // The caller is the receiver's task, so it must not wait here for room.
            let _full = self.into.try_send(Heard::ReplayFailed(request.id, error.to_string()));
        }
    }
}

/// The subscription, and the monitor of its connections.
fn subscribe(context: &Context, events: &EventsConfig) -> Result<(Socket, Socket), zmq::Error> {
    let socket = context.socket(SocketType::SUB)?;
    socket.set_ipv6(false)?;
    socket.set_linger(0)?;
    socket.set_rcvhwm(HIGH_WATER)?;
    socket.set_maxmsgsize(MAX_FRAME)?;
    socket.set_reconnect_ivl(100)?;
    socket.set_reconnect_ivl_max(1_000)?;
    // A connection that a firewall or a dead host dropped silently.
    socket.set_tcp_keepalive(1)?;
    socket.set_tcp_keepalive_idle(10)?;
    socket.set_tcp_keepalive_intvl(5)?;
    let wanted = SocketEvent::HANDSHAKE_SUCCEEDED.to_raw() | SocketEvent::DISCONNECTED.to_raw();
    socket.monitor(MONITOR, wanted.into())?;
    let monitor = context.socket(SocketType::PAIR)?;
    monitor.set_linger(0)?;
    monitor.connect(MONITOR)?;
    socket.set_subscribe(events.topic.as_bytes())?;
    match &events.source {
        Source::Subscribe(endpoint) => socket.connect(endpoint)?,
        Source::Listen(endpoint) => socket.bind(endpoint)?,
    }
    Ok((socket, monitor))
}

/// The other side of the channel is gone.
struct Gone;

fn listen(mut opened: Opened, into: &mpsc::Sender<Heard>, stop: &AtomicBool) -> Result<(), Gone> {
    let send = |heard| into.blocking_send(heard).map_err(|_| Gone);
    let remedy = match opened.events.source {
        Source::Subscribe(_) => "check `subscribe` in the agent's configuration",
        Source::Listen(_) => {
            "check that no other program has the port of `listen` in the agent's configuration"
        }
    };
    while !stop.load(Ordering::Relaxed) {
        match opened.socket {
            Ok((socket, monitor)) => {
                let error = hear(&socket, &monitor, stop, &send)?;
                send(Heard::Failed(error.to_string(), remedy))?;
            }
            Err(error) => send(Heard::Failed(error.to_string(), remedy))?,
        }
        let looks = BIND_AGAIN.as_millis() / LOOK.as_millis();
        (0..looks).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|_| std::thread::sleep(LOOK));
        // A context of its own, as the monitor's name is taken for as long as the old socket lingers.
        opened.context = Context::new();
        opened.socket = subscribe(&opened.context, &opened.events);
    }
    Ok(())
}

/// Hears until it is stopped, or until the sockets fail, with the reason.
fn hear(
    socket: &Socket,
    monitor: &Socket,
    stop: &AtomicBool,
    send: &impl Fn(Heard) -> Result<(), Gone>,
) -> Result<zmq::Error, Gone> {
    while !stop.load(Ordering::Relaxed) {
        let mut items: [PollItem<'_>; 2] =
            [monitor.as_poll_item(zmq::POLLIN), socket.as_poll_item(zmq::POLLIN)];
        match zmq::poll(&mut items, i64::try_from(LOOK.as_millis()).unwrap_or(i64::MAX)) {
            Ok(0) | Err(zmq::Error::EINTR) => continue,
            Ok(_) => (),
            Err(error) => return Ok(error),
        }
        let mut changes = Vec::new();
        while let Ok(frames) = receive(monitor, zmq::DONTWAIT) {
            changes.extend(connection(&frames));
        }
        // What came before a disconnection belongs before it, what came after a connection after it.
        if changes.iter().any(|it| matches!(it, Heard::Disconnected)) {
            drain(socket, send)?;
        }
        changes.into_iter().try_for_each(send)?;
        drain(socket, send)?;
    }
    Ok(zmq::Error::ETERM)
}

fn drain(socket: &Socket, send: &impl Fn(Heard) -> Result<(), Gone>) -> Result<(), Gone> {
    // Bounded, so that a flood leaves time for the monitor.
    for _ in 0..HEARD {
        match receive(socket, zmq::DONTWAIT) {
            Ok(frames) => send(Heard::Message(frames))?,
            Err(_) => break,
        }
    }
    Ok(())
}

/// The monitor's first frame: the event in 16 bits, then a value.
fn connection(frames: &[Vec<u8>]) -> Option<Heard> {
    let event = frames.first()?.first_chunk()?;
    match u16::from_ne_bytes(*event) {
        it if it == SocketEvent::HANDSHAKE_SUCCEEDED.to_raw() => Some(Heard::Connected),
        it if it == SocketEvent::DISCONNECTED.to_raw() => Some(Heard::Disconnected),
        _ => None,
    }
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

/// Asks and passes the answer on, to its end.
fn replay(
    context: &Context,
    endpoint: &str,
    request: ReplayRequest,
    into: &mpsc::Sender<Heard>,
    is_over: impl Fn() -> bool,
) -> Result<(), zmq::Error> {
    // Not REQ: that takes one answer to one request.
    let socket = context.socket(SocketType::DEALER)?;
    socket.set_ipv6(false)?;
    socket.set_linger(0)?;
    socket.set_maxmsgsize(MAX_FRAME)?;
    socket.set_rcvtimeo(i32::try_from(LOOK.as_millis()).unwrap_or(i32::MAX))?;
    socket.connect(endpoint)?;
    // vLLM answers nothing but an empty frame and 8 bytes.
    socket.send_multipart([&b""[..], &request.from.to_be_bytes()], 0)?;
    let mut waited = Duration::ZERO;
    while !is_over() {
        match receive(&socket, 0) {
            Ok(frames) => {
                waited = Duration::ZERO;
                let is_end = is_replay_end(&frames);
                if into.blocking_send(Heard::Replay(request.id, frames)).is_err() || is_end {
                    return Ok(());
                }
            }
            Err(zmq::Error::EAGAIN) if waited < REPLAY_PATIENCE => waited += LOOK,
            Err(zmq::Error::EINTR) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
