//! `/status`: what the agent knows, for people and for tests.

use std::time::Instant;

use kvpick_agent_core::{
    engine::{Engine, Outcome},
    peer::State as PeerState,
    sequence::Why,
};
use kvpick_proto::{
    naming::{Domain, ExtraKeyShape},
    words::{Completeness, EngineStatus, Events, Handle, KeyKind, KeyKindStatus, KeyState},
};
use serde_json::{Value, json};

use crate::{
    discover::Discovered,
    shared::{Server, State},
    state::StateFile,
};

/// All of it.
pub(crate) fn status(node: &str, state: &State, now: Instant) -> Value {
    let of = |(handle, it)| engine(it, state.discovered.get(handle), state.files.get(handle), now);
    let engines: Vec<_> = state.node.engines().iter().map(of).collect();
    let servers: Vec<_> =
        state.servers.iter().map(|(address, it)| server(&address.to_string(), it, state)).collect();
    json!({ "node": node, "engines": engines, "servers": servers })
}

fn engine(engine: &Engine, discovered: Option<&Discovered>, file: Option<&StateFile>, now: Instant) -> Value {
    let it = engine.provisional_description();
    let (complete, partial_since_ms) = match it.completeness {
        Completeness::Complete => (true, None),
        Completeness::PartialSince { unix_ms } => (false, Some(unix_ms)),
    };
    json!({
        "address": it.name.address,
        "rank": it.name.rank,
        "incarnation": it.incarnation,
        "events": events(&it.events),
        "discovered": discovered.map(|it| json!({
            "endpoint": it.endpoints.events,
            "replay_endpoint": it.endpoints.replay,
            "topic": it.endpoints.topic,
            "ranks": it.ranks,
            "note": it.note,
        })),
        "applied": engine.announced(),
        "blocks": engine.held(),
        "copies": if engine.is_restoring() { 0 } else { engine.mirror().gpu_copies() },
        "state_file": file.map(|it| state_file(engine, it, now)),
        "num_gpu_blocks": it.num_gpu_blocks,
        "complete": complete,
        "partial_since_ms": partial_since_ms,
        "domain": it.domain.as_ref().map(domain),
        "key_kinds": it.key_kinds.iter().map(key_kind).collect::<Vec<_>>(),
        "translation": translation(engine),
        "groups": it.groups.iter().map(|it| json!({
            "index": it.index,
            "kind": it.kind,
            "block_size": it.block_size,
            "sliding_window": it.sliding_window,
        })).collect::<Vec<_>>(),
        "models": it.models,
        "adapters": it.adapters.iter().map(|it| json!({ "name": it.name, "path": it.path })).collect::<Vec<_>>(),
        "version": it.engine_version,
        "load": engine.load().map(|(load, sampled)| json!({
            "age_ms": u64::try_from(now.saturating_duration_since(sampled).as_millis()).unwrap_or(u64::MAX),
            "running": load.running,
            "waiting": load.waiting,
            "cache_use": load.cache_use,
            "prefix_queries": load.prefix_queries,
            "prefix_hits": load.prefix_hits,
        })),
        "status": match it.status {
            EngineStatus::Up => "up",
            EngineStatus::Asleep => "asleep",
            EngineStatus::Down => "down",
            EngineStatus::Foreign => "foreign",
        },
        "status_reason": it.status_reason,
    })
}

/// Null where the engine's own names are in use.
fn translation(engine: &Engine) -> Value {
    if !engine.provisional_description().is_translated() {
        return Value::Null;
    }
    let it = engine.translation();
    json!({
        "blocks": it.translated,
        "orphans": it.orphans,
        "left_out": {
            "extra_keys": it.left_out_extra_keys,
            "group": it.left_out_groups,
            "placeholder": it.left_out_placeholders,
            "hidden_keys": it.left_out_hidden_keys,
            "no_room": it.dropped,
        },
    })
}

fn state_file(engine: &Engine, it: &StateFile, now: Instant) -> Value {
    let restored = engine.restored();
    json!({
        "age_ms": it.written.map(|at| u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX)),
        "error": it.error,
        "unreadable": it.unreadable,
        "restored": restored.map(|it| outcome(it.outcome)),
        "restored_blocks": restored.map(|it| it.blocks),
    })
}

/// What came of a file, in one word.
pub(crate) const fn outcome(it: Outcome) -> &'static str {
    match it {
        Outcome::Awaited => "awaited",
        Outcome::Proved => "proved",
        Outcome::Refused(Why::Restarted) => "restarted",
        Outcome::Refused(Why::Lost) => "lost",
        Outcome::Refused(Why::Start | Why::Unproven) => "unproven",
    }
}

fn events(it: &Events) -> Value {
    match it {
        Events::Off => json!({ "state": "off", "reason": null, "remedy": null }),
        Events::Awaited => json!({ "state": "awaited", "reason": null, "remedy": null }),
        Events::Live => json!({ "state": "live", "reason": null, "remedy": null }),
        Events::Unavailable { reason, remedy } => {
            json!({ "state": "unavailable", "reason": reason, "remedy": remedy })
        }
    }
}

pub(crate) fn domain(it: &Domain) -> Value {
    json!({
        "algorithm": it.algorithm.name(),
        "root": it.root,
        "block_size": it.block_size,
        "extra_keys": match it.extra_keys {
            ExtraKeyShape::Bare => "bare",
            ExtraKeyShape::BareWithOffset => "bare_with_offset",
            ExtraKeyShape::Tagged => "tagged",
        },
    })
}

pub(crate) fn key_kind(it: &KeyKindStatus) -> Value {
    let (state, why, remedy) = match &it.state {
        KeyState::Verified => ("verified", None, None),
        KeyState::Assumed { evidence } => ("assumed", Some(evidence), None),
        KeyState::Translated => ("translated", None, None),
        KeyState::Unverified { reason, remedy } => ("unverified", Some(reason), Some(remedy)),
    };
    json!({
        "kind": match it.kind {
            KeyKind::Plain => "plain",
            KeyKind::Adapter => "adapter",
            KeyKind::Salt => "salt",
            KeyKind::Media => "media",
            KeyKind::Embeds => "embeds",
        },
        "state": state,
        "why": why,
        "remedy": remedy,
    })
}

fn server(address: &str, it: &Server, state: &State) -> Value {
    let peer = it.peer.and_then(|id| state.node.peer(id));
    let replica = |(handle, engine): (&Handle, &Engine)| {
        let peer_state = peer.map_or(PeerState::Awaiting, |it| it.state(*handle));
        let (state, reason, behind) = match peer_state {
            PeerState::Awaiting => ("awaiting", None, None),
            PeerState::Refused(reason) => ("refused", Some(reason), None),
            PeerState::Copying => ("copying", None, None),
            PeerState::InStep { behind } => ("in_step", None, Some(behind)),
        };
        let name = engine.config().name;
        json!({
            "address": name.address,
            "rank": name.rank,
            "state": state,
            "reason": reason,
            "behind_blocks": behind,
        })
    };
    json!({
        "address": address,
        "name": peer.and_then(|it| it.server()),
        "state": it.link.name(),
        "since": it.since_unix_ms,
        "last_error": it.last_error,
        "copies": peer.map(|it| it.copies()),
        "replicas": state.node.engines().iter().map(replica).collect::<Vec<_>>(),
    })
}
