//! What can be wrong with the endpoints of an engine's events, and those of its further ranks.

use std::collections::BTreeMap;

use super::{
    DISCOVER, EngineConfig, EngineEntry, EventsConfig, MOST_RANKS, Mistakes, Source, host_and_port,
    is_loopback,
};

impl EngineEntry {
    pub(super) fn check_endpoints(&self, field: impl Fn(&str) -> String, mistakes: &mut Mistakes) {
        let ranks = self.ranks.unwrap_or(1);
        if !(1..=MOST_RANKS).contains(&ranks) {
            let what =
                format!("{ranks} is out of range; write how many ranks share the address, 1 to {MOST_RANKS}");
            mistakes.add(&field("ranks"), what);
        }
        if MOST_RANKS < self.rank {
            mistakes.add(&field("rank"), format!("{} is out of range; use 0 to {MOST_RANKS}", self.rank));
        }
        let discovers = self.subscribe.as_deref() == Some(DISCOVER);
        for (name, is_given) in [("replay", self.replay.is_some()), ("topic", !self.topic.is_empty())] {
            if discovers && is_given {
                let what = "is what the engine says itself where `subscribe` is `discover`; leave it out";
                mistakes.add(&field(name), what);
            }
        }
        let subscribe = self.subscribe.as_deref().filter(|_| !discovers);
        for (name, endpoint) in
            [("subscribe", subscribe), ("listen", self.listen.as_deref()), ("replay", self.replay.as_deref())]
        {
            let what = endpoint.and_then(|it| mistake(name, it).or_else(|| self.mistake_of_ranks(name, it)));
            if let Some(what) = what {
                mistakes.add(&field(name), what);
            }
        }
        let ports = [subscribe.or(self.listen.as_deref()), self.replay.as_deref()];
        if self.ranks.is_some()
            && let [Some(events), Some(replay)] = ports.map(|it| it.and_then(tcp).map(|it| u32::from(it.1)))
            && events.abs_diff(replay) < ranks
        {
            let what = format!(
                "its ports {replay} to {} and those of the events, {events} to {}, overlap; choose ports at least \
                 {ranks} apart",
                replay + ranks - 1,
                events + ranks - 1,
            );
            mistakes.add(&field("replay"), what);
        }
    }

    /// What only further ranks make wrong.
    fn mistake_of_ranks(&self, name: &str, endpoint: &str) -> Option<String> {
        let last = self.all_ranks().last().unwrap_or(self.rank);
        if endpoint.starts_with("ipc://") {
            return (last > 0)
                .then(|| format!("`{endpoint}`: vLLM has ipc for rank 0 only; use tcp://host:port"));
        }
        let port = tcp(endpoint)?.1;
        // Without it the port is the rank's own.
        self.ranks?;
        if port == 0 {
            return (name == "listen").then(|| {
                format!("`{endpoint}`: vLLM adds each rank to one port, so it has to be given; write one")
            });
        }
        let most = u32::from(u16::MAX) - last.min(MOST_RANKS * 2);
        (most < u32::from(port)).then(|| {
            format!("`{endpoint}`: rank {last} would have a port above 65535; write one of at most {most}")
        })
    }
}

/// What is wrong with an endpoint by itself.
fn mistake(name: &str, endpoint: &str) -> Option<String> {
    if name != "listen" && endpoint.strip_prefix("ipc://").is_some_and(|it| it.starts_with('/')) {
        return None;
    }
    match tcp(endpoint) {
        None => Some(format!("`{endpoint}` is not `tcp://host:port`{}", or_else(name))),
        Some((host, _)) if host.contains('*') => {
            Some(format!("`{endpoint}` names no host; write the address at which the engine is reached"))
        }
        Some((_, 0)) if name != "listen" => Some(format!("`{endpoint}` names no port")),
        Some((host, _)) if name == "listen" && !is_loopback(host) => {
            Some(format!("`{endpoint}` can be reached by others; use tcp://127.0.0.1:port"))
        }
        Some(_) => None,
    }
}

/// What else an endpoint may be: whatever the agent connects to may be a Unix socket.
fn or_else(field: &str) -> &'static str {
    match field {
        "listen" => "",
        "subscribe" => ", `ipc:///path` or `discover`",
        _ => " or `ipc:///path`",
    }
}

/// Host and port of a `tcp` endpoint.
pub(crate) fn tcp(endpoint: &str) -> Option<(&str, u16)> {
    endpoint.strip_prefix("tcp://").and_then(host_and_port)
}

impl EventsConfig {
    /// The same of another rank: vLLM adds the rank to ports.
    pub(super) fn of_rank(&self, rank: u32) -> Self {
        let source = match &self.source {
            Source::Subscribe(endpoint) => Source::Subscribe(shifted(endpoint, rank)),
            Source::Listen(endpoint) => Source::Listen(shifted(endpoint, rank)),
            Source::Discover => Source::Discover,
        };
        let replay = self.replay.as_deref().map(|it| shifted(it, rank));
        Self { source, replay, topic: self.topic.clone() }
    }
}

/// An endpoint without a port, or whose port would be none, stays as it is: that was reported.
fn shifted(endpoint: &str, rank: u32) -> String {
    let port =
        tcp(endpoint).and_then(|(host, port)| Some((host, port.checked_add(u16::try_from(rank).ok()?)?)));
    port.map_or_else(|| endpoint.to_owned(), |(host, port)| format!("tcp://{host}:{port}"))
}

/// No endpoint serves two engines. `entries` are the entries that the engines are from.
pub(super) fn check_shared(engines: &[EngineConfig], entries: &[usize], mistakes: &mut Mistakes) {
    let mut seen = BTreeMap::new();
    for (engine, index) in engines.iter().zip(entries) {
        let Some(events) = &engine.events else { continue };
        let (name, source) = match &events.source {
            Source::Subscribe(endpoint) => ("subscribe", Some(endpoint)),
            Source::Listen(endpoint) => ("listen", Some(endpoint).filter(|it| !it.ends_with(":0"))),
            Source::Discover => ("subscribe", None),
        };
        for (name, endpoint) in [(name, source), ("replay", events.replay.as_ref())] {
            let Some(endpoint) = endpoint else { continue };
            let first = *seen.entry(endpoint).or_insert(*index);
            if first != *index {
                let what = format!(
                    "{endpoint} is that of engines[{first}]; give each engine and rank ports of its own"
                );
                mistakes.add(&format!("engines[{index}].{name}"), what);
            }
        }
    }
}
