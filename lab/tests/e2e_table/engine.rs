//! An engine that answers as it is told, and tells what reached it.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;

/// Events of an answer that has some, and the trailer of one that has that.
pub(crate) const EVENTS: usize = 20;
pub(crate) const TRAILER: (&str, &str) = ("x-answer-trailer", "told");

/// Pieces of a large answer.
pub(crate) const PIECES: usize = 60;

/// One of them: 50 kB, not two alike.
pub(crate) fn piece(number: usize) -> String {
    format!("{number:05}").repeat(10_000)
}

/// By which bodies are told apart.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    // FNV-1a; nobody attacks it.
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// How often a whole request of each row has come, to whichever engine.
pub(crate) type Seen = Arc<Mutex<BTreeMap<String, usize>>>;

/// Starts one; it ends with the test.
pub(crate) async fn start(seen: Seen) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let seen = Arc::clone(&seen);
            let service = service_fn(move |request| answer(address, Arc::clone(&seen), request));
            let serve = async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                // Who goes away in the middle is what some rows are about.
                drop(builder.serve_connection(TokioIo::new(stream), service).await);
            };
            tokio::spawn(serve);
        }
    });
    address
}

type Body = BoxBody<Bytes, std::io::Error>;

async fn answer(
    address: SocketAddr,
    seen: Seen,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let kind = text(&head.headers, "x-answer").unwrap_or_default();
    let resets = text(&head.headers, "x-resets").is_some();
    let Ok(body) = body.collect().await else {
        return Ok(Response::new(BoxBody::default()));
    };
    let row = text(&head.headers, "x-row").unwrap_or_default();
    *seen.lock().unwrap().entry(row).or_default() += 1;
    let trailers: Vec<_> = body.trailers().into_iter().flatten().map(|(name, _)| name.to_string()).collect();
    let bytes = body.to_bytes();
    let headers: Vec<_> = head.headers.keys().map(|it| it.as_str()).collect();
    let told = json!({
        "address": address.to_string(),
        "digest": digest(&bytes),
        "length": bytes.len(),
        "content_length": text(&head.headers, "content-length"),
        "encoding": text(&head.headers, "content-encoding"),
        "headers": headers,
        "trailers": trailers,
        "attempt": text(&head.headers, "x-envoy-attempt-count"),
    });
    let (sender, receiver) = mpsc::channel(1);
    let status = match kind.as_str() {
        "Empty" => StatusCode::NO_CONTENT,
        "NotFound" => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    };
    let told_header = told.to_string();
    tokio::spawn(write(kind.clone(), told, resets, sender));
    let stream = StreamBody::new(ReceiverStream::new(receiver));
    let body = if kind == "Empty" { BoxBody::default() } else { stream.boxed() };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert("x-told", told_header.parse().unwrap());
    if kind == "Trailers" {
        response.headers_mut().insert("trailer", TRAILER.0.parse().unwrap());
    }
    let content_type = if kind == "Events" { "text/event-stream" } else { "application/json" };
    response.headers_mut().insert("content-type", content_type.parse().unwrap());
    Ok(response)
}

type Frames = mpsc::Sender<Result<Frame<Bytes>, std::io::Error>>;

async fn write(kind: String, told: Value, resets: bool, sender: Frames) {
    let send = async |text: String| sender.send(Ok(Frame::data(text.into()))).await.is_ok();
    if kind == "Events" {
        for number in 0..EVENTS {
            if !send(format!("data: {{\"number\":{number}}}\n\n")).await {
                return;
            }
            if resets && number == 2 {
                break;
            }
        }
    } else if kind == "Large" {
        for number in 0..PIECES {
            if !send(piece(number)).await {
                return;
            }
            if resets && number == 2 {
                break;
            }
        }
    } else if !send(told.to_string()).await {
        return;
    }
    if resets {
        // What is written is read first, so that the reset is in the middle of the answer.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let gone = std::io::Error::other("as the row wants it");
        drop(sender.send(Err(gone)).await);
        return;
    }
    if kind == "Trailers" {
        let mut trailers = HeaderMap::new();
        trailers.insert(TRAILER.0, TRAILER.1.parse().unwrap());
        drop(sender.send(Ok(Frame::trailers(trailers))).await);
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|it| it.to_str().ok()).map(str::to_owned)
}

/// What an engine told of a request.
pub(crate) fn told(headers: &HeaderMap) -> Option<Arc<Value>> {
    serde_json::from_str(&text(headers, "x-told")?).ok().map(Arc::new)
}
