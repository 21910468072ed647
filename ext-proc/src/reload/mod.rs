//! Loads the models, and reads configuration and models again while requests go on: at SIGHUP, at `POST /reload` of the
//! admin server, and, where it is configured, when a file of a model has changed.
//!
//! One task does it, one reload after another. New models are loaded and warmed up beside those in force; then the whole
//! table is replaced at once, and requests under way keep the one that they began with. A model that can't be loaded
//! keeps what it had.

mod report;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use futures::StreamExt as _;
use kvpick_service::{drain::Drain, ready::Hold};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Interval, MissedTickBehavior},
};

use crate::{
    config::{Config, ModelConfig, Origin},
    memo::Memos,
    metrics::Metrics,
    models::{Batch, Loaded, Model, Models, Stamp},
};
use report::differences;
pub use report::{Failed, Report};

/// Where reloads are asked for. Clones ask the same task.
#[derive(Clone, Debug)]
pub struct Reloads(mpsc::Sender<oneshot::Sender<Report>>);

/// Why a reload was not even begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NotBegun {
    /// One runs and one waits: the one that waits will see what there is now.
    #[error("a reload is under way and another one waits, which will read all that is there now")]
    Busy,
    /// The program stops.
    #[error("the program is shutting down")]
    Stopping,
}

impl Reloads {
    /// Reloads, after one that may be under way.
    ///
    /// # Errors
    /// Where it was not begun.
    pub async fn ask(&self) -> Result<Report, NotBegun> {
        let (reply, report) = oneshot::channel();
        self.0.try_send(reply).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotBegun::Busy,
            mpsc::error::TrySendError::Closed(_) => NotBegun::Stopping,
        })?;
        report.await.map_err(|_| NotBegun::Stopping)
    }

    /// `POST /reload`: 200 where all went well; 422 where the configuration can't be used or a model not be loaded; 409
    /// where it was not begun, as enough reloads wait. The answer says what changed and what failed.
    pub fn routes(self) -> Router {
        Router::new().route("/reload", post(reload)).with_state(self)
    }
}

async fn reload(State(reloads): State<Reloads>) -> impl IntoResponse {
    match reloads.ask().await {
        Ok(report) if report.result() == "ok" => (StatusCode::OK, Json(report)),
        Ok(report) => (StatusCode::UNPROCESSABLE_ENTITY, Json(report)),
        Err(error @ NotBegun::Busy) => (StatusCode::CONFLICT, Json(Report::refused(error.to_string()))),
        Err(error @ NotBegun::Stopping) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(Report::refused(error.to_string())))
        }
    }
}

/// What is shown of reloads, beside the models themselves.
#[derive(Debug)]
pub struct Shown {
    /// The configuration in force: as it was at the start, with the models as they were last read.
    pub config: Config,
    /// What the last reload did.
    pub last: Option<Report>,
}

/// The task that loads models.
#[derive(Debug)]
pub struct Reloader {
    models: watch::Sender<Arc<Models>>,
    shown: Arc<Mutex<Shown>>,
    /// Where the configuration comes from; without it only the models' files are read again.
    origin: Option<Origin>,
    metrics: Metrics,
    /// Most models that are loaded at once.
    at_once: usize,
    asks: mpsc::Receiver<oneshot::Sender<Report>>,
    memos: Memos,
}

impl Reloader {
    /// A task for the models of that configuration, all of which are yet to be loaded, and where to ask it.
    #[must_use]
    pub fn new(config: Config, origin: Option<Origin>, metrics: Metrics, at_once: usize) -> (Self, Reloads) {
        // One waits while one runs.
        let (ask, asks) = mpsc::channel(1);
        let listed = config.models.iter().cloned().map(|it| Arc::new(Model::awaited(it))).collect();
        let models = watch::Sender::new(Arc::new(Models::new(listed)));
        let shown = Arc::new(Mutex::new(Shown { config, last: None }));
        let memos = Memos::default();
        (Self { models, shown, origin, metrics, at_once, asks, memos }, Reloads(ask))
    }

    /// The same, which gives each model a memo.
    #[must_use]
    pub fn with_memos(self, memos: Memos) -> Self {
        Self { memos, ..self }
    }

    /// The models in force, now and later.
    #[must_use]
    pub fn models(&self) -> watch::Receiver<Arc<Models>> {
        self.models.subscribe()
    }

    /// What is shown.
    #[must_use]
    pub fn shown(&self) -> Arc<Mutex<Shown>> {
        Arc::clone(&self.shown)
    }

    /// Loads all models, each in force at once when it is loaded, and then reloads as asked, until the program stops.
    /// There is a hold for each model.
    pub async fn run(mut self, holds: Vec<Hold>, stop: Drain) {
        tokio::select! {
            () = self.load_all(holds) => (),
            () = stop.started() => return,
        }
        let mut check = self.checks();
        loop {
            let reply = tokio::select! {
                asked = self.asks.recv() => asked,
                () = next(&mut check) => if self.has_changed().await { None } else { continue },
                () = stop.started() => return,
            };
            let report = tokio::select! {
                report = self.reload() => report,
                () = stop.started() => return,
            };
            if let Some(reply) = reply {
                // Who asked may have gone.
                reply.send(report).ok();
            }
        }
    }

    async fn load_all(&self, holds: Vec<Hold>) {
        let start = Instant::now();
        let configs = self.lock().config.models.clone();
        let mut holds: Vec<_> = holds.into_iter().map(Some).collect();
        let mut loading = self.loading(Batch::default().with_memos(self.memos.clone()), configs);
        while let Some((at, model)) = loading.next().await {
            self.show(&model);
            if let Some(Loaded { fingerprint, .. }) = &model.loaded {
                let took_s = start.elapsed().as_secs_f64();
                tracing::info!(model = model.config.name, %fingerprint, took_s, "the model is loaded");
            }
            self.models.send_modify(|models| *models = Arc::new(models.with(at, model)));
            holds.get_mut(at).and_then(Option::take);
        }
    }

    /// The models of these configurations with their positions, in the order in which they are loaded.
    fn loading(
        &self,
        batch: Batch,
        configs: Vec<ModelConfig>,
    ) -> impl futures::Stream<Item = (usize, Model)> + Unpin + use<> {
        let batch = Arc::new(batch);
        let load = move |(at, config): (usize, ModelConfig)| {
            let (batch, copy) = (Arc::clone(&batch), config.clone());
            let work = tokio::task::spawn_blocking(move || batch.load(copy));
            async move {
                let died = |_| {
                    tracing::error!(model = config.name, "the loading of the model died");
                    let error = Some("the loading of the model died: a bug; see the log".to_owned());
                    Model { error, ..Model::awaited(config) }
                };
                (at, work.await.unwrap_or_else(died))
            }
        };
        // The outer closure starts the work, and is called for as many as may run at once.
        Box::pin(
            futures::stream::iter(configs.into_iter().enumerate()).map(load).buffer_unordered(self.at_once),
        )
    }

    /// Reads the configuration and all models again.
    async fn reload(&self) -> Report {
        let report = match self.read_config().await {
            Err(error) => {
                tracing::error!(error, "the configuration can't be used; all stays as it is");
                Report::refused(error)
            }
            Ok(config) => self.take_over(config).await,
        };
        self.metrics.reloads.with_label_values(&[report.result()]).inc();
        self.lock().last = Some(report.clone());
        report
    }

    async fn read_config(&self) -> Result<Config, String> {
        let Some(origin) = self.origin.clone() else { return Ok(self.lock().config.clone()) };
        let read = move || origin.load().map_err(|error| error.to_string());
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|_| Err("reading the configuration died: a bug; see the log".to_owned()))
    }

    async fn take_over(&self, config: Config) -> Report {
        let before = Arc::clone(&self.models.borrow());
        let mut report =
            Report { needs_restart: differences(&self.lock().config, &config), ..Report::default() };
        let mut listed: Vec<_> = vec![None; config.models.len()];
        let mut loading =
            self.loading(Batch::new(&before).with_memos(self.memos.clone()), config.models.clone());
        while let Some((at, mut model)) = loading.next().await {
            let earlier = before.listed().iter().find(|it| it.config.name == model.config.name);
            report.add(&mut model, earlier.map(|it| &**it));
            listed[at] = Some(Arc::new(model));
        }
        // The work is done in any order, and told of in that of the file.
        report.sort(&config.models);
        let after = Models::new(listed.into_iter().flatten().collect());
        self.lock().config.models = config.models;
        after.listed().iter().for_each(|it| self.show(it));
        for gone in before
            .listed()
            .iter()
            .filter(|it| !after.listed().iter().any(|new| new.config.name == it.config.name))
        {
            report.removed.push(gone.config.name.clone());
            self.metrics.models_ready.remove_label_values(&[gone.config.name.as_str()]).ok();
        }
        self.models.send_replace(Arc::new(after));
        tracing::info!(report = ?report, "reloaded");
        if !report.needs_restart.is_empty() {
            tracing::warn!(fields = ?report.needs_restart, "changed in the configuration; needs a restart");
        }
        // To free a tokenizer takes milliseconds.
        tokio::task::spawn_blocking(move || drop(before));
        report
    }

    fn show(&self, model: &Model) {
        let gauge = self.metrics.models_ready.with_label_values(&[model.config.name.as_str()]);
        gauge.set(i64::from(model.is_ready()));
    }

    /// When files are looked at; `None` for never.
    fn checks(&self) -> Option<Interval> {
        let every = Duration::from_secs(self.lock().config.reload_check_s);
        (!every.is_zero()).then(|| {
            let mut ticks = tokio::time::interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        })
    }

    /// Whether a file of a model looks another than when it was last read.
    async fn has_changed(&self) -> bool {
        let models = Arc::clone(&self.models.borrow());
        let look = move || models.listed().iter().any(|it| Stamp::of(&it.config) != it.stamp);
        tokio::task::spawn_blocking(look).await.unwrap_or(false)
    }

    // Nothing panics while the lock is held, so a poisoned lock still guards good data.
    fn lock(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn next(checks: &mut Option<Interval>) {
    match checks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

/// Asks for a reload at each SIGHUP, until the program stops.
///
/// # Errors
/// Where the system takes no handler.
pub fn at_hangup(reloads: Reloads, stop: Drain) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangups = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                heard = hangups.recv() => if heard.is_none() { return },
                () = stop.started() => return,
            }
            tracing::info!("SIGHUP: configuration and models are read again");
            let reloads = reloads.clone();
            // On its own, so that the next signal is heard while this reload runs.
            tokio::spawn(async move {
                if let Err(error) = reloads.ask().await {
                    tracing::warn!(%error, "no further reload");
                }
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_reload_waits_and_no_more() {
        let config = kvpick_service::config::parse("replicas: []").expect("a configuration");
        let metrics = Metrics::new(&prometheus::Registry::new()).expect("metrics");
        let (reloader, reloads) = Reloader::new(config, None, metrics, 1);
        assert!(reloads.ask().now_or_never().is_none(), "it waits");
        assert_eq!(reloads.ask().now_or_never().map(|it| it.unwrap_err()), Some(NotBegun::Busy));
        drop(reloader);
        assert_eq!(reloads.ask().await.unwrap_err(), NotBegun::Stopping);
    }
}
