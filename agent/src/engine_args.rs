//! What an engine has to be started with, so that it fits the agent's configuration.

use serde_json::json;

use crate::config::{Config, EngineConfig, Source, host_and_port, is_loopback};

/// Batches that the engine keeps for its replay socket: with one batch per scheduler step, minutes.
const BUFFER_STEPS: u32 = 10_000;

/// What vLLM since 0.31 takes for its own address and a port that the system chooses; it has to be these very letters.
const ANY_PORT: &str = "tcp://*:0";

/// The environment and the flags of `vllm serve` for each engine, or for the one at `only` (an address), as text for
/// a shell.
///
/// # Errors
///
/// No engine of that address.
pub fn engine_args(config: &Config, only: Option<&str>) -> Result<String, String> {
    let wanted = |it: &&EngineConfig| only.is_none_or(|only| it.name.address.to_string() == only);
    let engines: Vec<_> = config.engines.iter().filter(wanted).collect();
    if engines.is_empty() {
        return Err(match only {
            Some(only) => format!("no engine with the address {only} is in the configuration"),
            None => "no engine is in the configuration".to_owned(),
        });
    }
    let mut all: Vec<(&EngineConfig, String)> = Vec::new();
    for engine in engines {
        let flags = flags(engine);
        // Ranks of one process have the same flags.
        if all.iter().all(|(it, known)| it.name.address != engine.name.address || *known != flags) {
            all.push((engine, flags));
        }
    }
    let one = |(engine, flags): (&EngineConfig, String)| format!("# engine {}\n{flags}", engine.name);
    Ok(all.into_iter().map(one).collect::<Vec<_>>().join("\n"))
}

fn flags(engine: &EngineConfig) -> String {
    let mut text = String::new();
    let Some(events) = &engine.events else {
        text.push_str("# its events are off: no flags are needed\n");
        return text;
    };
    let discovers = events.source == Source::Discover;
    let endpoint = match &events.source {
        Source::Discover => {
            text.push_str("# the system chooses its ports, and its API tells them (vLLM 0.31 and later); it binds the\n");
            text.push_str("# address in VLLM_HOST_IP\n");
            ANY_PORT.to_owned()
        }
        Source::Subscribe(endpoint) if endpoint.starts_with("ipc://") => {
            text.push_str("# it binds a Unix socket for its events, and the agent connects\n");
            endpoint.clone()
        }
        Source::Subscribe(endpoint) => {
            let port = base_port(endpoint, engine);
            text.push_str("# it binds the port of its events, on all interfaces, and the agent connects\n");
            format!("tcp://*:{port}")
        }
        Source::Listen(endpoint) if port_of(endpoint) == 0 => {
            text.push_str(
                "# `listen` leaves the port to the system: PORT is the one that the agent writes to its addresses \
                 file\n",
            );
            endpoint.trim_end_matches('0').to_owned() + "PORT"
        }
        Source::Listen(endpoint) => {
            text.push_str(
                "# the agent binds the port of its events, and it connects: vLLM binds only where the\n",
            );
            text.push_str("# endpoint has `*` or `::`\n");
            let host = endpoint.strip_prefix("tcp://").and_then(host_and_port).map_or("127.0.0.1", |it| it.0);
            format!("tcp://{host}:{}", base_port(endpoint, engine))
        }
    };
    let mut settings = json!({
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": endpoint,
    });
    if discovers {
        settings["replay_endpoint"] = ANY_PORT.into();
    }
    if let Some(replay) = &events.replay {
        text.push_str("# it binds its replay endpoint, whoever connects to whom for events\n");
        settings["replay_endpoint"] = replay_endpoint(replay, engine).into();
    }
    settings["topic"] = events.topic.clone().into();
    settings["buffer_steps"] = BUFFER_STEPS.into();
    if engine.rank_by_header && engine.ranks > 1 {
        text.push_str(&format!(
            "# {} data-parallel ranks behind one address: --data-parallel-size\n",
            engine.ranks
        ));
    }
    if !discovers && (engine.rank_by_header || engine.name.rank > 0) {
        text.push_str("# vLLM adds its rank to every port named here\n");
    }
    let seed = engine.roots.first().map_or("0", String::as_str);
    if discovers {
        text.push_str(&format!("VLLM_HOST_IP={} ", engine.name.address.ip()));
    }
    text.push_str(&format!("PYTHONHASHSEED={} vllm serve MODEL \\\n", quoted(seed)));
    text.push_str("  --enable-prefix-caching --prefix-caching-hash-algo sha256_cbor \\\n");
    text.push_str("  --enable-prompt-tokens-details \\\n");
    text.push_str(&format!("  --kv-events-config {}\n", quoted(&settings.to_string())));
    text
}

/// Where the engine binds for replays: on loopback where the agent reaches it there, else on all interfaces.
fn replay_endpoint(replay: &str, engine: &EngineConfig) -> String {
    if replay.starts_with("ipc://") {
        return replay.to_owned();
    }
    let host = replay.strip_prefix("tcp://").and_then(host_and_port).map_or("*", |it| it.0);
    let host = if is_loopback(host) { host } else { "*" };
    format!("tcp://{host}:{}", base_port(replay, engine))
}

/// The port as vLLM has to be told it.
fn base_port(endpoint: &str, engine: &EngineConfig) -> u32 {
    u32::from(port_of(endpoint)).saturating_sub(engine.name.rank)
}

fn port_of(endpoint: &str) -> u16 {
    host_and_port(endpoint)
        .or_else(|| host_and_port(endpoint.trim_start_matches("tcp://")))
        .map_or(0, |it| it.1)
}

/// As one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |it: char| it.is_ascii_alphanumeric();
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
