//! Health, and the routes of vLLM's development mode.

use axum::{
    Json,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{App, error::ApiError};
use crate::engine::version::Version;

/// 503 when the engine behind the server is dead; the body is empty either way.
pub(super) async fn health(State(app): State<App>) -> StatusCode {
    if app.lives.present().is_alive() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ConfigFormat {
    config_format: Option<String>,
}

/// The configuration, as far as others read it here. The oldest version does not tell its environment.
pub(super) async fn server_info(
    State(app): State<App>,
    Query(query): Query<ConfigFormat>,
) -> Result<Json<Value>, ApiError> {
    let shown = &app.shown;
    let life = app.lives.present();
    let events = life.endpoints.first().map(|it| {
        json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": it.events,
            "replay_endpoint": it.replay, "topic": it.topic,
        })
    });
    let config = json!({
        "model_config": {
            "model": shown.models[0], "served_model_name": shown.models, "max_model_len": shown.max_model_len,
        },
        "cache_config": {
            "block_size": shown.block_size, "num_gpu_blocks": shown.num_blocks, "enable_prefix_caching": true,
            "prefix_caching_hash_algo": shown.algorithm, "cache_dtype": "auto",
        },
        "parallel_config": {"data_parallel_size": life.ranks.len()},
        "lora_config": if shown.adapters.is_empty() { Value::Null } else { json!({"max_loras": shown.adapters.len()}) },
        "kv_events_config": events,
    });
    let config = match query.config_format.as_deref() {
        Some("json") => config,
        None | Some("text") => Value::String(config.to_string()),
        Some(_) => return Err(ApiError::bad_request("config_format: want text or json", "config_format")),
    };
    if shown.version == Version::V0_11 {
        return Ok(Json(json!({"vllm_config": config})));
    }
    Ok(Json(json!({
        "vllm_config": config,
        "vllm_env": {
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": shown.int_hashes, "VLLM_SERVER_DEV_MODE": true,
        },
        "system_env": {},
    })))
}

/// Of all ranks; it did where every one of them did.
pub(super) async fn reset_prefix_cache(State(app): State<App>) -> Result<Response, ApiError> {
    let mut success = true;
    for rank in &app.lives.present().ranks {
        success &= rank.reset_prefix_cache().await?;
    }
    Ok(if app.shown.version.says_if_reset() {
        Json(json!({"success": success})).into_response()
    } else {
        StatusCode::OK.into_response()
    })
}

#[derive(Debug, Deserialize)]
pub(super) struct Sleep {
    level: Option<u32>,
    mode: Option<String>,
}

/// `level` 0 pauses, 1 and 2 reset the cache too. `mode` says what becomes of requests: with `abort` their answers
/// break off, with `keep` they go on after the sleep. vLLM's `wait` is not imitated.
pub(super) async fn sleep(State(app): State<App>, Query(query): Query<Sleep>) -> Result<Response, ApiError> {
    let level = query.level.unwrap_or(1);
    if 2 < level {
        return Err(ApiError::bad_request("level: want 0, 1 or 2", "level"));
    }
    let aborts = match query.mode.as_deref() {
        None | Some("abort") => 1 <= level,
        Some("keep") => false,
        Some(_) => return Err(ApiError::bad_request("mode: want abort or keep", "mode")),
    };
    for rank in &app.lives.present().ranks {
        rank.sleep(level, aborts).await?;
    }
    Ok(StatusCode::OK.into_response())
}

pub(super) async fn wake_up(State(app): State<App>) -> Result<StatusCode, ApiError> {
    for rank in &app.lives.present().ranks {
        rank.wake_up().await?;
    }
    Ok(StatusCode::OK)
}

pub(super) async fn is_sleeping(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let mut is_sleeping = false;
    for rank in &app.lives.present().ranks {
        is_sleeping |= rank.is_sleeping().await?;
    }
    Ok(Json(json!({"is_sleeping": is_sleeping})))
}
