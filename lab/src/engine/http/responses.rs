//! `/v1/responses`: answers that the engine keeps, and that later requests go on from.
//!
//! As with `VLLM_ENABLE_RESPONSES_API_STORE`. What is kept is in the memory of this process alone, for one life of the
//! engine. Background answers and tools are not imitated.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{BuildHasher as _, RandomState},
    io,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, header},
    response::{IntoResponse as _, Response},
};
use futures::stream;
use kvpick_core::request::{Api, Request};
use serde_json::{Value, json};

use super::{
    App,
    answer::{Answer, Prepared},
    blocking,
    error::ApiError,
    shapes::Served,
};
use crate::engine::{life::Life, request::FinishReason};

/// What the engine keeps of its answers.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<OfLife>);

#[derive(Debug, Default)]
struct OfLife {
    life: Weak<Life>,
    by_id: BTreeMap<String, Turn>,
}

/// One answer and what led to it.
#[derive(Clone, Debug)]
struct Turn {
    /// The items of the conversation, this answer's included.
    items: Vec<Value>,
    response: Value,
}

impl Kept {
    /// Runs `with` on what the present life keeps: a restarted engine has forgotten all.
    fn of<T>(&self, app: &App, with: impl FnOnce(&mut BTreeMap<String, Turn>) -> T) -> T {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let life = Arc::downgrade(&app.lives.present());
        if !Weak::ptr_eq(&kept.life, &life) {
            *kept = OfLife { life, by_id: BTreeMap::new() };
        }
        with(&mut kept.by_id)
    }

    fn find(&self, app: &App, id: &str) -> Result<Turn, ApiError> {
        self.of(app, |it| it.get(id).cloned()).ok_or_else(|| ApiError::unknown_response(id))
    }
}

pub(super) async fn retrieve(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.kept.find(&app, &id).map(|it| Json(it.response))
}

pub(super) async fn cancel(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    app.kept.find(&app, &id)?;
    Err(ApiError::bad_request("Cannot cancel a synchronous response.", "response_id"))
}

pub(super) async fn create(
    State(app): State<App>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let previous = match asked["previous_response_id"].as_str() {
        Some(id) => Some(app.kept.find(&app, id)?),
        None => None,
    };
    let items = previous.into_iter().flat_map(|it| it.items).chain(items(&asked["input"])).collect();
    let prepared = prepare(&app, body, &asked, &items).await?;
    let turn = Pending { id: id_of(&asked), asked, items, model: prepared.model_name(&app) };
    let answer = Answer::begin(&app, &prepared, &headers).await?;
    let mut answering = Answering {
        app,
        turn,
        answer,
        text: String::new(),
        finish: None,
        events: VecDeque::new(),
        number: 0,
    };
    if prepared.request.stream {
        return Ok(answering.streamed());
    }
    while answering.token().await {}
    let response = answering.complete().ok_or_else(ApiError::internal)?;
    Ok(Json(response).into_response())
}

/// Its own, or vLLM's.
fn id_of(asked: &Value) -> String {
    let random = || format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1));
    asked["request_id"].as_str().map_or_else(|| format!("resp_{}", random()), str::to_owned)
}

/// A request's input as items.
fn items(input: &Value) -> Vec<Value> {
    match input {
        Value::String(text) => vec![json!({"type": "message", "role": "user", "content": text})],
        Value::Array(items) => items.clone(),
        _ => Vec::new(),
    }
}

/// Makes the prompt: of the body as it is where it begins a conversation, else with all that was said before.
async fn prepare(app: &App, body: Bytes, asked: &Value, items: &Vec<Value>) -> Result<Prepared, ApiError> {
    let mut whole = asked.clone();
    let body = if asked["previous_response_id"].is_string() {
        whole["previous_response_id"] = Value::Null;
        whole["input"] = json!(items);
        Bytes::from(whole.to_string())
    } else {
        body
    };
    let app = app.clone();
    blocking(move || {
        let request = Request::parse(Api::Responses, &body)?;
        let adapter = app.served(request.model.as_deref())?;
        let prompts = app.prompter.token_ids(&request)?;
        // For the engine it is a chat; the form of its answer is made here.
        Ok(Prepared { api: Served::Chat, request, prompts, adapter })
    })
    .await
}

/// A response in the making.
struct Pending {
    id: String,
    asked: Value,
    items: Vec<Value>,
    model: String,
}

impl Pending {
    fn response(&self, created: u64, status: &str, output: &[Value], usage: &Value) -> Value {
        let given = |name: &str| self.asked[name].clone();
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        json!({
            "id": self.id, "created_at": created, "incomplete_details": incomplete,
            "instructions": given("instructions"), "metadata": given("metadata"), "model": self.model,
            "object": "response", "output": output, "parallel_tool_calls": true, "temperature": 1.0,
            "tool_choice": "auto", "tools": [], "top_p": 1.0, "background": false,
            "max_output_tokens": given("max_output_tokens"),
            "previous_response_id": given("previous_response_id"), "service_tier": "auto", "status": status,
            "truncation": "disabled", "usage": usage, "user": null,
        })
    }
}

struct Answering {
    app: App,
    turn: Pending,
    answer: Answer,
    text: String,
    /// Why it ended, until it is told.
    finish: Option<FinishReason>,
    /// Events that only wait for the connection.
    events: VecDeque<Bytes>,
    /// Of the next event.
    number: u64,
}

impl Answering {
    /// Takes the next token; false where there is none.
    async fn token(&mut self) -> bool {
        let Some((_, produced)) = self.answer.next().await else { return false };
        self.text.push_str(self.answer.generator.text(produced.token));
        self.finish = produced.finish.or(self.finish);
        true
    }

    /// The whole response, kept if it is to be; `None` where the engine stopped before its end.
    fn complete(&mut self) -> Option<Value> {
        let finish = self.finish.take().filter(|_| self.answer.open == 0)?;
        let status = if finish == FinishReason::Length { "incomplete" } else { "completed" };
        let usage = self.answer.usage;
        let usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        });
        let output = self.output("completed");
        let response =
            self.turn.response(self.answer.shape.created, status, std::slice::from_ref(&output), &usage);
        if self.turn.asked["store"] != false {
            let items = self.turn.items.iter().cloned().chain([output]).collect();
            let turn = Turn { items, response: response.clone() };
            self.app.kept.of(&self.app, |it| it.insert(self.turn.id.clone(), turn));
        }
        Some(response)
    }

    fn output(&self, status: &str) -> Value {
        let part = json!({"annotations": [], "text": self.text, "type": "output_text", "logprobs": null});
        json!({
            "id": format!("msg_{}", self.turn.id), "content": [part], "role": "assistant", "status": status,
            "type": "message",
        })
    }

    fn streamed(mut self) -> Response {
        let begun = self.turn.response(self.answer.shape.created, "in_progress", &[], &Value::Null);
        self.event("response.created", json!({"response": begun}));
        self.event("response.in_progress", json!({"response": begun}));
        let mut item = self.output("in_progress");
        item["content"] = json!([]);
        self.event("response.output_item.added", json!({"item": item, "output_index": 0}));
        let events = stream::unfold(Some(self), |answering| async {
            let mut answering = answering?;
            while answering.events.is_empty() {
                let before = answering.text.len();
                if answering.token().await {
                    let delta = answering.text[before..].to_owned();
                    answering.event("response.output_text.delta", answering.within(json!({"delta": delta})));
                } else if let Some(response) = answering.complete() {
                    let text = answering.text.clone();
                    answering.event("response.output_text.done", answering.within(json!({"text": text})));
                    let item = answering.output("completed");
                    answering.event("response.output_item.done", json!({"item": item, "output_index": 0}));
                    answering.event("response.completed", json!({"response": response}));
                } else if answering.answer.open == 0 {
                    return None;
                } else {
                    // Breaks the connection off, so that the client knows that the answer is not whole.
                    return Some((Err(io::Error::other("the engine stopped")), None));
                }
            }
            let event = answering.events.pop_front()?;
            Some((Ok(event), Some(answering)))
        });
        ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(events))
            .into_response()
    }

    /// An event's fields beside those that tell of which part it speaks.
    fn within(&self, mut fields: Value) -> Value {
        fields["content_index"] = json!(0);
        fields["item_id"] = json!(format!("msg_{}", self.turn.id));
        fields["output_index"] = json!(0);
        fields
    }

    fn event(&mut self, kind: &str, mut fields: Value) {
        fields["sequence_number"] = json!(self.number);
        fields["type"] = json!(kind);
        self.number += 1;
        self.events.push_back(Bytes::from(format!("event: {kind}\ndata: {fields}\n\n")));
    }
}
