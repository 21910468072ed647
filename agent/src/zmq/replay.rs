//! One question to a replay socket, and its answer.

use std::time::{Duration, Instant};

use kvpick_agent_core::{
    decode::{is_replay_end, replayed_number},
    sequence::ReplayRequest,
};
use zmq::{Context, SocketType};

use super::{HIGH_WATER, Heard, Into, LOOK, MAX_FRAME, receive};

/// A replay that brings nothing new for so long will not go on: the publisher serves it between two batches.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says so if the thread ends by a panic: the engine's task would wait for ever.
struct Ends<'a> {
    id: u64,
    into: &'a Into,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "the agent failed to read its answer".to_owned();
            let _gone = self.into.send(Heard::ReplayFailed(self.id, reason));
        }
    }
}

/// Asks and passes the answer on, to its end or to its failure.
pub(super) fn run(
    context: &Context,
    endpoint: &str,
    request: ReplayRequest,
    into: &Into,
    is_over: impl Fn() -> bool,
) {
    let _ends = Ends { id: request.id, into };
    if let Err(error) = ask(context, endpoint, request, into, is_over) {
        let reason = match error {
            zmq::Error::EAGAIN => format!("nothing new for {} s", PATIENCE.as_secs()),
            other => other.to_string(),
        };
        // If nobody listens any more, nobody has to know.
        let _gone = into.send(Heard::ReplayFailed(request.id, reason));
    }
}

fn ask(
    context: &Context,
    endpoint: &str,
    request: ReplayRequest,
    into: &Into,
    is_over: impl Fn() -> bool,
) -> Result<(), zmq::Error> {
    // Not REQ: that takes one answer to one request.
    let socket = context.socket(SocketType::DEALER)?;
    socket.set_ipv6(endpoint.contains('['))?;
    socket.set_linger(0)?;
    socket.set_rcvhwm(HIGH_WATER)?;
    socket.set_maxmsgsize(MAX_FRAME)?;
    socket.set_rcvtimeo(i32::try_from(LOOK.as_millis()).unwrap_or(i32::MAX))?;
    socket.connect(endpoint)?;
    // vLLM answers nothing but an empty frame and 8 bytes.
    socket.send_multipart([&b""[..], &request.from.to_be_bytes()], 0)?;
    let mut progress = Instant::now();
    // Lowest number that is new.
    let mut new = request.from;
    while !is_over() {
        let frames = match receive(&socket, 0) {
            Ok(frames) => frames,
            Err(zmq::Error::EAGAIN | zmq::Error::EINTR) if progress.elapsed() < PATIENCE => continue,
            Err(error) => return Err(error),
        };
        let is_end = is_replay_end(&frames);
        let number = replayed_number(&frames).filter(|it| *it >= new);
        if into.send(Heard::Replay(request.id, frames)).is_err() || is_end {
            return Ok(());
        }
        if let Some(number) = number {
            new = number.saturating_add(1);
            // Not before it was passed on: how long that takes is not the publisher's doing.
            progress = Instant::now();
        } else if progress.elapsed() >= PATIENCE {
            return Err(zmq::Error::EAGAIN);
        }
    }
    Ok(())
}
