//! The routes of vLLM's OpenAI server that clients, agents and people use here.

mod answer;
mod error;
mod shapes;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse as _, Response},
    routing::{get, post},
    serve::ListenerExt as _,
};
use kvpick_core::{
    prompts::Prompter,
    request::{Api, Request},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::error::ApiError;
use super::{driver::Handle, generate::Generator, metrics::Metrics};

/// What the routes need. Cheap to clone.
#[derive(Clone)]
pub(super) struct App {
    pub(super) address: SocketAddr,
    pub(super) models: Vec<String>,
    pub(super) version: &'static str,
    /// Unix time of the start, in seconds.
    pub(super) created: u64,
    pub(super) max_model_len: usize,
    pub(super) prompter: Arc<Prompter>,
    pub(super) generator: Arc<Generator>,
    pub(super) engine: Handle,
    pub(super) metrics: Metrics,
    /// Numbers the answers.
    pub(super) answers: Arc<AtomicU64>,
}

/// Serves until told to stop and the last connection is done.
pub(super) async fn serve(listener: TcpListener, app: App, stop: CancellationToken) -> io::Result<()> {
    let who = HeaderValue::from_str(&app.address.to_string()).expect("an address is plain text");
    let router = Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::map_response(move |mut response: Response| {
            response.headers_mut().insert(WHO, who.clone());
            async { response }
        }))
        .with_state(app);
    // Tokens leave as they come, one small write each.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn chat_completions(State(app): State<App>, body: Bytes) -> Result<Response, ApiError> {
    answer::answer(app, Api::ChatCompletions, body).await
}

async fn completions(State(app): State<App>, body: Bytes) -> Result<Response, ApiError> {
    answer::answer(app, Api::Completions, body).await
}

async fn models(State(app): State<App>) -> Json<Value> {
    let card = |name: &String| {
        json!({
            "id": name, "object": "model", "created": app.created, "owned_by": "vllm", "root": app.models[0],
            "parent": null, "max_model_len": app.max_model_len, "permission": [],
        })
    };
    Json(json!({"object": "list", "data": app.models.iter().map(card).collect::<Vec<_>>()}))
}

/// Either `{prompt}` or the body of a chat.
async fn tokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let fields = object(&body)?;
    app.check_model(fields.get("model").and_then(Value::as_str))?;
    let max_model_len = app.max_model_len;
    let tokens = blocking(move || {
        if fields.get("messages").is_some() {
            let request = Request::parse(Api::ChatCompletions, &body)?;
            return Ok(app.prompter.token_ids(&request)?.into_iter().flatten().collect::<Vec<u32>>());
        }
        let Some(prompt) = fields.get("prompt").and_then(Value::as_str) else {
            return Err(ApiError::bad_request(
                "prompt: missing or no string; send prompt or messages",
                "prompt",
            ));
        };
        let special = fields.get("add_special_tokens").and_then(Value::as_bool).unwrap_or(true);
        Ok(app.prompter.encode(prompt, special)?)
    })
    .await?;
    Ok(Json(json!({
        "count": tokens.len(), "max_model_len": max_model_len, "tokens": tokens, "token_strs": null,
    })))
}

async fn detokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let fields = object(&body)?;
    app.check_model(fields.get("model").and_then(Value::as_str))?;
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let tokens: Option<Vec<u32>> =
        fields.get("tokens").and_then(Value::as_array).and_then(|tokens| tokens.iter().map(id).collect());
    let Some(tokens) = tokens else {
        return Err(ApiError::bad_request("tokens: missing or no list of token ids", "tokens"));
    };
    Ok(Json(json!({"prompt": app.prompter.decode(&tokens)})))
}

async fn version(State(app): State<App>) -> Json<Value> {
    Json(json!({"version": app.version}))
}

async fn metrics(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.text()).into_response()
}

async fn reset_prefix_cache(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"success": app.engine.reset_prefix_cache().await?})))
}

impl App {
    /// The server's own model where the client names none, as in vLLM.
    fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if !self.models.iter().any(|name| name == asked) => {
                Err(ApiError::unknown_model(asked))
            }
            _ => Ok(()),
        }
    }
}

fn object(body: &[u8]) -> Result<Value, ApiError> {
    match serde_json::from_slice(body) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(ApiError::bad_request("the body must be a JSON object", "body")),
        Err(error) => Err(ApiError::bad_request(&format!("the body is not JSON: {error}"), "body")),
    }
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
