//! Where a pod's engine publishes its events, by the flags that it was started with.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use kvpick_kube::{Pod, pod::Container};
use serde::Deserialize;

use crate::config::EngineEntry;

const FLAG: &str = "--kv-events-config";

/// The flag's value, as far as it matters here (vLLM, `KVEventsConfig`).
#[derive(Deserialize)]
struct EventsConfig {
    #[serde(default)]
    enable_kv_cache_events: bool,
    publisher: Option<String>,
    #[serde(default = "default_endpoint")]
    endpoint: String,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

fn default_endpoint() -> String {
    "tcp://*:5557".to_owned()
}

/// What an engine's entry says of its events, by the flags of its pod. Where several containers have them, those of the
/// container that serves at that port count, as they are; of one that serves on several ports each has the rank of its place,
/// which vLLM adds to the ports of events.
///
/// # Errors
/// Why there are none to be had, for people, with the remedy.
pub(super) fn events(pod: &Pod, address: SocketAddr, rank: u16) -> Result<EngineEntry, String> {
    let found: Vec<_> =
        pod.containers.iter().filter_map(|it| Some((it, value_of(&words(it), FLAG)?))).collect();
    let serves = |it: &Container| {
        it.ports.contains(&address.port())
            || value_of(&words(it), "--port").is_some_and(|it| it == address.port().to_string())
    };
    let (value, rank) = match &found[..] {
        [] => {
            return Err(format!(
                "no container of the pod has {FLAG}; start vLLM with it, or set `kubernetes.events`"
            ));
        }
        [(_, value)] => (value, rank),
        several => {
            let mut own = several.iter().filter(|(it, _)| serves(it));
            match (own.next(), own.next()) {
                (Some((_, value)), None) => (value, 0),
                _ => {
                    return Err(format!(
                        "several containers of the pod have {FLAG}, and it can't be told which of them serves at port {}; \
                         name it among the container's ports",
                        address.port()
                    ));
                }
            }
        }
    };
    let address = address.ip();
    let config: EventsConfig = serde_json::from_str(value).map_err(|error| {
        format!("the value of {FLAG} is not read ({error}): {value}; set `kubernetes.events`")
    })?;
    if !config.enable_kv_cache_events || config.publisher.as_deref().is_some_and(|it| it != "zmq") {
        return Err(format!(
            "{FLAG} does not switch events on; set enable_kv_cache_events and publisher zmq"
        ));
    }
    if config.endpoint == "tcp://*:0" {
        return Ok(EngineEntry { subscribe: Some("discover".to_owned()), ..EngineEntry::default() });
    }
    let at = |endpoint: &str| {
        at_pod(endpoint, address, rank).ok_or_else(|| {
            format!("the engine publishes at {endpoint}, which is no port of its pod; have it bind tcp://*:5557, say")
        })
    };
    Ok(EngineEntry {
        subscribe: Some(at(&config.endpoint)?),
        replay: config.replay_endpoint.as_deref().map(at).transpose()?,
        topic: config.topic,
        ..EngineEntry::default()
    })
}

/// An endpoint that is bound on all interfaces, or on the pod's own, as others reach it.
fn at_pod(endpoint: &str, address: IpAddr, rank: u16) -> Option<String> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|it| 0 < *it)?;
    let host = host.trim_matches(['[', ']']);
    let is_bound = host == "*" || host.parse::<IpAddr>().is_ok_and(|it| it.is_unspecified() || it == address);
    let port = port.checked_add(rank)?;
    is_bound.then(|| format!("tcp://{}", SocketAddr::new(address, port)))
}

/// A container's command and arguments, with the variables that Kubernetes puts in, and what a shell is given to run split as
/// it splits it.
fn words(container: &Container) -> Vec<String> {
    let all = container.command.iter().chain(&container.args).map(|it| expanded(it, &container.env));
    let mut words = Vec::new();
    for word in all {
        match shlex::split(&word).filter(|_| word.contains(FLAG) && word.contains(char::is_whitespace)) {
            // `--kv-events-config={"a": 1}` is one word with spaces; a command line has more flags than that.
            Some(line) if !word.trim_start().starts_with(FLAG) => words.extend(line),
            _ => words.push(word),
        }
    }
    words
}

fn value_of(words: &[String], flag: &str) -> Option<String> {
    let of = |(at, word): (usize, &String)| match word.strip_prefix(flag)? {
        "" => words.get(at + 1).cloned(),
        value => value.strip_prefix('=').map(str::to_owned),
    };
    // Of a flag that is given twice the last one counts.
    words.iter().enumerate().filter_map(of).next_back()
}

/// `$(NAME)` stands for a variable of the container, and `$$(NAME)` for itself; what is not known stays ("Define dependent
/// environment variables").
fn expanded(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        done.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            done.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|it| it.split_once(')'));
        match name.and_then(|(name, after)| Some((env.get(name)?, after))) {
            Some((value, after)) => {
                done.push_str(value);
                rest = after;
            }
            None => done.push('$'),
        }
    }
    done.push_str(rest);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv"}"#;

    fn found(command: &[&str], args: &[&str]) -> Result<EngineEntry, String> {
        let own = |it: &[&str]| it.iter().map(ToString::to_string).collect();
        let env = BTreeMap::from([("PORT".to_owned(), "5557".to_owned())]);
        let container = Container { command: own(command), args: own(args), env, ..Container::default() };
        let sidecar = Container { args: own(&["proxy"]), ..Container::default() };
        let pod = Pod { containers: vec![sidecar, container], ..Pod::default() };
        events(&pod, "10.0.0.7:8000".parse().unwrap(), 0)
    }

    #[test]
    fn each_port_of_a_pod_has_events_of_its_own() {
        let with = |container: Container| Pod { containers: vec![container], ..Pod::default() };
        let container = |port: u16, events: &str| {
            let flag = format!("{FLAG}={}", JSON.replace("5557", events));
            Container { args: vec![flag, "--port".to_owned(), port.to_string()], ..Container::default() }
        };
        let at = |pod: &Pod, port: u16, rank| {
            let entry = events(pod, SocketAddr::new("10.0.0.7".parse().unwrap(), port), rank)?;
            Ok::<_, String>((entry.subscribe.unwrap(), entry.replay.unwrap()))
        };
        // One process with a rank for each port.
        let one = with(container(8000, "5557"));
        assert_eq!(
            at(&one, 8001, 1),
            Ok(("tcp://10.0.0.7:5558".to_owned(), "tcp://10.0.0.7:5559".to_owned()))
        );
        // A container for each port.
        let two =
            Pod { containers: vec![container(8000, "6000"), container(8001, "7000")], ..Pod::default() };
        assert_eq!(at(&two, 8001, 1).unwrap().0, "tcp://10.0.0.7:7000");
        assert_eq!(at(&two, 8000, 0).unwrap().0, "tcp://10.0.0.7:6000");
        assert!(at(&two, 8002, 2).unwrap_err().contains("which of them serves"));
    }

    #[test]
    fn flags_are_found_however_they_are_written() {
        let equals = format!("{FLAG}={JSON}");
        let line = format!("exec vllm serve Qwen/Qwen3-8B --port 8000 {FLAG} '{JSON}' 2>&1");
        let variable = JSON.replace("5557", "$(PORT)");
        let escaped = format!("vllm serve m {FLAG} {}", JSON.replace('"', "\\\"").replace(' ', ""));
        let other = JSON.replace("tcp://*:5557", "tcp://1.2.3.4:1");
        for (command, args) in [
            (&["vllm", "serve", "m", FLAG, JSON][..], &[][..]),
            (&["vllm"], &["serve", "m", FLAG, JSON]),
            (&[], &["serve", "m", &equals]),
            (&["sh", "-c"], &[&line]),
            (&["/bin/bash", "-ec", &line], &[]),
            (&["sh", "-c", &escaped], &[]),
            (&["vllm"], &["serve", FLAG, &variable]),
            (&["vllm"], &["serve", FLAG, &other, FLAG, JSON]),
        ] {
            let entry = found(command, args).unwrap_or_else(|why| panic!("{command:?} {args:?}: {why}"));
            assert_eq!(entry.subscribe.as_deref(), Some("tcp://10.0.0.7:5557"), "{command:?} {args:?}");
            assert_eq!((entry.replay.as_deref(), entry.topic.as_str()), (Some("tcp://10.0.0.7:5558"), "kv"));
        }
    }

    #[test]
    fn endpoints_are_those_of_the_pod() {
        let with = |endpoint: &str| found(&["vllm"], &[FLAG, &JSON.replace("tcp://*:5557", endpoint)]);
        for endpoint in ["tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://10.0.0.7:5557"] {
            assert_eq!(with(endpoint).unwrap().subscribe.as_deref(), Some("tcp://10.0.0.7:5557"));
        }
        assert_eq!(with("tcp://*:0").unwrap().subscribe.as_deref(), Some("discover"));
        for endpoint in ["tcp://10.0.0.1:5557", "ipc:///run/events", "tcp://$(NODE_IP):5657", "inproc://x"] {
            assert!(with(endpoint).unwrap_err().contains("no port of its pod"), "{endpoint}");
        }
        let ipv6 = at_pod("tcp://*:5557", "fd00::7".parse().unwrap(), 0);
        assert_eq!(ipv6.as_deref(), Some("tcp://[fd00::7]:5557"));
    }

    #[test]
    fn what_can_not_be_had_is_said_with_the_remedy() {
        for (args, word) in [
            (&["serve", "m"][..], "start vLLM with it"),
            (&["serve", FLAG], "start vLLM with it"),
            (&["serve", FLAG, "{not json"], "is not read"),
            (&["serve", FLAG, "{}"], "enable_kv_cache_events"),
            (&["serve", FLAG, r#"{"enable_kv_cache_events": true, "publisher": "null"}"#], "publisher zmq"),
        ] {
            assert!(found(&["vllm"], args).unwrap_err().contains(word), "{args:?}");
        }
        let default = found(&["vllm"], &[FLAG, r#"{"enable_kv_cache_events": true}"#]).unwrap();
        assert_eq!(default.subscribe.as_deref(), Some("tcp://10.0.0.7:5557"));
    }

    #[test]
    fn variables_are_put_in_as_kubernetes_does() {
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        for (text, want) in
            [("$(A)x$(A)", "1x1"), ("$$(A)", "$(A)"), ("$(B) $A $", "$(B) $A $"), ("$(A", "$(A")]
        {
            assert_eq!(expanded(text, &env), want);
        }
    }
}
