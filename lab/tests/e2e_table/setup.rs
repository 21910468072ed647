//! One Envoy with a listener for each pair of modes, kvpick behind it, and the engines.

use std::{collections::BTreeMap, net::SocketAddr, path::Path};

use kvpick_lab::rig::{
    envoy::{Envoy, Mode as Shipped},
    ports,
    program::{ModelConfig, Program, ReplicaConfig, ServerConfig},
    tools,
};
use serde_json::{Map, Value, json};

use super::rows::{Mode, Row};

/// All that runs.
pub(crate) struct Setup {
    pub(crate) envoy: Envoy,
    pub(crate) server: Program,
    /// By the model that it alone serves.
    pub(crate) engines: BTreeMap<&'static str, SocketAddr>,
    /// A replica that is not there.
    pub(crate) dead: SocketAddr,
}

impl Setup {
    /// Starts it all; `engines` by the model that each serves.
    pub(crate) async fn start(
        folder: &Path,
        oldest: bool,
        engines: BTreeMap<&'static str, SocketAddr>,
    ) -> Self {
        let dead = ports::free().unwrap();
        let replica =
            |address, models: Vec<String>| ReplicaConfig { address, rank: 0, node: "a".to_owned(), models };
        let mut replicas: Vec<_> =
            engines.iter().map(|(model, address)| replica(*address, vec![(*model).to_owned()])).collect();
        replicas.push(replica(dead, vec!["dead".to_owned()]));
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let picker = ports::free().unwrap();
        let config = ServerConfig {
            listen: picker,
            feed: any,
            admin: any,
            models: Vec::<ModelConfig>::new(),
            replicas,
            evidence_header: false,
            more: Map::from_iter([
                ("conformance".to_owned(), json!(true)),
                ("budget".to_owned(), json!({"base_ms": 5_000, "max_ms": 5_000, "full_duplex_ms": 5_000})),
            ]),
        };
        let mut server = Program::server("kvpick", folder, &config).unwrap();
        server.start().await.unwrap();
        server.ready().await.unwrap();
        let hosts: Vec<_> = engines.values().copied().chain([dead]).collect();
        let (binary, log) = match oldest {
            true => (tools::oldest_envoy().unwrap(), folder.join("envoy.access.log")),
            false => (tools::envoy().unwrap(), folder.join("envoy.access.log")),
        };
        let config = envoy_config(picker, &hosts, &log, oldest);
        let envoy = Envoy::start_config(&binary, "envoy", folder, &config, log).await.unwrap();
        Self { envoy, server, engines, dead }
    }

    /// Where a row's request goes.
    pub(crate) fn listener(&self, row: &Row) -> SocketAddr {
        self.envoy.listeners()[&name(row.request_mode, row.response_mode)]
    }
}

fn name(request: Mode, response: Mode) -> String {
    format!("{}-{}", request.name(), response.name()).to_lowercase()
}

/// The shipped config with a listener for each pair of modes. The filter that removes what clients may not say is left
/// out: here it is kvpick that removes it.
fn envoy_config(picker: SocketAddr, hosts: &[SocketAddr], log: &Path, oldest: bool) -> Value {
    let mut config = Shipped::Buffered.config().unwrap();
    let address =
        |it: SocketAddr| json!({"socket_address": {"address": it.ip().to_string(), "port_value": it.port()}});
    let any = address("127.0.0.1:0".parse().unwrap());
    config["admin"]["address"] = any.clone();
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        let is_picker = cluster["name"] == "picker";
        let hosts = if is_picker { vec![picker] } else { hosts.to_vec() };
        let endpoints: Vec<_> =
            hosts.iter().map(|it| json!({"endpoint": {"address": address(*it)}})).collect();
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = json!(endpoints);
        if is_picker {
            cluster["health_checks"][0]["timeout"] = json!("20s");
            continue;
        }
        let http = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        cluster["typed_extension_protocol_options"][http]["explicit_http_config"] =
            json!({"http_protocol_options": {"enable_trailers": true}});
        if oldest {
            let balancer = &mut cluster["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"];
            // Only Envoy 1.38 and later know it.
            balancer.as_object_mut().unwrap().remove("selected_host_key");
        }
    }
    let listener = config["static_resources"]["listeners"][0].clone();
    let mut listeners = Vec::new();
    for request in [Mode::None, Mode::Streamed, Mode::Buffered, Mode::BufferedPartial, Mode::FullDuplex] {
        for response in [Mode::None, Mode::Streamed, Mode::Buffered, Mode::FullDuplex] {
            let mut listener = listener.clone();
            listener["name"] = json!(name(request, response));
            listener["address"] = any.clone();
            listener["per_connection_buffer_limit_bytes"] = json!(64 << 20);
            let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
            manager["access_log"][0]["typed_config"]["path"] = json!(log);
            manager["http_protocol_options"] = json!({"enable_trailers": true});
            let filters = manager["http_filters"].as_array_mut().unwrap();
            filters.retain(|it| it["name"] != "strip");
            let picker = &mut filters[0]["typed_config"];
            assert_eq!(picker["stat_prefix"], "picker");
            picker["message_timeout"] = json!("20s");
            let processing = &mut picker["processing_mode"];
            processing["request_body_mode"] = json!(request.name());
            processing["response_body_mode"] = json!(response.name());
            // Without this the picker would not learn that trailers have ended a body. Where it can't choose by the body,
            // they are of no use to it; sent all the same, they make Envoy pass some bodies on twice.
            processing["request_trailer_mode"] = json!(if request.shows_body() { "SEND" } else { "SKIP" });
            let route = &mut manager["route_config"]["virtual_hosts"][0];
            route["include_request_attempt_count"] = json!(true);
            listeners.push(listener);
        }
    }
    config["static_resources"]["listeners"] = json!(listeners);
    config
}
