//! Stopping in order: say so, let open work finish, wait no longer than a deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The shutdown of one program: all its tasks are started here, are told here that it ends, and are waited
/// for here. Clones are the same drain.
///
/// ```
/// # use kvpick_service::drain::Drain;
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
/// let drain = Drain::new();
/// let stop = drain.clone();
/// drain.spawn("worker", async move { stop.started().await });
/// drain.start();
/// assert!(drain.finished(Duration::from_secs(5)).await);
/// # });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Drain {
    stop: CancellationToken,
    tasks: TaskTracker,
    running: Arc<Running>,
}

/// Which tasks run, by a number that grows, so that two of one name are two.
#[derive(Debug, Default)]
struct Running {
    names: Mutex<(u64, BTreeMap<u64, &'static str>)>,
    fewer: Notify,
}

impl Running {
    // Nothing panics while the lock is held, so a poisoned lock still guards good data.
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, &'static str>)> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a task off the list however it ends: by itself, by a panic, or aborted.
struct Entry {
    running: Arc<Running>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.running.lock().1.remove(&self.number);
        self.running.fewer.notify_waiters();
    }
}

impl Drain {
    /// A program that has not been asked to stop.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everything to stop. Asking again does nothing.
    pub fn start(&self) {
        self.stop.cancel();
        self.running.fewer.notify_waiters();
    }

    /// Whether [`Self::start`] was called.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits until everything is asked to stop. Safe to drop and to call again, as `select!` does.
    pub async fn started(&self) {
        self.stop.cancelled().await;
    }

    /// Starts a task that [`Self::finished`] waits for. It has to end by itself once [`Self::started`].
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let number = {
            let mut names = self.running.lock();
            names.0 += 1;
            let number = names.0;
            names.1.insert(number, name);
            number
        };
        let entry = Entry { running: Arc::clone(&self.running), number };
        self.tasks.spawn(async move {
            let _entry = entry;
            future.await
        })
    }

    /// The names of the tasks that have not ended, oldest first.
    #[must_use]
    pub fn running(&self) -> Vec<&'static str> {
        self.running.lock().1.values().copied().collect()
    }

    /// Waits until the stop was asked for and at most one task is left: the one that waits here.
    ///
    /// For the task that goes last, which is the admin server, so that one can watch the others end.
    pub async fn alone(&self) {
        loop {
            let fewer = self.running.fewer.notified();
            tokio::pin!(fewer);
            // Registered before looking, so that an end between the look and the wait is not missed.
            fewer.as_mut().enable();
            if self.is_started() && self.running.lock().1.len() <= 1 {
                return;
            }
            fewer.await;
        }
    }

    /// Waits until all tasks have ended, at most `deadline`, and says whether they did.
    ///
    /// Does not start the drain. Those still running at the deadline are logged by name; they end with the
    /// runtime.
    pub async fn finished(&self, deadline: Duration) -> bool {
        self.tasks.close();
        if tokio::time::timeout(deadline, self.tasks.wait()).await.is_ok() {
            return true;
        }
        tracing::warn!(tasks = ?self.running(), ?deadline, "still running at the drain deadline");
        false
    }
}

/// Ends when the process is asked to end: by SIGTERM, or by SIGINT (Ctrl-C).
pub async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut term, mut int) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(term), Ok(int)) => (term, int),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "cannot listen to signals: this process has to be killed to end");
            return std::future::pending().await;
        }
    };
    let signal = tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    };
    tracing::info!(signal, "asked to end");
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn waits_for_its_tasks() {
        let drain = Drain::new();
        let stop = drain.clone();
        let task = drain.spawn("worker", async move {
            stop.started().await;
            7
        });
        assert!(!drain.is_started());
        assert_eq!(drain.running(), ["worker"]);
        drain.start();
        assert!(drain.is_started());
        assert!(drain.finished(LONG).await);
        assert_eq!(task.await.unwrap(), 7);
        assert!(drain.running().is_empty());
    }

    #[tokio::test]
    async fn names_what_does_not_end() {
        let drain = Drain::new();
        let stuck = drain.spawn("stuck", std::future::pending::<()>());
        drain.spawn("quick", std::future::ready(())).await.unwrap();
        drain.start();
        assert!(!drain.finished(Duration::from_millis(1)).await);
        assert_eq!(drain.running(), ["stuck"]);
        stuck.abort();
        assert!(drain.finished(LONG).await);
    }

    #[tokio::test]
    async fn a_panic_ends_a_task() {
        let drain = Drain::new();
        let task = drain.spawn("fragile", async { panic!("on purpose") });
        assert!(task.await.unwrap_err().is_panic());
        assert!(drain.running().is_empty());
        assert!(drain.finished(LONG).await);
    }

    #[tokio::test]
    async fn the_last_one_waits_for_the_others() {
        let drain = Drain::new();
        let (release, held) = tokio::sync::oneshot::channel::<()>();
        let other = drain.spawn("other", async move { held.await.is_ok() });
        let last = drain.clone();
        let last = drain.spawn("last", async move { last.alone().await });
        drain.start();
        tokio::task::yield_now().await;
        assert!(!last.is_finished(), "`other` still runs");
        release.send(()).unwrap();
        assert!(other.await.unwrap());
        tokio::time::timeout(LONG, last).await.expect("alone by now").unwrap();
        assert!(drain.finished(LONG).await);
    }
}
