//! Agents that prove by certificates who they are, and one that does not.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use kvpick_lab::rig::{
    fleet::{Fleet, Plan},
    scratch::Scratch,
    wait,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Map, Value, json};

/// Writes a certificate for those names and its key; returns their files.
fn sign(folder: &Path, name: &str, names: &[&str], issuer: &Issuer<'_, KeyPair>) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    let (certificate, key_file) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    std::fs::write(&certificate, params.signed_by(&key, issuer).unwrap().pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    (certificate, key_file)
}

fn field(name: &str, value: Value) -> Map<String, Value> {
    Map::from_iter([(name.to_owned(), value)])
}

#[tokio::test]
async fn agents_speak_with_certificates_and_are_not_heard_without() {
    let scratch = Scratch::new("tls").unwrap();
    let folder = std::path::absolute(scratch.path()).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = folder.join("ca.crt");
    std::fs::write(&ca, params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let (server, server_key) = sign(&folder, "server", &["kvpick"], &issuer);
    let (agent, agent_key) = sign(&folder, "agent", &["node-0", "node-1"], &issuer);

    let mut plan = Plan::even(2, 2);
    plan.envoy = None;
    plan.server = field("feed_tls", json!({"certificate": server, "key": server_key, "client_ca": ca}));
    let tls = json!({"ca": ca, "certificate": agent, "key": agent_key, "server_name": "kvpick"});
    plan.agent = field("tls", tls);
    let fleet = Fleet::start(&plan, &folder).await.unwrap();

    // An agent that has the certificate of other nodes.
    let (other, other_key) = sign(&folder, "other", &["node-9"], &issuer);
    let elsewhere = folder.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    plan.agent =
        field("tls", json!({"ca": ca, "certificate": other, "key": other_key, "server_name": "kvpick"}));
    let mut strangers = Fleet::prepare(&plan, &elsewhere).unwrap();
    strangers.server.start().await.unwrap();
    strangers.agents[0].start().await.unwrap();
    let unproven = async || {
        let metrics = strangers.server.metrics().await.map_err(|it| it.to_string())?;
        let closed = metrics.sum("kvpick_feed_closed_total", &[("reason", "unproven")]);
        if closed > 0.0 { Ok(()) } else { Err("no stream was closed for that".to_owned()) }
    };
    wait::until("an agent of another node to be refused", wait::LONG, unproven).await.unwrap();

    // One more server of that kind, and agents that speak in the clear.
    let apart = folder.join("apart");
    std::fs::create_dir(&apart).unwrap();
    plan.agent = Map::new();
    let mut others = Fleet::prepare(&plan, &apart).unwrap();
    others.server.start().await.unwrap();
    others.agents[0].start().await.unwrap();
    let refused = async || {
        let status = others.agents[0].status().await.map_err(|it| it.to_string())?;
        let link = &status["servers"][0];
        if link["last_error"].is_string() { Ok(()) } else { Err(link.to_string()) }
    };
    wait::until("an agent without a certificate to be refused", wait::LONG, refused).await.unwrap();
    let heard = fleet.server.status().await.unwrap()["replicas"].as_array().unwrap().len();
    assert_eq!(heard, 2);
}
