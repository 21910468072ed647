//! Refusals in the form of the OpenAI API.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use kvpick_core::{prompts::PromptError, request::RequestError};
use serde_json::{Value, json};

use crate::engine::{config::StartError, driver::SubmitError};

/// What a client is told instead of an answer.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl ApiError {
    pub(super) fn bad_request(message: &str, param: &'static str) -> Self {
        Self { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message) }
    }

    pub(super) fn unknown_model(model: &str) -> Self {
        let message = format!("The model `{model}` does not exist.");
        Self { param: Some("model"), ..Self::new(StatusCode::NOT_FOUND, "NotFoundError", &message) }
    }

    pub(super) fn unknown_response(id: &str) -> Self {
        let message = format!("Response with id '{id}' not found.");
        let kind = "invalid_request_error";
        Self { param: Some("response_id"), ..Self::new(StatusCode::NOT_FOUND, kind, &message) }
    }

    pub(super) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalServerError",
            "The engine failed on this request.",
        )
    }

    /// A rank that is not there.
    pub(super) fn rank(rank: usize, ranks: usize) -> Self {
        Self::bad_request(
            &format!("data_parallel_rank {rank} is out of range [0, {ranks})."),
            "data_parallel_rank",
        )
    }

    /// A failure that was asked for.
    pub(super) fn on_command(status: StatusCode) -> Self {
        Self::new(status, "InternalServerError", "The engine fails on command.")
    }

    /// An engine that did not come back.
    pub(super) fn start(error: &StartError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", &error.to_string())
    }

    fn new(status: StatusCode, kind: &'static str, message: &str) -> Self {
        Self { status, kind, message: message.to_owned(), param: None }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", &error.to_string())
    }
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", &error.to_string())
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let (status, kind) = match error {
            SubmitError::Refused(_) => (StatusCode::BAD_REQUEST, "BadRequestError"),
            SubmitError::Overloaded | SubmitError::Stopped => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError")
            }
        };
        Self::new(status, kind, &error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let param = self.param.map_or(Value::Null, Value::from);
        let error = json!({
            "message": self.message, "type": self.kind, "param": param, "code": self.status.as_u16(),
        });
        (self.status, Json(json!({"error": error}))).into_response()
    }
}
