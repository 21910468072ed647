//! Several data-parallel ranks behind one server.

use futures::StreamExt as _;
use kvpick_agent_core::decode::{Batch, Message};
use kvpick_lab::engine::{Config, Engine, publisher::Endpoints};
use serde_json::{Value, json};

use crate::world::{PATIENCE, World, chat, config};

async fn ask(world: &World, rank: Option<&str>, body: &Value) -> reqwest::Response {
    let mut request = world.http.post(world.url("/v1/completions")).json(body);
    if let Some(rank) = rank {
        request = request.header("X-data-parallel-rank", rank);
    }
    request.send().await.unwrap()
}

async fn queries(world: &World, rank: usize) -> u64 {
    let text = world.get("/metrics").await;
    let start = format!("vllm:prefix_cache_queries_total{{engine=\"{rank}\"");
    let line = text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_header_chooses_the_rank_and_each_has_its_own_blocks_and_metrics() {
    let world = World::start(Config { ranks: 3, ..config() }).await;
    let body = json!({"prompt": vec![9; 33], "max_tokens": 1});
    for (rank, want) in [("1", 0), ("2", 0), ("1", 32)] {
        let answer: Value = ask(&world, Some(rank), &body).await.json().await.unwrap();
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], want, "rank {rank}");
    }
    assert_eq!([queries(&world, 0).await, queries(&world, 1).await, queries(&world, 2).await], [0, 66, 33]);
    let response = ask(&world, Some("3"), &body).await;
    assert_eq!(response.status(), 400);
    assert!(response.text().await.unwrap().contains("[0, 3)"));
    // What is no number is passed over.
    assert_eq!(ask(&world, Some("one"), &body).await.status(), 200);
    world.engine.stop().await;
}

#[tokio::test]
async fn without_a_header_the_least_busy_rank_is_taken() {
    let world = World::start(Config { ranks: 2, ..config() }).await;
    let mut long = chat(&[("user", "hello")], 30_000);
    long["stream"] = json!(true);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let response = world.http.post(world.url("/v1/chat/completions")).json(&long).send().await.unwrap();
        let mut stream = response.bytes_stream();
        stream.next().await.unwrap().unwrap();
        streams.push(stream);
    }
    let load: Value = serde_json::from_str(&world.get("/load").await).unwrap();
    assert_eq!(load, json!({"server_load": 2}));
    let [first, second] = [queries(&world, 0).await, queries(&world, 1).await];
    assert!(0 < first && first == second, "{first} and {second}");
    drop(streams);
    world.engine.stop().await;
}

#[tokio::test]
async fn rank_r_connects_to_the_port_plus_r_and_says_so() {
    let context = zmq::Context::new();
    let subscriber = || {
        let socket = context.socket(zmq::SUB).unwrap();
        socket.set_subscribe(b"").unwrap();
        socket.set_rcvtimeo(i32::try_from(PATIENCE.as_millis()).unwrap()).unwrap();
        socket
    };
    // Two ports in a row; the second of most is free.
    let (port, sockets) = (0..100)
        .find_map(|_| {
            let [first, second] = [subscriber(), subscriber()];
            first.bind("tcp://127.0.0.1:*").unwrap();
            let endpoint = first.get_last_endpoint().unwrap().unwrap();
            let port: u16 = endpoint.rsplit(':').next().unwrap().parse().unwrap();
            second.bind(&format!("tcp://127.0.0.1:{}", port.checked_add(1)?)).ok()?;
            Some((port, [first, second]))
        })
        .expect("two ports in a row are free");
    let config = config();
    let endpoints = Endpoints { events: format!("tcp://127.0.0.1:{port}"), ..config.endpoints };
    let engine = Engine::start(Config { endpoints, ranks: 2, ..config }).await.unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let base = format!("http://{}", engine.http());
    for (rank, socket) in (0u32..).zip(&sockets) {
        let mut number = 0;
        while socket.poll(zmq::POLLIN, 50).unwrap() == 0 {
            let body = json!({"prompt": vec![number; 17], "max_tokens": 1});
            let request = http.post(format!("{base}/v1/completions")).json(&body);
            request.header("X-data-parallel-rank", rank.to_string()).send().await.unwrap();
            number += 1;
            assert!(number < 1000, "rank {rank} is not heard");
        }
        let message = Message::live(socket.recv_multipart(0).unwrap()).unwrap();
        assert_eq!(Batch::decode(&message.payload).unwrap().rank, Some(rank));
    }
    let sources: Value =
        http.get(format!("{base}/kv_event_sources")).send().await.unwrap().json().await.unwrap();
    assert_eq!(sources["0"]["endpoint"], format!("tcp://127.0.0.1:{port}"));
    assert_eq!(sources["1"]["endpoint"], format!("tcp://127.0.0.1:{}", port + 1));
    assert_eq!(sources["1"]["replay_endpoint"], engine.endpoints()[1].replay.clone().unwrap());
    assert_eq!(
        engine.addresses().into_keys().collect::<Vec<_>>(),
        ["events", "events-1", "http", "replay", "replay-1"]
    );
    engine.stop().await;
}

#[tokio::test]
async fn ranks_that_bind_publish_at_ports_of_their_own() {
    let engine = Engine::start(Config { ranks: 2, ..config() }).await.unwrap();
    let (context, http) = (zmq::Context::new(), reqwest::Client::builder().no_proxy().build().unwrap());
    for (rank, endpoints) in (0u32..).zip(engine.endpoints()) {
        let socket = context.socket(zmq::SUB).unwrap();
        socket.set_subscribe(b"").unwrap();
        socket.connect(&endpoints.events).unwrap();
        let mut number = 0;
        while socket.poll(zmq::POLLIN, 50).unwrap() == 0 {
            let body = json!({"prompt": vec![number; 17], "max_tokens": 1});
            let request = http.post(format!("http://{}/v1/completions", engine.http())).json(&body);
            request.header("X-data-parallel-rank", rank.to_string()).send().await.unwrap();
            number += 1;
            assert!(number < 1000, "rank {rank} is not heard");
        }
        let message = Message::live(socket.recv_multipart(0).unwrap()).unwrap();
        assert_eq!(Batch::decode(&message.payload).unwrap().rank, Some(rank));
    }
    engine.stop().await;
}
