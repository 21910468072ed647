//! A cluster with a pool, engines as its pods, an agent and a server that read them from its API, and Envoy.

use std::{
    ffi::OsStr,
    net::{IpAddr, SocketAddr, TcpListener},
    path::Path,
};

use kvpick_lab::{
    kube::{Cluster, Kind, pod, pool},
    rig::{
        envoy::{Addresses, Envoy, Mode},
        fleet, ports,
        program::{AgentConfig, ModelConfig, Program, ServerConfig},
        tools, wait,
    },
};
use serde_json::{Map, Value, json};

pub(crate) const NAMESPACE: &str = "inference";
pub(crate) const NODE: &str = "node-1";

/// A pod's engine.
pub(crate) struct Engine {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    events: u16,
    replay: u16,
    pub(crate) program: Program,
}

pub(crate) struct Setup {
    pub(crate) cluster: Cluster,
    pub(crate) engines: Vec<Engine>,
    pub(crate) server: Program,
    pub(crate) agent: Program,
    pub(crate) envoy: Envoy,
}

/// A port that is free at all of these addresses.
fn port_at(ips: &[IpAddr]) -> u16 {
    loop {
        let port = ports::free().unwrap().port();
        if ips.iter().all(|it| TcpListener::bind((*it, port)).is_ok()) {
            return port;
        }
    }
}

fn fields(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// An agent of that node, which believes what that cluster says.
pub(crate) fn agent(name: &str, folder: &Path, node: &str, feed: SocketAddr, kubeconfig: &Path) -> Program {
    let config = AgentConfig {
        node: node.to_owned(),
        servers: vec![feed.to_string()],
        admin: ports::free().unwrap(),
        engines: Vec::new(),
        more: fields(
            &json!({"kubernetes": {"pool": "engines"}, "state": folder.join(format!("{name}-state"))}),
        ),
    };
    Program::agent(name, folder, &config).unwrap().with_env("KUBECONFIG", kubeconfig)
}

impl Setup {
    /// Starts it all with no pod of an engine there yet.
    pub(crate) async fn start(folder: &Path, engines: usize) -> Self {
        let folder = &std::path::absolute(folder).unwrap();
        let cluster = Cluster::start().await.unwrap();
        let kubeconfig = folder.join("kubeconfig");
        cluster.write_kubeconfig(&kubeconfig, NAMESPACE).unwrap();
        let tokenizer = tools::tokenizer().unwrap();
        let ips: Vec<IpAddr> = (1..=engines).map(|it| format!("127.9.0.{it}").parse().unwrap()).collect();
        let port = port_at(&ips);
        let mut started = Vec::new();
        for (number, ip) in ips.iter().enumerate() {
            let (events, replay) = (ports::free().unwrap().port(), ports::free().unwrap().port());
            let address = SocketAddr::new(*ip, port);
            let flags = [
                ("--model", "qwen3".to_owned()),
                ("--tokenizer", tokenizer.display().to_string()),
                ("--listen", address.to_string()),
                ("--events", format!("tcp://*:{events}")),
                ("--replay", format!("tcp://*:{replay}")),
                ("--speed", "10".to_owned()),
                ("--seed", number.to_string()),
            ];
            let mut args: Vec<&OsStr> = vec!["engine".as_ref()];
            args.extend(flags.iter().flat_map(|(flag, value)| [OsStr::new(*flag), value.as_ref()]));
            let name = format!("engine-{number}");
            let mut program = Program::new(&name, folder, "kvpick-lab", &args).unwrap();
            program.start().await.unwrap();
            started.push(Engine { name, address, events, replay, program });
        }
        cluster.apply(Kind::Pool, pool(NAMESPACE, "engines", &json!({"app": "vllm"}), &[port]));
        cluster.apply(Kind::Pod, pod(NAMESPACE, "agent-1", "127.0.0.1", NODE, &json!({"app": "agent"})));

        let (picker, feed) = (ports::free().unwrap(), ports::free().unwrap());
        let model = ModelConfig {
            name: "qwen3".to_owned(),
            aliases: Vec::new(),
            path: tokenizer,
            keeps_developer_role: false,
            more: Map::new(),
        };
        let config = ServerConfig {
            listen: picker,
            feed,
            admin: ports::free().unwrap(),
            models: vec![model],
            replicas: Vec::new(),
            evidence_header: true,
            more: fields(&json!({
                "kubernetes": {"pool": "engines", "agents": "app=agent"},
                "budget": {"base_ms": 300},
            })),
        };
        let mut server =
            Program::server("kvpick", folder, &config).unwrap().with_env("KUBECONFIG", &kubeconfig);
        server.start().await.unwrap();
        let mut agent = agent("agent", folder, NODE, feed, &kubeconfig);
        agent.start().await.unwrap();
        server.ready().await.unwrap();
        let addresses = Addresses {
            listener: ports::free().unwrap(),
            admin: ports::free().unwrap(),
            picker,
            engines: started.iter().map(|it| it.address).collect(),
            patient: true,
            response_body_mode: None,
        };
        let envoy = Envoy::start("envoy", folder, Mode::Buffered, &addresses).await.unwrap();
        Self { cluster, engines: started, server, agent, envoy }
    }

    /// The pod of an engine, as it is when all is well.
    pub(crate) fn pod(&self, engine: usize) -> Value {
        let it = &self.engines[engine];
        let mut pod = pod(NAMESPACE, &it.name, &it.address.ip().to_string(), NODE, &json!({"app": "vllm"}));
        let events = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": format!("tcp://*:{}", it.events),
            "replay_endpoint": format!("tcp://*:{}", it.replay),
        });
        let line = format!("vllm serve Qwen/Qwen3-8B --kv-events-config '{events}'");
        pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", line]);
        pod
    }

    /// The pod comes, or is as it was.
    pub(crate) fn apply(&self, pod: Value) {
        self.cluster.apply(Kind::Pod, pod);
    }

    /// Waits until the server's status of an engine's replica is as `is`; `None`: it has no such replica.
    pub(crate) async fn until(&self, engine: usize, what: &str, is: impl Fn(Option<&Value>) -> bool) {
        let address = self.engines[engine].address;
        let look = async || {
            let status = self.server.status().await.map_err(|it| format!("{it:#}"))?;
            let replica = fleet::replica(&status, address, 0);
            if is(replica) { Ok(()) } else { Err(format!("{replica:?}")) }
        };
        wait::until(&format!("{address} to be {what}"), wait::LONG, look).await.unwrap();
    }

    /// Waits until an engine's blocks are known as they are: none that was not published yet is missing.
    pub(crate) async fn in_step(&self, engine: usize) {
        self.until(engine, "in step", |it| it.is_some_and(|it| it["state"] == "live")).await;
    }
}
