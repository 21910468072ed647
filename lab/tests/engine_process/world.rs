//! An engine under test, one who listens to its events, and a client.

use std::time::Duration;

use kvpick_agent_core::decode::{Batch, Event, Message, Replayed, Stored};
use kvpick_lab::{
    engine::{Config, Engine, cost::StepCost, publisher::Endpoints},
    rig::tools,
    seeded::Seeded,
    words,
};
use serde_json::{Value, json};

pub(crate) const MODEL: &str = "model-a";

/// Longest wait for anything; only a failure takes that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn config() -> Config {
    let mut config = Config::new(MODEL, tools::tokenizer().unwrap());
    config.models.push("model-a-alias".to_owned());
    // Fast enough for tests, slow enough to meet a request while it runs.
    config.cost = StepCost { speed: 20.0, ..StepCost::default() };
    config
}

/// An engine and one who listens to its events and talks to it.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) http: reqwest::Client,
    subscriber: zmq::Socket,
    context: zmq::Context,
}

impl World {
    pub(crate) async fn start(mut config: Config) -> Self {
        // The engine connects, as vLLM does to an address without a wildcard.
        let context = zmq::Context::new();
        let subscriber = context.socket(zmq::SUB).unwrap();
        subscriber.set_subscribe(b"").unwrap();
        subscriber.set_rcvtimeo(i32::try_from(PATIENCE.as_millis()).unwrap()).unwrap();
        subscriber.bind("tcp://127.0.0.1:*").unwrap();
        config.endpoints = Endpoints {
            events: subscriber.get_last_endpoint().unwrap().unwrap(),
            topic: "kv@a@m".to_owned(),
            ..config.endpoints
        };
        let engine = Engine::start(config).await.unwrap();
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { engine, http, subscriber, context }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.engine.http())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.http.post(self.url(path)).json(body).send().await.unwrap();
        let who = response.headers()["x-lab-engine"].to_str().unwrap().to_owned();
        assert_eq!(who, self.engine.http().to_string());
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub(crate) async fn ask(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Gives the engine a fault; everything that is asked of its ranks afterwards meets it.
    pub(crate) async fn fault(&self, fault: &Value) {
        let (status, answer) = self.post("/lab/faults", fault).await;
        assert_eq!(status, 200, "{answer}");
    }

    /// The status of a POST without a body, and what it says.
    pub(crate) async fn command(&self, path: &str) -> (u16, String) {
        let response = self.http.post(self.url(path)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    pub(crate) async fn status(&self, path: &str) -> u16 {
        self.http.get(self.url(path)).send().await.unwrap().status().as_u16()
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        self.http.get(self.url(path)).send().await.unwrap().text().await.unwrap()
    }

    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await;
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub(crate) async fn until_metric(&self, name: &str, want: f64) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let is = self.metric(name).await;
            if is == want {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{name} is {is}, want {want}");
            tokio::task::yield_now().await;
        }
    }

    /// The frames of the next message.
    pub(crate) fn hear_frames(&self) -> Vec<Vec<u8>> {
        self.subscriber.recv_multipart(0).expect("the engine announces what it stores")
    }

    /// Whether a message is there within a moment.
    pub(crate) fn hears_something(&self) -> bool {
        self.subscriber.poll(zmq::POLLIN, 100).unwrap() != 0
    }

    pub(crate) fn hear(&self) -> (Message, Batch) {
        let frames = self.hear_frames();
        assert_eq!(frames[0], b"kv@a@m");
        let message = Message::live(frames).unwrap();
        let batch = Batch::decode(&message.payload).unwrap();
        (message, batch)
    }

    /// The next batch, which is one store.
    pub(crate) fn hear_store(&self) -> Stored {
        match self.hear().1.events.pop() {
            Some(Event::Stored(stored)) => *stored,
            other => panic!("want a store, got {other:?}"),
        }
    }

    /// Makes the engine announce blocks until that is heard, since a publisher sends nothing before a subscription has
    /// reached it. Returns the sequence of the next batch.
    pub(crate) async fn listen(&self) -> u64 {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut published = 0;
        loop {
            self.ask("/v1/completions", &json!({"prompt": vec![published; 17], "max_tokens": 1})).await;
            published += 1;
            if self.subscriber.poll(zmq::POLLIN, 50).unwrap() != 0 {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{published} batches published, none heard");
        }
        while self.hear().0.sequence + 1 < published {}
        published
    }

    pub(crate) fn replay(&self, from: u64) -> Vec<Vec<Vec<u8>>> {
        let socket = self.context.socket(zmq::DEALER).unwrap();
        socket.set_rcvtimeo(i32::try_from(PATIENCE.as_millis()).unwrap()).unwrap();
        socket.connect(self.engine.replay().unwrap()).unwrap();
        socket.send_multipart([b"".as_slice(), &from.to_be_bytes()], 0).unwrap();
        let mut answers = Vec::new();
        loop {
            let frames = socket.recv_multipart(0).expect("a replay ends with its marker");
            let end = Replayed::from_frames(frames.clone()).unwrap() == Replayed::End;
            answers.push(frames);
            if end {
                return answers;
            }
        }
    }
}

pub(crate) fn chat(messages: &[(&str, &str)], max_tokens: u32) -> Value {
    let messages: Vec<Value> =
        messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    json!({"model": MODEL, "messages": messages, "max_tokens": max_tokens})
}

pub(crate) fn long_text(count: usize) -> String {
    words::text(&mut Seeded::new(&[count as u64]), count)
}

pub(crate) fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}
