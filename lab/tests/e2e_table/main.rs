//! Requests of all kinds through real Envoys and kvpick, in every mode of bodies: each is answered, and every byte of it
//! reaches the engine once.
//!
//! The rows are made by [`rows`]; those that fail are reported together.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod client;
mod engine;
mod rows;
mod setup;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use client::Came;
use engine::{EVENTS, PIECES, Seen, TRAILER, digest, piece, told};
use futures::StreamExt as _;
use hyper::StatusCode;
use kvpick_lab::rig::{scratch::Scratch, wait};
use rows::{Answer, Failure, Framing, Mode, Row};
use serde_json::Value;
use setup::Setup;

/// Rows at a time.
const AT_ONCE: usize = 6;

/// The models, each of which one engine serves.
const MODELS: [&str; 2] = ["alpha", "beta"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_request_through_the_newest_envoy() {
    run("table", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_request_through_the_oldest_envoy() {
    run("table-oldest", true).await;
}

async fn run(name: &str, oldest: bool) {
    let scratch = Scratch::new(name).unwrap();
    let (mut engines, seen) = (BTreeMap::new(), Seen::default());
    for model in MODELS {
        engines.insert(model, engine::start(Arc::clone(&seen)).await);
    }
    let setup = Arc::new(Setup::start(scratch.path(), oldest, engines).await);
    let rows = rows::all();
    let count = rows.len();
    let wrong: Vec<String> = futures::stream::iter(rows.iter().copied().enumerate())
        .map(|(number, row)| {
            let setup = Arc::clone(&setup);
            async move {
                let problem = one(&setup, &row, number, oldest).await.err()?;
                Some(format!("{row:?}\n    {problem}"))
            }
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(async |it| it)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{} of {count} rows:\n{}", wrong.len(), wrong.join("\n"));

    // Whatever became of them, none is under way any more, and nothing that kvpick said was refused.
    let idle = async || {
        let metrics = setup.server.metrics().await.map_err(|error| error.to_string())?;
        let in_flight = metrics.sum("kvpick_requests_in_flight", &[]);
        if in_flight == 0.0 { Ok(()) } else { Err(format!("{in_flight} requests under way")) }
    };
    wait::until("all requests to end", wait::LONG, idle).await.unwrap();
    // Half a body is never taken for a whole one, and no request is made twice.
    let seen = seen.lock().unwrap().clone();
    for (number, row) in rows.iter().enumerate() {
        let times = seen.get(&number.to_string()).copied().unwrap_or(0);
        assert_eq!(times, usize::from(row.failure != Failure::AbortsBody), "whole requests of {row:?}");
    }
    assert_eq!(setup.envoy.picker_stat("rejected_header_mutations").await.unwrap(), 0);
    assert_eq!(setup.envoy.picker_stat("spurious_msgs_received").await.unwrap(), 0);
}

async fn one(setup: &Setup, row: &Row, number: usize, oldest: bool) -> Result<(), String> {
    let model = MODELS[number % MODELS.len()];
    let body = client::body(row, model);
    let dead = setup.dead.to_string();
    let number = number.to_string();
    let mut more = vec![("x-row", number.as_str())];
    if row.failure == Failure::Dead {
        more.push(("test-epp-endpoint-selection", dead.as_str()));
    }
    let Some(came) = client::send(setup.listener(row), row, body.clone(), &more).await? else {
        return Ok(());
    };
    if row.failure == Failure::Resets && came.status.is_server_error() {
        // The engine was gone before Envoy had sent anything on: it had to hold the whole answer, or kvpick had not yet
        // had its word on the headers.
        return Ok(());
    }
    let told = told(&came.headers).ok_or_else(|| format!("no engine answered: {came:?}"))?;
    reached(setup, row, model, &body, &told)?;
    answered(row, &came, &told, oldest)
}

/// That the engine got what was sent.
fn reached(setup: &Setup, row: &Row, model: &str, body: &Bytes, told: &Value) -> Result<(), String> {
    let same = |what: &str, got: &Value, want: Value| {
        if *got == want { Ok(()) } else { Err(format!("{what}: {got}, not {want}")) }
    };
    same("length of the body", &told["length"], body.len().into())?;
    same("body", &told["digest"], digest(body).into())?;
    let length = &told["content_length"];
    if !length.is_null() {
        same("content-length", length, body.len().to_string().into())?;
    }
    let headers: Vec<_> =
        told["headers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for header in &headers {
        let is_ours = *header == "x-gateway-destination-endpoint";
        if !is_ours && (header.starts_with("x-gateway") || header.starts_with("x-data-parallel")) {
            return Err(format!("the engine got {header}"));
        }
    }
    if headers.contains(&"test-epp-endpoint-selection") {
        return Err("the engine got the suite's selection".to_owned());
    }
    if row.framing == Framing::Trailers {
        let trailers = told["trailers"].as_array().map_or(0, Vec::len);
        same("trailers", &trailers.into(), 1.into())?;
    }
    if row.failure == Failure::Dead {
        return if told["attempt"] == "1" {
            Err("the dead replica was not tried".to_owned())
        } else {
            Ok(())
        };
    }
    // What is too short names no model.
    if row.request_mode.shows_body() && row.size > 100 {
        let want = setup.engines[model].to_string();
        return same("engine", &told["address"], want.into());
    }
    Ok(())
}

/// That the client got what was answered.
fn answered(row: &Row, came: &Came, told: &Value, oldest: bool) -> Result<(), String> {
    let status = match row.answer {
        Answer::Empty => StatusCode::NO_CONTENT,
        Answer::NotFound => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    };
    if row.failure == Failure::Resets {
        // Before 1.37 Envoy ends an HTTP/2 stream in good order then, and only what is missing tells.
        let seems_whole = came.is_whole && !(oldest && row.http2);
        let is_short = row.answer != Answer::Events || came.body.len() < EVENTS * 10;
        let is_right = !seems_whole && is_short && row.response_mode != Mode::Buffered;
        return if is_right { Ok(()) } else { Err(format!("of an engine that went away: {came:?}")) };
    }
    if came.status != status {
        return Err(format!("status {}, not {status}", came.status));
    }
    if !came.is_whole {
        return Err(format!("the answer ends after {} bytes", came.body.len()));
    }
    let want = match row.answer {
        Answer::Empty => String::new(),
        Answer::Large => (0..PIECES).map(piece).collect(),
        Answer::Events => (0..EVENTS).map(|it| format!("data: {{\"number\":{it}}}\n\n")).collect(),
        _ => told.to_string(),
    };
    if came.body != want {
        return Err(format!("an answer of {} bytes, not {}", came.body.len(), want.len()));
    }
    if row.answer == Answer::Trailers {
        let trailer = came.trailers.as_ref().and_then(|it| it.get(TRAILER.0));
        if trailer.is_none_or(|it| it != TRAILER.1) {
            return Err(format!("trailers of the answer: {:?}", came.trailers));
        }
    }
    Ok(())
}
