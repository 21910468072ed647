//! One Envoy with a shipped configuration, and what has to hold of it.

use std::{
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use kvpick_lab::rig::{
    envoy::Envoy,
    fleet::{Fleet, Plan},
    program::get,
    scratch::Scratch,
    wait,
};
use serde_json::{Map, Value, json};

use crate::common::{Answer, CHAT, chat, post, post_with, settle};

/// What differs between configurations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expect {
    /// What clients say that only gateways may say to the picker is removed before it.
    pub(crate) strips: bool,
    /// Answers reach the client token by token.
    pub(crate) streams: bool,
}

impl Default for Expect {
    fn default() -> Self {
        Self { strips: true, streams: true }
    }
}

/// Three engines and no Envoy; more fields for kvpick's configuration.
pub(crate) fn plan(fields: &[(&str, Value)]) -> Plan {
    let mut plan = Plan::even(3, 2);
    plan.envoy = None;
    for engine in &mut plan.engines {
        engine.num_blocks = 4_096;
    }
    plan.server = Map::from_iter([("budget".to_owned(), json!({"base_ms": 300, "full_duplex_ms": 2_000}))]);
    plan.server.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    plan
}

/// A file under `envoy/`.
pub(crate) fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A whole configuration under `envoy/`.
pub(crate) fn shipped(name: &str) -> Value {
    serde_saphyr::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A cluster of a configuration, by a part of its name.
pub(crate) fn cluster<'a>(config: &'a mut Value, name: &str) -> &'a mut Value {
    let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
    clusters.iter_mut().find(|it| it["name"].as_str().unwrap().contains(name)).unwrap()
}

/// Whose hosts a cluster has.
enum Hosts {
    Picker,
    Engines,
    /// None, and none are to be given.
    Nobody,
}

fn hosts_of(cluster: &str) -> Hosts {
    match cluster {
        "dummy" => Hosts::Nobody,
        it if it.contains("kvpick") || it.contains("picker") => Hosts::Picker,
        it if it.contains("engines") || it.contains("vllm") => Hosts::Engines,
        it => panic!("nobody knows whose the cluster {it:?} is"),
    }
}

/// Puts the fleet's addresses into a configuration. A name becomes `localhost`, so that it is still looked up.
fn with_addresses(config: &mut Value, fleet: &Fleet, log: &Path) {
    let address = |host: &str, port: u16| json!({"socket_address": {"address": host, "port_value": port}});
    config["admin"]["address"] = address("127.0.0.1", 0);
    let listener = &mut config["static_resources"]["listeners"][0];
    let at: SocketAddr = fleet.url().trim_start_matches("http://").parse().unwrap();
    listener["address"] = address("127.0.0.1", at.port());
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager["access_log"][0]["typed_config"]["path"] = json!(log);
    for filter in manager["http_filters"].as_array_mut().unwrap() {
        // How long a busy machine takes is not what is tested.
        if let Some(timeout) = filter["typed_config"].get_mut("message_timeout") {
            *timeout = json!("20s");
        }
    }
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        if let Some(timeout) = cluster.pointer_mut("/health_checks/0/timeout") {
            *timeout = json!("20s");
        }
        let hosts = match hosts_of(cluster["name"].as_str().unwrap()) {
            Hosts::Picker => vec![fleet.server.addresses().get("ext_proc").copied()],
            Hosts::Engines => fleet.engine_addresses().iter().copied().map(Some).collect(),
            Hosts::Nobody => continue,
        };
        let Some(endpoints) = cluster.pointer_mut("/load_assignment/endpoints/0/lb_endpoints") else {
            assert_eq!(cluster["type"], "ORIGINAL_DST", "it has no hosts");
            continue;
        };
        let first = endpoints.pointer("/0/endpoint/address/socket_address/address").cloned();
        let Some(Value::String(first)) = first else {
            continue; // A pipe.
        };
        let name = if first.parse::<std::net::IpAddr>().is_ok() { "127.0.0.1" } else { "localhost" };
        let hosts =
            hosts.iter().map(|it| json!({"endpoint": {"address": address(name, it.unwrap().port())}}));
        *endpoints = hosts.collect();
        if cluster["type"] == "STRICT_DNS" && cluster.get("dns_lookup_family").is_none() {
            // `localhost` has both families, and nobody listens on the one that Envoy prefers.
            cluster["dns_lookup_family"] = json!("V4_ONLY");
        }
    }
}

/// The sum of the counters of all filters that ask kvpick.
async fn filters(envoy: &Envoy, counter: &str) -> u64 {
    let http = kvpick_lab::rig::http().unwrap();
    let page = get(&http, &format!("http://{}/stats?filter=ext_proc", envoy.admin())).await.unwrap();
    let of = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        (name.rsplit_once('.')?.1 == counter).then(|| value.parse::<u64>().ok()).flatten()
    };
    page.lines().filter_map(of).sum()
}

/// Starts Envoy with the configuration and the fleet's addresses in it.
pub(crate) async fn begin(fleet: &Fleet, scratch: &Scratch, binary: &Path, mut config: Value) -> Envoy {
    let log = scratch.path().join("envoy.access.log");
    with_addresses(&mut config, fleet, &log);
    Envoy::start_config(binary, "envoy", scratch.path(), &config, log).await.unwrap()
}

async fn start(fleet: &Fleet, scratch: &Scratch, binary: &Path, config: Value) -> Envoy {
    let envoy = begin(fleet, scratch, binary, config).await;
    // Names are looked up when Envoy is already ready, and health is asked for then.
    wait::until("Envoy to use the picker", wait::LONG, async || {
        let answer =
            post(fleet, "/v1/completions", r#"{"model": "qwen3", "prompt": "x", "max_tokens": 1}"#).await;
        let is_picked = answer.status == 200 && answer.evidence("tier").is_some();
        if is_picked { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await
    .unwrap();
    envoy
}

/// Starts Envoy with the configuration and sends it requests.
pub(crate) async fn drive(
    fleet: &Fleet,
    scratch: &Scratch,
    binary: &Path,
    name: &str,
    config: Value,
    expect: &Expect,
) {
    let what = format!("{name} in {}", binary.file_name().unwrap().display());
    let envoy = start(fleet, scratch, binary, config).await;
    let mut before = Vec::new();
    let counters =
        ["rejected_header_mutations", "failure_mode_allowed", "spurious_msgs_received", "message_timeouts"];
    for counter in counters {
        before.push(filters(&envoy, counter).await);
    }

    // A body of many packets, and above what gateways buffer by default.
    for words in [300, 9_000] {
        // Prompts of their own, as engines and kvpick remember those of the configuration before.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let body = chat("qwen3", &format!("sail{number}"), words);
        let first = post(fleet, CHAT, body.clone()).await;
        assert_eq!(first.status, 200, "{what}: {first:?}");
        assert_eq!(first.evidence("replica"), first.engine(), "{what}: Envoy did as it was told");
        assert_eq!(first.cached_tokens(), 0, "{what}: the prompt is a new one");
        settle(fleet).await;
        let check = |answer: &Answer, who: &str| {
            assert_eq!(answer.tier_and_reason(), ("precise", "ok"), "{what}: {who}");
            assert_eq!(answer.engine(), first.engine(), "{what}: {who}");
            let predicted = answer.evidence("predicted_tokens").unwrap();
            assert_eq!(predicted, answer.cached_tokens().to_string(), "{what}: {who}");
            assert!(0 < answer.cached_tokens(), "{what}: {who}");
            // The engine has read the same body as kvpick, to its end.
            let read: Value = serde_json::from_str(&answer.body).unwrap();
            let tokens = answer.evidence("prompt_tokens").unwrap();
            assert_eq!(read["usage"]["prompt_tokens"].to_string(), tokens, "{what}: {who}");
        };
        for _ in 0..2 {
            check(&post(fleet, CHAT, body.clone()).await, "again");
            settle(fleet).await;
        }
        for wish in fleet.engine_addresses() {
            let wish = wish.to_string();
            let mut headers = vec![
                ("x-gateway-destination-endpoint", wish.as_str()),
                ("x-gateway-destination-endpoint-subset", wish.as_str()),
                ("test-epp-endpoint-selection", wish.as_str()),
            ];
            if expect.strips {
                headers.push(("x-gateway-model-name-rewrite", "another"));
            }
            check(
                &post_with(fleet, CHAT, body.clone(), &headers).await,
                &format!("a client asks for {wish}"),
            );
            settle(fleet).await;
        }
    }
    // A request without a body, and one of which kvpick knows nothing: it goes to somebody.
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let models = http.get(format!("{}/v1/models", fleet.url())).send().await.unwrap();
    assert_eq!(models.status(), 200, "{what}: the list of models");
    let stranger = post(fleet, CHAT, chat("nobody-has-it", "x", 30)).await;
    assert_eq!(stranger.status, 404, "{what}: {stranger:?}");
    assert_eq!(stranger.evidence("replica"), stranger.engine(), "{what}: {stranger:?}");

    ends_are_seen(fleet, &what, expect).await;
    for (counter, before) in counters.into_iter().zip(before) {
        assert_eq!(filters(&envoy, counter).await, before, "{what}: {counter}");
    }
    assert_eq!(filters(&envoy, "rejected_header_mutations").await, 0, "{what}");
    assert!(
        10 < filters(&envoy, "streams_started").await,
        "{what}: the counters are where they are looked for"
    );
    drop(envoy);
}

/// A request is in flight for as long as its answer is, and no longer.
async fn ends_are_seen(fleet: &Fleet, what: &str, expect: &Expect) {
    let in_flight = async |wanted: u64| {
        wait::until(&format!("{what}: {wanted} in flight"), wait::LONG, async || {
            let status = fleet.server.status().await.map_err(|it| it.to_string())?;
            let replicas = status["replicas"].as_array().unwrap();
            let n: u64 = replicas.iter().map(|it| it["in_flight"]["requests"].as_u64().unwrap()).sum();
            if n == wanted { Ok(()) } else { Err(format!("{n} in flight")) }
        })
        .await
        .unwrap();
    };
    in_flight(0).await;
    let story = json!({"model": "qwen3", "stream": true, "max_tokens": 800,
        "messages": [{"role": "user", "content": "a long story"}]});
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let sent = http.post(format!("{}{CHAT}", fleet.url())).json(&story).send();
    let text = if expect.streams {
        // The headers are here, so the answer is running: nothing but the end of the stream may end it for kvpick.
        let story = sent.await.unwrap();
        assert_eq!(story.status(), 200, "{what}");
        in_flight(1).await;
        story.text().await.unwrap()
    } else {
        sent.await.unwrap().text().await.unwrap()
    };
    assert!(text.contains("[DONE]"), "{what}: the story has no end");
    in_flight(0).await;
}

/// Envoy with a configuration by which it can't speak with kvpick: requests are answered without it.
pub(crate) async fn goes_without_picker(fleet: &Fleet, scratch: &Scratch, binary: &Path, config: Value) {
    let envoy = begin(fleet, scratch, binary, config).await;
    wait::until("a handshake to fail", wait::LONG, async || {
        let failed = envoy.stat("cluster.picker.health_check.failure").await.map_err(|it| it.to_string())?;
        let well = envoy.stat("cluster.picker.health_check.success").await.map_err(|it| it.to_string())?;
        assert_eq!(well, 0);
        if failed > 0 { Ok(()) } else { Err("no failure yet".to_owned()) }
    })
    .await
    .unwrap();
    let answer = post(fleet, CHAT, chat("qwen3", "stranger", 300)).await;
    assert_eq!((answer.status, answer.evidence("tier")), (200, None));
    assert_ne!(filters(&envoy, "failure_mode_allowed").await, 0);
}
