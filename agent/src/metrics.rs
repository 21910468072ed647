//! The agent's metrics: numbers that the core keeps, read when somebody asks.

use std::sync::Arc;

use kvpick_agent_core::{
    engine::{Engine, Outcome},
    peer::State,
};
use kvpick_proto::words::{Completeness, EngineStatus, Events, KeyKind, KeyState};
use prometheus::{
    GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::{
    shared::{Link, Shared},
    state::StateFile,
    status::outcome,
};

/// Registers everything that is to be seen of `shared`.
///
/// # Errors
///
/// A name is taken already.
pub(crate) fn register(registry: &Registry, shared: Arc<Shared>) -> prometheus::Result<()> {
    registry.register(Box::new(Metrics::new(shared)?))
}

/// Labels: `engine` is a replica's name, of which an agent's configuration has a handful; `server` an address.
struct Metrics {
    shared: Arc<Shared>,
    engine_up: IntGaugeVec,
    events_live: IntGaugeVec,
    complete: IntGaugeVec,
    naming_verified: IntGaugeVec,
    blocks: IntGaugeVec,
    copies: IntGaugeVec,
    requests: IntGaugeVec,
    cache_use: GaugeVec,
    batches: IntCounterVec,
    events: IntCounterVec,
    strays: IntCounterVec,
    undecodable: IntCounterVec,
    replays: IntCounterVec,
    resets: IntCounterVec,
    rules: IntCounterVec,
    misfits: IntCounterVec,
    hidden: IntCounterVec,
    naming_translated: IntGaugeVec,
    translated: IntCounterVec,
    orphans: IntGaugeVec,
    left_out: IntCounterVec,
    scrapes: IntCounterVec,
    state_age: GaugeVec,
    state_writes: IntCounterVec,
    restores: IntCounterVec,
    restored: IntGaugeVec,
    server_connected: IntGaugeVec,
    server_streams: IntCounterVec,
    server_copies: IntGaugeVec,
    server_behind: IntGaugeVec,
    refused: IntGaugeVec,
}

impl Metrics {
    fn new(shared: Arc<Shared>) -> prometheus::Result<Self> {
        let opts = |name: &str, help: &str| Opts::new(format!("kvpick_agent_{name}"), help);
        let gauge = |name, help, labels: &[&str]| IntGaugeVec::new(opts(name, help), labels);
        let counter = |name, help, labels: &[&str]| IntCounterVec::new(opts(name, help), labels);
        let engine = &["engine"][..];
        Ok(Self {
            shared,
            engine_up: gauge("engine_up", "1 while the engine serves", engine)?,
            events_live: gauge("engine_events_live", "1 while the engine's events are heard", engine)?,
            complete: gauge("engine_complete", "1 while all that the engine holds is known", engine)?,
            naming_verified: gauge(
                "engine_naming_verified",
                "1 once a hash of the engine was recomputed",
                engine,
            )?,
            blocks: gauge("engine_blocks", "blocks that the engine holds, in all groups and tiers", engine)?,
            copies: gauge("engine_gpu_copies_blocks", "physical blocks in use for them on the GPU", engine)?,
            requests: gauge("engine_requests", "requests in the engine", &["engine", "state"])?,
            cache_use: GaugeVec::new(
                opts("engine_cache_use_ratio", "share of blocks in use by running requests"),
                engine,
            )?,
            batches: counter("engine_batches_total", "event batches applied", engine)?,
            events: counter("engine_events_total", "events applied or passed over", &["engine", "kind"])?,
            strays: counter("engine_stray_batches_total", "batches of another rank, left out", engine)?,
            undecodable: counter("engine_undecodable_total", "messages that are not vLLM's", engine)?,
            replays: counter("engine_replays_total", "replays asked for", &["engine", "result"])?,
            resets: counter(
                "engine_resets_total",
                "times that what was known was given up",
                &["engine", "why"],
            )?,
            rules: counter("engine_mirror_rules_total", "events settled by a rule", &["engine", "rule"])?,
            misfits: counter("engine_naming_misfits_total", "stores hashed in no known way", engine)?,
            hidden: counter(
                "engine_hidden_keys_total",
                "stores with more in their hash than the engine announces",
                engine,
            )?,
            naming_translated: gauge(
                "engine_naming_translated",
                "1 while the agent names the engine's blocks itself",
                engine,
            )?,
            translated: counter(
                "engine_translated_blocks_total",
                "blocks that the agent could name",
                engine,
            )?,
            orphans: gauge(
                "engine_orphan_blocks",
                "blocks kept aside until what they follow is known",
                engine,
            )?,
            left_out: counter(
                "engine_left_out_blocks_total",
                "blocks that the agent could not name",
                &["engine", "why"],
            )?,
            scrapes: counter(
                "engine_scrapes_total",
                "times its metrics were asked for",
                &["engine", "result"],
            )?,
            state_age: GaugeVec::new(
                opts("engine_state_age_seconds", "since what is known was written down"),
                engine,
            )?,
            state_writes: counter(
                "engine_state_writes_total",
                "times that what is known was written down",
                &["engine", "result"],
            )?,
            restores: counter(
                "engine_restores_total",
                "what came of what an earlier run knew",
                &["engine", "result"],
            )?,
            restored: gauge("engine_restored_blocks", "blocks of an earlier run that were proved", engine)?,
            server_connected: gauge("server_connected", "1 while there is a stream", &["server"])?,
            server_streams: counter("server_streams_total", "streams that a server welcomed", &["server"])?,
            server_copies: gauge("server_stream_copies", "full copies begun on the stream", &["server"])?,
            server_behind: gauge("server_behind_blocks", "blocks whose change is not sent yet", &["server"])?,
            refused: gauge("server_refused_replicas", "replicas that the server does not take", &["server"])?,
        })
    }

    fn all(&self) -> [&dyn Collector; 31] {
        [
            &self.engine_up,
            &self.events_live,
            &self.complete,
            &self.naming_verified,
            &self.blocks,
            &self.copies,
            &self.requests,
            &self.cache_use,
            &self.batches,
            &self.events,
            &self.strays,
            &self.undecodable,
            &self.replays,
            &self.resets,
            &self.rules,
            &self.misfits,
            &self.hidden,
            &self.naming_translated,
            &self.translated,
            &self.orphans,
            &self.left_out,
            &self.scrapes,
            &self.state_age,
            &self.state_writes,
            &self.restores,
            &self.restored,
            &self.server_connected,
            &self.server_streams,
            &self.server_copies,
            &self.server_behind,
            &self.refused,
        ]
    }

    fn read(&self) {
        let state = self.shared.lock();
        for (handle, engine) in state.node.engines() {
            let name = engine.config().name.to_string();
            let name = name.as_str();
            let set = |gauge: &IntGaugeVec, value: i64| gauge.with_label_values(&[name]).set(value);
            let description = engine.provisional_description();
            set(&self.engine_up, (description.status == EngineStatus::Up).into());
            set(&self.events_live, (description.events == Events::Live).into());
            set(&self.complete, (description.completeness == Completeness::Complete).into());
            let verified = description
                .key_kinds
                .iter()
                .any(|it| it.kind == KeyKind::Plain && it.state == KeyState::Verified);
            set(&self.naming_verified, verified.into());
            set(&self.blocks, i64::try_from(engine.held()).unwrap_or(i64::MAX));
            set(&self.copies, i64::try_from(engine.mirror().gpu_copies()).unwrap_or(i64::MAX));
            let load = engine.load().map(|(load, _)| load.clone()).unwrap_or_default();
            self.requests.with_label_values(&[name, "running"]).set(load.running.into());
            self.requests.with_label_values(&[name, "waiting"]).set(load.waiting.into());
            self.cache_use.with_label_values(&[name]).set(load.cache_use.into());
            let (counts, rules) = (engine.counts(), engine.mirror().counts());
            count(&self.batches, &[name], counts.batches);
            count(&self.events, &[name, "stored"], counts.stored_events);
            count(&self.events, &[name, "removed"], counts.removed_events);
            count(&self.events, &[name, "cleared"], counts.cleared_events);
            count(&self.events, &[name, "unknown"], counts.unknown_events);
            count(&self.strays, &[name], counts.stray_batches);
            count(&self.undecodable, &[name], counts.undecodable);
            count(&self.replays, &[name, "answered"], counts.replays);
            count(&self.replays, &[name, "failed"], counts.failed_replays);
            count(&self.resets, &[name, "restarted"], counts.resets_restarted);
            count(&self.resets, &[name, "lost"], counts.resets_lost);
            count(&self.resets, &[name, "unproven"], counts.resets_unproven);
            count(&self.rules, &[name, "ambiguous_store"], rules.ambiguous_stores);
            count(&self.rules, &[name, "unknown_removal"], rules.unknown_removals);
            count(&self.rules, &[name, "unknown_placeholder"], rules.unknown_placeholders);
            count(&self.rules, &[name, "unknown_group"], rules.unknown_groups);
            count(&self.rules, &[name, "no_room"], rules.no_room);
            count(&self.rules, &[name, "cut"], rules.cuts);
            count(&self.rules, &[name, "cleared_by_sleep"], counts.cleared_by_sleep);
            count(&self.misfits, &[name], counts.naming_misfits);
            count(&self.hidden, &[name], counts.hidden_keys);
            set(&self.naming_translated, description.is_translated().into());
            let translation = engine.translation();
            count(&self.translated, &[name], translation.translated);
            set(&self.orphans, i64::try_from(translation.orphans).unwrap_or(i64::MAX));
            count(&self.left_out, &[name, "extra_keys"], translation.left_out_extra_keys);
            count(&self.left_out, &[name, "group"], translation.left_out_groups);
            count(&self.left_out, &[name, "placeholder"], translation.left_out_placeholders);
            count(&self.left_out, &[name, "hidden_keys"], translation.left_out_hidden_keys);
            count(&self.left_out, &[name, "no_room"], translation.dropped);
            let scrapes = state.scrapes.get(handle).copied().unwrap_or_default();
            count(&self.scrapes, &[name, "good"], scrapes.good);
            count(&self.scrapes, &[name, "failed"], scrapes.failed);
            if let Some(file) = state.files.get(handle) {
                self.read_file(name, engine, file);
            }
        }
        // Addresses come and go.
        for gauge in [&self.server_connected, &self.server_copies, &self.server_behind, &self.refused] {
            gauge.reset();
        }
        for (address, server) in &state.servers {
            let address = address.to_string();
            let labels = &[address.as_str()];
            self.server_connected.with_label_values(labels).set((server.link == Link::Connected).into());
            count(&self.server_streams, labels, server.streams);
            let Some(peer) = server.peer.and_then(|it| state.node.peer(it)) else { continue };
            let states = || state.node.engines().keys().map(|it| peer.state(*it));
            let behind = |it| match it {
                State::InStep { behind } => behind,
                _ => 0,
            };
            let behind: usize = states().map(behind).sum();
            let refused = states().filter(|it| matches!(it, State::Refused(_))).count();
            let set = |gauge: &IntGaugeVec, value: u64| {
                gauge.with_label_values(labels).set(i64::try_from(value).unwrap_or(i64::MAX));
            };
            set(&self.server_copies, peer.copies());
            set(&self.server_behind, behind as u64);
            set(&self.refused, refused as u64);
        }
    }
}

impl Metrics {
    fn read_file(&self, name: &str, engine: &Engine, file: &StateFile) {
        if let Some(at) = file.written {
            self.state_age.with_label_values(&[name]).set(at.elapsed().as_secs_f64());
        }
        count(&self.state_writes, &[name, "good"], file.writes);
        count(&self.state_writes, &[name, "failed"], file.failures);
        count(&self.restores, &[name, "unreadable"], file.unreadable.is_some().into());
        let Some(restored) = engine.restored() else { return };
        if restored.outcome != Outcome::Awaited {
            count(&self.restores, &[name, outcome(restored.outcome)], 1);
        }
        let proved = if restored.outcome == Outcome::Proved { restored.blocks } else { 0 };
        self.restored.with_label_values(&[name]).set(i64::try_from(proved).unwrap_or(i64::MAX));
    }
}

/// The core counts; this only shows.
fn count(counter: &IntCounterVec, labels: &[&str], value: u64) {
    let counter = counter.with_label_values(labels);
    counter.inc_by(value.saturating_sub(counter.get()));
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}
