//! One task per engine: asks its HTTP API how busy it is, and who it is.

use std::{
    error::Error as _,
    sync::Arc,
    time::{Duration, Instant},
};

use kvpick_agent_core::{
    engine::{Engine, Models},
    load::Metrics,
};
use kvpick_proto::words::{Adapter, EngineStatus, Handle};
use kvpick_service::{drain::Drain, ready::Hold};
use reqwest::{Client, StatusCode, redirect::Policy};
use serde::Deserialize;

use crate::{
    config::EngineConfig,
    discover::Discovery,
    shared::{Shared, now},
};

/// Between two samples while the engine works: half the time that a server would be wrong by.
const WORKING: Duration = Duration::from_millis(250);

/// Between two samples while nothing happens.
const IDLE: Duration = Duration::from_secs(2);

/// Between two attempts while it does not answer.
const DOWN: Duration = Duration::from_millis(500);

/// Adapters may be loaded at any time.
const MODELS_EVERY: Duration = Duration::from_secs(10);

/// What the engine stores looks like another process's: then who it is is asked for at once, but not in a row.
const DOUBTED_EVERY: Duration = Duration::from_secs(1);

/// An answer that takes longer is no answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Largest answer that is read; vLLM's metrics are below 100 KiB.
const MAX_BODY: usize = 8 << 20;

/// Redirects that are followed, as from a path to the same with a slash.
const MAX_REDIRECTS: usize = 3;

/// The agent's HTTP client: engines are on this node, so no proxy is between.
///
/// # Errors
///
/// The client can't be set up.
pub(crate) fn client() -> reqwest::Result<Client> {
    let builder = Client::builder().no_proxy().redirect(within_its_own());
    builder.timeout(TIMEOUT).connect_timeout(TIMEOUT).build()
}

/// An engine must not send the agent anywhere else, as to another engine or to what only this node can reach.
fn within_its_own() -> Policy {
    Policy::custom(|attempt| {
        let is_own = attempt.previous().last().is_some_and(|it| it.origin() == attempt.url().origin());
        if is_own && attempt.previous().len() <= MAX_REDIRECTS { attempt.follow() } else { attempt.stop() }
    })
}

/// Asks until the drain starts. `first` is let go after the first answer or failure.
pub(crate) async fn run(
    shared: Arc<Shared>,
    handle: Handle,
    config: EngineConfig,
    client: Client,
    mut discovery: Option<Discovery>,
    (first, drain): (Hold, Drain),
) {
    let mut first = Some(first);
    let mut asked_models = None;
    let mut is_up = false;
    loop {
        let working = tokio::select! {
            () = drain.started() => return,
            it = once(&shared, handle, &config, &client, &mut asked_models, &mut is_up) => it,
        };
        if is_up && let Some(discovery) = &mut discovery {
            let process = process(&shared, handle);
            tokio::select! {
                () = drain.started() => return,
                () = discovery.look(&shared, handle, &config, &client, process) => (),
            }
        }
        let working = working || discovery.as_ref().is_some_and(Discovery::is_pending);
        first.take();
        let pause = match (is_up, working) {
            (false, _) => DOWN,
            (true, true) => WORKING,
            (true, false) => IDLE,
        };
        tokio::select! {
            () = drain.started() => return,
            () = tokio::time::sleep(pause) => (),
            // It began to work, or its connection changed; not more often than while it works.
            () = async {
                tokio::time::sleep(WORKING).await;
                shared.scraper_woken(handle).await;
            } => (),
        }
    }
}

/// What tells the engine's process from the next one.
fn process(shared: &Shared, handle: Handle) -> String {
    let state = shared.lock();
    let engine = state.node.engines().get(&handle);
    engine.map(|it| it.provisional_description().incarnation.clone()).unwrap_or_default()
}

/// One round; returns whether the engine works.
async fn once(
    shared: &Shared,
    handle: Handle,
    config: &EngineConfig,
    client: &Client,
    asked_models: &mut Option<Instant>,
    is_up: &mut bool,
) -> bool {
    let asked = Instant::now();
    let result = get(client, &format!("{}/metrics", config.api)).await;
    // Read before the lock is taken: how long the text is, is up to the engine.
    let result = result.map(|text| Metrics::parse(&text, config.name.rank));
    if result.is_err() {
        *asked_models = None;
    }
    // Who it is before how it is, so that its first description is whole.
    let is_past = |pause| asked_models.is_none_or(|it| it + pause <= asked);
    let is_doubted = || {
        let mut state = shared.lock();
        state.node.engine(handle).is_some_and(Engine::take_wants_identity)
    };
    let doubted = result.is_ok() && is_past(DOUBTED_EVERY) && is_doubted();
    if result.is_ok() && (doubted || is_past(MODELS_EVERY)) {
        let is_new = asked_models.replace(asked).is_none();
        identify(shared, handle, config, client, is_new || doubted).await;
    }
    let (now, unix_ms) = now();
    let mut state = shared.lock();
    let scrapes = state.scrapes.entry(handle).or_default();
    match &result {
        Ok(_) => scrapes.good += 1,
        Err(_) => scrapes.failed += 1,
    }
    let Some(engine) = state.node.engine(handle) else { return false };
    let before = engine.load().map(|(load, _)| load.clone());
    match result {
        Ok(metrics) => engine.on_metrics(metrics, asked, now, unix_ms),
        Err(error) => engine.on_scrape_failed(error.text, error.refused, now),
    }
    let description = engine.provisional_description();
    let serves = description.status == EngineStatus::Up;
    if *is_up && !serves {
        let reason = &description.status_reason;
        tracing::warn!(engine = %config.name, status = ?description.status, reason, "it does not serve");
    } else if serves && !*is_up {
        tracing::info!(engine = %config.name, version = description.engine_version, models = ?description.models, "it serves");
    }
    *is_up = serves;
    let after = engine.load().map(|(load, _)| load);
    let working = after.is_some_and(|it| it.running > 0 || it.waiting > 0) || after != before.as_ref();
    drop(state);
    shared.wake_driver(handle);
    shared.ring();
    working
}

async fn identify(shared: &Shared, handle: Handle, config: &EngineConfig, client: &Client, is_new: bool) {
    let version = async {
        if !is_new {
            return None;
        }
        let text = get(client, &format!("{}/version", config.api)).await.ok()?;
        Some(serde_json::from_str::<Version>(&text).ok()?.version)
    };
    let models = async {
        let text = get(client, &format!("{}/v1/models", config.api)).await.ok()?;
        Some(models(serde_json::from_str(&text).ok()?))
    };
    let (version, models) = tokio::join!(version, models);
    let mut state = shared.lock();
    let Some(engine) = state.node.engine(handle) else { return };
    if let Some(version) = version {
        engine.on_version(version);
    }
    if let Some(models) = models {
        engine.on_models(models);
    }
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelCard>,
}

#[derive(Deserialize)]
struct ModelCard {
    id: String,
    #[serde(default)]
    root: Option<String>,
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    max_model_len: Option<serde_json::Value>,
}

/// An adapter's card names its base model as `parent`, and where it was loaded from as `root`.
fn models(list: ModelList) -> Models {
    let mut all = Models::default();
    for card in list.data {
        if card.parent.is_some() {
            all.adapters.push(Adapter { name: card.id, path: card.root.unwrap_or_default() });
        } else {
            let len = card.max_model_len.and_then(|it| it.as_u64()).unwrap_or(0);
            all.max_model_len = all.max_model_len.max(u32::try_from(len).unwrap_or(u32::MAX));
            all.models.push(card.id);
        }
    }
    all
}

/// Why there is no answer.
pub(crate) struct Failed {
    pub(crate) text: String,
    /// Whether nothing listens there.
    refused: bool,
    /// Whether there is no such route.
    pub(crate) is_absent: bool,
}

impl From<reqwest::Error> for Failed {
    fn from(error: reqwest::Error) -> Self {
        // The innermost cause says most: "Connection refused".
        let mut cause = error.source();
        while let Some(deeper) = cause.and_then(|it| it.source()) {
            cause = Some(deeper);
        }
        let refused = error.is_connect() && !error.is_timeout();
        let text = if error.is_timeout() {
            format!("no answer for {} s", TIMEOUT.as_secs())
        } else {
            cause.map_or_else(|| error.to_string(), ToString::to_string)
        };
        Self { text, refused, is_absent: false }
    }
}

/// Asks, for at most [`TIMEOUT`] and [`MAX_BODY`].
pub(crate) async fn get(client: &Client, url: &str) -> Result<String, Failed> {
    let mut response = client.get(url).send().await?;
    if !response.status().is_success() {
        let is_absent = response.status() == StatusCode::NOT_FOUND;
        return Err(Failed {
            text: format!("{url} answers {}", response.status()),
            refused: false,
            is_absent,
        });
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_BODY {
            let text = format!("{url} answers more than {MAX_BODY} bytes");
            return Err(Failed { text, refused: false, is_absent: false });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

#[cfg(test)]
mod tests {
    use axum::{Router, response::Redirect, routing};
    use tokio::net::TcpListener;

    use super::*;

    async fn serve(router: Router) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn a_redirect_is_followed_to_the_engine_itself_only() {
        let other = serve(Router::new().route("/secret", routing::get(async || "secret"))).await;
        let away = Redirect::temporary(&format!("{other}/secret"));
        let router = Router::new()
            .route("/away", routing::get(async move || away))
            .route("/metrics", routing::get(async || Redirect::temporary("/metrics/")))
            .route("/metrics/", routing::get(async || "metrics"))
            .route("/round", routing::get(async || Redirect::temporary("/round")));
        let (engine, client) = (serve(router).await, client().unwrap());
        let answer = async |path: &str| match get(&client, &format!("{engine}{path}")).await {
            Ok(it) => it,
            Err(failed) => failed.text,
        };
        assert_eq!(answer("/metrics").await, "metrics");
        for path in ["/away", "/round"] {
            assert!(answer(path).await.contains("answers 307"), "{path}");
        }
    }
}
