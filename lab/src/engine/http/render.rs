//! Routes that say what an engine would be sent: the prompt's very tokens.

use axum::{Json, body::Bytes, extract::State};
use kvpick_core::request::Api;
use serde_json::{Value, json};

use super::{
    App,
    answer::{Prepared, prepare, prepare_as},
    error::ApiError,
    models::object,
    shapes::Served,
};
use crate::engine::version::RenderForm;

pub(super) async fn chat_completions(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    render(app, Served::Chat, body).await
}

pub(super) async fn completions(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    render(app, Served::Completions, body).await
}

pub(super) async fn messages(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    as_chat(app, Api::Messages, body).await
}

pub(super) async fn responses(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let fields = object(&body)?;
    if !fields["previous_response_id"].is_null() {
        let why = "previous_response_id is not supported by the stateless render endpoint.";
        return Err(ApiError::bad_request(why, "previous_response_id"));
    }
    as_chat(app, Api::Responses, body).await
}

/// APIs that come down to a chat, and are rendered as one. Engines here do not answer them.
async fn as_chat(app: App, api: Api, body: Bytes) -> Result<Json<Value>, ApiError> {
    let prepared = prepare_as(&app, api, Served::Chat, body.clone()).await?;
    let fields = object(&body)?;
    let prompt = prepared.prompts.first().map(Vec::as_slice).unwrap_or_default();
    Ok(Json(request(&app, &prepared, &fields, prompt)))
}

async fn render(app: App, api: Served, body: Bytes) -> Result<Json<Value>, ApiError> {
    let prepared = prepare(&app, api, body.clone()).await?;
    let fields = object(&body)?;
    let mut rendered: Vec<Value> = match app.shown.version.render() {
        RenderForm::Request => {
            prepared.prompts.iter().map(|prompt| request(&app, &prepared, &fields, prompt)).collect()
        }
        RenderForm::Absent | RenderForm::Prompts => {
            prepared.prompts.iter().map(|prompt| engine_prompt(&app, &prepared, prompt)).collect()
        }
    };
    Ok(Json(match (api, app.shown.version.render()) {
        (Served::Completions, _) => Value::Array(rendered),
        (Served::Chat, RenderForm::Request) => rendered.pop().unwrap_or_default(),
        (Served::Chat, _) => json!([fields["messages"], rendered]),
    }))
}

/// As since 0.18.
fn request(app: &App, prepared: &Prepared, fields: &Value, prompt: &[u32]) -> Value {
    let request = &prepared.request;
    json!({
        "request_id": app.answer_id(prepared.api),
        "token_ids": prompt,
        "features": null,
        "sampling_params": {
            "n": request.n, "max_tokens": request.max_tokens, "temperature": fields.get("temperature"),
            "top_p": fields.get("top_p"),
        },
        "model": prepared.model_name(app),
        "stream": request.stream,
        "stream_options": fields.get("stream_options"),
        "cache_salt": request.cache_salt,
        "priority": 0,
        "kv_transfer_params": null,
    })
}

/// As until 0.17.
fn engine_prompt(app: &App, prepared: &Prepared, prompt: &[u32]) -> Value {
    let mut it = json!({"prompt_token_ids": prompt, "prompt": app.prompter.decode(prompt)});
    if let Some(salt) = &prepared.request.cache_salt {
        it["cache_salt"] = json!(salt);
    }
    it
}
