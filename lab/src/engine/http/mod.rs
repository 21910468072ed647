//! The routes of vLLM's OpenAI server that clients, agents and people use here, as far as the imitated version has them.

mod answer;
mod control;
mod error;
mod faulty;
mod listener;
mod models;
mod render;
mod responses;
mod shapes;
mod stream;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{HeaderValue, StatusCode},
    middleware,
    response::Response,
    routing::{get, post},
};
use kvpick_core::prompts::Prompter;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::{error::ApiError, faulty::Faulty, listener::Connection};
use super::{
    announce::Adapter,
    generate::Generator,
    life::Lives,
    version::{RenderForm, Version},
};

/// What the routes need. Cheap to clone.
#[derive(Clone)]
pub(super) struct App {
    pub(super) address: SocketAddr,
    pub(super) shown: Arc<Shown>,
    pub(super) prompter: Arc<Prompter>,
    pub(super) generator: Arc<Generator>,
    pub(super) lives: Arc<Lives>,
    faulty: Arc<Faulty>,
    /// Answers that later requests go on from.
    kept: Arc<responses::Kept>,
    /// Numbers the answers.
    answers: Arc<AtomicU64>,
}

/// What the engine says of itself.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) models: Vec<String>,
    pub(super) adapters: Vec<Arc<Adapter>>,
    pub(super) version: Version,
    /// Whether hashes in events are integers.
    pub(super) int_hashes: bool,
    pub(super) algorithm: &'static str,
    pub(super) block_size: u32,
    pub(super) num_blocks: u32,
    pub(super) max_model_len: usize,
    pub(super) dev_mode: bool,
}

impl App {
    pub(super) fn new(
        address: SocketAddr,
        shown: Shown,
        prompter: Prompter,
        generator: Generator,
        lives: Arc<Lives>,
    ) -> Self {
        Self {
            address,
            shown: Arc::new(shown),
            prompter: Arc::new(prompter),
            generator: Arc::new(generator),
            lives,
            faulty: Arc::default(),
            kept: Arc::default(),
            answers: Arc::default(),
        }
    }

    /// What a client asks for by that name. The server's own model where the client names none, as in vLLM.
    fn served(&self, asked: Option<&str>) -> Result<Option<Arc<Adapter>>, ApiError> {
        let Some(asked) = asked else { return Ok(None) };
        let adapter = self.shown.adapters.iter().find(|it| it.name == asked);
        if adapter.is_none() && !self.shown.models.iter().any(|name| name == asked) {
            return Err(ApiError::unknown_model(asked));
        }
        Ok(adapter.cloned())
    }
}

/// Serves until told to stop and the last connection is done.
pub(super) async fn serve(listener: TcpListener, app: App, stop: CancellationToken) -> io::Result<()> {
    let who = HeaderValue::from_str(&app.address.to_string()).expect("an address is plain text");
    let listener = listener::Listener::new(app.address, listener, Arc::clone(&app.faulty));
    let router = routes(&app)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(app.clone(), faulty::meet))
        .layer(middleware::from_fn(answer::show_asked_rank))
        .layer(middleware::map_response(move |mut response: Response| {
            response.headers_mut().insert(WHO, who.clone());
            async { response }
        }))
        .with_state(app);
    let service = router.into_make_service_with_connect_info::<Connection>();
    axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await
}

fn routes(app: &App) -> Router<App> {
    let version = app.shown.version;
    let mut router = Router::new()
        .route("/v1/chat/completions", post(answer::chat_completions))
        .route("/v1/completions", post(answer::completions))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/models", get(models::models))
        .route("/tokenize", post(models::tokenize))
        .route("/detokenize", post(models::detokenize))
        .route("/version", get(models::version))
        .route("/metrics", get(models::metrics))
        .route("/load", get(models::load))
        .route("/health", get(control::health))
        .route("/lab/faults", post(faulty::command))
        .fallback(|| async { detail(StatusCode::NOT_FOUND, "Not Found") })
        .method_not_allowed_fallback(|| async {
            detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        });
    if version.render() != RenderForm::Absent {
        router = router
            .route("/v1/chat/completions/render", post(render::chat_completions))
            .route("/v1/completions/render", post(render::completions));
    }
    if version.renders_all_apis() {
        router = router
            .route("/v1/messages/render", post(render::messages))
            .route("/v1/responses/render", post(render::responses));
    }
    if version.shows_event_sources() {
        router = router.route("/kv_event_sources", get(models::event_sources));
    }
    if app.shown.dev_mode {
        router = router
            .route("/server_info", get(control::server_info))
            .route("/reset_prefix_cache", post(control::reset_prefix_cache))
            .route("/sleep", post(control::sleep))
            .route("/wake_up", post(control::wake_up))
            .route("/is_sleeping", get(control::is_sleeping));
    }
    router
}

/// What vLLM's web framework says where no route does.
fn detail(status: StatusCode, text: &str) -> (StatusCode, axum::Json<Value>) {
    (status, axum::Json(json!({"detail": text})))
}

/// Rendering and tokenizing take milliseconds for long prompts, which tokens of other requests must not wait for.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(ApiError::internal()))
}

/// Says which engine answered, to those who ask through a proxy.
const WHO: &str = "x-lab-engine";

/// Bytes in a body. Far above any context length.
const MAX_BODY: usize = 64 << 20;
