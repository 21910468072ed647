//! How long each event of a streamed answer takes through Envoy: without a filter, with kvpick and the answer's body not shown
//! to it, and with the body shown, beside a server that only echoes. Rounds are interleaved, as machines are noisy: compare
//! ratios.
//!
//! An event says when it was written; engine and client share a clock.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic, and says what it found")]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    ffi::OsStr,
    net::SocketAddr,
    path::Path,
    sync::LazyLock,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt as _, future::join_all};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use kvpick_lab::rig::{
    envoy::{Envoy, Mode},
    program::{ModelConfig, Program, ReplicaConfig, ServerConfig},
    scratch::Scratch,
    tools, wait,
};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

const ROUNDS: usize = 9;
const STREAMS: usize = 4;
const EVENTS: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(10);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Who is asked, and how the answer's body is sent there.
struct Variant {
    name: &'static str,
    picker: Option<&'static str>,
    response_body_mode: &'static str,
    request_body_mode: &'static str,
}

const fn variant(
    name: &'static str,
    picker: Option<&'static str>,
    request_body_mode: &'static str,
    response_body_mode: &'static str,
) -> Variant {
    Variant { name, picker, response_body_mode, request_body_mode }
}

/// The first is what the others are compared with; of the rest, those with the echo come before their like.
const VARIANTS: [Variant; 7] = [
    variant("no filter", None, "", ""),
    variant("kvpick, NONE", Some("kvpick"), "BUFFERED", "NONE"),
    variant("echo, NONE", Some("echo"), "BUFFERED", "NONE"),
    variant("echo, STREAMED", Some("echo"), "BUFFERED", "STREAMED"),
    variant("kvpick, STREAMED", Some("kvpick"), "BUFFERED", "STREAMED"),
    variant("echo, FULL_DUPLEX_STREAMED", Some("echo"), "FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
    variant("kvpick, FULL_DUPLEX_STREAMED", Some("kvpick"), "FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let scratch = Scratch::new("bench-sse").unwrap();
    let folder = scratch.path();
    let engine = engine().await;
    let kvpick = server(folder, engine).await;
    let mut echo = Program::new("echo", folder, "examples/echo", &[] as &[&OsStr]).unwrap();
    echo.start().await.unwrap();
    let pickers = BTreeMap::from([
        ("kvpick", kvpick.address("ext_proc").unwrap()),
        ("echo", echo.address("ext_proc").unwrap()),
    ]);
    let log = folder.join("envoy.access.log");
    let config = envoy_config(&pickers, engine, &log);
    let envoy = Envoy::start_config(&tools::envoy().unwrap(), "envoy", folder, &config, log).await.unwrap();

    let mut medians: Vec<Vec<f64>> = VARIANTS.iter().map(|_| Vec::new()).collect();
    for round in 0..=ROUNDS {
        for (variant, medians) in VARIANTS.iter().zip(&mut medians) {
            let address = envoy.listeners()[variant.name];
            let mut delays: Vec<f64> =
                join_all((0..STREAMS).map(|_| delays(address))).await.into_iter().flatten().collect();
            assert_eq!(delays.len(), STREAMS * EVENTS as usize, "{}", variant.name);
            // The first round warms up.
            if 0 < round {
                medians.push(median(&mut delays));
            }
        }
    }
    for picker in ["picker-kvpick", "picker-echo"] {
        let failed = envoy.stat(&format!("http.openai.ext_proc.{picker}.streams_failed")).await.unwrap();
        assert_eq!(failed, 0, "{picker}");
    }
    println!(
        "{STREAMS} streams of {EVENTS} events, one in {BETWEEN:?}; {ROUNDS} interleaved rounds; median delay of an event"
    );
    for (variant, own) in VARIANTS.iter().zip(&medians) {
        let against = |name: &str| {
            let other = VARIANTS.iter().position(|it| it.name == name)?;
            let mut ratios: Vec<f64> =
                own.iter().zip(&medians[other]).map(|(own, other)| own / other).collect();
            Some(median(&mut ratios))
        };
        let echo = variant.name.replace("kvpick", "echo");
        let beside = if echo == variant.name { None } else { against(&echo) };
        println!(
            "{:<30} {:>6.0} us   x{:.2} of no filter{}",
            variant.name,
            median(&mut own.clone()),
            against("no filter").unwrap(),
            beside.map_or_else(String::new, |it| format!("   x{it:.2} of the echo")),
        );
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Microseconds between the writing and the reading of each event of one answer.
async fn delays(gateway: SocketAddr) -> Vec<f64> {
    let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().unwrap();
    let body = json!({"model": "m", "stream": true, "prompt": "a streamed answer"}).to_string();
    let request =
        http.post(format!("http://{gateway}/v1/completions")).header("content-type", "application/json");
    let answer = request.body(body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut chunks = answer.bytes_stream();
    let (mut text, mut delays) = (String::new(), Vec::new());
    while let Some(chunk) = chunks.next().await {
        let now = START.elapsed();
        text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
            let written = Duration::from_nanos(event["written"].as_u64().unwrap());
            delays.push((now - written).as_secs_f64() * 1e6);
            text = rest.to_owned();
        }
    }
    delays
}

/// An engine that answers everything with events; it ends with the bench.
async fn engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            tokio::spawn(async move {
                let io = TokioIo::new(stream);
                drop(auto::Builder::new(TokioExecutor::new()).serve_connection(io, service_fn(answer)).await);
            });
        }
    });
    address
}

async fn answer(request: Request<Incoming>) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    drop(request.collect().await);
    let events = futures::stream::iter(0..EVENTS).then(|number| async move {
        tokio::time::sleep(BETWEEN).await;
        let event = json!({
            "id": "cmpl-0123456789abcdef0123456789abcdef",
            "object": "text_completion",
            "created": 1_796_126_888,
            "model": "m",
            "choices": [{"index": 0, "text": format!(" word{number}"), "logprobs": null, "finish_reason": null}],
            "written": u64::try_from(START.elapsed().as_nanos()).unwrap(),
        });
        Ok(Frame::data(Bytes::from(format!("data: {event}\n\n"))))
    });
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(events)));
    response.headers_mut().insert("content-type", "text/event-stream; charset=utf-8".parse().unwrap());
    Ok(response)
}

async fn server(folder: &Path, engine: SocketAddr) -> Program {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let replica =
        ReplicaConfig { address: engine, rank: 0, node: "node".to_owned(), models: vec!["m".to_owned()] };
    let config = ServerConfig {
        listen: any,
        feed: any,
        admin: any,
        models: Vec::<ModelConfig>::new(),
        replicas: vec![replica],
        evidence_header: false,
        more: Map::from_iter([("log".to_owned(), json!({"filter": "warn"}))]),
    };
    let mut server = Program::server("kvpick", folder, &config).unwrap();
    server.start().await.unwrap();
    let ready = async || server.ready().await.map_err(|it| it.to_string());
    wait::until("kvpick to be ready", wait::LONG, ready).await.unwrap();
    server
}

/// The shipped config with a listener for each variant.
fn envoy_config(pickers: &BTreeMap<&str, SocketAddr>, engine: SocketAddr, log: &Path) -> Value {
    let mut config = Mode::Buffered.config().unwrap();
    let address =
        |it: SocketAddr| json!({"socket_address": {"address": it.ip().to_string(), "port_value": it.port()}});
    let endpoints = |it| json!([{"endpoint": {"address": address(it)}}]);
    let any = address("127.0.0.1:0".parse().unwrap());
    config["admin"]["address"] = any.clone();
    let mut clusters = Vec::new();
    for cluster in config["static_resources"]["clusters"].as_array().unwrap() {
        let is_picker = cluster["name"] == "picker";
        let hosts: Vec<_> = if is_picker {
            pickers.iter().map(|(name, address)| (format!("picker-{name}"), *address)).collect()
        } else {
            vec![("engines".to_owned(), engine)]
        };
        for (name, host) in hosts {
            let mut cluster = cluster.clone();
            cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = endpoints(host);
            cluster["load_assignment"]["cluster_name"] = json!(name);
            cluster["name"] = json!(name);
            clusters.push(cluster);
        }
    }
    config["static_resources"]["clusters"] = json!(clusters);
    let shipped = config["static_resources"]["listeners"][0].clone();
    let listener = |variant: &Variant| {
        let mut listener = shipped.clone();
        listener["name"] = json!(variant.name);
        listener["address"] = any.clone();
        let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
        manager["access_log"][0]["typed_config"]["path"] = json!(log);
        let filters = manager["http_filters"].as_array_mut().unwrap();
        let Some(name) = variant.picker else {
            filters.retain(|it| it["name"] != "picker");
            return listener;
        };
        let picker = filters.iter_mut().find(|it| it["name"] == "picker").unwrap();
        let name = format!("picker-{name}");
        let picker = &mut picker["typed_config"];
        picker["grpc_service"]["envoy_grpc"]["cluster_name"] = json!(name);
        picker["stat_prefix"] = json!(name);
        picker["message_timeout"] = json!("20s");
        let processing = &mut picker["processing_mode"];
        processing["request_body_mode"] = json!(variant.request_body_mode);
        processing["response_body_mode"] = json!(variant.response_body_mode);
        // Where bodies are given back Envoy insists on it.
        processing["request_trailer_mode"] = json!("SEND");
        listener
    };
    config["static_resources"]["listeners"] = VARIANTS.iter().map(listener).collect();
    config
}
