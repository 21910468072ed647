//! An answer as server-sent events, while it is made.

use std::{collections::VecDeque, future, io, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse as _, Response},
};
use futures::stream;

use super::{answer::Answer, faulty::Faulty, listener::Connection};
use crate::engine::request::Produced;

/// The answer, which goes out as its tokens come.
pub(super) fn streamed(
    answer: Answer,
    include_usage: bool,
    faulty: &Arc<Faulty>,
    connection: Connection,
) -> Response {
    let streamed = Streamed { answer, include_usage, ready: VecDeque::new(), opened: false, ended: false };
    let faulty = Arc::clone(faulty);
    let faults = Faults { reset_after: faulty.take_reset(), sent: 0, faulty, connection };
    let body = stream::unfold((streamed, faults), |(mut streamed, mut faults)| async {
        let event = streamed.next().await?;
        faults.meet().await;
        Some((event, (streamed, faults)))
    });
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body)).into_response()
}

/// What goes wrong with one stream.
struct Faults {
    faulty: Arc<Faulty>,
    connection: Connection,
    /// Events after which the connection is reset.
    reset_after: Option<u64>,
    sent: u64,
}

impl Faults {
    /// Delays the next event, or cuts the connection instead of sending it.
    async fn meet(&mut self) {
        if let Some(delay) = self.faulty.stream_delay() {
            tokio::time::sleep(delay).await;
        }
        if self.reset_after == Some(self.sent) {
            // What was sent before is on its way by then.
            tokio::time::sleep(BEFORE_RESET).await;
            self.connection.reset();
            future::pending::<()>().await;
        }
        self.sent += 1;
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

/// Time for the server to write what it has been given.
const BEFORE_RESET: Duration = Duration::from_millis(20);
