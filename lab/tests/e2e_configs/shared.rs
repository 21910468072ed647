//! What the files share must stay shared.

use serde_json::{Value, json};

use crate::{
    drive::{cluster, shipped},
    istio::objects,
};

fn manager(config: &mut Value) -> &mut Value {
    &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
}

fn remove(value: &mut Value, field: &str) {
    assert!(value.as_object_mut().unwrap().remove(field).is_some(), "there is no {field}");
}

/// Without `served`, which Envoy can't tell there.
fn without_served(config: &mut Value) {
    remove(&mut manager(config)["access_log"][0]["typed_config"]["log_format"]["json_format"], "served");
}

#[test]
fn the_standalone_files_differ_only_where_they_say() {
    let main = shipped("standalone/envoy.yaml");

    let mut old = main.clone();
    without_served(&mut old);
    let balancer =
        &mut cluster(&mut old, "engines")["load_balancing_policy"]["policies"][0]["typed_extension_config"];
    remove(&mut balancer["typed_config"], "selected_host_key");
    assert_eq!(old, shipped("standalone/envoy-1.36.yaml"));

    for (file, own) in [
        ("standalone/tls.yaml", &["transport_socket"][..]),
        ("standalone/unix.yaml", &[]),
        ("standalone/dns.yaml", &["cluster_type"]),
    ] {
        let mut config = shipped(file);
        let mut like = main.clone();
        for name in ["picker", "engines"] {
            let (it, of_main) = (cluster(&mut config, name), cluster(&mut like, name));
            for field in own.iter().chain(&["type", "load_assignment"]) {
                it.as_object_mut().unwrap().remove(*field);
                of_main.as_object_mut().unwrap().remove(*field);
            }
        }
        assert_eq!(config, like, "{file}");
    }

    let mut bare = main.clone();
    without_served(&mut bare);
    let route =
        &mut manager(&mut bare)["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["retry_policy"];
    remove(route, "retry_host_predicate");
    remove(route, "host_selection_retry_max_attempts");
    let picker = &mut manager(&mut bare)["http_filters"][1]["typed_config"];
    picker["failure_mode_allow"] = json!(false);
    picker["status_on_error"] = json!({"code": "ServiceUnavailable"});
    let engines = cluster(&mut bare, "engines");
    remove(engines, "load_balancing_policy");
    remove(engines, "load_assignment");
    let mut original = shipped("standalone/original-dst.yaml");
    let engines = cluster(&mut original, "engines");
    for field in ["lb_policy", "original_dst_lb_config", "cleanup_interval"] {
        remove(engines, field);
    }
    engines["type"] = json!("STATIC");
    assert_eq!(original, bare);
}

/// The filters of the EnvoyFilter are those of the standalone file.
#[test]
fn the_envoy_filter_has_the_same_filters() {
    let filter = objects("istio/envoyfilter.yaml").pop().unwrap();
    let mut main = shipped("standalone/envoy.yaml");
    let standalone = manager(&mut main)["http_filters"].clone();
    for (number, patch) in [(0, 1), (1, 2)] {
        let mut of_main = standalone[number]["typed_config"].clone();
        if number == 1 {
            of_main["grpc_service"]["envoy_grpc"]["cluster_name"] = json!("kvpick");
        }
        assert_eq!(filter["spec"]["configPatches"][patch]["patch"]["value"]["typed_config"], of_main);
    }
    let mut of_istio = filter["spec"]["configPatches"][0]["patch"]["value"].clone();
    let mut of_main = cluster(&mut main, "picker").clone();
    for value in [&mut of_istio, &mut of_main] {
        for field in ["name", "type", "dns_lookup_family", "load_assignment"] {
            value.as_object_mut().unwrap().remove(field);
        }
    }
    assert_eq!(of_istio, of_main);
}
