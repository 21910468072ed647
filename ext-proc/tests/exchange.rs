//! The server over real gRPC, spoken to as Envoy and an agent do.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{net::SocketAddr, time::Duration};

use envoy_types::pb::envoy::{
    config::core::v3::{HeaderMap, HeaderValue},
    extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
    service::ext_proc::v3::{
        HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
        external_processor_client::ExternalProcessorClient, processing_request::Request,
        processing_response::Response,
    },
};
use kvpick::{app::App, config::Config};
use kvpick_proto::{
    pb::{self, feed_client::FeedClient},
    words::{
        AgentMessage, Completeness, CopyChunk, Description, EngineStatus, Events, Handle, Hello, PROTOCOL,
        ReplicaName, ServerMessage,
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Longest wait for anything; on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);

async fn start(more: &str) -> App {
    let yaml = format!(
        "listen: 127.0.0.1:0\nfeed: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
         replicas:\n  - {{address: 127.0.0.1:8000, node: a, models: [m]}}\n{more}"
    );
    let config: Config = kvpick_service::config::parse(&yaml).unwrap();
    assert_eq!(config.mistakes(), Vec::<String>::new());
    App::start(config, None).await.unwrap()
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

struct Exchange {
    say: mpsc::Sender<ProcessingRequest>,
    heard: Streaming<ProcessingResponse>,
}

impl Exchange {
    async fn open(app: &App) -> Self {
        let mut client = ExternalProcessorClient::connect(url(app.addresses["ext_proc"]))
            .await
            .unwrap()
            .max_encoding_message_size(80 << 20)
            .max_decoding_message_size(80 << 20);
        let (say, requests) = mpsc::channel(16);
        let heard = client.process(ReceiverStream::new(requests)).await.unwrap().into_inner();
        Self { say, heard }
    }

    async fn headers(&self, path: &str, mode: BodySendMode, end_of_stream: bool) {
        let header = |key: &str, value: &str| HeaderValue {
            key: key.to_owned(),
            raw_value: value.as_bytes().to_vec(),
            ..HeaderValue::default()
        };
        let headers = HeaderMap { headers: vec![header(":method", "POST"), header(":path", path)] };
        let config =
            ProtocolConfiguration { request_body_mode: mode.into(), ..ProtocolConfiguration::default() };
        let headers = HttpHeaders { headers: Some(headers), end_of_stream, ..HttpHeaders::default() };
        self.send(Request::RequestHeaders(headers), Some(config)).await;
    }

    async fn body(&self, body: &[u8], end_of_stream: bool) {
        let body = HttpBody { body: body.to_vec(), end_of_stream, ..HttpBody::default() };
        self.send(Request::RequestBody(body), None).await;
    }

    async fn send(&self, request: Request, protocol_config: Option<ProtocolConfiguration>) {
        let message =
            ProcessingRequest { request: Some(request), protocol_config, ..ProcessingRequest::default() };
        self.say.send(message).await.unwrap();
    }

    async fn next(&mut self) -> ProcessingResponse {
        let next = tokio::time::timeout(PATIENCE, self.heard.message()).await;
        next.expect("no answer in time").unwrap().expect("the stream ended")
    }
}

fn destination(response: &ProcessingResponse) -> Option<String> {
    let common = match response.response.as_ref()? {
        Response::RequestBody(it) => it.response.as_ref()?,
        Response::RequestHeaders(it) => it.response.as_ref()?,
        _ => return None,
    };
    let header = common.header_mutation.as_ref()?.set_headers.first()?.header.as_ref()?;
    assert!(response.dynamic_metadata.is_some(), "header and metadata go together");
    Some(String::from_utf8(header.raw_value.clone()).unwrap())
}

async fn decisions(app: &App, tier: &str, reason: &str) -> bool {
    let text =
        reqwest::get(format!("{}/metrics", url(app.addresses["admin"]))).await.unwrap().text().await.unwrap();
    text.contains(&format!("kvpick_decisions_total{{reason=\"{reason}\",tier=\"{tier}\"}} 1"))
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_every_kind_are_routed_with_the_reason_counted() {
    for (body, tier, reason) in [
        ("not json", "load", "not_json"),
        (r#"{"model": "m"}"#, "load", "no_messages"),
        (r#"{"model": "m", "messages": 5}"#, "load", "wrong_type"),
        (r#"{"model": "other", "messages": [{"role": "user", "content": "x"}]}"#, "load", "unknown_model"),
        (r#"{"model": "m", "messages": [{"role": "user", "content": "x"}]}"#, "load", "no_tokenizer"),
    ] {
        let app = start("").await;
        let mut exchange = Exchange::open(&app).await;
        exchange.headers("/v1/chat/completions", BodySendMode::Buffered, false).await;
        assert_eq!(destination(&exchange.next().await), None);
        exchange.body(body.as_bytes(), true).await;
        assert_eq!(destination(&exchange.next().await).as_deref(), Some("127.0.0.1:8000"), "{body}");
        assert!(decisions(&app, tier, reason).await, "{body}: {tier}/{reason}");
        drop(exchange);
        assert!(app.stop(PATIENCE).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_far_above_grpcs_default_limit_passes() {
    let app = start("").await;
    let body = vec![b' '; 20 << 20];
    let mut exchange = Exchange::open(&app).await;
    exchange.headers("/v1/completions", BodySendMode::Buffered, false).await;
    exchange.next().await;
    exchange.body(&body, true).await;
    assert_eq!(destination(&exchange.next().await).as_deref(), Some("127.0.0.1:8000"));

    let mut exchange = Exchange::open(&app).await;
    exchange.headers("/v1/completions", BodySendMode::FullDuplexStreamed, false).await;
    exchange.body(&body, false).await;
    exchange.body(b"", true).await;
    assert!(destination(&exchange.next().await).is_some());
    let mut n = 0;
    loop {
        let Some(Response::RequestBody(it)) = exchange.next().await.response else { panic!() };
        let mutation = it.response.unwrap().body_mutation.unwrap().mutation.unwrap();
        let envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation::StreamedResponse(piece) =
            mutation
        else {
            panic!()
        };
        n += piece.body.len();
        if piece.end_of_stream {
            break;
        }
    }
    assert_eq!(n, body.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_count_as_in_flight_until_their_stream_ends() {
    let app = start("").await;
    let status = async || -> u64 {
        let url = format!("{}/status", url(app.addresses["admin"]));
        let status: serde_json::Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        status["replicas"][0]["in_flight"]["requests"].as_u64().unwrap()
    };
    let mut exchange = Exchange::open(&app).await;
    exchange.headers("/v1/models", BodySendMode::Buffered, true).await;
    assert!(destination(&exchange.next().await).is_some());
    assert_eq!(status().await, 1);
    drop(exchange);
    let gone = async {
        while status().await != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the request still counts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_streams_that_only_await_the_end_of_an_answer() {
    let app = start("").await;
    let mut exchange = Exchange::open(&app).await;
    exchange.headers("/v1/models", BodySendMode::Buffered, true).await;
    exchange.next().await;
    exchange.send(Request::ResponseHeaders(HttpHeaders::default()), None).await;
    exchange.next().await;
    assert!(app.stop(PATIENCE).await, "the stream kept the server");
    let end = tokio::time::timeout(PATIENCE, exchange.heard.message()).await.unwrap();
    assert!(matches!(end, Ok(None)), "ended with OK, so that Envoy goes on: {end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_follows_readiness_and_drain() {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };
    let app = start("").await;
    let channel =
        tonic::transport::Endpoint::new(url(app.addresses["ext_proc"])).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let service = "envoy.service.ext_proc.v3.ExternalProcessor".to_owned();
    let ask = HealthCheckRequest { service };
    let first = client.check(ask.clone()).await.unwrap().into_inner();
    assert_eq!(first.status(), ServingStatus::NotServing, "an agent's copy is awaited");
    let feed = Agent::connect(&app, "a", 1).await;
    feed.describe_and_copy().await;
    let served = async {
        while client.check(ask.clone()).await.unwrap().into_inner().status() != ServingStatus::Serving {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("never served");
}

struct Agent {
    say: mpsc::Sender<pb::AgentMessage>,
    heard: Streaming<pb::ServerMessage>,
}

impl Agent {
    async fn connect(app: &App, node: &str, epoch: u64) -> Self {
        let mut client = FeedClient::connect(url(app.addresses["feed"])).await.unwrap();
        let (say, messages) = mpsc::channel(16);
        let heard = client.stream(ReceiverStream::new(messages)).await.unwrap().into_inner();
        let (version, token) = (String::new(), String::new());
        let agent = Self { say, heard };
        agent
            .say(AgentMessage::Hello(Hello {
                protocol: PROTOCOL,
                node: node.to_owned(),
                epoch,
                version,
                token,
            }))
            .await;
        agent
    }

    async fn say(&self, message: AgentMessage) {
        self.say.send(message.into()).await.unwrap();
    }

    async fn describe_and_copy(&self) {
        let description = Description {
            name: ReplicaName { address: ([127, 0, 0, 1], 8000).into(), rank: 0 },
            incarnation: String::new(),
            events: Events::Awaited,
            models: vec!["m".to_owned()],
            adapters: Vec::new(),
            domain: None,
            key_kinds: Vec::new(),
            completeness: Completeness::Complete,
            num_gpu_blocks: 0,
            groups: Vec::new(),
            max_model_len: 0,
            hit_blocks_dropped: 0,
            status: EngineStatus::Up,
            status_reason: String::new(),
            engine_version: String::new(),
            rank_by_header: false,
            tier_weights: Vec::new(),
        };
        self.say(AgentMessage::Describe(Handle(0), Box::new(description))).await;
        let chunk = CopyChunk { first: true, last: true, ..CopyChunk::default() };
        self.say(AgentMessage::Copy(Handle(0), chunk)).await;
    }

    async fn next(&mut self) -> Result<ServerMessage, tonic::Status> {
        let next = tokio::time::timeout(PATIENCE, self.heard.message()).await.expect("nothing said in time");
        next.map(|it| it.expect("the stream ended").try_into().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_welcomed_refused_and_superseded() {
    let app = start("").await;
    let mut agent = Agent::connect(&app, "a", 1).await;
    assert!(matches!(agent.next().await, Ok(ServerMessage::Welcome(_))));
    agent.describe_and_copy().await;
    assert_eq!(agent.next().await.unwrap(), ServerMessage::Accepted(Handle(0)));

    let mut foreign = Agent::connect(&app, "b", 1).await;
    assert!(matches!(foreign.next().await, Ok(ServerMessage::Welcome(_))));
    foreign.describe_and_copy().await;
    assert!(matches!(foreign.next().await, Ok(ServerMessage::Refused(Handle(0), _))));

    let mut newer = Agent::connect(&app, "a", 2).await;
    assert!(matches!(newer.next().await, Ok(ServerMessage::Welcome(_))));
    let end = loop {
        match agent.next().await {
            Ok(_) => (),
            Err(status) => break status,
        }
    };
    assert!(end.message().contains("newer stream"), "{end:?}");
}

#[test]
fn every_mistake_of_a_configuration_is_reported_with_its_field() {
    let yaml = "
feed: 0.0.0.0:9004
admin: 127.0.0.1:9002
max_body_bytes: 18446744073709551615
workers: 18446744073709551615
memory: {routed_expiry_s: 10000000000000000000}
destinations: 0
memo: {max_bytes: 1000}
leave_after_request: true
conformance: true
models: [{name: m, path: no/such/folder, utc_offset_minutes: 1441, tokenizer_mode: ''}, {name: m, path: no/such/folder}]
replicas:
  - {address: 127.0.0.1:0, models: [m]}
  - {address: 127.0.0.1:1}
  - {address: 127.0.0.1:1, models: [m]}
  - {address: 127.0.0.1:2, ranks: 0, models: [m]}
  - {address: 127.0.0.1:3, ranks: 4000000000, models: [m]}
  - {address: 127.0.0.1:4, ranks: 4, models: [m]}
  - {address: 127.0.0.1:4, rank: 3, models: [m]}
";
    let config: Config = kvpick_service::config::parse(yaml).unwrap();
    let mistakes = config.mistakes().join("\n");
    for field in [
        "feed:",
        "destinations:",
        "models[0].path",
        "models[0].utc_offset_minutes",
        "models[0].tokenizer_mode",
        "models[1]:",
        "replicas[0].address",
        "replicas[1].models",
        "replicas[2]:",
        "replicas[3].ranks",
        "replicas[4].ranks",
        "replicas[6]: 127.0.0.1:4 rank 3",
        "max_body_bytes:",
        "workers:",
        "memory.routed_expiry_s:",
        "conformance: sets a header of the answer",
        "memo.max_bytes: 1000 is out of range",
        "admin:",
    ] {
        assert!(mistakes.contains(field), "{field} is not in\n{mistakes}");
    }
    assert!(kvpick_service::config::parse::<Config>("replica: []").is_err(), "unknown fields are mistakes");
}

#[test]
fn ranks_of_one_address_are_a_replica_each() {
    let yaml = "replicas: [{address: 127.0.0.1:1, models: [m]}, {address: 127.0.0.1:2, rank: 2, ranks: 2, models: [m]}]";
    let config: Config = kvpick_service::config::parse(yaml).unwrap();
    let names: Vec<_> = config.replica_specs().iter().map(|it| it.name.to_string()).collect();
    assert_eq!(names, ["127.0.0.1:1", "127.0.0.1:2#2", "127.0.0.1:2#3"]);
}

#[test]
fn the_example_configuration_has_every_field_at_its_default_unless_said_otherwise() {
    let text = include_str!("../kvpick.example.yaml");
    let example: Config = kvpick_service::config::parse(text).unwrap();
    let example = serde_json::to_value(&example).unwrap();
    let mut least: serde_json::Value = kvpick_service::config::parse(text).unwrap();
    for (field, value) in example.as_object().unwrap() {
        let given = &least[field];
        // The file spells out every field, inner ones too.
        let fields = |it: &serde_json::Value| it.as_object().map(|it| it.keys().cloned().collect::<Vec<_>>());
        assert_eq!(fields(given), fields(value), "{field}");
        for (given, value) in
            given.as_array().into_iter().flatten().zip(value.as_array().into_iter().flatten())
        {
            assert_eq!(
                fields(given).map(|it| it.len()),
                fields(value).map(|it| it.len()),
                "{field}: {given}"
            );
        }
    }
    // Without what has a default, nothing else changes.
    least.as_object_mut().unwrap().retain(|field, _| field == "replicas" || field == "models");
    let least: Config = serde_json::from_value(least).unwrap();
    assert_eq!(serde_json::to_value(&least).unwrap(), example);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_looked_at_still_goes_to_a_replica_of_its_model() {
    let app = start("  - {address: 127.0.0.1:8001, node: a, models: [other]}\nmax_body_bytes: 1024\n").await;
    let body = format!(r#"{{"model": "other", "prompt": "{}"}}"#, "x".repeat(3 << 20));
    for mode in [BodySendMode::Buffered, BodySendMode::FullDuplexStreamed, BodySendMode::BufferedPartial] {
        for _ in 0..4 {
            let mut exchange = Exchange::open(&app).await;
            exchange.headers("/v1/completions", mode, false).await;
            if mode != BodySendMode::FullDuplexStreamed {
                exchange.next().await;
            }
            exchange.body(body.as_bytes(), mode != BodySendMode::BufferedPartial).await;
            let got = destination(&exchange.next().await);
            assert_eq!(got.as_deref(), Some("127.0.0.1:8001"), "{mode:?}");
        }
    }
}
