//! The agent's tasks, none of which may end unnoticed.
//!
//! A task that ends before it is asked to has met what nobody thought of, and what it kept may be half changed. So the
//! program then ends with an error, and whoever runs it starts it anew: an agent that goes on without one of its parts
//! would go on saying what is no longer so.

use std::{future::Future, sync::Arc};

use kvpick_service::drain::Drain;
use tokio::sync::watch;

/// Starts tasks, and knows whether one has ended that should not have.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    drain: Drain,
    ended: Arc<watch::Sender<Option<&'static str>>>,
}

/// Looks at how a task ends, when it is dropped.
struct Watched {
    tasks: Tasks,
    name: &'static str,
    /// Whether it may end without being asked to.
    may_end: bool,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let panics = std::thread::panicking();
        if panics || !(self.may_end || self.tasks.drain.is_started()) {
            tracing::error!(
                task = self.name,
                panics,
                "a task has ended that should not have; the agent ends"
            );
            self.tasks.ended.send_replace(Some(self.name));
        }
    }
}

impl Tasks {
    pub(crate) fn new(drain: Drain) -> Self {
        Self { drain, ended: Arc::new(watch::channel(None).0) }
    }

    /// The same for tasks that end with another drain, as those of an engine that goes before the agent does.
    pub(crate) fn with(&self, drain: Drain) -> Self {
        Self { drain, ended: Arc::clone(&self.ended) }
    }

    /// Starts a task that ends only once the drain has started.
    pub(crate) fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.start(name, false, future);
    }

    /// Starts a task that may end by itself, though not by a panic.
    pub(crate) fn spawn_ending(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.start(name, true, future);
    }

    fn start(&self, name: &'static str, may_end: bool, future: impl Future<Output = ()> + Send + 'static) {
        let watched = Watched { tasks: self.clone(), name, may_end };
        self.drain.spawn(name, async move {
            let _watched = watched;
            future.await;
        });
    }

    /// The shutdown that the tasks wait for.
    pub(crate) const fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Waits until a task has ended that should not have, and names it.
    pub(crate) async fn broken(&self) -> &'static str {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await.map(|it| *it) {
            Ok(Some(name)) => name,
            // The sender is in `self`, and the value is one.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    async fn steady(drain: Drain) {
        drain.started().await;
    }

    #[tokio::test]
    async fn a_task_that_panics_or_ends_is_noticed() {
        for panics in [true, false] {
            let tasks = Tasks::new(Drain::new());
            tasks.spawn("steady", steady(tasks.drain().clone()));
            tasks.spawn("fragile", async move { assert!(!panics, "on purpose") });
            assert_eq!(tokio::time::timeout(LONG, tasks.broken()).await, Ok("fragile"));
        }
        let tasks = Tasks::new(Drain::new());
        tasks.spawn_ending("fragile", async { panic!("on purpose") });
        assert_eq!(tokio::time::timeout(LONG, tasks.broken()).await, Ok("fragile"));
    }

    #[tokio::test]
    async fn one_that_is_asked_to_end_is_not() {
        let tasks = Tasks::new(Drain::new());
        tasks.spawn("steady", steady(tasks.drain().clone()));
        tasks.spawn_ending("short", async {});
        tasks.drain().start();
        assert!(tasks.drain().finished(LONG).await);
        assert_eq!(*tasks.ended.borrow(), None);
    }
}
