//! The outside world of an agent: an engine with sockets and an HTTP API, and a server that keeps what it is told.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod engine;
pub(crate) mod server;
pub(crate) mod twins;

use std::{net::SocketAddr, time::Duration};

use kvpick_agent::{app::App, config::File};
use serde_json::Value;

/// Bound of every wait. What is waited for takes milliseconds, or a few seconds where a time-out is part of it.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The lines about the events of an engine that binds.
pub(crate) fn subscribe(publisher: &engine::Publisher) -> String {
    format!("subscribe: '{}', replay: '{}'", publisher.endpoint(), publisher.replay)
}

/// A running agent.
pub(crate) struct Agent {
    pub(crate) app: App,
}

impl Agent {
    pub(crate) async fn start(yaml: &str) -> Self {
        let file: File = kvpick_service::config::parse(yaml).unwrap();
        let config = file.check().unwrap();
        Self { app: App::start(config, None).await.unwrap() }
    }

    /// The usual one: one server, one engine with these lines about its events.
    pub(crate) async fn of(server: SocketAddr, engine: SocketAddr, events: &str) -> Self {
        let yaml = format!(
            "node: n\nservers: ['{server}']\nadmin: 127.0.0.1:0\nengines:\n  - {{address: '{engine}', {events}}}\n"
        );
        Self::start(&yaml).await
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.app.addresses["admin"]);
        reqwest::get(url).await.unwrap().text().await.unwrap()
    }

    pub(crate) async fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status").await).unwrap()
    }

    /// Waits until the status is as wanted.
    pub(crate) async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + LONG;
        loop {
            let status = self.status().await;
            if is(&status) {
                return status;
            }
            assert!(tokio::time::Instant::now() < deadline, "waited for: {what}\n{status:#}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
