//! The publishing side of vLLM's event protocol: a PUB socket for batches as they come, a ROUTER socket for those of
//! the past. Both belong to one thread, as in vLLM; the engine hands batches over a queue.

use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{pool::Event, wire::Encoder};

/// Where batches go.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Bound where it contains `*` or `::` or begins with `ipc://` or `inproc://`, else connected to, as vLLM does.
    pub events: String,
    /// Always bound; no replay where absent.
    pub replay: Option<String>,
    /// First frame of every message.
    pub topic: String,
}

/// Why there is no publisher.
#[derive(Debug, thiserror::Error)]
#[error(
    "{socket} socket on {endpoint:?}: {source}; want tcp://127.0.0.1:* to bind, or tcp://HOST:PORT to connect"
)]
pub struct EndpointError {
    socket: &'static str,
    endpoint: String,
    source: zmq::Error,
}

/// A running publisher; ends when dropped.
#[derive(Debug)]
pub struct Publisher {
    queue: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<()>>,
    events: String,
    replay: Option<String>,
}

#[derive(Debug)]
struct Batch {
    time: f64,
    events: Vec<Event>,
}

impl Publisher {
    /// Opens the sockets and starts the thread.
    ///
    /// # Errors
    ///
    /// An endpoint that can't be bound or is no endpoint at all.
    pub fn start(endpoints: &Endpoints, encoder: Encoder) -> Result<Self, EndpointError> {
        let context = zmq::Context::new();
        let live = open(&context, zmq::PUB, "events", &endpoints.events, is_bound(&endpoints.events))?;
        let replay = match &endpoints.replay {
            Some(endpoint) => Some(open(&context, zmq::ROUTER, "replay", endpoint, true)?),
            None => None,
        };
        let (queue, batches) = sync_channel(MAX_QUEUED);
        let events = resolved(&live, &endpoints.events);
        let replay_at = replay.as_ref().zip(endpoints.replay.as_ref()).map(|(it, asked)| resolved(it, asked));
        let worker = Worker {
            encoder,
            topic: endpoints.topic.clone().into_bytes(),
            live,
            replay,
            sequence: 0,
            kept: VecDeque::new(),
        };
        let thread = std::thread::Builder::new()
            .name("zmq-publisher".to_owned())
            .spawn(move || worker.run(&batches))
            .expect("the system can start a thread");
        Ok(Self { queue: Some(queue), thread: Some(thread), events, replay: replay_at })
    }

    /// Publishes one batch, stamped with the current time. Waits while the queue is full, as vLLM does.
    pub fn publish(&self, events: Vec<Event>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        if let Some(queue) = &self.queue {
            // The thread only ends when the queue is closed, so nothing is lost here.
            let _ = queue.send(Batch { time, events });
        }
    }

    /// Where events are published: the resolved address where bound, else the one connected to.
    #[must_use]
    pub fn events(&self) -> &str {
        &self.events
    }

    /// Where past batches can be asked for.
    #[must_use]
    pub fn replay(&self) -> Option<&str> {
        self.replay.as_deref()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    encoder: Encoder,
    topic: Vec<u8>,
    live: zmq::Socket,
    replay: Option<zmq::Socket>,
    sequence: u64,
    kept: VecDeque<(u64, Vec<u8>)>,
}

impl Worker {
    fn run(mut self, batches: &Receiver<Batch>) {
        loop {
            match batches.recv_timeout(REPLAY_POLL) {
                Ok(batch) => self.publish(&batch),
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(replay) = &self.replay
                && let Ok(request) = replay.recv_multipart(zmq::DONTWAIT)
            {
                self.answer(replay, &request);
            }
        }
    }

    fn publish(&mut self, batch: &Batch) {
        let payload = self.encoder.batch(batch.time, &batch.events);
        let frames = [self.topic.as_slice(), &self.sequence.to_be_bytes(), &payload];
        // PUB drops for slow subscribers and never waits.
        if let Err(error) = self.live.send_multipart(frames, 0) {
            tracing::warn!(%error, sequence = self.sequence, "a batch of events was not published");
        }
        if self.kept.len() == MAX_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((self.sequence, payload));
        self.sequence += 1;
    }

    /// Sends every kept batch from the asked sequence on, then the end marker.
    fn answer(&self, replay: &zmq::Socket, request: &[Vec<u8>]) {
        let [peer, delimiter, from] = request else {
            tracing::warn!(
                frames = request.len(),
                "a replay request is [peer, empty, sequence]; not answered"
            );
            return;
        };
        // Any width is taken, as Python's int.from_bytes does; what is more than 64 bits is beyond every sequence.
        let from = from.iter().try_fold(0u64, |n, byte| n.checked_mul(256).map(|n| n + u64::from(*byte)));
        let from = from.unwrap_or(u64::MAX);
        let send = |topic: &[u8], sequence: &[u8], payload: &[u8]| {
            let mut frames = vec![peer.as_slice(), delimiter.as_slice()];
            if self.encoder.encoding.replays_topic() {
                frames.push(topic);
            }
            frames.extend([sequence, payload]);
            replay.send_multipart(frames, 0)
        };
        for (sequence, payload) in self.kept.iter().filter(|(sequence, _)| from <= *sequence) {
            if let Err(error) = send(&self.topic, &sequence.to_be_bytes(), payload) {
                return tracing::debug!(%error, "whoever asked for a replay is gone");
            }
        }
        if let Err(error) = send(b"", &END_OF_REPLAY, b"") {
            tracing::debug!(%error, "whoever asked for a replay is gone");
        }
    }
}

fn open(
    context: &zmq::Context,
    kind: zmq::SocketType,
    name: &'static str,
    endpoint: &str,
    bind: bool,
) -> Result<zmq::Socket, EndpointError> {
    let try_open = || {
        let socket = context.socket(kind)?;
        socket.set_linger(0)?;
        // A replay sends up to `MAX_KEPT` messages at once, which ROUTER would drop above its limit.
        socket.set_sndhwm(if kind == zmq::PUB { PUB_HIGH_WATER_MARK } else { 0 })?;
        if bind {
            socket.bind(endpoint)?
        } else {
            socket.connect(endpoint)?
        }
        Ok(socket)
    };
    try_open().map_err(|source| EndpointError { socket: name, endpoint: endpoint.to_owned(), source })
}

fn is_bound(endpoint: &str) -> bool {
    endpoint.contains('*')
        || endpoint.contains("::")
        || endpoint.starts_with("ipc://")
        || endpoint.starts_with("inproc://")
}

fn resolved(socket: &zmq::Socket, asked: &str) -> String {
    match socket.get_last_endpoint() {
        Ok(Ok(endpoint)) if !endpoint.is_empty() => endpoint,
        _ => asked.to_owned(),
    }
}

/// Batches between engine and publisher: vLLM's `max_queue_size`.
const MAX_QUEUED: usize = 100_000;

/// Batches kept for replay: vLLM's `buffer_steps`.
const MAX_KEPT: usize = 10_000;

/// Messages queued per subscriber before PUB drops: vLLM's `hwm`.
const PUB_HIGH_WATER_MARK: i32 = 100_000;

/// How long a replay request may wait for an idle publisher to look.
const REPLAY_POLL: Duration = Duration::from_millis(20);

/// Sequence -1: no more batches.
const END_OF_REPLAY: [u8; 8] = [0xff; 8];
