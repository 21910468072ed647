//! The operator's side of a program, over plain HTTP and away from the request path.
//!
//! | path | answer |
//! |---|---|
//! | `GET /healthz` | 200 while the process answers at all |
//! | `GET /readyz` | 200, or 503 with one line for each awaited thing |
//! | `GET /metrics` | Prometheus text |
//! | `GET /status` | JSON: what the program knows and does |
//! | `GET /config` | JSON: the configuration in force, defaults filled in |
//! | `PUT /log-level` | the body is the new log filter, such as `info,kvpick_core=debug` |
//!
//! A program may have further routes.
//!
//! Nobody is asked who they are here: bind it to loopback, or to an address that only operators reach.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use prometheus::{Encoder as _, TextEncoder};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::drain::Drain;
use crate::logs::Logs;
use crate::ready::Ready;

/// What the admin server shows.
#[derive(Clone)]
pub struct Admin {
    /// Behind `/metrics`.
    pub registry: prometheus::Registry,
    /// Behind `/readyz`.
    pub ready: Ready,
    /// Behind `/status`; asked once a request, on a runtime thread, so it has to be quick.
    pub status: Arc<dyn Fn() -> Value + Send + Sync>,
    /// Behind `/config`, as `status`; must hold no secrets.
    pub config: Arc<dyn Fn() -> Value + Send + Sync>,
    /// Behind `/log-level`; without it a change is refused.
    pub logs: Option<Logs>,
    /// The program's own routes beside these.
    pub routes: Router,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("ready", &self.ready).finish_non_exhaustive()
    }
}

/// Serves `admin` on `listener`. From the start of the drain on `/readyz` says so, and the server goes on
/// until the other tasks of `drain` have ended, so that a drain can be watched: start it with
/// [`Drain::spawn`].
pub async fn serve(listener: TcpListener, admin: Admin, drain: Drain) -> std::io::Result<()> {
    let last = drain.clone();
    let routes = admin.routes.clone();
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(async |State((admin, _)): State<(Admin, Drain)>| Json((admin.status)())))
        .route("/config", get(async |State((admin, _)): State<(Admin, Drain)>| Json((admin.config)())))
        .route("/log-level", put(log_level))
        .with_state((admin, drain))
        .merge(routes);
    axum::serve(listener, router).with_graceful_shutdown(async move { last.alone().await }).await
}

async fn readyz(State((admin, drain)): State<(Admin, Drain)>) -> Response {
    let mut awaited = admin.ready.awaited();
    if drain.is_started() {
        awaited.insert(0, "nothing: the program is shutting down".to_owned());
    }
    if awaited.is_empty() {
        return "ready\n".into_response();
    }
    let lines: String = awaited.iter().map(|what| format!("waiting for {what}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}

async fn metrics(State((admin, _)): State<(Admin, Drain)>) -> Response {
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    match encoder.encode(&admin.registry.gather(), &mut text) {
        Ok(()) => ([(header::CONTENT_TYPE, encoder.format_type().to_owned())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn log_level(State((admin, _)): State<(Admin, Drain)>, filter: String) -> Response {
    let Some(logs) = admin.logs else {
        return (StatusCode::NOT_IMPLEMENTED, "this program's logs have a fixed level\n").into_response();
    };
    match logs.set(&filter) {
        Ok(()) => {
            tracing::info!(filter = logs.filter(), "log filter changed");
            format!("{}\n", logs.filter()).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    struct Running {
        base: String,
        http: reqwest::Client,
        drain: Drain,
        ready: Ready,
        counter: prometheus::IntCounter,
    }

    impl Running {
        async fn start() -> Self {
            let registry = prometheus::Registry::new();
            let counter = prometheus::IntCounter::new("picks_total", "Picks.").unwrap();
            registry.register(Box::new(counter.clone())).unwrap();
            let ready = Ready::default();
            let admin = Admin {
                registry,
                ready: ready.clone(),
                status: Arc::new(|| json!({"replicas": 4})),
                config: Arc::new(|| json!({"listen": "127.0.0.1:9002"})),
                logs: None,
                routes: Router::new().route("/of-its-own", get(async || "here\n")),
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let base = format!("http://{}", listener.local_addr().unwrap());
            let drain = Drain::new();
            drain.spawn("admin", serve(listener, admin, drain.clone()));
            let http = reqwest::Client::builder().no_proxy().build().unwrap();
            Self { base, http, drain, ready, counter }
        }

        async fn get(&self, path: &str) -> (u16, String) {
            let answer = self.http.get(format!("{}{path}", self.base)).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        }
    }

    #[tokio::test]
    async fn shows_health_metrics_status_and_config() {
        let running = Running::start().await;
        running.counter.inc_by(3);
        assert_eq!(running.get("/healthz").await.0, 200);
        let (status, text) = running.get("/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("picks_total 3"), "{text}");
        assert_eq!(running.get("/status").await, (200, json!({"replicas": 4}).to_string()));
        assert_eq!(running.get("/config").await, (200, json!({"listen": "127.0.0.1:9002"}).to_string()));
        assert_eq!(running.get("/of-its-own").await, (200, "here\n".to_owned()));
        assert_eq!(running.get("/nowhere").await.0, 404);
    }

    #[tokio::test]
    async fn readiness_names_what_is_awaited() {
        let running = Running::start().await;
        let hold = running.ready.hold("the copy of node-a");
        assert_eq!(running.get("/readyz").await, (503, "waiting for the copy of node-a\n".to_owned()));
        drop(hold);
        assert_eq!(running.get("/readyz").await.0, 200);
    }

    #[tokio::test]
    async fn a_fixed_log_level_is_refused() {
        let running = Running::start().await;
        let url = format!("{}/log-level", running.base);
        let answer = running.http.put(url).body("debug").send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 501);
    }

    #[tokio::test]
    async fn a_drain_can_be_watched_to_its_end() {
        let running = Running::start().await;
        let (release, held) = tokio::sync::oneshot::channel::<()>();
        running.drain.spawn("generation", async move { held.await.is_ok() });
        running.drain.start();
        assert_eq!(running.get("/readyz").await.0, 503);
        assert_eq!(running.get("/healthz").await.0, 200);
        release.send(()).unwrap();
        assert!(running.drain.finished(Duration::from_secs(30)).await, "{:?}", running.drain.running());
    }
}
