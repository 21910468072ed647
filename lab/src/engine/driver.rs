//! Runs the scheduler in real time, on a thread of its own: requests in, tokens and batches of events out.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot};

use super::{
    metrics::Metrics,
    publisher::Publisher,
    scheduler::{NewRequest, Produced, Refusal, RequestId, Scheduler},
};

/// Hands requests to a running engine.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: SyncSender<Command>,
}

/// Why a request did not reach the scheduler, or was not taken by it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The client asked for what can't be done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Too many requests are on their way to the scheduler.
    #[error("The engine is overloaded; try again later.")]
    Overloaded,
    /// It was told to end.
    #[error("The engine is shutting down.")]
    Stopped,
}

/// The tokens of one request as they come; dropping it aborts the request.
pub type Tokens = mpsc::Receiver<Produced>;

#[derive(Debug)]
enum Command {
    /// Requests that belong together are queued together.
    Submit(Vec<NewRequest>, oneshot::Sender<Result<Vec<Tokens>, Refusal>>),
    Reset(oneshot::Sender<bool>),
    Stop,
}

impl Handle {
    /// Queues requests; all of them or none. The answers are in the order of the requests.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn submit(&self, requests: Vec<NewRequest>) -> Result<Vec<Tokens>, SubmitError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Submit(requests, reply))?;
        Ok(answer.await.map_err(|_| SubmitError::Stopped)??)
    }

    /// Forgets every held block; `false` where blocks are in use.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn reset_prefix_cache(&self) -> Result<bool, SubmitError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Reset(reply))?;
        answer.await.map_err(|_| SubmitError::Stopped)
    }

    /// Ends the engine; requests that are under way break off. Waits where the engine is behind.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    fn send(&self, command: Command) -> Result<(), SubmitError> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => SubmitError::Overloaded,
            TrySendError::Disconnected(_) => SubmitError::Stopped,
        })
    }
}

/// Starts the engine's thread. It ends, and with it the publisher, on [`Handle::stop`] or when the last handle is
/// dropped.
#[must_use]
pub fn start(scheduler: Scheduler, publisher: Publisher, metrics: Metrics) -> (Handle, JoinHandle<()>) {
    let (commands, received) = sync_channel(MAX_COMMANDS);
    let driver = Driver { scheduler, publisher, metrics, clients: BTreeMap::new() };
    let thread = std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || driver.run(&received))
        .expect("the system can start a thread");
    (Handle { commands }, thread)
}

struct Driver {
    scheduler: Scheduler,
    publisher: Publisher,
    metrics: Metrics,
    clients: BTreeMap<RequestId, mpsc::Sender<Produced>>,
}

impl Driver {
    fn run(mut self, commands: &Receiver<Command>) {
        // When the current step ends.
        let mut step: Option<Instant> = None;
        loop {
            let command = match step {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(end) => commands.recv_timeout(end.saturating_duration_since(Instant::now())),
            };
            let first = match command {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // What arrived together is scheduled together.
            for command in first.into_iter().chain(commands.try_iter().take(MAX_COMMANDS)) {
                match command {
                    Command::Submit(requests, reply) => {
                        // The receiver is gone where the client left before its request was even queued.
                        let _ = reply.send(self.submit(requests));
                    }
                    Command::Reset(reply) => {
                        let _ = reply.send(self.scheduler.reset_prefix_cache());
                    }
                    Command::Stop => return,
                }
            }
            let now = Instant::now();
            let start = match step {
                Some(end) if now < end => {
                    self.metrics.show(&self.scheduler);
                    continue;
                }
                Some(end) => {
                    self.end_step(end);
                    // A step follows the one before without the delay of waking up, but a stall is not made up for.
                    if now - end < LONGEST_CATCH_UP { end } else { now }
                }
                None => now,
            };
            self.abort_abandoned();
            step = self.scheduler.start_step(start);
            self.metrics.show(&self.scheduler);
        }
    }

    fn submit(&mut self, requests: Vec<NewRequest>) -> Result<Vec<Tokens>, Refusal> {
        let now = Instant::now();
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            match self.scheduler.add(request, now) {
                Ok(id) => ids.push(id),
                Err(refusal) => {
                    ids.into_iter().for_each(|id| self.scheduler.abort(id));
                    return Err(refusal);
                }
            }
        }
        let tokens = ids.into_iter().map(|id| {
            // Room for every token that may come, so that a slow client never holds up the engine.
            let (sender, receiver) = mpsc::channel(self.scheduler.answer_length(id).max(1));
            self.clients.insert(id, sender);
            receiver
        });
        Ok(tokens.collect())
    }

    fn end_step(&mut self, end: Instant) {
        let outcome = self.scheduler.end_step(end);
        if !outcome.events.is_empty() {
            // Counted first: who has read the answer reads a count that includes its events.
            self.metrics.batches.inc();
            self.publisher.publish(outcome.events);
        }
        // Before the answers leave: who has an answer finds it in the metrics.
        self.metrics.observe(&outcome.produced);
        self.metrics.show(&self.scheduler);
        for produced in outcome.produced {
            let finished = produced.finish.is_some();
            if let Some(client) = self.clients.get(&produced.request) {
                // Only a client that left is not told; its request is aborted before the next step.
                let _ = client.try_send(produced);
            }
            if finished {
                self.clients.remove(&produced.request);
            }
        }
    }

    fn abort_abandoned(&mut self) {
        let scheduler = &mut self.scheduler;
        self.clients.retain(|id, client| {
            let gone = client.is_closed();
            if gone {
                scheduler.abort(*id);
            }
            !gone
        });
    }
}

/// Requests on their way to the scheduler, which takes them within microseconds: more means that it hangs.
const MAX_COMMANDS: usize = 4096;

/// A step that ended this long ago is followed by one that starts now.
const LONGEST_CATCH_UP: Duration = Duration::from_millis(20);
