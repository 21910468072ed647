//! The publishing side of vLLM's event protocol: a PUB socket for batches as they come, a ROUTER socket for those of
//! the past. Both belong to one thread, as in vLLM; the engine hands batches over a queue.

mod worker;

use std::{
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{SystemTime, UNIX_EPOCH},
};

use self::worker::{Batch, Gate, Order, Worker};
use super::{announce::Event, faults::Garbage, version::Version, wire::Encoder};

/// Where batches go.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Bound where it contains `*` or `::` or begins with `ipc://` or `inproc://`, else connected to, as vLLM does.
    pub events: String,
    /// Always bound; no replay where absent.
    pub replay: Option<String>,
    /// First frame of every message.
    pub topic: String,
    /// Batches kept for replay.
    pub buffer_steps: usize,
}

/// Where the batches of one rank go.
#[derive(Clone, Debug)]
pub struct RankEndpoints {
    /// Of the PUB socket.
    pub events: String,
    /// Whether it is bound, or else connected.
    pub binds: bool,
    /// Of the ROUTER socket.
    pub replay: Option<String>,
    /// First frame of every message.
    pub topic: String,
    /// Batches kept for replay.
    pub buffer_steps: usize,
}

/// Why there is no publisher.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The socket can't be opened.
    #[error(
        "{socket} socket on {endpoint:?}: {source}; want tcp://127.0.0.1:* to bind, or tcp://HOST:PORT to connect"
    )]
    Open {
        /// Which one.
        socket: &'static str,
        /// Where.
        endpoint: String,
        /// What the system says.
        source: zmq::Error,
    },
    /// There is no way to tell ranks apart.
    #[error("{endpoint:?} has no port for rank {rank}; with several ranks an endpoint must be tcp or inproc")]
    Rank {
        /// The endpoint of rank 0.
        endpoint: String,
        /// The rank.
        rank: u32,
    },
}

impl Endpoints {
    /// Those of one data-parallel rank: its number is added to ports.
    ///
    /// # Errors
    ///
    /// An endpoint that can't be told apart from that of rank 0, or a port above 65535.
    pub fn of_rank(&self, rank: u32) -> Result<RankEndpoints, EndpointError> {
        Ok(RankEndpoints {
            events: shifted(&self.events, rank)?,
            binds: is_bound(&self.events),
            replay: self.replay.as_deref().map(|endpoint| shifted(endpoint, rank)).transpose()?,
            topic: self.topic.clone(),
            buffer_steps: self.buffer_steps,
        })
    }
}

/// A running publisher; ends when dropped.
#[derive(Debug)]
pub struct Publisher {
    queue: Option<SyncSender<Order>>,
    gate: Arc<Gate>,
    thread: Option<JoinHandle<()>>,
    endpoints: RankEndpoints,
}

impl Publisher {
    /// Opens the sockets and starts the thread.
    ///
    /// # Errors
    ///
    /// An endpoint that can't be bound or is no endpoint at all.
    pub fn start(
        endpoints: &RankEndpoints,
        encoder: Encoder,
        version: Version,
    ) -> Result<Self, EndpointError> {
        let context = zmq::Context::new();
        let live = open(&context, zmq::PUB, "events", &endpoints.events, endpoints.binds)?;
        let replay = match &endpoints.replay {
            Some(endpoint) => Some(open(&context, zmq::ROUTER, "replay", endpoint, true)?),
            None => None,
        };
        let (queue, orders) = sync_channel(MAX_QUEUED);
        let resolved = RankEndpoints {
            events: resolved(&live, &endpoints.events),
            replay: replay.as_ref().zip(endpoints.replay.as_ref()).map(|(it, asked)| resolved(it, asked)),
            ..endpoints.clone()
        };
        let gate = Arc::<Gate>::default();
        let worker = Worker::new(encoder, version.replays_topic(), &resolved, live, replay);
        let passes = Arc::clone(&gate);
        let thread = std::thread::Builder::new()
            .name("zmq-publisher".to_owned())
            .spawn(move || worker.run(&orders, &passes))
            .expect("the system can start a thread");
        Ok(Self { queue: Some(queue), gate, thread: Some(thread), endpoints: resolved })
    }

    /// Publishes one batch, stamped with the current time. Waits while the queue is full, as vLLM does.
    pub fn publish(&self, events: Vec<Event>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        self.order(Order::Batch(Batch { time, events }));
    }

    /// Keeps the next batches from subscribers. Where they are `forgotten`, replay does not have them either, nor what
    /// was before.
    pub fn lose(&self, count: u64, forgotten: bool) {
        self.order(Order::Lose { count, forgotten });
    }

    /// Publishes what is no batch.
    pub fn publish_garbage(&self, kind: Garbage) {
        self.order(Order::Garbage(kind));
    }

    /// Publishes nothing and answers nobody, or does so again.
    pub fn hang(&self, hangs: bool) {
        self.gate.hang(hangs);
    }

    /// Where events and replays are, with the ports that the system chose.
    #[must_use]
    pub const fn endpoints(&self) -> &RankEndpoints {
        &self.endpoints
    }

    fn order(&self, order: Order) {
        if let Some(queue) = &self.queue {
            // The thread only ends when the queue is closed, so nothing is lost here.
            let _ = queue.send(order);
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        drop(self.queue.take());
        self.gate.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
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
        // A replay sends all that is kept at once, which ROUTER would drop above its limit.
        socket.set_sndhwm(if kind == zmq::PUB { PUB_HIGH_WATER_MARK } else { 0 })?;
        if bind {
            socket.bind(endpoint)?
        } else {
            socket.connect(endpoint)?
        }
        Ok(socket)
    };
    try_open().map_err(|source| EndpointError::Open { socket: name, endpoint: endpoint.to_owned(), source })
}

fn is_bound(endpoint: &str) -> bool {
    endpoint.contains('*')
        || endpoint.contains("::")
        || endpoint.starts_with("ipc://")
        || endpoint.starts_with("inproc://")
}

/// The endpoint of another rank. Ports that the system chooses need no number.
fn shifted(endpoint: &str, rank: u32) -> Result<String, EndpointError> {
    if rank == 0 {
        return Ok(endpoint.to_owned());
    }
    if endpoint.starts_with("inproc://") {
        return Ok(format!("{endpoint}_dp{rank}"));
    }
    let shift = || match endpoint.strip_prefix("tcp://")?.rsplit_once(':')? {
        (_, "*" | "0") => Some(endpoint.to_owned()),
        (host, port) => {
            let port = u32::from(port.parse::<u16>().ok()?).checked_add(rank)?;
            Some(format!("tcp://{host}:{}", u16::try_from(port).ok()?))
        }
    };
    shift().ok_or_else(|| EndpointError::Rank { endpoint: endpoint.to_owned(), rank })
}

/// With the port that the system chose, if it was asked to; otherwise as asked, wildcard and all, as vLLM shows it.
fn resolved(socket: &zmq::Socket, asked: &str) -> String {
    let is_chosen = asked.ends_with(":*") || asked.ends_with(":0");
    match socket.get_last_endpoint() {
        Ok(Ok(endpoint)) if is_chosen && !endpoint.is_empty() => endpoint,
        _ => asked.to_owned(),
    }
}

/// Batches between engine and publisher: vLLM's `max_queue_size`.
pub(super) const MAX_QUEUED: usize = 100_000;

/// Messages queued per subscriber before PUB drops: vLLM's `hwm`.
pub(super) const PUB_HIGH_WATER_MARK: i32 = 100_000;

/// Batches kept for replay unless it is set otherwise: vLLM's `buffer_steps`.
pub const DEFAULT_BUFFER_STEPS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ranks_number_is_added_to_its_ports() {
        assert_eq!(shifted("tcp://*:5557", 2).unwrap(), "tcp://*:5559");
        assert_eq!(shifted("tcp://[::1]:5557", 1).unwrap(), "tcp://[::1]:5558");
        assert_eq!(shifted("tcp://127.0.0.1:*", 3).unwrap(), "tcp://127.0.0.1:*");
        assert_eq!(shifted("inproc://events", 1).unwrap(), "inproc://events_dp1");
        assert_eq!(shifted("ipc:///run/events", 0).unwrap(), "ipc:///run/events");
        for endpoint in ["ipc:///run/events", "tcp://127.0.0.1:65535", "nonsense"] {
            assert!(shifted(endpoint, 1).unwrap_err().to_string().contains("rank 1"), "{endpoint}");
        }
    }
}
