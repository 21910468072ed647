//! A client that does as a row says.

use std::{io::Write as _, net::SocketAddr, time::Duration};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{HeaderMap, Request, Response, StatusCode, body::Frame, body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::timeout};

use super::rows::{Answer, Failure, Framing, Row};

/// Longest that a row may take; on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came back.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    /// Whether the body ended as it should.
    pub(crate) is_whole: bool,
}

/// A body of that many bytes; where there is room, it is JSON that names the model.
pub(crate) fn body(row: &Row, model: &str) -> Bytes {
    let frame = format!("{{\"model\":\"{model}\",\"prompt\":\"\"}}");
    let plain = match row.size.checked_sub(frame.len()) {
        Some(more) => format!("{{\"model\":\"{model}\",\"prompt\":\"{}\"}}", filling(more)).into_bytes(),
        None => vec![b' '; row.size],
    };
    if !row.gzip {
        return plain.into();
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&plain).unwrap();
    encoder.finish().unwrap().into()
}

/// Letters that repeat with no short period.
fn filling(length: usize) -> String {
    let mut seed = 7_u32;
    let next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (seed >> 24) as u8 % 26)
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Sends the row's request. `None` where the client itself went away, as the row says.
pub(crate) async fn send(
    to: SocketAddr,
    row: &Row,
    body: Bytes,
    more: &[(&str, &str)],
) -> Result<Option<Came>, String> {
    let sent = timeout(PATIENCE, attempt(to, row, body, more)).await;
    sent.unwrap_or_else(|_| Err("no end for a minute".to_owned()))
}

async fn attempt(
    to: SocketAddr,
    row: &Row,
    body: Bytes,
    more: &[(&str, &str)],
) -> Result<Option<Came>, String> {
    let said = |error: hyper::Error| {
        format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string))
    };
    let mut request = Request::post(if row.http2 { "http://lab/v1/completions" } else { "/v1/completions" })
        .header("x-answer", format!("{:?}", row.answer))
        // What a client may not say.
        .header("x-gateway-destination-endpoint", "127.0.0.1:1")
        .header("x-gateway-destination-endpoint-subset", "127.0.0.1:1")
        .header("x-data-parallel-rank", "3");
    if !row.http2 {
        request = request.header("host", "lab");
    }
    if row.gzip {
        request = request.header("content-encoding", "gzip");
    }
    if row.failure == Failure::Resets {
        request = request.header("x-resets", "1");
    }
    if matches!(row.framing, Framing::Length | Framing::Expect) {
        request = request.header("content-length", body.len());
    }
    if row.framing == Framing::Trailers && !row.http2 {
        // Without it the client library sends none.
        request = request.header("trailer", "x-request-trailer");
    }
    if row.answer == Answer::Trailers {
        request = request.header("te", "trailers");
    }
    if row.framing == Framing::Expect {
        request = request.header("expect", "100-continue");
    }
    for (name, value) in more {
        request = request.header(*name, *value);
    }
    let aborts = row.failure == Failure::AbortsBody;
    let mut frames: Vec<_> = pieces(&body, if aborts { body.len() / 2 } else { body.len() });
    if row.framing == Framing::Trailers && !aborts {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-request-trailer", "told".parse().map_err(|_| "a header")?);
        frames.push(Frame::trailers(trailers));
    }
    let ready = futures::stream::iter(frames.into_iter().map(Ok::<_, std::io::Error>));
    let stream: futures::stream::BoxStream<'static, _> =
        if aborts { ready.chain(futures::stream::pending()).boxed() } else { ready.boxed() };
    let request = request.body(StreamBody::new(stream)).map_err(|error| error.to_string())?;

    let socket = TcpStream::connect(to).await.map_err(|error| error.to_string())?;
    socket.set_nodelay(true).map_err(|error| error.to_string())?;
    let io = TokioIo::new(socket);
    // The connection ends with its task, whatever is under way on it.
    let mut connection = tokio::task::JoinSet::new();
    let response = if row.http2 {
        let (mut sender, driver) = conn::http2::handshake(TokioExecutor::new(), io).await.map_err(said)?;
        connection.spawn(async move { drop(driver.await) });
        sent(sender.send_request(request), aborts).await
    } else {
        let (mut sender, driver) = conn::http1::handshake(io).await.map_err(said)?;
        connection.spawn(async move { drop(driver.await) });
        sent(sender.send_request(request), aborts).await
    };
    match response {
        Some(response) => read(response.map_err(said)?, row).await,
        None => Ok(None),
    }
}

/// What comes of a request; `None` where the client goes away from it.
async fn sent<T>(request: impl Future<Output = T>, aborts: bool) -> Option<T> {
    if aborts {
        // Long enough for the body to be on its way; how long does not matter.
        drop(timeout(Duration::from_millis(30), request).await);
        return None;
    }
    Some(request.await)
}

async fn read(response: Response<Incoming>, row: &Row) -> Result<Option<Came>, String> {
    let (head, mut body) = response.into_parts();
    let (mut bytes, mut trailers, mut is_whole) = (Vec::new(), None, true);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Some(data) = frame.data_ref() {
                    bytes.extend_from_slice(data);
                    if row.failure == Failure::AbortsAnswer {
                        return Ok(None);
                    }
                } else {
                    trailers = frame.into_trailers().ok();
                }
            }
            Err(_) => {
                is_whole = false;
                break;
            }
        }
    }
    Ok(Some(Came { status: head.status, headers: head.headers, body: bytes.into(), trailers, is_whole }))
}

fn pieces(body: &Bytes, until: usize) -> Vec<Frame<Bytes>> {
    const PIECE: usize = 50_000;
    (0..until).step_by(PIECE).map(|at| Frame::data(body.slice(at..until.min(at + PIECE)))).collect()
}
