//! What goes wrong between clients and the routes, and the route that commands it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json,
    body::Bytes,
    extract::{ConnectInfo, Query, Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{
    App,
    error::ApiError,
    listener::{self, Connection},
};
use crate::engine::{
    driver::{Disturbance, SubmitError},
    faults::{Fault, Part},
    life::Life,
};

/// Faults of the HTTP server that are in force.
#[derive(Debug, Default)]
pub(super) struct Faulty {
    hangs: watch::Sender<bool>,
    refuses_until: watch::Sender<Option<Instant>>,
    stream_delay_ms: AtomicU64,
    ahead: Mutex<Ahead>,
    connections: Mutex<Vec<Weak<listener::State>>>,
}

/// What the next requests meet.
#[derive(Debug, Default)]
struct Ahead {
    failures: u64,
    status: u16,
    resets: u64,
    chunks: u64,
}

impl Faulty {
    /// The time until which connections are refused, as long as they are.
    pub(super) fn refuses_until(&self) -> Option<Instant> {
        *self.refuses_until.borrow()
    }

    /// Waits until connections are to be refused.
    pub(super) async fn refusal(&self) {
        // Never fails, as the sender is here.
        let _ = self.refuses_until.subscribe().wait_for(Option::is_some).await;
    }

    /// Ends the refusal if its time is over.
    pub(super) fn refused(&self) {
        let now = Instant::now();
        self.refuses_until.send_if_modified(|until| until.take_if(|until| *until <= now).is_some());
    }

    pub(super) fn remember(&self, connection: &Connection) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|it| 0 < it.strong_count());
        connections.push(Arc::downgrade(&connection.0));
    }

    /// By how much each event of a stream is delayed.
    pub(super) fn stream_delay(&self) -> Option<Duration> {
        let delay = self.stream_delay_ms.load(Ordering::Relaxed);
        (0 < delay).then(|| Duration::from_millis(delay))
    }

    /// The number of events after which a stream that begins now is reset.
    pub(super) fn take_reset(&self) -> Option<u64> {
        let mut ahead = self.ahead();
        ahead.resets = ahead.resets.checked_sub(1)?;
        Some(ahead.chunks)
    }

    fn take_failure(&self) -> Option<StatusCode> {
        let mut ahead = self.ahead();
        ahead.failures = ahead.failures.checked_sub(1)?;
        StatusCode::from_u16(ahead.status).ok()
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until_it_answers(&self) {
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
    }

    fn refuse(&self, seconds: f64) {
        self.refuses_until.send_replace(Some(Instant::now() + Duration::from_secs_f64(seconds)));
    }

    /// Resets all open connections but that one.
    fn reset_all_but(&self, spared: &Connection) {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for state in connections.iter().filter_map(Weak::upgrade) {
            if !Arc::ptr_eq(&state, &spared.0) {
                Connection(state).reset();
            }
        }
    }

    fn heal(&self) {
        self.hangs.send_replace(false);
        self.stream_delay_ms.store(0, Ordering::Relaxed);
        *self.ahead() = Ahead::default();
    }
}

/// Lets requests meet the faults that are in force. What is under `/lab/` meets none.
pub(super) async fn meet(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path.starts_with("/lab/") {
        return next.run(request).await;
    }
    app.faulty.until_it_answers().await;
    if request.method() == Method::POST
        && path.starts_with("/v1/")
        && let Some(status) = app.faulty.take_failure()
    {
        return ApiError::on_command(status).into_response();
    }
    next.run(request).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scope {
    rank: Option<usize>,
}

/// `POST /lab/faults`.
pub(super) async fn command(
    State(app): State<App>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    Query(scope): Query<Scope>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let fault: Fault = serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request(&format!("no fault: {error}"), "fault"))?;
    fault.check().map_err(|problem| ApiError::bad_request(problem, "fault"))?;
    tracing::info!(?fault, rank = scope.rank, "a fault is commanded");
    let life = app.lives.present();
    if let Some(rank) = scope.rank {
        life.rank(Some(rank)).map_err(|ranks| ApiError::rank(rank, ranks))?;
    }
    let answer = json!({"fault": &fault});
    app.inflict(fault, scope.rank, &life, &connection).await?;
    Ok(Json(answer))
}

impl App {
    async fn inflict(
        &self,
        fault: Fault,
        rank: Option<usize>,
        life: &Life,
        connection: &Connection,
    ) -> Result<(), ApiError> {
        let disturb = |disturbance: Disturbance| {
            for (number, handle) in life.ranks.iter().enumerate() {
                if rank.is_none_or(|rank| rank == number) {
                    match handle.disturb(disturbance.clone()) {
                        // Nothing more can go wrong with the dead.
                        Ok(()) | Err(SubmitError::Stopped) => (),
                        Err(error) => return Err(ApiError::from(error)),
                    }
                }
            }
            Ok(())
        };
        let faulty = &self.faulty;
        match fault {
            Fault::Crash => {
                // Nothing is cleaned up, as when the kernel ends a process that took too much memory.
                let killed =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                killed.map_err(|_| ApiError::internal())
            }
            Fault::Die => disturb(Disturbance::Death),
            Fault::Restart { down_seconds } => {
                if 0.0 < down_seconds {
                    faulty.refuse(down_seconds);
                    faulty.reset_all_but(connection);
                }
                let lives = Arc::clone(&self.lives);
                super::blocking(move || lives.restart().map_err(|error| ApiError::start(&error))).await
            }
            Fault::Hang { what } => {
                if what.includes(Part::Http) {
                    faulty.hangs.send_replace(true);
                }
                if what.includes(Part::Steps) {
                    disturb(Disturbance::StepsHang(true))?;
                }
                if what.includes(Part::Events) {
                    disturb(Disturbance::EventsHang(true))?;
                }
                Ok(())
            }
            Fault::SlowSteps { factor } => disturb(Disturbance::Slowness(factor)),
            Fault::DropEvents { count } => disturb(Disturbance::EventsLost { count, forgotten: false }),
            Fault::Gap { count } => disturb(Disturbance::EventsLost { count, forgotten: true }),
            Fault::WrongSeed { root } => disturb(Disturbance::Seed(Box::new(self.lives.hasher(&root)))),
            Fault::Garbage { kind } => disturb(Disturbance::Garbage(kind)),
            Fault::Refuse { seconds, reset_open } => {
                faulty.refuse(seconds);
                if reset_open {
                    faulty.reset_all_but(connection);
                }
                Ok(())
            }
            Fault::SlowStreams { millis } => {
                faulty.stream_delay_ms.store(millis, Ordering::Relaxed);
                Ok(())
            }
            Fault::Fail { count, status } => {
                let mut ahead = faulty.ahead();
                (ahead.failures, ahead.status) = (count, status);
                Ok(())
            }
            Fault::Reset { chunks, count } => {
                let mut ahead = faulty.ahead();
                (ahead.resets, ahead.chunks) = (count, chunks);
                Ok(())
            }
            Fault::Heal => {
                faulty.heal();
                disturb(Disturbance::StepsHang(false))?;
                disturb(Disturbance::EventsHang(false))?;
                disturb(Disturbance::Slowness(1.0))?;
                disturb(Disturbance::EventsLost { count: 0, forgotten: false })
            }
        }
    }
}
