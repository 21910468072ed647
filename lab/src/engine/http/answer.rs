//! From a request's body to its answer, whole or as a stream of events.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse as _, Response},
};
use futures::{
    StreamExt as _,
    stream::{self, BoxStream, SelectAll},
};
use kvpick_core::request::{Api, Request};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    App, blocking,
    error::ApiError,
    shapes::{Shape, Usage},
};
use crate::engine::{
    generate::Generator,
    scheduler::{FinishReason, NewRequest, Produced},
};

/// Answers a chat or a completion. A client that leaves drops the answer, and with it aborts what is running for it.
pub(super) async fn answer(app: App, api: Api, body: Bytes) -> Result<Response, ApiError> {
    let make_prompts = app.clone();
    let (request, prompts) = blocking(move || {
        let request = Request::parse(api, &body)?;
        make_prompts.check_model(request.model.as_deref())?;
        let prompts = make_prompts.prompter.token_ids(&request)?;
        Ok((request, prompts))
    })
    .await?;
    if MAX_ANSWERS < prompts.len().saturating_mul(request.n as usize) {
        return Err(ApiError::bad_request("n: too many answers in one request; at most 1024 in all", "n"));
    }
    let answer = Answer::begin(&app, &request, prompts).await?;
    if request.stream { Ok(answer.streamed(request.include_usage)) } else { answer.whole().await }
}

/// An answer under way: choices `0..n` are those to the first prompt, and so on.
struct Answer {
    shape: Shape,
    generator: Arc<Generator>,
    usage: Usage,
    samples: usize,
    choices: usize,
    /// Choices that are not complete.
    open: usize,
    tokens: SelectAll<BoxStream<'static, (usize, Produced)>>,
}

impl Answer {
    async fn begin(app: &App, request: &Request, prompts: Vec<Vec<u32>>) -> Result<Self, ApiError> {
        let prompt_tokens = prompts.iter().map(Vec::len).sum();
        let new = |prompt: &Vec<u32>, sample| NewRequest {
            prompt: prompt.clone(),
            salt: request.cache_salt.clone(),
            sample,
            max_tokens: request.max_tokens,
            reads_cache: request.reads_cache,
        };
        let requests: Vec<_> =
            prompts.iter().flat_map(|prompt| (0..request.n).map(move |sample| new(prompt, sample))).collect();
        let choices = requests.len();
        let tokens = app.engine.submit(requests).await?.into_iter().enumerate().map(|(choice, tokens)| {
            ReceiverStream::new(tokens).map(move |produced| (choice, produced)).boxed()
        });
        let number = app.answers.fetch_add(1, Ordering::Relaxed);
        let prefix = match request.api {
            Api::ChatCompletions => "chatcmpl",
            Api::Completions => "cmpl",
        };
        Ok(Self {
            shape: Shape {
                api: request.api,
                id: format!("{prefix}-{}-{number}", app.address.port()),
                created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
                model: app.models[0].clone(),
            },
            generator: Arc::clone(&app.generator),
            usage: Usage { prompt_tokens, ..Usage::default() },
            samples: request.n as usize,
            choices,
            open: choices,
            tokens: stream::select_all(tokens),
        })
    }

    /// The next token and the choice that it belongs to; `None` when all are complete, or the engine stopped.
    async fn next(&mut self) -> Option<(usize, Produced)> {
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

    fn streamed(self, include_usage: bool) -> Response {
        let streamed =
            Streamed { answer: self, include_usage, ready: VecDeque::new(), opened: false, ended: false };
        let body = stream::unfold(streamed, |mut it| async { Some((it.next().await?, it)) });
        ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body))
            .into_response()
    }
}

/// The server-sent events of an answer.
struct Streamed {
    answer: Answer,
    include_usage: bool,
    /// Events that only wait for the connection: at most the opening ones, or those of the last token.
    ready: VecDeque<Bytes>,
    opened: bool,
    ended: bool,
}

impl Streamed {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.ready.is_empty() && !self.ended {
            match self.answer.next().await {
                Some((choice, produced)) => self.token(choice, produced),
                None if self.answer.open == 0 => self.end(),
                // Breaks the connection off, so that the client knows that the answer is not whole.
                None => {
                    self.ended = true;
                    return Some(Err(io::Error::other("the engine stopped")));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }

    fn token(&mut self, choice: usize, produced: Produced) {
        let shape = &self.answer.shape;
        // Choices are opened when the first token is there and not before, as in vLLM: whoever takes the time of the
        // first event takes that of the first token.
        if !self.opened {
            let opening = (0..self.answer.choices).filter_map(|choice| shape.opening(choice));
            self.ready.extend(opening.map(|chunk| event(&chunk)));
            self.opened = true;
        }
        self.ready.push_back(event(&shape.piece(choice, self.answer.generator.text(produced.token))));
        if let Some(reason) = produced.finish {
            self.ready.push_back(event(&shape.closing(choice, reason)));
        }
    }

    fn end(&mut self) {
        if self.include_usage {
            self.ready.push_back(event(&self.answer.shape.cost(self.answer.usage)));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.ended = true;
    }
}

fn event(data: &serde_json::Value) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

/// Prompts times answers to each.
const MAX_ANSWERS: usize = 1024;
