//! A recorded engine: what it published and served, published and served again.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
};

use anyhow::{Context as _, ensure};
use axum::{
    Json, Router,
    routing::{any, get},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// One recording of a real engine.
pub(crate) struct Capture {
    pub(crate) meta: Value,
    pub(crate) requests: Vec<Recorded>,
    /// Topic, sequence, payload.
    pub(crate) frames: Vec<[Vec<u8>; 3]>,
    pub(crate) metrics: String,
}

/// One request of a recording.
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) endpoint: String,
    /// Requests of one name were sent together, and share their frames.
    pub(crate) burst: Option<String>,
    pub(crate) status: u64,
    pub(crate) body: Value,
    /// The engine's own tokens, a list per answer.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// The frames that came while it ran.
    pub(crate) frames: std::ops::Range<usize>,
}

impl Capture {
    pub(crate) fn load(name: &str) -> anyhow::Result<Self> {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/captures")).join(name);
        let read =
            |file: &str| std::fs::read_to_string(folder.join(file)).with_context(|| format!("{name}/{file}"));
        let lines = |file: &str| -> anyhow::Result<Vec<Value>> {
            read(file)?.lines().map(|it| serde_json::from_str(it).context(file.to_owned())).collect()
        };
        let frames = lines("frames.jsonl")?.iter().map(frame).collect::<anyhow::Result<_>>()?;
        let requests = lines("requests.jsonl")?.into_iter().map(recorded).collect::<anyhow::Result<_>>()?;
        let meta = serde_json::from_str(&read("meta.json")?)?;
        Ok(Self { meta, requests, frames, metrics: read("metrics.prom")? })
    }

    /// Serves what the engine served, apart from thinking. Ends with the runtime.
    pub(crate) async fn serve(&self) -> anyhow::Result<SocketAddr> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (metrics, models, version) =
            (self.metrics.clone(), self.meta["models"].clone(), self.meta["version"].clone());
        let router = Router::new()
            .route("/health", get(async || ""))
            .route("/metrics", get(async move || metrics))
            .route("/v1/models", get(async move || Json(models)))
            .route("/version", get(async move || Json(version)))
            .fallback(any(async || Json(json!({"object": "recorded"}))));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(address)
    }
}

fn frame(line: &Value) -> anyhow::Result<[Vec<u8>; 3]> {
    let part = |i: usize| STANDARD.decode(line["frames"][i].as_str().unwrap_or_default()).context("base64");
    Ok([part(0)?, part(1)?, part(2)?])
}

fn recorded(line: Value) -> anyhow::Result<Recorded> {
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    let index = |i: usize| line["frames"][i].as_u64().map(|it| it as usize).context("frames");
    Ok(Recorded {
        name: text("name").context("name")?,
        endpoint: text("endpoint").context("endpoint")?,
        burst: text("group"),
        status: line["status"].as_u64().context("status")?,
        // Null where the request was refused, or a route that does not tell.
        prompts: serde_json::from_value::<Option<Vec<Option<Vec<u32>>>>>(
            line["server_prompt_token_ids"].clone(),
        )?
        .into_iter()
        .flatten()
        .flatten()
        .collect(),
        frames: index(0)?..index(1)?,
        body: line["request"].clone(),
    })
}

/// Where a [`Publisher`]'s sockets are.
#[derive(Clone, Debug)]
pub(crate) enum Publish {
    /// It connects there, to a socket that an agent listens on.
    To(String),
    /// It binds a port of the system's choice.
    Bound,
}

/// Publishes recorded frames on request, and answers replays with what it has published.
pub(crate) struct Publisher {
    pub(crate) events: String,
    pub(crate) replay: String,
    orders: Sender<Vec<[Vec<u8>; 3]>>,
    subscribed: Receiver<()>,
}

impl Publisher {
    /// `with_topic`: whether replay answers carry the topic, as engines since 0.26 do.
    pub(crate) fn start(publish: &Publish, with_topic: bool) -> anyhow::Result<Self> {
        let context = zmq::Context::new();
        // The same on the wire as PUB; tells when somebody has subscribed.
        let events = context.socket(zmq::XPUB)?;
        match publish {
            Publish::To(endpoint) => events.connect(endpoint)?,
            Publish::Bound => events.bind("tcp://127.0.0.1:*")?,
        }
        let replay = context.socket(zmq::ROUTER)?;
        replay.bind("tcp://127.0.0.1:*")?;
        let endpoint = |socket: &zmq::Socket| -> anyhow::Result<String> {
            socket.get_last_endpoint()?.map_err(|_| anyhow::anyhow!("an endpoint is not UTF-8"))
        };
        let (events_at, replay_at) = (endpoint(&events)?, endpoint(&replay)?);
        let (orders, orders_in) = channel();
        let (subscribed_out, subscribed) = channel();
        std::thread::spawn(move || {
            // An error here ends the thread; the test then waits in vain and says for what.
            run(&events, &replay, &orders_in, &subscribed_out, with_topic).ok();
        });
        Ok(Self { events: events_at, replay: replay_at, orders, subscribed })
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscribed.try_recv().is_ok()
    }

    pub(crate) fn publish(&self, frames: &[[Vec<u8>; 3]]) -> anyhow::Result<()> {
        self.orders.send(frames.to_vec()).context("the publisher has ended")
    }
}

fn run(
    events: &zmq::Socket,
    replay: &zmq::Socket,
    orders: &Receiver<Vec<[Vec<u8>; 3]>>,
    subscribed: &Sender<()>,
    with_topic: bool,
) -> anyhow::Result<()> {
    let mut published: Vec<[Vec<u8>; 3]> = Vec::new();
    loop {
        match orders.try_recv() {
            Ok(frames) => {
                for frame in frames {
                    events.send_multipart(&frame, 0)?;
                    published.push(frame);
                }
            }
            Err(TryRecvError::Empty) => (),
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        let mut sockets = [events.as_poll_item(zmq::POLLIN), replay.as_poll_item(zmq::POLLIN)];
        zmq::poll(&mut sockets, 1)?;
        let [from_events, from_replay] = sockets.map(|it| it.is_readable());
        if from_events && events.recv_bytes(0)?.first() == Some(&1) {
            subscribed.send(())?;
        }
        if from_replay {
            let request = replay.recv_multipart(0)?;
            ensure!(request.len() == 3, "a replay request has {} frames", request.len());
            let client = &request[0];
            let answer = |frames: [&[u8]; 3]| {
                let skip = usize::from(!with_topic);
                let frames = [client.as_slice(), b""].into_iter().chain(frames.into_iter().skip(skip));
                replay.send_multipart(frames, 0)
            };
            for frame in published.iter().filter(|it| request[2] <= it[1]) {
                answer([&frame[0], &frame[1], &frame[2]])?;
            }
            answer([b"", &[0xff; 8], b""])?;
        }
    }
}
