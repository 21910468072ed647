//! The configs against the real Envoy, with small engines that tell what reached them.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use tokio::net::TcpListener;

use super::*;
use crate::rig::ports;
use crate::rig::scratch::Scratch;

const MODES: [Mode; 3] = [Mode::Buffered, Mode::FullDuplex, Mode::RoundRobin];

/// An engine that answers with its own address, the length of the body, and the headers that it got.
async fn engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = async |State(address): State<SocketAddr>, headers: HeaderMap, body: axum::body::Bytes| {
        let headers: Vec<&str> = headers.keys().map(|name| name.as_str()).collect();
        Json(json!({"address": address.to_string(), "length": body.len(), "headers": headers}))
    };
    let router = axum::Router::new()
        .route("/v1/chat/completions", post(answer))
        .route("/reset_prefix_cache", post(answer))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(address);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Envoy before `engines`, with a picker that is not there.
async fn envoy(scratch: &Scratch, mode: Mode, engines: Vec<SocketAddr>) -> Envoy {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let addresses = Addresses {
        listener: any,
        admin: any,
        picker: ports::free().unwrap(),
        engines,
        patient: false,
        response_body_mode: None,
    };
    Envoy::start("envoy", scratch.path(), mode, &addresses).await.unwrap()
}

fn request(envoy: &Envoy, path: &str) -> reqwest::RequestBuilder {
    http().unwrap().post(format!("http://{}{path}", envoy.listener()))
}

async fn json_of(request: reqwest::RequestBuilder) -> Value {
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.json().await.unwrap()
}

#[tokio::test]
async fn each_config_takes_requests_and_logs_them() {
    for mode in MODES {
        let scratch = Scratch::new("envoy-modes").unwrap();
        let engine = engine().await;
        let envoy = envoy(&scratch, mode, vec![engine]).await;
        let answer = json_of(request(&envoy, "/v1/chat/completions").body("{}")).await;
        assert_eq!(answer["address"], engine.to_string());
        // With no picker there the request goes on, and the counter that operators watch says so.
        let allowed = envoy.picker_stat("failure_mode_allowed").await.unwrap();
        assert_eq!(allowed, u64::from(mode.has_picker()), "{mode:?}");

        let look = async || match envoy.access_log() {
            Ok(lines) if !lines.is_empty() => Ok(lines),
            other => Err(format!("{other:?}")),
        };
        let lines = wait::until("the access log", wait::LONG, look).await.unwrap();
        assert_eq!(lines[0]["status"], 200);
        assert_eq!(lines[0]["path"], "/v1/chat/completions");
        assert_eq!(lines[0]["upstream"], engine.to_string());
    }
}

#[tokio::test]
async fn what_clients_send_under_our_names_is_removed() {
    for mode in [Mode::Buffered, Mode::FullDuplex] {
        let scratch = Scratch::new("envoy-strip").unwrap();
        let envoy = envoy(&scratch, mode, vec![engine().await]).await;
        let request = request(&envoy, "/v1/chat/completions")
            .header("x-gateway-destination-endpoint", envoy.admin().to_string())
            .header("X-Gateway-Destination-Endpoint-Subset", "a")
            .header("x-gateway-destination-endpoint-served", "a")
            .header("x-kvpick-evidence", "a")
            .header("X-Kvpick-Anything", "a")
            .header("x-own", "a");
        let answer = json_of(request).await;
        let headers: Vec<&str> =
            answer["headers"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(headers.contains(&"x-own"), "{headers:?}");
        for header in headers {
            assert!(
                !header.starts_with("x-gateway") && !header.starts_with("x-kvpick"),
                "{mode:?}: {header}"
            );
        }
    }
}

#[tokio::test]
async fn bodies_of_many_mebibytes_pass() {
    let body = vec![b' '; 20 << 20];
    for mode in MODES {
        let scratch = Scratch::new("envoy-large").unwrap();
        let envoy = envoy(&scratch, mode, vec![engine().await]).await;
        let answer = json_of(request(&envoy, "/v1/chat/completions").body(body.clone())).await;
        assert_eq!(answer["length"], body.len(), "{mode:?}");
    }
}

#[tokio::test]
async fn an_engine_that_is_down_is_passed_by() {
    for mode in MODES {
        let scratch = Scratch::new("envoy-down").unwrap();
        let engines = vec![ports::free().unwrap(), engine().await];
        let envoy = envoy(&scratch, mode, engines.clone()).await;
        // More than one, as the first may go to the living engine by chance.
        for _ in 0..40 {
            let answer = json_of(request(&envoy, "/v1/chat/completions").body("{}")).await;
            assert_eq!(answer["address"], engines[1].to_string(), "{mode:?}");
        }
        let tried = envoy.stat("cluster.engines.upstream_rq_retry").await.unwrap();
        assert_ne!(tried, 0, "{mode:?}: none of them met the engine that is down");
    }
}

#[tokio::test]
async fn only_the_api_is_reached_from_outside() {
    for mode in MODES {
        let scratch = Scratch::new("envoy-paths").unwrap();
        let envoy = envoy(&scratch, mode, vec![engine().await]).await;
        let answer = request(&envoy, "/reset_prefix_cache").send().await.unwrap();
        assert_eq!(answer.status(), 404, "{mode:?}");
    }
}

/// What the three configs share must stay shared, or the comparison of the demo is none.
#[test]
fn the_configs_differ_only_where_they_say() {
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let buffered = Mode::Buffered.config().unwrap();

    let mut like_duplex = buffered.clone();
    let filters = format!("{manager}/http_filters");
    let picker = format!("{filters}/1/typed_config/processing_mode");
    set(&mut like_duplex, &format!("{picker}/request_body_mode"), json!("FULL_DUPLEX_STREAMED")).unwrap();
    set(&mut like_duplex, &format!("{picker}/request_trailer_mode"), json!("SEND")).unwrap();
    let options = "/static_resources/clusters/0/typed_extension_protocol_options\
                   /envoy.extensions.upstreams.http.v3.HttpProtocolOptions/explicit_http_config\
                   /http2_protocol_options/connection_keepalive";
    set(&mut like_duplex, options, json!({"interval": "1s", "timeout": "0.500s"})).unwrap();
    assert_eq!(like_duplex, Mode::FullDuplex.config().unwrap());

    let mut like_turns = buffered;
    let list = |value: &mut Value, pointer: &str| {
        value.pointer_mut(pointer).unwrap().as_array_mut().unwrap().clone()
    };
    let router = list(&mut like_turns, &filters)[2].clone();
    set(&mut like_turns, &filters, json!([router])).unwrap();
    let mut engines = list(&mut like_turns, "/static_resources/clusters")[1].clone();
    engines.as_object_mut().unwrap().remove("load_balancing_policy").unwrap();
    engines["lb_policy"] = json!("ROUND_ROBIN");
    set(&mut like_turns, "/static_resources/clusters", json!([engines])).unwrap();
    let format = format!("{manager}/access_log/0/typed_config/log_format/json_format");
    let format = like_turns.pointer_mut(&format).unwrap().as_object_mut().unwrap();
    for field in ["picked", "served", "picker"] {
        format.remove(field).unwrap();
    }
    assert_eq!(like_turns, Mode::RoundRobin.config().unwrap());
}
