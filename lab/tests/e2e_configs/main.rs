//! Every Envoy configuration that is shipped, and what gateways make of every object that is shipped, with a real Envoy
//! in front of real engines' stand-ins: a request goes to the engine that holds its prompt, whatever its client wishes.
//! Only addresses, files, and the patience with a busy machine differ from what is in the repository.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../common/mod.rs"]
mod common;
mod drive;
mod istio;
mod keys;
mod schemas;
mod shared;

use std::path::Path;

use common::{CHAT, chat, decisions, post, post_with};
use drive::{Expect, drive, plan, shipped};
use kvpick_lab::rig::{fleet::Fleet, scratch::Scratch, tools, wait};
use serde_json::json;

/// Over TCP in the clear, with a list of addresses.
#[tokio::test(flavor = "multi_thread")]
async fn names_old_envoys_and_gateways_in_the_clear() {
    let scratch = Scratch::new("configs-plain").unwrap();
    let fleet = Fleet::start(&plan(&[]), scratch.path()).await.unwrap();
    let (newest, oldest) = (tools::envoy().unwrap(), tools::oldest_envoy().unwrap());
    let expect = Expect::default();
    for (name, binary) in [
        ("standalone/dns.yaml", &newest),
        ("standalone/envoy-1.36.yaml", &newest),
        ("standalone/envoy-1.36.yaml", &oldest),
        ("envoy-gateway/generated.yaml", &newest),
    ] {
        drive(&fleet, &scratch, binary, name, shipped(name), &expect).await;
    }
    for binary in [&newest, &oldest] {
        let config = istio::patched(&fleet).unwrap();
        drive(&fleet, &scratch, binary, "istio/envoyfilter.yaml", config, &expect).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_knows_no_replica() {
    let scratch = Scratch::new("configs-original-dst").unwrap();
    let mut fleet = Fleet::start(&plan(&[("destinations", json!(1))]), scratch.path()).await.unwrap();
    let name = "standalone/original-dst.yaml";
    for binary in [tools::envoy().unwrap(), tools::oldest_envoy().unwrap()] {
        drive(&fleet, &scratch, &binary, name, shipped(name), &Expect::default()).await;
    }
    // There is no way without a choice, whatever a client says.
    fleet.server.terminate(wait::LONG).await.unwrap();
    let envoy = drive::begin(&fleet, &scratch, &tools::envoy().unwrap(), shipped(name)).await;
    let wish = fleet.engine_addresses()[0].to_string();
    let headers = [("x-gateway-destination-endpoint", wish.as_str())];
    let answer = post_with(&fleet, CHAT, chat("qwen3", "x", 30), &headers).await;
    assert_eq!((answer.status, answer.engine()), (503, None));
    drop(envoy);
}

/// So kvpick has to be told to name one alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_no_address() {
    let scratch = Scratch::new("configs-list").unwrap();
    let fleet = Fleet::start(&plan(&[]), scratch.path()).await.unwrap();
    let config = shipped("standalone/original-dst.yaml");
    let envoy = drive::begin(&fleet, &scratch, &tools::envoy().unwrap(), config).await;
    let answer = wait::until("kvpick to be asked", wait::LONG, async || {
        let answer = post(&fleet, CHAT, chat("qwen3", "x", 30)).await;
        let picked = decisions(&fleet, "precise", "ok").await;
        if picked > 0.0 { Ok(answer) } else { Err(format!("{answer:?}")) }
    });
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.engine()), (503, None));
    drop(envoy);
}

#[tokio::test(flavor = "multi_thread")]
async fn inference_pools_over_tls_that_nobody_checks() {
    let scratch = Scratch::new("configs-pools").unwrap();
    // What both gateways take.
    let fields = [("destinations", json!(1)), ("tls", json!({"self_signed": true}))];
    let fleet = Fleet::start(&plan(&fields), scratch.path()).await.unwrap();
    let envoy = tools::envoy().unwrap();
    for name in [
        "istio/generated.yaml",
        "ai-gateway/generated.yaml",
        "ai-gateway/generated-buffered.yaml",
        "ai-gateway/generated-fail-open.yaml",
    ] {
        let expect = Expect { strips: false, streams: !name.contains("buffered") };
        drive(&fleet, &scratch, &envoy, name, shipped(name), &expect).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_in_which_each_proves_who_it_is() {
    let scratch = Scratch::new("configs-tls").unwrap();
    let folder = std::path::absolute(scratch.path()).unwrap();
    let files = keys::make(&folder);
    let tls = json!({"certificate": files.server.0, "key": files.server.1, "client_ca": files.ca});
    let fleet = Fleet::start(&plan(&[("tls", tls)]), scratch.path()).await.unwrap();
    let name = "standalone/tls.yaml";
    let with = |own: &(std::path::PathBuf, std::path::PathBuf), ca: &Path| {
        let mut config = shipped(name);
        let path = |it: &Path| json!(it.to_str().unwrap());
        let context = &mut drive::cluster(&mut config, "picker")["transport_socket"]["typed_config"]["common_tls_context"];
        let certificate = &mut context["tls_certificates"][0];
        assert_eq!(certificate["certificate_chain"]["filename"], "/etc/envoy/kvpick/tls.crt");
        certificate["certificate_chain"]["filename"] = path(&own.0);
        certificate["private_key"]["filename"] = path(&own.1);
        certificate["watched_directory"]["path"] = path(&folder);
        context["validation_context"]["trusted_ca"]["filename"] = path(ca);
        context["validation_context"]["watched_directory"]["path"] = path(&folder);
        config
    };
    let envoy = tools::envoy().unwrap();
    drive(&fleet, &scratch, &envoy, name, with(&files.client, &files.ca), &Expect::default()).await;
    // An Envoy whose certificate another CA has signed is not heard, and one that knows another CA does not speak.
    for config in [with(&files.stranger, &files.ca), with(&files.client, &files.other_ca)] {
        drive::goes_without_picker(&fleet, &scratch, &envoy, config).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket() {
    let scratch = Scratch::new("configs-unix").unwrap();
    // Not in the scratch folder, whose path may be longer than the 107 bytes that a socket's may have.
    let sockets = tempfile::tempdir().unwrap();
    let socket = sockets.path().join("ext_proc.sock");
    let listen = json!(format!("unix:{}", socket.display()));
    let fleet = Fleet::start(&plan(&[("listen", listen)]), scratch.path()).await.unwrap();
    let name = "standalone/unix.yaml";
    let mut config = shipped(name);
    let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/pipe/path";
    let path = drive::cluster(&mut config, "picker").pointer_mut(endpoint).unwrap();
    assert_eq!(*path, "/run/kvpick/ext_proc.sock");
    *path = json!(socket);
    drive(&fleet, &scratch, &tools::envoy().unwrap(), name, config, &Expect::default()).await;
}
