//! One server that makes prompts, over HTTP.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use kvpick_core::{
    remote::{Ask, Breaker, Ending, Failure, Form, Gate, MOST_ANSWER, Pass, Reading, Routes, Verdict},
    request::{Api, Request},
};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

/// Bytes that are read of an answer which is an error.
const MOST_COMPLAINT: usize = 64 << 10;

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    /// Its URL, before the path.
    pub(super) base: String,
    state: Mutex<State>,
    /// How many servers of the model are left alone at present.
    resting: Arc<AtomicI64>,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    routes: Routes,
}

/// A good answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reading: Reading,
    pub(super) body: Bytes,
}

impl Server {
    pub(super) fn new(base: String, most_in_flight: usize, resting: &Arc<AtomicI64>) -> Self {
        let state = State { gate: Gate::new(most_in_flight), routes: Routes::default() };
        Self { base, state: Mutex::new(state), resting: Arc::clone(resting) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Who panicked left counters that still serve.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.state().gate.in_flight()
    }

    pub(super) fn enter(it: &Arc<Self>) -> Result<Flight, Failure> {
        let pass = it.state().gate.enter(Instant::now())?;
        Ok(Flight { server: Arc::clone(it), pass: Some(pass) })
    }

    pub(super) fn status(&self) -> Value {
        let state = self.state();
        json!({
            "server": self.base,
            "breaker": state.gate.breaker().label(),
            "in_flight": state.gate.in_flight(),
        })
    }

    fn form(&self, api: Api) -> Option<Form> {
        self.state().routes.form(api, Instant::now())
    }

    /// Asks at the best route that the server has.
    pub(super) async fn ask(
        &self,
        http: &reqwest::Client,
        key: Option<&HeaderValue>,
        request: &Request,
        body: &Bytes,
    ) -> Result<Answer, Failure> {
        while let Some(form) = self.form(request.api) {
            let ask = Ask::new(request, body, form)?;
            let sent = match ask.body {
                std::borrow::Cow::Borrowed(_) => body.clone(),
                std::borrow::Cow::Owned(changed) => changed.into(),
            };
            let (status, body) = self.post(http, key, ask.path, sent).await?;
            match ask.reading.judge(status, &body)? {
                Verdict::Read => return Ok(Answer { reading: ask.reading, body }),
                Verdict::Absent => {
                    tracing::info!(
                        server = self.base,
                        path = ask.path,
                        "the server does not have this route"
                    );
                    self.state().routes.is_absent(request.api, form, Instant::now());
                }
            }
        }
        Err(Failure::NoRoute)
    }

    async fn post(
        &self,
        http: &reqwest::Client,
        key: Option<&HeaderValue>,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), Failure> {
        let mut request = http.post(format!("{}{path}", self.base)).header(CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, key);
        }
        let mut response = request.body(body).send().await.map_err(down)?;
        let status = response.status().as_u16();
        let most = if status == 200 { MOST_ANSWER } else { MOST_COMPLAINT };
        let mut read = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(down)? {
            if most < read.len() + chunk.len() {
                if status == 200 {
                    return Err(Failure::BadAnswer(format!("longer than {MOST_ANSWER} bytes")));
                }
                break;
            }
            read.extend_from_slice(&chunk);
        }
        Ok((status, read.freeze()))
    }
}

fn down(error: reqwest::Error) -> Failure {
    if error.is_timeout() {
        return Failure::Timeout;
    }
    // The innermost says what happened; the outer ones only where.
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Failure::Down(cause.to_string())
}

/// A request that a server is asked. Whoever drops it without an end has gone away.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) server: Arc<Server>,
    pass: Option<Pass>,
}

impl Flight {
    /// Tells how it ended.
    pub(super) fn end(mut self, ending: Ending) {
        self.leave(ending);
    }

    fn leave(&mut self, ending: Ending) {
        let Some(pass) = self.pass.take() else { return };
        let mut state = self.server.state();
        let rested = rests(&state.gate);
        state.gate.leave(pass, ending, Instant::now());
        let rests = rests(&state.gate);
        // Counted under the lock, so that two that leave together count once.
        self.server.resting.fetch_add(i64::from(rests) - i64::from(rested), Ordering::Relaxed);
        drop(state);
        let server = &self.server.base;
        match (rested, rests) {
            (false, true) => {
                tracing::warn!(server, "a server of prompts fails; it is left alone for a while")
            }
            (true, false) => tracing::info!(server, "a server of prompts answers again"),
            (true, true) | (false, false) => {}
        }
    }
}

const fn rests(gate: &Gate) -> bool {
    !matches!(gate.breaker(), Breaker::Closed(_))
}

impl Drop for Server {
    /// One that is asked no more rests no more.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.resting.fetch_sub(i64::from(rests(&state.gate)), Ordering::Relaxed);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.leave(Ending::Abandoned);
    }
}
