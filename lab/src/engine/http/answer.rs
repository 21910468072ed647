//! From a request's body to its answer.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    body::Bytes,
    extract::{ConnectInfo, State},
    http::{HeaderMap, HeaderValue},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures::{
    StreamExt as _,
    stream::{self, BoxStream, SelectAll},
};
use kvpick_core::request::{Api, Request, json::Json as RequestJson};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    App, blocking,
    error::ApiError,
    listener::Connection,
    shapes::{Served, Shape, Usage},
    stream::streamed,
};
use crate::engine::{
    announce::Adapter,
    generate::Generator,
    request::{FinishReason, NewRequest, Produced},
};

pub(super) async fn chat_completions(
    State(app): State<App>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    answer(app, Served::Chat, connection, headers, body).await
}

pub(super) async fn completions(
    State(app): State<App>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    answer(app, Served::Completions, connection, headers, body).await
}

/// Answers a chat or a completion. A client that leaves drops the answer, and with it aborts what is running for it.
async fn answer(
    app: App,
    api: Served,
    connection: Connection,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let prepared = prepare(&app, api, body).await?;
    let request = &prepared.request;
    if MAX_ANSWERS < prepared.prompts.len().saturating_mul(request.n as usize) {
        return Err(ApiError::bad_request("n: too many answers in one request; at most 1024 in all", "n"));
    }
    let answer = Answer::begin(&app, &prepared, &headers).await?;
    if request.stream {
        Ok(streamed(answer, request.include_usage, &app.faulty, connection))
    } else {
        answer.whole().await
    }
}

/// A request whose prompts are made.
pub(super) struct Prepared {
    pub(super) api: Served,
    pub(super) request: Request,
    /// One or several; each gets its own answers.
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) adapter: Option<Arc<Adapter>>,
}

/// Reads a request and makes its prompts.
pub(super) async fn prepare(app: &App, api: Served, body: Bytes) -> Result<Prepared, ApiError> {
    prepare_as(app, api.api(), api, body).await
}

/// As [`prepare`], for a request to another API that is answered as if to `api`.
pub(super) async fn prepare_as(
    app: &App,
    asked: Api,
    api: Served,
    body: Bytes,
) -> Result<Prepared, ApiError> {
    let app = app.clone();
    blocking(move || {
        let request = Request::parse(asked, &body)?;
        let adapter = app.served(request.model.as_deref())?;
        let prompts = app.prompter.token_ids(&request)?;
        Ok(Prepared { api, request, prompts, adapter })
    })
    .await
}

impl Prepared {
    /// The name that answers carry.
    pub(super) fn model_name(&self, app: &App) -> String {
        self.adapter.as_ref().map_or_else(|| app.shown.models[0].clone(), |it| it.name.clone())
    }

    /// Where each of these is in a body or in headers, vLLM takes the first that is there.
    fn session(&self, headers: &HeaderMap) -> Option<Arc<str>> {
        let text = |json: Option<&RequestJson>| json.and_then(RequestJson::as_str).map(Arc::from);
        let header = || headers.get("x-session-id").and_then(|it| it.to_str().ok()).map(Arc::from);
        text(self.request.body().get("session_id"))
            .or_else(header)
            .or_else(|| text(self.extra_argument("session_id")))
    }

    fn extra_argument(&self, name: &str) -> Option<&RequestJson> {
        self.request.body().get("vllm_xargs").and_then(RequestJson::as_object)?.get(name)
    }

    fn engine_requests(&self, headers: &HeaderMap) -> Vec<NewRequest> {
        let session = self.session(headers);
        let mode = self.extra_argument("kv_cache_report_mode").and_then(RequestJson::as_str);
        let new = |prompt: &Vec<u32>, sample| NewRequest {
            salt: self.request.cache_salt.clone(),
            adapter: self.adapter.clone(),
            session: session.clone(),
            reports_hit: mode == Some("full"),
            sample,
            max_tokens: self.request.max_tokens,
            reads_cache: self.request.reads_cache,
            ..NewRequest::new(prompt.clone())
        };
        let (new, samples) = (&new, self.request.n);
        self.prompts.iter().flat_map(|prompt| (0..samples).map(move |sample| new(prompt, sample))).collect()
    }
}

impl App {
    /// An id for one more answer.
    pub(super) fn answer_id(&self, api: Served) -> String {
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        let prefix = match api {
            Served::Chat => "chatcmpl",
            Served::Completions => "cmpl",
        };
        format!("{prefix}-{}-{number}", self.address.port())
    }
}

/// An answer under way: choices `0..n` are those to the first prompt, and so on. One rank computes all of them, where
/// vLLM chooses one for each.
pub(super) struct Answer {
    pub(super) shape: Shape,
    pub(super) generator: Arc<Generator>,
    pub(super) usage: Usage,
    samples: usize,
    pub(super) choices: usize,
    /// Choices that are not complete.
    pub(super) open: usize,
    tokens: SelectAll<BoxStream<'static, (usize, Produced)>>,
}

impl Answer {
    pub(super) async fn begin(app: &App, prepared: &Prepared, headers: &HeaderMap) -> Result<Self, ApiError> {
        let requests = prepared.engine_requests(headers);
        let choices = requests.len();
        let life = app.lives.present();
        let asked = asked_rank(headers);
        let rank = life.rank(asked).map_err(|ranks| ApiError::rank(asked.unwrap_or(0), ranks))?;
        let tokens = rank.submit(requests).await?.into_iter().enumerate().map(|(choice, tokens)| {
            ReceiverStream::new(tokens).map(move |produced| (choice, produced)).boxed()
        });
        Ok(Self {
            shape: Shape {
                api: prepared.api,
                id: app.answer_id(prepared.api),
                created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
                model: prepared.model_name(app),
            },
            generator: Arc::clone(&app.generator),
            usage: Usage { prompt_tokens: prepared.prompts.iter().map(Vec::len).sum(), ..Usage::default() },
            samples: prepared.request.n as usize,
            choices,
            open: choices,
            tokens: stream::select_all(tokens),
        })
    }

    /// The next token and the choice that it belongs to; `None` when all are complete, or the engine stopped.
    pub(super) async fn next(&mut self) -> Option<(usize, Produced)> {
        let (choice, produced) = self.tokens.next().await?;
        self.usage.count(&produced, choice % self.samples == 0);
        self.open -= usize::from(produced.finish.is_some());
        Some((choice, produced))
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut choices = vec![(String::new(), FinishReason::Length); self.choices];
        while let Some((choice, produced)) = self.next().await {
            choices[choice].0.push_str(self.generator.text(produced.token));
            if let Some(reason) = produced.finish {
                choices[choice].1 = reason;
            }
        }
        if self.open != 0 {
            return Err(ApiError::internal());
        }
        Ok(Json(self.shape.whole(&choices, self.usage)).into_response())
    }
}

/// Says in the answer which ranks were asked for, on any route: each value of the header.
pub(super) async fn show_asked_rank(request: axum::extract::Request, next: Next) -> Response {
    let asked: Vec<_> =
        request.headers().get_all(RANK).iter().map(|it| String::from_utf8_lossy(it.as_bytes())).collect();
    let asked = (!asked.is_empty()).then(|| asked.join(", "));
    let mut response = next.run(request).await;
    if let Some(asked) = asked.and_then(|it| HeaderValue::from_str(&it).ok()) {
        response.headers_mut().insert(ASKED_RANK, asked);
    }
    response
}

/// Names the data-parallel rank that is to compute the answer.
const RANK: &str = "x-data-parallel-rank";

/// Says what a request had under [`RANK`], to those who ask through a proxy.
const ASKED_RANK: &str = "x-lab-asked-rank";

/// The rank that a client asks for. What is no number is passed over, as in vLLM.
fn asked_rank(headers: &HeaderMap) -> Option<usize> {
    headers.get(RANK)?.to_str().ok()?.parse().ok()
}

/// Prompts times answers to each.
const MAX_ANSWERS: usize = 1024;
