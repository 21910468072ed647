//! From a body to a decision: rendering, tokenizing and hashing off the I/O threads, within a budget, and never a
//! failure: what can't be known is left out and named as the reason.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use kvpick_core::{
    outcome::Reason,
    pick::{Ask, Pick},
    pins::Links,
    reply::Decision,
    request::{Api, honours_rank, json},
    session::{Body, Encoding, Head, Question},
};
use kvpick_proto::words::ReplicaName;
use tokio::sync::{Semaphore, watch};

use crate::{
    config::{BudgetConfig, ObjectiveConfig},
    look::{self, Seen},
    models::Models,
    prepare::{self, Among, Pending, Prepared, Step},
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
    /// What requests are for, with the priority.
    objectives: BTreeMap<String, i32>,
    most_body: usize,
    has_warned: AtomicBool,
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
        Self {
            shared,
            models,
            workers,
            waiting: AtomicUsize::new(0),
            budget,
            prefill_rate,
            objectives: BTreeMap::new(),
            most_body: usize::MAX,
            has_warned: AtomicBool::new(false),
        }
    }

    /// The same with requests of those objectives, and with bodies of at most `most_body` bytes once decompressed.
    #[must_use]
    pub fn with(mut self, objectives: &[ObjectiveConfig], most_body: usize) -> Self {
        self.objectives = objectives.iter().map(|it| (it.name.clone(), it.priority)).collect();
        self.most_body = most_body;
        self
    }

    /// Decides. Counts the outcome, logs it, and remembers it until the returned value is dropped.
    pub async fn decide(&self, question: Question) -> Underway {
        let start = Instant::now();
        let Question { head, body, mut lack, envoy_has_a_clock } = question;
        if lack == Some(Reason::BODY_NOT_SENT) {
            self.warn_of_mode();
        }
        let until = start + self.budget_for(body.len(), envoy_has_a_clock);
        let seen = match self.look(&head, body, lack, until).await {
            Ok(seen) => seen,
            Err(reason) => {
                lack = lack.or(Some(reason));
                Seen::default()
            }
        };
        let Seen { bytes, edits } = seen;
        let links = Links::of(&head.path, &bytes, head.session.clone());
        let names_response = links.as_ref().is_some_and(|it| it.needs.is_some());
        // Known whatever becomes of the rest: a replica of another model could not answer.
        let model = json::model_of(&bytes);
        let serving = Among { shared: Arc::clone(&self.shared), among: Arc::new(head.subset.clone()) };
        let prepared = match (lack, Api::of_path(&head.path)) {
            _ if serving.is_empty() => Err(Reason::NO_ENDPOINT),
            // Its prompt begins with what one replica keeps.
            _ if names_response => Err(Reason::STATEFUL_UNPINNED),
            (None, Some(api)) => {
                let ask_until = until - (until - start).mul_f64(KEPT);
                let work = self.prepare(serving.clone(), api, bytes, ask_until);
                tokio::time::timeout_at(until.into(), work).await.unwrap_or(Err(Reason::OVER_BUDGET))
            }
            (_, None) => Err(Reason::OTHER_PATH),
            (Some(reason), Some(_)) => Err(reason),
        };
        let prepared = prepared.unwrap_or_else(|reason| Prepared::bare(&serving, model, reason));
        let model = prepared.model.clone();
        let priority = head.objective.as_ref().and_then(|it| self.objectives.get(it)).copied().unwrap_or(0);
        let mut underway = self.pick(prepared, links.as_ref(), &head, priority);
        underway.links = links;
        underway.decision.edits = edits;
        self.report(&underway.decision, model.as_deref(), &head, start.elapsed());
        underway
    }

    /// What the body says. Only a compressed one may take longer than there is time for: what has to be changed is
    /// changed, however long it takes to find.
    async fn look(
        &self,
        head: &Head,
        body: Body,
        lack: Option<Reason>,
        until: Instant,
    ) -> Result<Seen, Reason> {
        let model = head.model_rewrite.clone();
        if head.encoding != Encoding::Identity && !body.is_empty() {
            let (encoding, most) = (head.encoding, self.most_body);
            if model.is_some() {
                tracing::warn!(path = head.path, "the gateway's model can't be put into a compressed body");
            }
            let work = self.work(move || look::compressed(&body, encoding, most, lack.is_some()));
            return tokio::time::timeout_at(until.into(), work)
                .await
                .unwrap_or(Ok(Err(Reason::OVER_BUDGET)))?;
        }
        if body.len() <= look::QUICK {
            return Ok(look::plain(&body, model.as_deref()));
        }
        let work = tokio::task::spawn_blocking(move || look::plain(&body, model.as_deref()));
        work.await.map_err(|_| Reason::WORKER_DIED)
    }

    /// Said once: it is a setting, and each request has its reason besides.
    fn warn_of_mode(&self) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "Envoy does not show the body before it must know the replica, so that requests go by load; set the \
                 filter's request_body_mode to BUFFERED or FULL_DUPLEX_STREAMED"
            );
        }
    }

    /// The prompts and their blocks; another server, if one has to be asked, has until `ask_until` to answer.
    async fn prepare(
        &self,
        serving: Among,
        api: Api,
        body: Bytes,
        ask_until: Instant,
    ) -> Result<Prepared, Reason> {
        let models = Arc::clone(&self.models.borrow());
        match self.work(move || prepare::begin(&serving, &models, api, body, None)).await? {
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

    fn pick(&self, prepared: Prepared, links: Option<&Links>, head: &Head, priority: i32) -> Underway {
        let Prepared { mut plan, model, prompts, reads_cache, chains, made, .. } = prepared;
        let ask = Ask {
            model: model.as_deref(),
            prompts: prompts.as_deref().map_err(|reason| *reason),
            reads_cache,
            honours_rank: honours_rank(&head.path),
            made,
            distrusted: false,
        };
        let mut world = self.shared.world();
        let now = Instant::now();
        if head.subset.is_in_turn() {
            world.take_turn(&mut plan);
        }
        let (pick, ticket) = if let Some(refusal) = world.refusal(&plan, priority, now) {
            (Pick::refused(refusal), None)
        } else if let Some((pick, ticket)) = links.and_then(|it| world.pick_pinned(it, &plan, now)) {
            (pick, Some(ticket))
        } else {
            world.pick(&plan, &ask, &chains, now)
        };
        let names: Vec<ReplicaName> = pick.replicas.iter().map(|it| world.replicas[*it].spec.name).collect();
        drop(world);
        Underway::new(Arc::clone(&self.shared), ticket, Decision::new(&pick, names))
    }

    fn report(&self, decision: &Decision, model: Option<&str>, head: &Head, took: Duration) {
        let metrics = &self.shared.metrics;
        let (tier, reason) = (decision.tier.label(), decision.reason.label());
        metrics.decisions.with_label_values(&[tier, reason]).inc();
        let objective = match &head.objective {
            None => "none",
            Some(name) => self.objectives.get_key_value(name).map_or("other", |(name, _)| name),
        };
        metrics.objectives.with_label_values(&[objective, tier]).inc();
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
        let logged = |it: Option<&str>| it.map(|it| it.chars().take(MOST_LOGGED).collect::<String>());
        let model = logged(model).unwrap_or_default();
        let (objective, fairness_id) =
            (logged(head.objective.as_deref()), logged(head.fairness_id.as_deref()));
        let (path, evidence) = (head.path.as_str(), decision.evidence());
        // What is as it should be is for those who look closely.
        if [Reason::OK, Reason::OTHER_PATH].contains(&decision.reason) {
            tracing::debug!(evidence, model, path, objective, fairness_id, took_ms, "decided");
        } else {
            tracing::info!(evidence, model, path, objective, fairness_id, took_ms, "decided");
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
