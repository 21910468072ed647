//! What others hold of a rank's thread.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
    mpsc::{SyncSender, TrySendError},
};

use kvpick_proto::naming::Hasher;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{
    faults::Garbage,
    request::{NewRequest, Produced, Refusal},
};

/// Hands requests to a running engine.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) commands: SyncSender<Command>,
    pub(super) shared: Arc<Shared>,
}

/// What those outside see without asking the thread.
#[derive(Debug)]
pub(super) struct Shared {
    /// Requests that were taken and not ended.
    pub(super) load: AtomicUsize,
    pub(super) is_alive: AtomicBool,
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

/// What goes wrong in one rank.
#[derive(Clone, Debug)]
pub enum Disturbance {
    /// The thread ends, as if its process had crashed.
    Death,
    /// No step begins or ends any more, or they do again.
    StepsHang(bool),
    /// Nothing is published any more, or it is again.
    EventsHang(bool),
    /// Steps take so many times as long.
    Slowness(f64),
    /// The next batches are lost; where they are `forgotten`, for replays too.
    EventsLost {
        /// How many.
        count: u64,
        /// Whether replay loses them, and what was before.
        forgotten: bool,
    },
    /// Something that is no batch is published.
    Garbage(Garbage),
    /// Blocks are hashed in another way from now on.
    Seed(Box<Hasher>),
}

/// What the thread is told to do.
#[derive(Debug)]
pub(super) enum Command {
    /// Requests that belong together are queued together.
    Submit(Vec<NewRequest>, oneshot::Sender<Result<Vec<Tokens>, Refusal>>),
    Reset(oneshot::Sender<bool>),
    Sleep {
        level: u32,
        aborts: bool,
        reply: oneshot::Sender<()>,
    },
    WakeUp(oneshot::Sender<()>),
    IsSleeping(oneshot::Sender<bool>),
    Disturb(Disturbance),
    Stop,
}

impl Handle {
    /// Queues requests; all of them or none. The answers are in the order of the requests.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn submit(&self, requests: Vec<NewRequest>) -> Result<Vec<Tokens>, SubmitError> {
        // The thread counts too, but a moment later, when the next request may have been sent here as well.
        self.shared.load.fetch_add(requests.len(), Ordering::Relaxed);
        Ok(self.ask(|reply| Command::Submit(requests, reply)).await??)
    }

    /// Forgets every held block; `false` where blocks are in use.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn reset_prefix_cache(&self) -> Result<bool, SubmitError> {
        self.ask(Command::Reset).await
    }

    /// Begins no more steps until it wakes up. From level 1 on held blocks are forgotten too, unless some are in use;
    /// `aborts` ends the requests that use them.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn sleep(&self, level: u32, aborts: bool) -> Result<(), SubmitError> {
        self.ask(|reply| Command::Sleep { level, aborts, reply }).await
    }

    /// Ends a sleep.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn wake_up(&self) -> Result<(), SubmitError> {
        self.ask(Command::WakeUp).await
    }

    /// Whether it sleeps.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn is_sleeping(&self) -> Result<bool, SubmitError> {
        self.ask(Command::IsSleeping).await
    }

    /// Makes something go wrong, after what it was told before.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub fn disturb(&self, disturbance: Disturbance) -> Result<(), SubmitError> {
        self.send(Command::Disturb(disturbance))
    }

    /// Ends the engine; requests that are under way break off. Waits where the engine is behind.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    /// Requests that it was given and that have not ended.
    #[must_use]
    pub fn load(&self) -> usize {
        self.shared.load.load(Ordering::Relaxed)
    }

    /// Whether its thread runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive.load(Ordering::Relaxed)
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, SubmitError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| SubmitError::Stopped)
    }

    fn send(&self, command: Command) -> Result<(), SubmitError> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => SubmitError::Overloaded,
            TrySendError::Disconnected(_) => SubmitError::Stopped,
        })
    }
}
