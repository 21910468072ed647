//! From a body to a decision: rendering, tokenizing and hashing off the I/O threads, within a budget, and never a
//! failure: what can't be known is left out and named as the reason.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use kvpick_core::{
    outcome::Reason,
    pick::Ask,
    pins::Links,
    reply::Decision,
    request::{Api, honours_rank, json},
    session::Question,
};
use kvpick_proto::words::ReplicaName;
use tokio::sync::{Semaphore, watch};

use crate::{
    config::BudgetConfig,
    models::Models,
    prepare::{self, Pending, Prepared, Step},
    shared::{Shared, Underway},
};

/// Most requests that wait for a worker. Beyond, the next one goes by load: it would only wait out its budget.
const MOST_WAITING: usize = 1_024;

/// Characters of a model's name that are logged; clients may send any.
const MOST_LOGGED: usize = 100;

/// Bytes of a prompt per token, for the estimate of its prefill time; the usual figure of English text.
const BYTES_PER_TOKEN: f64 = 4.0;

/// The part of a budget that is kept for the reading and hashing of what another server answers: what was made here
/// needs it too where no answer comes.
const KEPT: f64 = 0.125;

/// Decides requests.
#[derive(Debug)]
pub struct Decider {
    shared: Arc<Shared>,
    models: watch::Receiver<Arc<Models>>,
    workers: Arc<Semaphore>,
    waiting: AtomicUsize,
    budget: BudgetConfig,
    prefill_rate: f64,
}

impl Decider {
    /// A decider with that many workers. A request has the models that were in force when its work began.
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        models: watch::Receiver<Arc<Models>>,
        workers: usize,
        budget: BudgetConfig,
        prefill_rate: f64,
    ) -> Self {
        let workers = Arc::new(Semaphore::new(workers.max(1)));
        Self { shared, models, workers, waiting: AtomicUsize::new(0), budget, prefill_rate }
    }

    /// Decides. Counts the outcome, logs it, and remembers it until the returned value is dropped.
    pub async fn decide(&self, question: Question) -> Underway {
        let start = Instant::now();
        let Question { path, session, body, lack, envoy_has_a_clock } = question;
        let links = Links::of(&path, &body, session);
        let names_response = links.as_ref().is_some_and(|it| it.needs.is_some());
        // Known whatever becomes of the rest: a replica of another model could not answer.
        let model = json::model_of(&body);
        let prepared = match (lack, Api::of_path(&path)) {
            // Its prompt begins with what one replica keeps.
            _ if names_response => Err(Reason::STATEFUL_UNPINNED),
            (None, Some(api)) => {
                let budget = self.budget_for(body.len(), envoy_has_a_clock);
                let ask_until = start + budget.mul_f64(1.0 - KEPT);
                let work = self.prepare(api, body, ask_until);
                tokio::time::timeout(budget, work).await.unwrap_or(Err(Reason::OVER_BUDGET))
            }
            (_, None) => Err(Reason::OTHER_PATH),
            (Some(reason), Some(_)) => Err(reason),
        };
        let prepared = prepared.unwrap_or_else(|reason| Prepared::bare(&*self.shared, model, reason));
        let mut underway = self.pick(&prepared, links.as_ref(), honours_rank(&path));
        underway.links = links;
        self.report(&underway.decision, prepared.model.as_deref(), &path, start.elapsed());
        underway
    }

    /// The prompts and their blocks; another server, if one has to be asked, has until `ask_until` to answer.
    async fn prepare(&self, api: Api, body: Vec<u8>, ask_until: Instant) -> Result<Prepared, Reason> {
        let shared = Arc::clone(&self.shared);
        let models = Arc::clone(&self.models.borrow());
        match self.work(move || prepare::begin(&*shared, &models, api, body.into(), None)).await? {
            Step::Done(prepared) => Ok(prepared),
            Step::Ask(pending) => self.ask(pending, ask_until).await,
        }
    }

    /// Has another server make the prompts. No worker is held meanwhile.
    async fn ask(&self, pending: Box<Pending>, until: Instant) -> Result<Prepared, Reason> {
        let metrics = &self.shared.metrics;
        let (remote, start) = (Arc::clone(pending.remote()), Instant::now());
        let told = pending.ask(until).await;
        metrics.remote_seconds.observe(start.elapsed().as_secs_f64());
        let prepared = self.work(move || pending.finish(told)).await?;
        if let Some(result) = prepared.asked {
            metrics.remote_requests.with_label_values(&[remote.model(), result]).inc();
        }
        metrics.remote_resting.with_label_values(&[remote.model()]).set(remote.resting());
        Ok(prepared)
    }

    /// Has a worker do something, once it is its turn.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Reason> {
        if MOST_WAITING <= self.waiting.load(Ordering::Relaxed) {
            return Err(Reason::OVERLOADED);
        }
        let queued = Queued::new(&self.waiting);
        let permit = Arc::clone(&self.workers).acquire_owned().await.map_err(|_| Reason::OVERLOADED)?;
        drop(queued);
        let work = tokio::task::spawn_blocking(move || {
            // Held by the work itself: who stops waiting for it does not free its core.
            let _permit = permit;
            work()
        });
        work.await.map_err(|_| Reason::WORKER_DIED)
    }

    fn pick(&self, prepared: &Prepared, links: Option<&Links>, honours_rank: bool) -> Underway {
        let Prepared { plan, model, prompts, reads_cache, chains, made, .. } = prepared;
        let ask = Ask {
            model: model.as_deref(),
            prompts: prompts.as_deref().map_err(|reason| *reason),
            reads_cache: *reads_cache,
            honours_rank,
            made: *made,
            distrusted: false,
        };
        let mut world = self.shared.world();
        let now = Instant::now();
        let (pick, ticket) = match links.and_then(|it| world.pick_pinned(it, plan, now)) {
            Some((pick, ticket)) => (pick, Some(ticket)),
            None => world.pick(plan, &ask, chains, now),
        };
        let names: Vec<ReplicaName> = pick.replicas.iter().map(|it| world.replicas[*it].spec.name).collect();
        drop(world);
        Underway::new(Arc::clone(&self.shared), ticket, Decision::new(&pick, names))
    }

    fn report(&self, decision: &Decision, model: Option<&str>, path: &str, took: Duration) {
        let metrics = &self.shared.metrics;
        let (tier, reason) = (decision.tier.label(), decision.reason.label());
        metrics.decisions.with_label_values(&[tier, reason]).inc();
        metrics.decision_seconds.observe(took.as_secs_f64());
        metrics.prompt_tokens.inc_by(decision.prompt_tokens);
        metrics.predicted_tokens.inc_by(decision.predicted_tokens);
        let replica = decision.names.first().map_or_else(String::new, ToString::to_string);
        if !replica.is_empty() {
            metrics.picks.with_label_values(&[replica.as_str()]).inc();
            let predicted = metrics.predicted_by_replica.with_label_values(&[replica.as_str()]);
            predicted.inc_by(decision.predicted_tokens);
        }
        let took_ms = took.as_secs_f64() * 1e3;
        let model: String = model.unwrap_or_default().chars().take(MOST_LOGGED).collect();
        let evidence = decision.evidence();
        // What is as it should be is for those who look closely.
        if [Reason::OK, Reason::OTHER_PATH].contains(&decision.reason) {
            tracing::debug!(evidence, model, path, took_ms, "decided");
        } else {
            tracing::info!(evidence, model, path, took_ms, "decided");
        }
    }

    fn budget_for(&self, body_bytes: usize, envoy_has_a_clock: bool) -> Duration {
        let BudgetConfig { base_ms, share_of_prefill, max_ms, full_duplex_ms } = self.budget;
        let prefill_s = body_bytes as f64 / BYTES_PER_TOKEN / self.prefill_rate;
        let budget = Duration::from_millis(base_ms)
            + Duration::try_from_secs_f64(share_of_prefill * prefill_s).unwrap_or(Duration::MAX / 2);
        budget.min(Duration::from_millis(if envoy_has_a_clock { max_ms } else { full_duplex_ms }))
    }
}

/// Counts a waiting request until dropped, also when its budget ends while it waits.
struct Queued<'a>(&'a AtomicUsize);

impl<'a> Queued<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
