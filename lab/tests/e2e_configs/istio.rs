//! The EnvoyFilter of `envoy/istio/`, applied to the Envoy config that istiod makes for its gateway, as istiod applies it.
//!
//! Of istiod's rules, those that the file uses: <https://istio.io/latest/docs/reference/config/networking/envoy-filter/>.
//! A patch that this can't apply, or that meets nothing, is an error, as istiod would leave it out in silence.

use anyhow::{Context as _, bail};
use kvpick_lab::rig::fleet::Fleet;
use serde_json::{Map, Value, json};

use crate::drive::text;

/// All objects of a file.
pub(crate) fn objects(name: &str) -> Vec<Value> {
    let text = text(name);
    text.split("\n---\n")
        .map(|it| serde_saphyr::from_str(it).unwrap_or_else(|error| panic!("{name}: {error}")))
        .collect()
}

/// The gateway's config with the shipped patches.
pub(crate) fn patched(fleet: &Fleet) -> anyhow::Result<Value> {
    let objects = objects("istio/envoyfilter.yaml");
    let of = |kind: &str| objects.iter().find(|it| it["kind"] == kind).with_context(|| format!("no {kind}"));
    let mut config = gateway(of("Gateway")?, of("VirtualService")?, of("DestinationRule")?, fleet)?;
    let patches = of("EnvoyFilter")?["spec"]["configPatches"].as_array().context("no patches")?;
    for (number, patch) in patches.iter().enumerate() {
        apply(&mut config, patch).with_context(|| format!("configPatches[{number}]"))?;
    }
    Ok(config)
}

/// What istiod makes of these objects, as far as Envoy without Istio's own filters knows it.
fn gateway(gateway: &Value, service: &Value, rule: &Value, fleet: &Fleet) -> anyhow::Result<Value> {
    let port = &gateway["spec"]["servers"][0]["port"]["number"];
    let http = &service["spec"]["http"][0];
    let destination = &http["route"][0]["destination"];
    let host = destination["host"].as_str().context("no host")?;
    assert_eq!(rule["spec"]["host"], host, "the DestinationRule is for the engines' service");
    let cluster = format!("outbound|{}||{host}", destination["port"]["number"]);
    let policy = &rule["spec"]["trafficPolicy"];
    assert_eq!(policy["loadBalancer"]["simple"], "LEAST_REQUEST");
    let endpoints: Vec<_> = fleet
        .engine_addresses()
        .iter()
        .map(|_| {
            json!({"endpoint": {"address": {
        "socket_address": {"address": "127.0.0.1", "port_value": 1}}}})
        })
        .collect();
    let predicate = json!({"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type":
        "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"}});
    let filter = |name: &str, kind: &str| json!({"name": name, "typed_config": {"@type": format!("type.googleapis.com/envoy.extensions.filters.http.{kind}")}});
    Ok(json!({
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 15000}}},
        "static_resources": {
            "listeners": [{
                "name": format!("0.0.0.0_{port}"),
                "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                        "stat_prefix": format!("outbound_0.0.0.0_{port}"),
                        "use_remote_address": true,
                        "access_log": [{"name": "envoy.access_loggers.file", "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                            "path": "/dev/stdout"}}],
                        "http_filters": [
                            filter("envoy.filters.http.grpc_stats", "grpc_stats.v3.FilterConfig"),
                            filter("envoy.filters.http.fault", "fault.v3.HTTPFault"),
                            filter("envoy.filters.http.cors", "cors.v3.Cors"),
                            filter("envoy.filters.http.router", "router.v3.Router"),
                        ],
                        "route_config": {"name": format!("http.{port}"), "virtual_hosts": [{
                            "name": format!("*:{port}"),
                            "domains": ["*"],
                            "routes": [{
                                "name": http["name"],
                                "match": {"prefix": http["match"][0]["uri"]["prefix"], "case_sensitive": true},
                                "route": {
                                    "cluster": cluster,
                                    "timeout": http["timeout"],
                                    "retry_policy": {
                                        "retry_on": http["retries"]["retryOn"],
                                        "num_retries": http["retries"]["attempts"],
                                        "retry_host_predicate": [predicate],
                                        "host_selection_retry_max_attempts": 5,
                                    },
                                },
                            }],
                        }]},
                    },
                }]}],
            }],
            "clusters": [{
                "name": cluster,
                // EDS there; what the patches and the balancer see of it is the same.
                "type": "STATIC",
                "lb_policy": "LEAST_REQUEST",
                "connect_timeout": "10s",
                "circuit_breakers": {"thresholds": [{
                    "max_connections": u32::MAX, "max_pending_requests": u32::MAX,
                    "max_requests": u32::MAX, "max_retries": u32::MAX,
                }]},
                "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "common_http_protocol_options": {"idle_timeout": policy["connectionPool"]["http"]["idleTimeout"]},
                    "explicit_http_config": {"http_protocol_options": {}},
                }},
                "load_assignment": {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]},
            }],
        },
    }))
}

fn apply(config: &mut Value, patch: &Value) -> anyhow::Result<()> {
    let only = |value: &Value, known: &[&str]| match value.as_object() {
        Some(fields) => match fields.keys().find(|it| !known.contains(&it.as_str())) {
            Some(field) => bail!("{field} is nothing that this knows how to apply"),
            None => Ok(()),
        },
        None => bail!("{value} is no object"),
    };
    only(patch, &["applyTo", "match", "patch"])?;
    only(&patch["patch"], &["operation", "value"])?;
    only(&patch["match"], &["context", "listener", "routeConfiguration", "cluster"])?;
    if patch["match"]["context"] != "GATEWAY" {
        bail!("it is not for gateways");
    }
    let (matches, value) = (&patch["match"], patch["patch"]["value"].clone());
    let to = patch["applyTo"].as_str().context("applyTo")?;
    match (to, patch["patch"]["operation"].as_str().context("operation")?) {
        ("CLUSTER", "ADD") => {
            let clusters = config["static_resources"]["clusters"].as_array_mut().context("no clusters")?;
            clusters.push(value);
        }
        ("CLUSTER", "MERGE") => {
            let wanted = &matches["cluster"];
            only(wanted, &["service", "portNumber"])?;
            let name = format!(
                "outbound|{}||{}",
                wanted["portNumber"],
                wanted["service"].as_str().context("service")?
            );
            let clusters = config["static_resources"]["clusters"].as_array_mut().context("no clusters")?;
            let found = clusters.iter_mut().find(|it| it["name"] == name.as_str());
            merge(found.with_context(|| format!("there is no cluster {name}"))?, value, "cluster");
        }
        ("HTTP_FILTER", "INSERT_BEFORE") => {
            only(&matches["listener"], &["filterChain"])?;
            let filter = &matches["listener"]["filterChain"]["filter"];
            let manager = &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0];
            if filter["name"] != manager["name"] {
                bail!("there is no filter {}", filter["name"]);
            }
            let filters = manager["typed_config"]["http_filters"].as_array_mut().context("no filters")?;
            let at = filters.iter().position(|it| it["name"] == filter["subFilter"]["name"]);
            filters
                .insert(at.with_context(|| format!("there is no {}", filter["subFilter"]["name"]))?, value);
        }
        ("HTTP_ROUTE", "MERGE") => {
            // Without a name: all.
            let name = matches.get("routeConfiguration").map(|it| &it["vhost"]["route"]["name"]);
            let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
            let routes = config.pointer_mut(&format!("{manager}/route_config/virtual_hosts/0/routes"));
            let routes = routes.and_then(Value::as_array_mut).context("no routes")?;
            let mut found: Vec<_> =
                routes.iter_mut().filter(|it| name.is_none_or(|name| it["name"] == *name)).collect();
            if found.is_empty() {
                bail!("there is no such route");
            }
            found.iter_mut().for_each(|it| merge(it, value.clone(), "route"));
        }
        (to, operation) => bail!("{operation} of {to} is nothing that this knows how to apply"),
    }
    Ok(())
}

/// Protobuf's merge: messages field by field, lists one behind the other, a map's values and all else replaced.
fn merge(into: &mut Value, from: Value, field: &str) {
    const MAPS: [&str; 2] = ["typed_per_filter_config", "typed_extension_protocol_options"];
    match (into, from) {
        (Value::Object(into), Value::Object(from)) if MAPS.contains(&field) => into.extend(from),
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value, &name);
            }
        }
        (Value::Array(into), Value::Array(from)) => into.extend(from),
        (into, from) => *into = from,
    }
}

#[test]
fn patches_are_merged_as_protobuf_merges() {
    let mut route =
        json!({"route": {"timeout": "15s", "list": [1]}, "typed_per_filter_config": {"a": {"x": 1}}});
    let patch =
        json!({"route": {"timeout": "0s", "list": [2]}, "typed_per_filter_config": {"a": {"y": 1}, "b": {}}});
    merge(&mut route, patch, "");
    let merged = json!({"route": {"timeout": "0s", "list": [1, 2]}, "typed_per_filter_config": {"a": {"y": 1}, "b": {}}});
    assert_eq!(route, merged);
}

#[test]
fn patches_that_meet_nothing_are_mistakes() {
    let whole = objects("istio/envoyfilter.yaml").pop().unwrap();
    let patches = whole["spec"]["configPatches"].as_array().unwrap();
    let empty = json!({"static_resources": {"clusters": [], "listeners": [{"filter_chains": [{"filters": [{"name":
        "envoy.filters.network.http_connection_manager", "typed_config": {"http_filters": [], "route_config":
        {"virtual_hosts": [{"routes": []}]}}}]}]}]}});
    for patch in patches.iter().filter(|it| it["patch"]["operation"] != "ADD") {
        assert!(apply(&mut empty.clone(), patch).is_err(), "{patch}");
    }
    let mut patch = patches[0].clone();
    patch["match"].as_object_mut().unwrap().insert("proxy".to_owned(), Value::Object(Map::new()));
    assert!(apply(&mut empty.clone(), &patch).is_err(), "what is not understood is not passed by");
}
