//! `GET /status`: what this server knows, for people and for tests.

use std::time::Instant;

use kvpick_core::{
    health::Health,
    parity::{Parity, Subject, Tally, Trust},
    replicas::Replica,
    world::World,
};
use kvpick_proto::words::{Completeness, EngineStatus, Events};
use serde_json::{Value, json};

use crate::{
    clock,
    models::{Model, Models},
};

/// The whole status.
#[must_use]
pub fn status(server: &str, awaited: &[String], world: &World, prefill_rate: f64, now: Instant) -> Value {
    let replicas: Vec<_> = world.replicas.iter().map(|(_, it)| replica(it, prefill_rate, now)).collect();
    let nodes: Vec<_> =
        world.feed.nodes().into_iter().map(|(node, epoch)| json!({"node": node, "epoch": epoch})).collect();
    json!({
        "server": server,
        "ready": awaited.is_empty(),
        "awaited": awaited,
        "replicas": replicas,
        "nodes": nodes,
        "pins": world.pins.len(),
        "parity": parity(&world.parity, now),
    })
}

/// The models of which prompts can be made.
#[must_use]
pub fn models(models: &Models) -> Value {
    models.listed().iter().map(|it| model(it)).collect()
}

/// Other servers that make prompts, by model.
#[must_use]
pub fn remotes(models: &Models) -> Value {
    models.listed().iter().filter_map(|it| it.remote.as_ref()).map(|it| it.status()).collect()
}

fn model(it: &Model) -> Value {
    let loaded = it.loaded.as_ref();
    json!({
        "name": it.config.name,
        "aliases": it.config.aliases,
        "source": it.config.source.label(),
        "state": it.state(),
        "error": it.error,
        "path": it.config.path,
        "fingerprint": loaded.map(|it| it.fingerprint.to_string()),
        "tokenizer": loaded.map(|it| it.tokenizer.to_string()),
        "loaded_at": loaded.map(|it| clock::rfc3339(it.at)),
    })
}

/// For each kind of prompt whether what it should have left at replicas came.
fn parity(parity: &Parity, now: Instant) -> Vec<Value> {
    let entry = |(subject, tally): (Subject, &Tally)| {
        let evidence = tally.evidence();
        let since = match tally.trust() {
            Trust::Lost { since } => Some(now.saturating_duration_since(since).as_secs()),
            Trust::Given | Trust::OnTrial => None,
        };
        json!({
            "model": parity.name(subject.model),
            "path": subject.api.path(),
            "keys": subject.keys_label(),
            "state": tally.trust().label(),
            "distrusted_for_s": since,
            "share": evidence.share(),
            "latest": {
                "requests": evidence.requests,
                "confirmed": evidence.confirmed,
                "missing": evidence.missing,
            },
            "judged": tally.totals().requests,
        })
    };
    parity.tallies().map(entry).collect()
}

fn replica(it: &Replica, prefill_rate: f64, now: Instant) -> Value {
    let described = it.description.as_ref();
    let own = it.busy.own(prefill_rate, now);
    let delivered = it.busy.delivered();
    let estimate = it.busy.estimate(prefill_rate, now);
    let models: Vec<_> = it.base_models().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    json!({
        "address": it.spec.name.address.to_string(),
        "rank": it.spec.name.rank,
        "uid": it.spec.uid,
        "away": it.spec.is_away,
        "node": it.spec.node,
        "models": models,
        "state": it.knowledge.label(),
        "facts": it.facts().map_or_else(|reason| reason.label(), |_| "ok"),
        "applied": it.applied,
        "blocks": it.holdings.len(),
        "health": health(&it.health),
        "in_flight": {"requests": own.requests, "uncached_prefill_tokens": own.uncached_prefill_tokens},
        "load": {
            "requests": estimate.requests,
            "waiting": estimate.waiting,
            "prefill_tokens": estimate.prefill_tokens,
            "cache_use": estimate.cache_use,
        },
        "delivered": {"queries": delivered.queries, "hits": delivered.hits},
        "incarnation": described.map(|it| it.incarnation.as_str()),
        "events": described.map(|it| events(&it.events)),
        "engine": described.map(|it| match it.status {
            EngineStatus::Up => "up",
            EngineStatus::Asleep => "asleep",
            EngineStatus::Down => "down",
            EngineStatus::Foreign => "foreign",
        }),
        "complete": described.map(|it| it.completeness == Completeness::Complete),
        "num_gpu_blocks": described.map(|it| it.num_gpu_blocks),
        "domain": described.and_then(|it| it.domain.as_ref()).map(|it| json!({
            "algorithm": it.algorithm.name(),
            "root": it.root,
            "block_size": it.block_size,
        })),
    })
}

fn events(it: &Events) -> Value {
    match it {
        Events::Off => json!({"state": "off"}),
        Events::Awaited => json!({"state": "awaited"}),
        Events::Live => json!({"state": "live"}),
        Events::Unavailable { reason, remedy } => {
            json!({"state": "unavailable", "reason": reason, "remedy": remedy})
        }
    }
}

fn health(it: &Health) -> Value {
    match it.failure() {
        None => json!({"state": "in"}),
        Some(why) => json!({"state": "out", "why": why.label()}),
    }
}
