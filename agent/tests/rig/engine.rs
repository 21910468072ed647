//! An engine as the agent sees it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Json, Router, http::StatusCode, routing::get};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::LONG;

#[path = "../../core/tests/wire/mod.rs"]
pub(crate) mod wire;

use wire::Wire;

/// The HTTP side.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Arc<Mutex<String>>,
    /// What it says of its events; `None` where it has no such route.
    pub(crate) sources: Arc<Mutex<Option<Value>>>,
}

pub(crate) const METRICS: &str = "process_start_time_seconds 1\nvllm:num_requests_running 0\n";

impl Api {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Mutex::new(METRICS.to_owned()));
        let shown = Arc::clone(&metrics);
        let sources: Arc<Mutex<Option<Value>>> = Arc::default();
        let said = Arc::clone(&sources);
        let event_sources = async move || {
            let said = said.lock().unwrap().clone();
            said.map(Json).ok_or((StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"}))))
        };
        let router = Router::new()
            .route("/kv_event_sources", get(event_sources))
            .route("/metrics", get(async move || shown.lock().unwrap().clone()))
            .route("/version", get(async || Json(json!({"version": "0.32.0"}))))
            .route(
                "/v1/models",
                get(async || {
                    Json(json!({"object": "list", "data": [
                        {"id": "m", "root": "/m", "parent": null, "max_model_len": 1024},
                        {"id": "ad", "root": "/l/ad", "parent": "m", "max_model_len": null},
                    ]}))
                }),
            );
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, metrics, sources }
    }

    /// Says that its ranks publish there, in order.
    pub(crate) fn publishes_at(&self, publishers: &[&Publisher]) {
        let source = |(rank, it): (usize, &&Publisher)| {
            let settings = json!({
                "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": it.endpoint(),
                "replay_endpoint": it.replay, "buffer_steps": 10_000, "hwm": 100_000, "max_queue_size": 100_000,
                "topic": "topic",
            });
            (rank.to_string(), settings)
        };
        let all: serde_json::Map<_, _> = publishers.iter().enumerate().map(source).collect();
        *self.sources.lock().unwrap() = Some(Value::Object(all));
    }

    pub(crate) fn show(&self, metrics: &str) {
        *self.metrics.lock().unwrap() = metrics.to_owned();
    }
}

type Buffer = Arc<Mutex<Vec<Vec<Vec<u8>>>>>;

/// The event side: vLLM's publisher with its replay socket.
pub(crate) struct Publisher {
    context: zmq::Context,
    /// XPUB, so that it is known when somebody has subscribed.
    socket: zmq::Socket,
    endpoint: String,
    pub(crate) replay: String,
    buffer: Buffer,
    /// How many batches its replay socket gives before it falls silent.
    pub(crate) answers: Arc<AtomicUsize>,
    pub(crate) wire: Wire,
}

impl Publisher {
    /// One that binds.
    pub(crate) fn bind(wire: Wire) -> Self {
        let context = zmq::Context::new();
        let socket = xpub(&context);
        socket.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        Self::with(context, socket, endpoint, wire)
    }

    /// One that connects.
    pub(crate) fn connect(endpoint: String, wire: Wire) -> Self {
        let context = zmq::Context::new();
        let socket = xpub(&context);
        socket.connect(&endpoint).unwrap();
        Self::with(context, socket, endpoint, wire)
    }

    fn with(context: zmq::Context, socket: zmq::Socket, endpoint: String, wire: Wire) -> Self {
        let buffer = Buffer::default();
        let router = context.socket(zmq::ROUTER).unwrap();
        router.set_linger(0).unwrap();
        router.bind("tcp://127.0.0.1:*").unwrap();
        let replay = router.get_last_endpoint().unwrap().unwrap();
        let answers = Arc::new(AtomicUsize::new(usize::MAX));
        let (batches, most) = (Arc::clone(&buffer), Arc::clone(&answers));
        // Ends with the test's process.
        std::thread::spawn(move || serve_replay(&router, &batches, &most));
        Self { context, socket, endpoint, replay, buffer, answers, wire }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Waits until somebody has subscribed.
    pub(crate) fn subscribed(&self) {
        self.socket.set_rcvtimeo(i32::try_from(LONG.as_millis()).unwrap()).unwrap();
        let message = self.socket.recv_bytes(0).expect("nobody subscribes");
        assert_eq!(message.first(), Some(&1), "a subscription");
    }

    /// Waits until nobody is subscribed any more.
    pub(crate) fn unsubscribed(&self) {
        self.socket.set_rcvtimeo(i32::try_from(LONG.as_millis()).unwrap()).unwrap();
        let message = self.socket.recv_bytes(0).expect("nobody unsubscribes");
        assert_eq!(message.first(), Some(&0), "the end of a subscription");
    }

    /// Its replay socket does not have the first batches any more.
    pub(crate) fn forget(&self, batches: usize) {
        self.buffer.lock().unwrap().drain(..batches);
    }

    pub(crate) fn publish(&mut self, make: impl FnOnce(&mut Wire) -> Vec<Vec<u8>>) {
        let frames = make(&mut self.wire);
        self.buffer.lock().unwrap().push(frames.clone());
        self.socket.send_multipart(frames, 0).unwrap();
    }

    /// Something that is no batch.
    pub(crate) fn send(&self, frames: &[Vec<u8>]) {
        self.socket.send_multipart(frames, 0).unwrap();
    }

    /// A batch that goes lost on its way.
    pub(crate) fn lose(&mut self, make: impl FnOnce(&mut Wire) -> Vec<Vec<u8>>) {
        let frames = make(&mut self.wire);
        self.buffer.lock().unwrap().push(frames);
    }

    /// Another process at the same place.
    pub(crate) fn restart(&mut self) {
        self.buffer.lock().unwrap().clear();
        self.wire.restart();
        self.socket = self.context.socket(zmq::PAIR).unwrap();
        let socket = xpub(&self.context);
        let deadline = std::time::Instant::now() + LONG;
        while let Err(error) = socket.bind(&self.endpoint) {
            // libzmq closes sockets in the background.
            assert!(std::time::Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.socket = socket;
    }
}

fn xpub(context: &zmq::Context) -> zmq::Socket {
    let socket = context.socket(zmq::XPUB).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_sndhwm(0).unwrap();
    socket
}

/// As vLLM since 0.26 does: a topic before the sequence.
fn serve_replay(router: &zmq::Socket, buffer: &Buffer, most: &AtomicUsize) {
    while let Ok(request) = router.recv_multipart(0) {
        let [id, empty, from] = &request[..] else { continue };
        let from = u64::from_be_bytes(from[..].try_into().unwrap());
        let batches = buffer.lock().unwrap().clone();
        let most = most.load(Ordering::Relaxed);
        let is_whole = batches.len() <= most;
        for batch in batches.into_iter().take(most) {
            let number = u64::from_be_bytes(batch[1][..].try_into().unwrap());
            if number >= from {
                let frames = [&id[..], &empty[..], &batch[0], &batch[1], &batch[2]];
                router.send_multipart(frames, 0).unwrap();
            }
        }
        if is_whole {
            router.send_multipart([&id[..], &empty[..], b"", &[0xff; 8], b""], 0).unwrap();
        }
    }
}
