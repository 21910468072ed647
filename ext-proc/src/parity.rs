//! What is shown of parity: numbers, and a word when prompts are found not to be those of the engines. Beside them what
//! the engines' caches delivered, by their own count.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use kvpick_core::parity::{News, Parity, Subject};
use kvpick_proto::words::ReplicaName;

use kvpick_service::drain::Drain;
use tokio::sync::watch;

use crate::{
    metrics::Metrics,
    models::{Digest, Models},
    shared::Shared,
};

/// Where to look, for whoever reads that parity was lost.
const REMEDY: &str = "kvpick's prompts are not the engines'. Compare `kvpick tokenize` with an engine's /render; then \
                      look at the model's chat template and its settings here, at cache_salt and adapters, and at how \
                      the agent's /status says that blocks are named";

/// Forgets what was known of a model whose files or settings have changed.
pub async fn follow(shared: Arc<Shared>, mut models: watch::Receiver<Arc<Models>>, drain: Drain) {
    let mut before = fingerprints(&models.borrow_and_update());
    loop {
        tokio::select! {
            changed = models.changed() => if changed.is_err() { return },
            () = drain.started() => return,
        }
        let now = fingerprints(&models.borrow_and_update());
        let is_new = |(name, digest): &(&String, &Digest)| before.get(*name).is_some_and(|it| it != *digest);
        for (name, _) in now.iter().filter(is_new) {
            shared.world().parity.reset(name, Instant::now());
        }
        before = now;
    }
}

fn fingerprints(models: &Models) -> BTreeMap<String, Digest> {
    let of = |it: &Arc<crate::models::Model>| Some((it.config.name.clone(), it.loaded.as_ref()?.fingerprint));
    models.listed().iter().filter_map(of).collect()
}

/// Brings the metrics up to date, and logs what is new.
pub fn report(shared: &Shared) {
    let mut world = shared.world();
    count(&world.parity, &shared.metrics);
    let news = world.parity.take_news();
    let named: Vec<_> =
        news.into_iter().map(|it| (it, world.parity.name(subject(&it).model).to_owned())).collect();
    let delivered: Vec<_> =
        world.replicas.iter().map(|(_, it)| (it.spec.name, it.busy.delivered().hits)).collect();
    drop(world);
    compare(&delivered, &shared.metrics);
    named.iter().for_each(|(it, model)| log(it, model));
}

fn count(parity: &Parity, metrics: &Metrics) {
    for (subject, tally) in parity.tallies() {
        let labels = [parity.name(subject.model), subject.api.path(), subject.keys_label()];
        let [model, path, keys] = labels;
        let totals = tally.totals();
        let judged = metrics.parity_requests.with_label_values(&labels);
        judged.inc_by(totals.requests.saturating_sub(judged.get()));
        for (result, total) in [("confirmed", totals.confirmed), ("missing", totals.missing)] {
            let blocks = metrics.parity_blocks.with_label_values(&[model, path, keys, result]);
            blocks.inc_by(total.saturating_sub(blocks.get()));
        }
        if let Some(share) = tally.evidence().share() {
            metrics.parity_share.with_label_values(&labels).set(share);
        }
        let distrusted = i64::from(!tally.trust().is_good());
        metrics.parity_distrusted.with_label_values(&labels).set(distrusted);
    }
}

/// What the engines' caches delivered, beside what was predicted of them.
fn compare(delivered: &[(ReplicaName, u64)], metrics: &Metrics) {
    for (name, hits) in delivered {
        let delivered = metrics.delivered_by_replica.with_label_values(&[name.to_string().as_str()]);
        delivered.inc_by(hits.saturating_sub(delivered.get()));
    }
}

fn log(news: &News, model: &str) {
    let subject = subject(news);
    let (path, keys) = (subject.api.path(), subject.keys_label());
    match news {
        News::Lost(_, evidence) => {
            let (share, requests) = (evidence.share(), evidence.requests);
            tracing::warn!(model, path, keys, share, requests, "parity is lost: {REMEDY}");
        }
        News::Tried(_) => tracing::info!(model, path, keys, "parity was lost, and is tried again"),
        News::Back(_, evidence) => {
            let (share, requests) = (evidence.share(), evidence.requests);
            tracing::info!(model, path, keys, share, requests, "parity is back");
        }
    }
}

const fn subject(news: &News) -> Subject {
    let (News::Lost(it, _) | News::Tried(it) | News::Back(it, _)) = news;
    *it
}
