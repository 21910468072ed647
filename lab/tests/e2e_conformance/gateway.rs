//! A gateway as Istio makes it of pools and routes: the shipped copy of its configuration, with other pools in it.

use std::{net::SocketAddr, path::Path};

use kvpick_lab::rig::{
    envoy::Envoy,
    ports,
    program::{ModelConfig, Program, ReplicaConfig, ServerConfig},
    tools,
};
use serde_json::{Map, Value, json};

use super::echo::Pods;

const FILTER: &str = "envoy.filters.http.ext_proc";

/// Where kvpick listens for agents and operators: it does not matter here.
const ANY: &str = "127.0.0.1:0";

/// A pool and its picker.
pub(crate) struct Pool {
    pub(crate) name: &'static str,
    pub(crate) pods: Pods,
    /// HTTP/2 without TLS, as a pool's `appProtocol: kubernetes.io/h2c` asks for.
    pub(crate) h2c: bool,
    pub(crate) picker: Program,
    address: SocketAddr,
}

impl Pool {
    /// Starts a picker for those pods, as the suite's manifests do.
    pub(crate) async fn start(name: &'static str, folder: &Path, pods: Pods) -> Self {
        let address = ports::free().unwrap();
        let replica = |address| ReplicaConfig {
            address,
            rank: 0,
            node: "node".to_owned(),
            models: vec!["served".to_owned()],
        };
        let config = ServerConfig {
            listen: address,
            feed: ANY.parse().unwrap(),
            admin: ANY.parse().unwrap(),
            models: Vec::<ModelConfig>::new(),
            replicas: pods.endpoints().into_iter().map(replica).collect(),
            evidence_header: false,
            more: Map::from_iter([
                ("conformance".to_owned(), json!(true)),
                ("tls".to_owned(), json!({"self_signed": true})),
                ("budget".to_owned(), json!({"full_duplex_ms": 5_000})),
            ]),
        };
        let mut picker = Program::server(&format!("kvpick-{name}"), folder, &config).unwrap();
        picker.start().await.unwrap();
        picker.ready().await.unwrap();
        Self { name, pods, h2c: false, picker, address }
    }
}

/// What a route's rule refers to.
pub(crate) enum Backend<'a> {
    Pool(&'a Pool),
    /// A pool whose picker's Service has no endpoints.
    Orphan(&'a Pool),
    /// Pools by weight.
    Split(&'a [(&'a Pool, u32)]),
}

/// A gateway with a rule for each path.
pub(crate) async fn start(folder: &Path, oldest: bool, rules: &[(&str, Backend<'_>)]) -> Envoy {
    let shipped = include_str!("../../../envoy/istio/generated.yaml");
    let mut config: Value = serde_saphyr::from_str(shipped).unwrap();
    let any = address(ANY.parse().unwrap());
    config["admin"]["address"] = any.clone();
    let clusters = config["static_resources"]["clusters"].as_array().unwrap().clone();
    let [dummy, picker_cluster, pool_cluster] = &clusters[..] else { panic!("{clusters:?}") };
    let listener = &mut config["static_resources"]["listeners"][0];
    listener["address"] = any;
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    let host = &mut manager["route_config"]["virtual_hosts"][0];
    let shipped_route = host["routes"][0].clone();
    let overrides = |pool: &Pool, orphan: bool| {
        let mut it = shipped_route["typed_per_filter_config"].clone();
        it[FILTER]["overrides"]["grpc_service"]["envoy_grpc"]["cluster_name"] = json!(picker(pool, orphan));
        // As the suite's pools have it.
        it[FILTER]["overrides"]["failure_mode_allow"] = json!(true);
        it
    };
    let mut pools: Vec<&Pool> = Vec::new();
    let mut routes = Vec::new();
    for (path, backend) in rules {
        let mut route = shipped_route.clone();
        route["match"] = json!({"prefix": path});
        match backend {
            Backend::Pool(pool) | Backend::Orphan(pool) => {
                route["route"]["cluster"] = json!(pool.name);
                route["typed_per_filter_config"] = overrides(pool, matches!(backend, Backend::Orphan(_)));
                pools.push(pool);
            }
            Backend::Split(parts) => {
                let part = |(pool, weight): &(&Pool, u32)| json!({"name": pool.name, "weight": weight, "typed_per_filter_config": overrides(pool, false)});
                let action = route["route"].as_object_mut().unwrap();
                action.remove("cluster");
                action.insert(
                    "weighted_clusters".to_owned(),
                    json!({"clusters": parts.iter().map(part).collect::<Vec<_>>()}),
                );
                route.as_object_mut().unwrap().remove("typed_per_filter_config");
                pools.extend(parts.iter().map(|(pool, _)| *pool));
            }
        }
        routes.push(route);
    }
    host["routes"] = json!(routes);
    pools.sort_by_key(|it| it.name);
    pools.dedup_by_key(|it| it.name);
    let mut made = vec![dummy.clone()];
    for pool in pools {
        let mut cluster = with_endpoints(pool_cluster, pool.name, &pool.pods.endpoints());
        if pool.h2c {
            cluster["typed_extension_protocol_options"] =
                picker_cluster["typed_extension_protocol_options"].clone();
        }
        if oldest {
            let balancer = &mut cluster["load_balancing_policy"]["policies"][0]["typed_extension_config"];
            balancer["typed_config"].as_object_mut().unwrap().remove("selected_host_key");
        }
        made.push(cluster);
        made.push(with_endpoints(picker_cluster, &picker(pool, false), &[pool.address]));
        made.push(with_endpoints(picker_cluster, &picker(pool, true), &[]));
    }
    config["static_resources"]["clusters"] = json!(made);
    let binary = if oldest { tools::oldest_envoy() } else { tools::envoy() };
    let log = folder.join("envoy.access.log");
    Envoy::start_config(&binary.unwrap(), "envoy", folder, &config, log).await.unwrap()
}

/// The cluster of a pool's picker, named as Istio does; an orphan's has no endpoints.
fn picker(pool: &Pool, orphan: bool) -> String {
    format!(
        "outbound|9002||{}-{}.inference.svc.cluster.local",
        if orphan { "orphan" } else { "picker" },
        pool.name
    )
}

fn with_endpoints(cluster: &Value, name: &str, addresses: &[SocketAddr]) -> Value {
    let mut cluster = cluster.clone();
    let endpoint = |it: &SocketAddr| json!({"endpoint": {"address": address(*it)}});
    let endpoints: Vec<_> = addresses.iter().map(endpoint).collect();
    cluster["name"] = json!(name);
    cluster["load_assignment"]["cluster_name"] = json!(name);
    cluster["load_assignment"]["endpoints"] = json!([{"lb_endpoints": endpoints}]);
    cluster
}

fn address(it: SocketAddr) -> Value {
    json!({"socket_address": {"address": it.ip().to_string(), "port_value": it.port()}})
}
