//! What end-to-end tests share: requests, and what Envoy, kvpick and the engines say of them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared by test files; a test may panic")]

use std::{collections::BTreeMap, net::SocketAddr};

use kvpick_lab::rig::{fleet, fleet::Fleet, wait};
use serde_json::{Value, json};

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    /// The engine that answered.
    pub fn engine(&self) -> Option<&str> {
        self.headers.get("x-lab-engine").map(String::as_str)
    }

    /// What kvpick says of it: a value of the evidence header.
    pub fn evidence(&self, key: &str) -> Option<&str> {
        let header = self.headers.get("x-kvpick-evidence")?;
        header
            .split("; ")
            .filter_map(|it| it.split_once('='))
            .find(|(it, _)| *it == key)
            .map(|(_, value)| value)
    }

    #[track_caller]
    pub fn tier_and_reason(&self) -> (&str, &str) {
        let get = |key| self.evidence(key).unwrap_or_else(|| panic!("no evidence in {self:?}"));
        (get("tier"), get("reason"))
    }

    pub fn cached_tokens(&self) -> u64 {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    }
}

/// Sends a body to a path through Envoy.
pub async fn post(fleet: &Fleet, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    post_with(fleet, path, body, &[]).await
}

pub async fn post_with(
    fleet: &Fleet,
    path: &str,
    body: impl Into<reqwest::Body>,
    headers: &[(&str, &str)],
) -> Answer {
    let http = reqwest::Client::builder().no_proxy().timeout(wait::LONG).build().unwrap();
    let mut request = http.post(format!("{}{path}", fleet.url())).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = request.body(body).send().await.unwrap();
    let status = answer.status().as_u16();
    let headers = answer
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    Answer { status, headers, body: answer.text().await.unwrap() }
}

pub const CHAT: &str = "/v1/chat/completions";

/// A chat whose prompt has about `words` tokens; the same ones for the same `topic`.
pub fn chat(model: &str, topic: &str, words: usize) -> String {
    let text: Vec<String> = (0..words / 3).map(|i| format!("{topic} {i}")).collect();
    let messages = json!([{"role": "user", "content": text.join(" ")}]);
    json!({"model": model, "messages": messages, "max_tokens": 2}).to_string()
}

/// Waits until kvpick's status of a replica has a certain value in a field.
pub async fn until_replica(fleet: &Fleet, address: SocketAddr, field: &str, want: &Value) {
    let look = async || {
        let status = fleet.server.status().await.map_err(|it| format!("{it:#}"))?;
        let replica = fleet::replica(&status, address, 0).ok_or_else(|| status.to_string())?;
        let value = replica.pointer(field).cloned().unwrap_or_default();
        if value == *want { Ok(()) } else { Err(replica.to_string()) }
    };
    wait::until(&format!("{field} of {address} to be {want}"), wait::LONG, look).await.unwrap();
}

/// kvpick's count of decisions of that kind.
pub async fn decisions(fleet: &Fleet, tier: &str, reason: &str) -> f64 {
    let metrics = fleet.server.metrics().await.unwrap();
    metrics.sum("kvpick_decisions_total", &[("tier", tier), ("reason", reason)])
}

/// Waits until all that the engines have published is applied.
pub async fn settle(fleet: &Fleet) {
    let http = kvpick_lab::rig::http().unwrap();
    for address in fleet.engine_addresses() {
        let url = format!("http://{address}/metrics");
        let page = kvpick_lab::rig::program::get(&http, &url).await.unwrap();
        let batches =
            kvpick_lab::rig::metrics::Metrics::parse(&page).sum("lab:event_batches_total", &[]) as u64;
        if let Some(last) = batches.checked_sub(1) {
            fleet.applied(*address, 0, last).await.unwrap();
        }
    }
}
