//! Asks replicas that are out whether they are well again, and lets the world's time pass.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvpick_core::{feed::Note, replicas::ReplicaId};
use kvpick_service::drain::Drain;

use crate::{parity, shared::Shared};

/// How often the world is looked after. Well below the shortest time in its rules, which is a second.
const TICK: Duration = Duration::from_millis(100);

/// How long a replica has to answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs until the server shuts down.
pub async fn run(shared: Arc<Shared>, http: reqwest::Client, drain: Drain) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => (),
            () = drain.started() => return,
        }
        let (notes, due) = look_after(&shared);
        for note in notes {
            report(&shared, &note);
        }
        parity::report(&shared);
        for id in due {
            drain.spawn("probe", probe(Arc::clone(&shared), http.clone(), id));
        }
    }
}

/// What happened since the last look, and whom to ask.
fn look_after(shared: &Shared) -> (Vec<Note>, Vec<ReplicaId>) {
    let now = Instant::now();
    let mut world = shared.world();
    (world.on_time(now), world.take_probes(now))
}

async fn probe(shared: Arc<Shared>, http: reqwest::Client, id: ReplicaId) {
    let Some(address) = shared.world().replicas.get(id).map(|it| it.spec.name.address) else { return };
    let request = http.get(format!("http://{address}/health")).timeout(PROBE_TIMEOUT).send();
    let answered = request.await.is_ok_and(|it| it.status().is_success());
    if answered && shared.world().on_answer(id, Instant::now()) {
        let replica = address.to_string();
        shared.metrics.returns.with_label_values(&[replica.as_str()]).inc();
        tracing::info!(replica, "replica is back");
    }
}

fn report(shared: &Shared, note: &Note) {
    match note {
        Note::Refused { node, replica, reason } => {
            // An agent may call itself anything; a label may not.
            let known = shared.world().replicas.iter().any(|(_, it)| it.spec.node.as_ref() == Some(node));
            let label = if known { node.as_str() } else { "unknown" };
            shared.metrics.feed_refused.with_label_values(&[label]).inc();
            tracing::warn!(node, %replica, reason, "refused what an agent says of a replica");
        }
        Note::TookOver { node } => tracing::info!(node, "a newer stream of the node's agent has taken over"),
        Note::Copied { replica, blocks } => {
            shared.metrics.feed_copies.with_label_values(&[replica.to_string().as_str()]).inc();
            tracing::info!(%replica, blocks, "in step with its agent");
        }
        Note::Restarted { replica } => tracing::info!(%replica, "the engine has restarted"),
        Note::Out { replica, how } => {
            let how = how.label();
            shared.metrics.outs.with_label_values(&[replica.to_string().as_str(), how]).inc();
            tracing::warn!(%replica, how, "replica is out until it answers a probe");
        }
        Note::Stale { replica } => {
            tracing::warn!(%replica, "its agent is gone; what it said counts half for now")
        }
        Note::Emptied { replica } => {
            tracing::warn!(%replica, "its agent was gone for too long; its blocks are forgotten");
        }
    }
}
