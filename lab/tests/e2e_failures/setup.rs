//! One Envoy with a listener for each mode, failing open and closed; kvpick, which is frozen, killed and started again; and two
//! engines.

use std::{net::SocketAddr, path::Path, time::Duration};

use kvpick_lab::rig::{
    envoy::{Envoy, Mode as Shipped},
    ports,
    program::{ModelConfig, Program, ReplicaConfig, ServerConfig},
    tools, wait,
};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::engine;

/// How the request's body comes to kvpick.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    None,
    Streamed,
    Buffered,
    BufferedPartial,
    FullDuplex,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Streamed => "STREAMED",
            Self::Buffered => "BUFFERED",
            Self::BufferedPartial => "BUFFERED_PARTIAL",
            Self::FullDuplex => "FULL_DUPLEX_STREAMED",
        }
    }
}

pub(crate) struct Setup {
    pub(crate) envoy: Envoy,
    pub(crate) server: Program,
    /// Lets streamed answers end.
    pub(crate) go_on: watch::Sender<bool>,
}

impl Setup {
    pub(crate) async fn start(folder: &Path, oldest: bool) -> Self {
        let go_on = watch::Sender::new(false);
        let engines = [engine::start(go_on.subscribe()).await, engine::start(go_on.subscribe()).await];
        let picker = ports::free().unwrap();
        let replica =
            |address| ReplicaConfig { address, rank: 0, node: "a".to_owned(), models: vec!["m".to_owned()] };
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let config = ServerConfig {
            listen: picker,
            feed: any,
            admin: any,
            models: Vec::<ModelConfig>::new(),
            replicas: engines.into_iter().map(replica).collect(),
            evidence_header: false,
            more: Map::new(),
        };
        let server = Program::server("kvpick", folder, &config).unwrap();
        let binary = if oldest { tools::oldest_envoy() } else { tools::envoy() }.unwrap();
        let log = folder.join("envoy.access.log");
        let config = envoy_config(picker, &engines, &log, oldest);
        let envoy = Envoy::start_config(&binary, "envoy", folder, &config, log).await.unwrap();
        let mut setup = Self { envoy, server, go_on };
        setup.restart().await;
        setup
    }

    pub(crate) fn listener(&self, mode: Mode, open: bool) -> SocketAddr {
        self.envoy.listeners()[&name(mode, open)]
    }

    pub(crate) async fn kill(&mut self) {
        self.server.kill();
    }

    pub(crate) async fn terminate(&mut self) {
        self.server.terminate(Duration::from_secs(30)).await.unwrap();
    }

    pub(crate) async fn restart(&mut self) {
        self.server.start().await.unwrap();
        self.asks_again().await;
    }

    /// Waits until Envoy asks kvpick: a connection that it has lost it makes anew at the next request.
    pub(crate) async fn asks_again(&self) {
        let http = reqwest::Client::builder().no_proxy().timeout(wait::LONG).build().unwrap();
        let url = format!("http://{}/v1/completions", self.listener(Mode::Buffered, false));
        let look = async || {
            let answer = http.post(&url).body("{}").send().await.map_err(|it| it.to_string())?;
            if answer.status() == 200 { Ok(()) } else { Err(answer.status().to_string()) }
        };
        wait::until("Envoy to reach kvpick", wait::LONG, look).await.unwrap();
    }
}

fn name(mode: Mode, open: bool) -> String {
    format!("{}-{}", mode.name(), if open { "open" } else { "closed" })
}

/// The shipped config with a listener for each mode. Envoy does not look at kvpick's health here: it would send it nothing, which
/// is what failing looks like after a second.
fn envoy_config(picker: SocketAddr, engines: &[SocketAddr], log: &Path, oldest: bool) -> Value {
    let mut config = Shipped::Buffered.config().unwrap();
    let address =
        |it: SocketAddr| json!({"socket_address": {"address": it.ip().to_string(), "port_value": it.port()}});
    let any = address("127.0.0.1:0".parse().unwrap());
    config["admin"]["address"] = any.clone();
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        let is_picker = cluster["name"] == "picker";
        let hosts = if is_picker { vec![picker] } else { engines.to_vec() };
        let endpoints: Vec<_> =
            hosts.iter().map(|it| json!({"endpoint": {"address": address(*it)}})).collect();
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = json!(endpoints);
        if is_picker {
            cluster.as_object_mut().unwrap().remove("health_checks");
        } else if oldest {
            let balancer = &mut cluster["load_balancing_policy"]["policies"][0]["typed_extension_config"];
            balancer["typed_config"].as_object_mut().unwrap().remove("selected_host_key");
        }
    }
    let shipped = config["static_resources"]["listeners"][0].clone();
    let mut listeners = Vec::new();
    for mode in super::MODES {
        for open in [true, false] {
            let mut listener = shipped.clone();
            listener["name"] = json!(name(mode, open));
            listener["address"] = any.clone();
            let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
            manager["access_log"][0]["typed_config"]["path"] = json!(log);
            let filters = manager["http_filters"].as_array_mut().unwrap();
            let picker = filters.iter_mut().find(|it| it["name"] == "picker").unwrap();
            let picker = &mut picker["typed_config"];
            picker["failure_mode_allow"] = json!(open);
            let processing = &mut picker["processing_mode"];
            processing["request_body_mode"] = json!(mode.name());
            processing["request_trailer_mode"] =
                json!(if mode == Mode::FullDuplex { "SEND" } else { "SKIP" });
            listeners.push(listener);
        }
    }
    config["static_resources"]["listeners"] = json!(listeners);
    config
}
