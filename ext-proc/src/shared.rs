//! The world behind its lock, and what every part of the shell needs beside it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use kvpick_core::{
    pins::Links,
    reply::Decision,
    request::Api,
    world::{Ticket, World},
};

use crate::metrics::Metrics;

/// Shared by all tasks. The lock is held for table look-ups only, never across an await, a render or a hash.
#[derive(Debug)]
pub struct Shared {
    world: Mutex<World>,
    /// The counters.
    pub metrics: Metrics,
}

impl Shared {
    /// Shares that world.
    #[must_use]
    pub fn new(world: World, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { world: Mutex::new(world), metrics })
    }

    /// The world. A panic of another holder is that holder's bug and leaves tables that are still good for routing.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether prompts made here for that model and API were seen not to be those of the engines, so that another source
    /// is the better one where there is one.
    #[must_use]
    pub fn is_distrusted(&self, model: Option<&str>, api: Api) -> bool {
        !self.world().trusts(model, api)
    }
}

/// A decided request under way; counts at its replica until dropped.
#[derive(Debug)]
pub struct Underway {
    shared: Arc<Shared>,
    ticket: Option<Ticket>,
    /// How it was decided.
    pub decision: Decision,
    /// What it has to do with responses that replicas keep.
    pub links: Option<Links>,
}

impl Underway {
    /// Takes the ticket in.
    #[must_use]
    pub fn new(shared: Arc<Shared>, ticket: Option<Ticket>, decision: Decision) -> Self {
        shared.metrics.in_flight.inc();
        Self { shared, ticket, decision, links: None }
    }

    /// The picked replica itself has begun to answer, with success.
    pub fn on_success(&self) {
        if let Some(ticket) = self.ticket.as_ref().filter(|it| it.is_watched()) {
            self.shared.world().on_success(ticket, Instant::now());
        }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.shared.metrics.in_flight.dec();
        if let Some(ticket) = self.ticket.take() {
            self.shared.world().finish(ticket, Instant::now());
        }
    }
}
