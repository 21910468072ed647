//! Faults that clients and probes meet.

use std::{
    io::{self, ErrorKind},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::world::{PATIENCE, World, chat, config};

fn streamed(max_tokens: u32) -> Value {
    let mut body = chat(&[("user", "hello")], max_tokens);
    body["stream"] = json!(true);
    body
}

/// A client that sees the bytes of its connection.
struct RawClient(BufReader<TcpStream>);

impl RawClient {
    async fn connect(world: &World) -> io::Result<Self> {
        TcpStream::connect(world.engine.http()).await.map(|stream| Self(BufReader::new(stream)))
    }

    async fn post(&mut self, path: &str, body: &Value) {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all((head + &body).as_bytes()).await.unwrap();
    }

    /// Lines up to the end, and how it ended.
    async fn read_all(&mut self) -> (Vec<String>, io::Result<()>) {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match timeout(PATIENCE, self.0.read_line(&mut line)).await.expect("the connection ends") {
                Ok(0) => return (lines, Ok(())),
                Ok(_) => lines.push(line),
                Err(error) => return (lines, Err(error)),
            }
        }
    }
}

#[tokio::test]
async fn reset_cuts_a_stream_after_so_many_events() {
    let world = World::start(config()).await;
    world.fault(&json!({"fault": "reset", "chunks": 3, "count": 1})).await;
    let mut client = RawClient::connect(&world).await.unwrap();
    client.post("/v1/chat/completions", &streamed(1000)).await;
    let (lines, end) = client.read_all().await;
    assert_eq!(end.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    let events = lines.iter().filter(|line| line.starts_with("data: ")).count();
    assert_eq!(events, 3, "{lines:?}");
    // The engine gives the request up, and the next one is whole.
    world.until_metric("vllm:num_requests_running", 0.0).await;
    let mut body = streamed(5);
    body["stream_options"] = json!({"include_usage": true});
    let response = world.http.post(world.url("/v1/chat/completions")).json(&body).send().await.unwrap();
    assert!(response.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    world.engine.stop().await;
}

#[tokio::test]
async fn slow_streams_delay_every_event() {
    let world = World::start(config()).await;
    world.fault(&json!({"fault": "slow-streams", "millis": 30})).await;
    let begin = Instant::now();
    let response =
        world.http.post(world.url("/v1/chat/completions")).json(&streamed(4)).send().await.unwrap();
    let text = response.text().await.unwrap();
    let events = text.matches("data: ").count();
    assert!(6 <= events, "{text}");
    let least = Duration::from_millis(30) * u32::try_from(events).unwrap();
    assert!(least <= begin.elapsed(), "{events} events in {:?}", begin.elapsed());
    world.engine.stop().await;
}

#[tokio::test]
async fn slow_steps_take_longer() {
    let world = World::start(config()).await;
    // A step takes 925 microseconds at least.
    world.fault(&json!({"fault": "slow-steps", "factor": 100.0})).await;
    let begin = Instant::now();
    world.ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 2})).await;
    assert!(Duration::from_millis(185) <= begin.elapsed(), "two steps in {:?}", begin.elapsed());
    assert!(0.0925 <= world.metric("vllm:time_to_first_token_seconds_sum").await);
    world.engine.stop().await;
}

#[tokio::test]
async fn fail_answers_the_next_requests_with_errors() {
    let world = World::start(config()).await;
    world.fault(&json!({"fault": "fail", "count": 2, "status": 502})).await;
    let body = chat(&[("user", "hello")], 1);
    assert_eq!(world.status("/health").await, 200, "only requests fail");
    for want in [502, 502, 200] {
        let (status, answer) = world.post("/v1/chat/completions", &body).await;
        assert_eq!(status, want, "{answer}");
    }
    world.fault(&json!({"fault": "fail"})).await;
    assert_eq!(world.post("/v1/completions", &body).await.0, 500, "the default");
    world.engine.stop().await;
}

#[tokio::test]
async fn refuse_closes_the_port_for_a_time() {
    let world = World::start(config()).await;
    let mut open = RawClient::connect(&world).await.unwrap();
    open.post("/v1/chat/completions", &streamed(30_000)).await;
    let mut line = String::new();
    open.0.read_line(&mut line).await.unwrap();
    assert_eq!(line, "HTTP/1.1 200 OK\r\n");
    world.fault(&json!({"fault": "refuse", "seconds": 2, "reset_open": true})).await;
    let (_, end) = open.read_all().await;
    assert_eq!(end.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    until_refused_and_back(&world).await;
    world.engine.stop().await;
}

#[tokio::test]
async fn restart_can_close_the_port_for_a_time() {
    let world = World::start(config()).await;
    let body = json!({"prompt": vec![9; 17], "max_tokens": 1});
    world.ask("/v1/completions", &body).await;
    world.fault(&json!({"fault": "restart", "down_seconds": 2})).await;
    until_refused_and_back(&world).await;
    assert_eq!(world.metric("lab:event_batches_total").await, 0.0, "it is another engine");
    world.engine.stop().await;
}

/// Waits until the port is closed, which is a moment after the answer to the command, and open again.
async fn until_refused_and_back(world: &World) {
    let refused = async {
        loop {
            if let Err(error) = RawClient::connect(world).await {
                return error.kind();
            }
        }
    };
    assert_eq!(timeout(PATIENCE, refused).await.expect("it refuses"), ErrorKind::ConnectionRefused);
    let accepted = async { while RawClient::connect(world).await.is_err() {} };
    timeout(PATIENCE, accepted).await.expect("it listens again");
    assert_eq!(world.status("/health").await, 200);
}

#[tokio::test]
async fn hang_http_accepts_and_does_not_answer() {
    let world = World::start(config()).await;
    world.fault(&json!({"fault": "hang", "what": "http"})).await;
    let mut client = RawClient::connect(&world).await.expect("connections are accepted");
    client.0.write_all(b"GET /health HTTP/1.1\r\nhost: engine\r\n\r\n").await.unwrap();
    let mut first = [0];
    // What is under /lab/ answers all the time, so the server is not just slow.
    let others = async {
        for _ in 0..20 {
            world.fault(&json!({"fault": "slow-streams", "millis": 0})).await;
        }
    };
    tokio::select! {
        biased;
        read = client.0.read_exact(&mut first) => panic!("{read:?}"),
        () = others => (),
    }
    world.fault(&json!({"fault": "heal"})).await;
    timeout(PATIENCE, client.0.read_exact(&mut first)).await.expect("it answers").unwrap();
    world.engine.stop().await;
}

#[tokio::test]
async fn hang_all_is_a_dead_port_that_accepts_until_it_heals() {
    let world = World::start(config()).await;
    world.fault(&json!({"fault": "hang"})).await;
    let body = json!({"prompt": vec![9; 17], "max_tokens": 1});
    let mut asked = Box::pin(world.ask("/v1/completions", &body));
    let others = async {
        for _ in 0..20 {
            world.fault(&json!({"fault": "slow-streams", "millis": 0})).await;
        }
    };
    tokio::select! {
        biased;
        answer = &mut asked => panic!("{answer}"),
        () = others => (),
    }
    world.fault(&json!({"fault": "heal"})).await;
    assert_eq!(asked.await["usage"]["completion_tokens"], 1);
    world.engine.stop().await;
}

#[tokio::test]
async fn hang_steps_makes_no_tokens_while_probes_are_answered() {
    let world = World::start(config()).await;
    let response =
        world.http.post(world.url("/v1/chat/completions")).json(&streamed(30_000)).send().await.unwrap();
    let mut stream = response.bytes_stream();
    stream.next().await.unwrap().unwrap();
    world.fault(&json!({"fault": "hang", "what": "steps"})).await;
    // Asked of the same thread, after the fault.
    let is_there = async || world.get("/is_sleeping").await;
    is_there().await;
    let tokens = world.metric("vllm:generation_tokens_total").await;
    for _ in 0..30 {
        is_there().await;
    }
    assert_eq!(world.metric("vllm:generation_tokens_total").await, tokens, "no step ends");
    assert_eq!(world.status("/health").await, 200);
    // Requests are taken, and wait.
    let body = json!({"prompt": "hello", "max_tokens": 1});
    let waiting = async { world.ask("/v1/completions", &body).await };
    let others = async {
        for _ in 0..20 {
            is_there().await;
        }
    };
    tokio::select! {
        biased;
        answer = waiting => panic!("{answer}"),
        () = others => (),
    }
    world.fault(&json!({"fault": "heal"})).await;
    timeout(PATIENCE, async { while world.metric("vllm:generation_tokens_total").await <= tokens + 10.0 {} })
        .await
        .expect("it goes on");
    world.engine.stop().await;
}

#[tokio::test]
async fn die_ends_answers_and_shows_in_health() {
    let world = World::start(config()).await;
    let mut client = RawClient::connect(&world).await.unwrap();
    client.post("/v1/chat/completions", &streamed(30_000)).await;
    let mut line = String::new();
    client.0.read_line(&mut line).await.unwrap();
    world.fault(&json!({"fault": "die"})).await;
    let (lines, _) = client.read_all().await;
    assert!(!lines.iter().any(|line| line.contains("[DONE]")), "the answer is not whole");
    assert_eq!(world.status("/health").await, 503);
    let (status, _) = world.post("/v1/completions", &json!({"prompt": "hello"})).await;
    assert_eq!(status, 503);
    assert_eq!(world.get("/version").await, r#"{"version":"0.32.0"}"#, "the server itself lives");
    world.fault(&json!({"fault": "heal"})).await;
    assert_eq!(world.status("/health").await, 503, "only another engine helps");
    world.fault(&json!({"fault": "restart"})).await;
    assert_eq!(world.status("/health").await, 200);
    world.engine.stop().await;
}

#[tokio::test]
async fn what_is_no_fault_is_refused() {
    let world = World::start(config()).await;
    for (body, word) in [
        (json!({"fault": "nothing"}), "nothing"),
        (json!({"fault": "gap", "cuont": 1}), "cuont"),
        (json!({"fault": "slow-steps", "factor": 0}), "factor"),
        (json!({"fault": "refuse", "seconds": -1}), "seconds"),
    ] {
        let (status, answer) = world.post("/lab/faults", &body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
    }
    world.engine.stop().await;
}
