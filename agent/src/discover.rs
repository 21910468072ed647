//! Where an engine publishes its events, by its own word: `GET /kv_event_sources` (vLLM 0.31 and later), a map from
//! data-parallel rank to the settings of that rank's publisher with the ports that it has.
//!
//! It is asked until it is known where to go, after each connection that was lost, and when the engine's process has
//! changed. Only the engine's own host is gone to: an engine must not send the agent anywhere else.

use std::{collections::BTreeMap, net::IpAddr};

use kvpick_proto::words::Handle;
use reqwest::Client;
use serde::Deserialize;

use crate::{
    config::{EngineConfig, endpoints::tcp, host_and_port},
    scrape::get,
    shared::Shared,
    zmq::{Endpoints, Target},
};

/// Longest endpoint or topic that is taken, in bytes.
const MAX_TEXT: usize = 256;

/// What is known of an engine's own word, for people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Discovered {
    pub(crate) endpoints: Endpoints,
    /// How many ranks the engine has.
    pub(crate) ranks: usize,
    /// What does not fit the configuration.
    pub(crate) note: Option<String>,
}

/// Why it is not known where to go, and what to do.
#[derive(Debug, Eq, PartialEq)]
struct Problem {
    reason: String,
    remedy: String,
}

impl Problem {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

/// One engine's.
#[derive(Debug)]
pub(crate) struct Discovery {
    target: Target,
    /// The process that was asked last.
    asked: Option<String>,
}

impl Discovery {
    pub(crate) const fn new(target: Target) -> Self {
        Self { target, asked: None }
    }

    /// Whether it is not known where to go.
    pub(crate) fn is_pending(&self) -> bool {
        !self.target.is_known()
    }

    /// Asks, if there is need to. `process` is what tells the engine's process from the next one.
    pub(crate) async fn look(
        &mut self,
        shared: &Shared,
        handle: Handle,
        config: &EngineConfig,
        client: &Client,
        process: String,
    ) {
        if self.target.is_known() && self.asked.as_ref() == Some(&process) {
            return;
        }
        let version = self.target.version();
        let result = match get(client, &format!("{}/kv_event_sources", config.api)).await {
            Ok(text) => find(&text, config),
            Err(failed) if failed.is_absent => Err(Problem::new(
                "its API has no /kv_event_sources, which vLLM has since 0.31",
                "write `subscribe` and `replay` with their endpoints in the agent's configuration",
            )),
            Err(failed) => Err(Problem::new(
                format!("it does not say where it publishes its events: {}", failed.text),
                "check `api` in the agent's configuration; it is asked again",
            )),
        };
        let mut state = shared.lock();
        match result {
            Ok(found) => {
                let before = state.discovered.insert(handle, found.clone());
                if before.as_ref() != Some(&found) {
                    let Endpoints { events, replay, .. } = &found.endpoints;
                    tracing::info!(engine = %config.name, events, replay, "it says where it publishes its events");
                    if let Some(note) = &found.note {
                        tracing::warn!(engine = %config.name, note, "ranks are not as configured");
                    }
                }
                self.asked = Some(process);
                self.target.set(version, found.endpoints);
            }
            // While there is a connection, what is heard there counts.
            Err(_) if self.target.is_known() => (),
            Err(problem) => {
                state.discovered.remove(&handle);
                if let Some(engine) = state.node.engine(handle) {
                    engine.on_events_failed(problem.reason, problem.remedy);
                }
                drop(state);
                shared.wake_driver(handle);
            }
        }
    }
}

/// The settings of one rank's publisher, as far as they are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    enable_kv_cache_events: Option<bool>,
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    topic: Option<String>,
}

/// Reads the answer for one rank.
fn find(text: &str, config: &EngineConfig) -> Result<Discovered, Problem> {
    let flags = "start it with the flags that `kvpick-agent engine-args` prints";
    let all: BTreeMap<String, Settings> = serde_json::from_str(text).map_err(|_| {
        Problem::new("its /kv_event_sources is not as vLLM's", "write `subscribe` and `replay` instead")
    })?;
    if all.is_empty() {
        return Err(Problem::new("it says that it publishes no events", flags));
    }
    let (rank, ranks) = (config.name.rank, all.len());
    // Who serves one rank numbers it in its own way.
    let alone = all.values().next().filter(|_| !config.rank_by_header && ranks == 1);
    let Some(settings) = all.get(&rank.to_string()).or(alone) else {
        return Err(Problem::new(
            format!("it says where {ranks} ranks publish their events, and nothing of rank {rank}"),
            "correct `rank` and `ranks` in the agent's configuration",
        ));
    };
    let is_zmq = settings.publisher.as_deref().is_none_or(|it| it == "zmq");
    let events =
        settings.endpoint.as_deref().filter(|_| is_zmq && settings.enable_kv_cache_events != Some(false));
    let events = events.ok_or_else(|| Problem::new("it says that it publishes no events", flags))?;
    let topic = settings.topic.clone().unwrap_or_default();
    if MAX_TEXT < topic.len() {
        return Err(Problem::new(
            format!("its topic is longer than {MAX_TEXT} bytes"),
            "give it a shorter one",
        ));
    }
    let endpoints = Endpoints {
        events: own(events, config)?,
        replay: settings.replay_endpoint.as_deref().map(|it| own(it, config)).transpose()?,
        topic,
    };
    let here = config.ranks as usize;
    let note = (ranks != here).then(|| {
        format!(
            "the engine has {ranks} ranks and {here} of its address are configured; check `ranks: {ranks}`"
        )
    });
    Ok(Discovered { endpoints, ranks, note })
}

/// An endpoint of the engine's own host, as it is reached from here.
fn own(endpoint: &str, config: &EngineConfig) -> Result<String, Problem> {
    let host = api_host(&config.api);
    let refused = |why: &str| {
        let shown: String = endpoint.chars().take(MAX_TEXT).collect();
        let remedy = format!(
            "let it bind its own host: tcp://*:port, or tcp://*:0 with VLLM_HOST_IP={} in its environment",
            config.name.address.ip()
        );
        Problem::new(
            format!("it says that its events are at {shown:?}, {why}: nothing is asked there"),
            remedy,
        )
    };
    let Some((named, port)) = tcp(endpoint).filter(|_| endpoint.len() <= MAX_TEXT) else {
        return Err(refused("which is no `tcp://host:port`"));
    };
    if port == 0 {
        return Err(refused("which names no port"));
    }
    let ip = |host: &str| host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    let is_any = named == "*" || ip(named).is_some_and(|it| it.is_unspecified());
    let is_loopback = named == "localhost" || ip(named).is_some_and(|it| it.is_loopback());
    let is_own = named.eq_ignore_ascii_case(host)
        || ip(named).is_some_and(|it| Some(it) == ip(host) || it == config.name.address.ip());
    match () {
        () if is_any => Ok(format!("tcp://{host}:{port}")),
        () if is_loopback || is_own => Ok(endpoint.to_owned()),
        () => Err(refused("which is not its own host")),
    }
}

/// The host in the base of an API; IPv6 in brackets.
fn api_host(api: &str) -> &str {
    let authority = api.trim_start_matches("http://").split('/').next().unwrap_or_default();
    host_and_port(authority).map_or(authority, |it| it.0)
}

#[cfg(test)]
mod tests {
    use kvpick_proto::words::ReplicaName;
    use serde_json::json;

    use super::*;

    fn config(api: &str, rank: u32, ranks: u32) -> EngineConfig {
        EngineConfig {
            name: ReplicaName { address: ([10, 0, 0, 7], 8000).into(), rank },
            rank_by_header: ranks > 1,
            ranks,
            api: api.to_owned(),
            events: None,
            roots: Vec::new(),
            copies: kvpick_agent_core::mirror::Copies::default(),
            tier_weights: kvpick_agent_core::engine::TIER_WEIGHTS,
        }
    }

    fn settings(endpoint: &str) -> serde_json::Value {
        json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "replay_endpoint": null,
            "buffer_steps": 10000, "hwm": 100_000, "max_queue_size": 100_000, "topic": "",
        })
    }

    /// Where a client of the API at `api` goes by that endpoint.
    fn goes(api: &str, endpoint: &str) -> Result<String, Problem> {
        let text = json!({"0": settings(endpoint)}).to_string();
        find(&text, &config(api, 0, 1)).map(|it| it.endpoints.events)
    }

    #[test]
    fn the_engines_own_host_is_gone_to_and_no_other() {
        let api = "http://engine:8000/base";
        for (endpoint, want) in [
            ("tcp://*:5557", "tcp://engine:5557"),
            ("tcp://0.0.0.0:5557", "tcp://engine:5557"),
            ("tcp://[::]:5557", "tcp://engine:5557"),
            ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
            ("tcp://[::1]:5557", "tcp://[::1]:5557"),
            ("tcp://localhost:5557", "tcp://localhost:5557"),
            ("tcp://Engine:5557", "tcp://Engine:5557"),
            ("tcp://10.0.0.7:41234", "tcp://10.0.0.7:41234"),
        ] {
            assert_eq!(goes(api, endpoint), Ok(want.to_owned()), "{endpoint}");
        }
        assert_eq!(goes("http://[fd00::7]:8000", "tcp://*:1"), Ok("tcp://[fd00::7]:1".to_owned()));
        assert_eq!(goes("http://[fd00::7]", "tcp://[fd00:0::7]:1"), Ok("tcp://[fd00:0::7]:1".to_owned()));
        let long = format!("tcp://{}:1", "e".repeat(300));
        for endpoint in [
            "tcp://10.0.0.8:5557",
            "tcp://elsewhere:5557",
            "tcp://engine.evil:5557",
            "ipc:///run/events",
            "inproc://events",
            "tcp://*:0",
            "tcp://engine",
            "tcp://127.0.0.1@evil:1",
            "",
            long.as_str(),
        ] {
            let problem = goes(api, endpoint).unwrap_err();
            assert!(problem.reason.len() < 500 && problem.remedy.contains("VLLM_HOST_IP"), "{problem:?}");
        }
    }

    #[test]
    fn each_rank_has_its_own_and_another_number_of_ranks_is_noted() {
        let mut first = settings("tcp://*:41000");
        first["replay_endpoint"] = json!("tcp://*:41001");
        first["topic"] = json!("kv");
        let text = json!({"0": first, "1": settings("tcp://*:42000")}).to_string();
        let of = |rank, ranks| find(&text, &config("http://e:1", rank, ranks));
        let found = of(0, 2).unwrap();
        let want = Endpoints {
            events: "tcp://e:41000".to_owned(),
            replay: Some("tcp://e:41001".to_owned()),
            topic: "kv".to_owned(),
        };
        assert_eq!((found.endpoints, found.ranks, found.note), (want, 2, None));
        assert_eq!(of(1, 2).unwrap().endpoints.events, "tcp://e:42000");
        assert!(of(1, 3).unwrap().note.unwrap().contains("has 2 ranks and 3"));
        assert!(of(0, 1).unwrap().note.unwrap().contains("has 2 ranks and 1"));
        assert!(of(2, 3).unwrap_err().reason.contains("nothing of rank 2"));
        // A process that serves one rank of several, at its own address.
        let text = json!({"3": settings("tcp://*:43000")}).to_string();
        assert_eq!(find(&text, &config("http://e:1", 0, 1)).unwrap().endpoints.events, "tcp://e:43000");
        assert!(find(&text, &config("http://e:1", 0, 2)).is_err());
    }

    #[test]
    fn who_publishes_nothing_is_told_apart_from_who_says_it_in_no_known_way() {
        let of = |text: &str| find(text, &config("http://e:1", 0, 1)).unwrap_err().reason;
        let mut off = settings("tcp://*:1");
        off["enable_kv_cache_events"] = json!(false);
        let mut nowhere = settings("tcp://*:1");
        nowhere["publisher"] = json!("null");
        for text in ["{}", r#"{"0": {}}"#, &json!({"0": off}).to_string(), &json!({"0": nowhere}).to_string()]
        {
            assert_eq!(of(text), "it says that it publishes no events", "{text}");
        }
        for text in ["[]", "null", "{", r#"{"0": 1}"#, r#"{"0": {"endpoint": 1}}"#] {
            assert_eq!(of(text), "its /kv_event_sources is not as vLLM's", "{text}");
        }
    }
}
