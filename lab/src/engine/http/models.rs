//! Routes that say what the engine serves, and what tokens are.

use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::header,
    response::{IntoResponse as _, Response},
};
use kvpick_core::request::{Api, Request};
use serde_json::{Map, Value, json};

use super::{App, blocking, error::ApiError};
use crate::engine::{
    driver::Handle,
    publisher::{MAX_QUEUED, PUB_HIGH_WATER_MARK},
};

/// Cards of the model under each of its names, then of the adapters.
pub(super) async fn models(State(app): State<App>) -> Json<Value> {
    let shown = &app.shown;
    let created = app.lives.present().created;
    let card = |id: &str, root: &str, parent: Value, max_model_len: Value| {
        json!({
            "id": id, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent,
            "max_model_len": max_model_len, "permission": [{
                "id": format!("modelperm-{id}"), "object": "model_permission", "created": created,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false, "organization": "*",
                "group": null, "is_blocking": false,
            }],
        })
    };
    let base = &shown.models[0];
    let models = shown.models.iter().map(|name| card(name, base, Value::Null, json!(shown.max_model_len)));
    let adapters = shown.adapters.iter().map(|it| card(&it.name, &it.path, json!(base), Value::Null));
    Json(json!({"object": "list", "data": models.chain(adapters).collect::<Vec<_>>()}))
}

/// Either `{prompt}` or the body of a chat.
pub(super) async fn tokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let fields = object(&body)?;
    app.served(fields.get("model").and_then(Value::as_str))?;
    let max_model_len = app.shown.max_model_len;
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

pub(super) async fn detokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let fields = object(&body)?;
    app.served(fields.get("model").and_then(Value::as_str))?;
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let tokens: Option<Vec<u32>> =
        fields.get("tokens").and_then(Value::as_array).and_then(|tokens| tokens.iter().map(id).collect());
    let Some(tokens) = tokens else {
        return Err(ApiError::bad_request("tokens: missing or no list of token ids", "tokens"));
    };
    Ok(Json(json!({"prompt": app.prompter.decode(&tokens)})))
}

pub(super) async fn version(State(app): State<App>) -> Json<Value> {
    Json(json!({"version": app.shown.version.as_str()}))
}

pub(super) async fn metrics(State(app): State<App>) -> Response {
    let text = app.lives.present().metrics.text();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Requests that are not answered yet.
pub(super) async fn load(State(app): State<App>) -> Json<Value> {
    let load: usize = app.lives.present().ranks.iter().map(Handle::load).sum();
    Json(json!({"server_load": load}))
}

/// Where each rank publishes its events.
pub(super) async fn event_sources(State(app): State<App>) -> Json<Value> {
    let life = app.lives.present();
    let sources = life.endpoints.iter().enumerate().map(|(rank, endpoints)| {
        let source = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoints.events,
            "replay_endpoint": endpoints.replay, "buffer_steps": endpoints.buffer_steps, "hwm": PUB_HIGH_WATER_MARK,
            "max_queue_size": MAX_QUEUED, "topic": endpoints.topic,
        });
        (rank.to_string(), source)
    });
    Json(Value::Object(sources.collect::<Map<_, _>>()))
}

pub(super) fn object(body: &[u8]) -> Result<Value, ApiError> {
    match serde_json::from_slice(body) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(ApiError::bad_request("the body must be a JSON object", "body")),
        Err(error) => Err(ApiError::bad_request(&format!("the body is not JSON: {error}"), "body")),
    }
}
