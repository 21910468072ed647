//! For `benches/reader.rs`: the agent's whole path from an engine's socket to its mirror, with no servers and no API.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use kvpick_agent_core::{
    engine::{Config, Counts},
    node::Node,
};
use kvpick_proto::words::ReplicaName;
use kvpick_service::drain::Drain;

use crate::{
    config::EventsConfig,
    engine::drive,
    shared::{Shared, now},
    zmq::Opened,
};

/// Hears so many batches of an engine, and returns when the last was in the mirror, with what was counted.
///
/// # Errors
///
/// The system has no thread to give.
pub async fn hear(events: &EventsConfig, batches: u64) -> std::io::Result<(Instant, Counts)> {
    let (mut node, (start, unix_ms)) = (Node::default(), now());
    let name = ReplicaName { address: ([127, 0, 0, 1], 0).into(), rank: 0 };
    let config = Config::new(name);
    let handle = node.add_engine(config, start, unix_ms);
    let (shared, drain) = (Arc::new(Shared::new(node, BTreeMap::new())), Drain::new());
    let sockets = Opened::open(events).run()?;
    drain.spawn("engine", drive(Arc::clone(&shared), handle, Some(sockets), drain.clone()));
    let counts = loop {
        let counts = shared.lock().node.engines().get(&handle).map(|it| it.counts());
        match counts {
            Some(counts) if counts.batches >= batches => break counts,
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    let end = Instant::now();
    drain.start();
    drain.finished(Duration::from_secs(5)).await;
    Ok((end, counts))
}
