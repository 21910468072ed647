//! The configuration: what is right, what is wrong with all its mistakes, and what it means for engines.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

use kvpick_agent::{
    config::{Config, File, Source},
    engine_args::engine_args,
};
use kvpick_agent_core::mirror::Copies;
use serde_json::Value;

const EXAMPLE: &str = include_str!("../kvpick-agent.example.yaml");

fn check(yaml: &str) -> Result<Config, Vec<String>> {
    let file: File = kvpick_service::config::parse(yaml).unwrap();
    file.check().map_err(|all| all.iter().map(ToString::to_string).collect())
}

fn engines(engines: &str) -> String {
    format!("node: n\nservers: ['kvpick:9004']\nengines:\n{engines}")
}

#[test]
fn the_example_is_right_and_has_every_field() {
    let config = check(EXAMPLE).unwrap();
    assert_eq!(config.engines.len(), 8);
    assert_eq!(config.state.as_deref(), Some(std::path::Path::new("/var/lib/kvpick-agent")));
    assert_eq!(config.engines[0].name.to_string(), "127.0.0.1:8000");
    let events = config.engines[0].events.as_ref().unwrap();
    assert_eq!(events.source, Source::Subscribe("tcp://127.0.0.1:5557".to_owned()));
    assert!(matches!(config.engines[1].events.as_ref().unwrap().source, Source::Listen(_)));
    assert_eq!(config.engines[2].events, None);
    assert_eq!(config.engines[2].api, "http://127.0.0.1:8002");
    // Every field of the effective configuration stands in the example.
    fn fields(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(name, value)| {
                into.push(name.clone());
                fields(value, into);
            }),
            Value::Array(all) => all.iter().for_each(|it| fields(it, into)),
            _ => (),
        }
    }
    let mut names = Vec::new();
    fields(&serde_json::to_value(&config.file).unwrap(), &mut names);
    for name in names {
        assert!(EXAMPLE.contains(&format!("{name}:")), "{name}");
    }
}

#[test]
fn every_mistake_is_reported_with_field_and_remedy() {
    let yaml = r#"
node: " "
servers: [nowhere, "kvpick:0"]
tls: {ca: ca.crt, certificate: /tls.crt, key: "", server_name: ""}
admin: here
state: var/lib
engines:
  - address: localhost:8000
    subscribe: tcp://*:5557
    listen: tcp://127.0.0.1:5557
  - address: 127.0.0.1:8001
    api: https://127.0.0.1
    listen: tcp://0.0.0.0:5557
    replay: tcp://127.0.0.1:0
  - address: 127.0.0.1:8001
    subscribe: 127.0.0.1:5557
  - address: 127.0.0.1:8003
  - address: 127.0.0.1:8004
    events: maybe
  - {address: "127.0.0.1:8005", listen: "tcp://127.0.0.1:7000", copies: count, tier_weights: {cpu: 1.1, storage: -1}}
  - {address: "127.0.0.1:8006", listen: "tcp://127.0.0.1:7000"}
"#;
    let mistakes = check(yaml).unwrap_err();
    let fields: Vec<_> = mistakes.iter().map(|it| it.split(": ").next().unwrap()).collect();
    assert_eq!(
        fields,
        [
            "node",
            "servers[0]",
            "servers[1]",
            "tls.ca",
            "tls.key",
            "tls.server_name",
            "admin",
            "state",
            "engines[0].address",
            "engines[0].subscribe",
            "engines[0].events",
            "engines[1].api",
            "engines[1].listen",
            "engines[1].replay",
            "engines[2].subscribe",
            "engines[3].events",
            "engines[4].events",
            "engines[5].copies",
            "engines[5].tier_weights.cpu",
            "engines[5].tier_weights.storage",
            "engines[2].address",
            "engines[6].listen",
        ],
        "{mistakes:#?}"
    );
}

#[test]
fn fields_that_do_not_exist_are_mistakes() {
    for yaml in [
        engines("  - {address: '127.0.0.1:1', subscrbe: x}"),
        "node: n\nservers: []\nnodes: 1\n".to_owned(),
        "node: n\n".to_owned(),
    ] {
        assert!(kvpick_service::config::parse::<File>(&yaml).is_err(), "{yaml}");
    }
}

#[test]
fn copies_and_tier_weights_have_usual_values() {
    let one = |more: &str| {
        let yaml = engines(&format!("  - {{address: '127.0.0.1:1', events: off{more}}}"));
        let engine = check(&yaml).unwrap().engines.remove(0);
        (engine.copies, engine.tier_weights.map(|it| it.1))
    };
    assert_eq!(one(""), (Copies::Guarded, [1.0, 0.8, 0.5]));
    assert_eq!(one(", copies: set, tier_weights: {cpu: 0}"), (Copies::Set, [1.0, 0.0, 0.5]));
}

#[test]
fn events_are_on_or_off_in_every_spelling_of_yaml() {
    for (word, is_on) in
        [("on", true), ("'on'", true), ("true", true), ("off", false), ("'off'", false), ("false", false)]
    {
        let yaml =
            engines(&format!("  - {{address: '127.0.0.1:1', subscribe: 'tcp://e:1', events: {word}}}"));
        assert_eq!(check(&yaml).unwrap().engines[0].events.is_some(), is_on, "{word}");
    }
}

#[test]
fn ranks_behind_one_address_are_reached_by_header() {
    let yaml = engines(
        "  - {address: '127.0.0.1:1', events: off}\n  - {address: '127.0.0.1:1', rank: 1, events: off}\n  - {address: '127.0.0.1:2', events: off}",
    );
    let by_header: Vec<_> = check(&yaml).unwrap().engines.iter().map(|it| it.rank_by_header).collect();
    assert_eq!(by_header, [true, true, false]);
}

/// The value of `--kv-events-config` in what is printed.
fn settings(text: &str) -> Value {
    let json = text.split("--kv-events-config '").nth(1).unwrap().split('\'').next().unwrap();
    serde_json::from_str(json).unwrap()
}

#[test]
fn flags_for_an_engine_that_binds() {
    let yaml = engines(
        "  - {address: '127.0.0.1:8000', subscribe: 'tcp://127.0.0.1:5557', replay: 'tcp://127.0.0.1:5558', topic: kv}",
    );
    let text = engine_args(&check(&yaml).unwrap(), None).unwrap();
    assert!(text.contains("PYTHONHASHSEED=0 vllm serve"), "{text}");
    assert!(text.contains("--prefix-caching-hash-algo sha256_cbor"), "{text}");
    assert_eq!(
        settings(&text),
        serde_json::json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": "tcp://*:5557",
            "replay_endpoint": "tcp://127.0.0.1:5558",
            "topic": "kv",
            "buffer_steps": 10000,
        })
    );
}

#[test]
fn flags_for_an_engine_whose_replay_is_reached_from_elsewhere() {
    let yaml = engines(
        "  - {address: '10.0.0.7:8000', subscribe: 'tcp://10.0.0.7:5557', replay: 'tcp://10.0.0.7:5558'}",
    );
    let settings = settings(&engine_args(&check(&yaml).unwrap(), None).unwrap());
    assert_eq!(settings["replay_endpoint"], "tcp://*:5558");
}

#[test]
fn flags_for_unix_sockets() {
    let of_rank = |rank| {
        engines(&format!(
            "  - {{address: '127.0.0.1:8000', rank: {rank}, subscribe: 'ipc:///run/kv/e', replay: 'ipc:///run/kv/r'}}"
        ))
    };
    let settings = settings(&engine_args(&check(&of_rank(0)).unwrap(), None).unwrap());
    assert_eq!(
        (&settings["endpoint"], &settings["replay_endpoint"]),
        (&"ipc:///run/kv/e".into(), &"ipc:///run/kv/r".into())
    );
    assert_eq!(check(&of_rank(1)).unwrap_err().len(), 2, "vLLM refuses ipc for other ranks");
    let relative = engines("  - {address: '127.0.0.1:8000', subscribe: 'ipc://e'}");
    assert_eq!(check(&relative).unwrap_err().len(), 1);
}

#[test]
fn flags_for_an_engine_that_connects() {
    let yaml = engines("  - {address: '127.0.0.1:8000', listen: 'tcp://127.0.0.1:5557'}");
    let settings = settings(&engine_args(&check(&yaml).unwrap(), None).unwrap());
    assert_eq!(settings["endpoint"], "tcp://127.0.0.1:5557");
    assert_eq!(settings.get("replay_endpoint"), None);
}

#[test]
fn vllm_adds_the_rank_to_its_ports() {
    let yaml = engines(
        "  - {address: '127.0.0.1:8000', rank: 2, subscribe: 'tcp://127.0.0.1:5559', replay: 'tcp://127.0.0.1:5660'}",
    );
    let settings = settings(&engine_args(&check(&yaml).unwrap(), None).unwrap());
    assert_eq!(
        (&settings["endpoint"], &settings["replay_endpoint"]),
        (&"tcp://*:5557".into(), &"tcp://127.0.0.1:5658".into())
    );
}

fn command(args: &[&str], yaml: &str) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.yaml");
    std::fs::write(&path, yaml).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kvpick-agent"))
        .args(args)
        .args(["--config", path.to_str().unwrap()])
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_program_checks_a_configuration() {
    assert_eq!(command(&["check-config"], EXAMPLE), (Some(0), "ok\n".to_owned(), String::new()));
    let (code, _, errors) = command(&["check-config"], "node: ''\nservers: []\n");
    assert_eq!(code, Some(64));
    assert!(errors.contains("node: is empty") && errors.contains("servers: is empty"), "{errors}");
    let (code, _, errors) = command(&["run"], "node: n\nserver: x\n");
    assert_eq!(code, Some(64));
    assert!(errors.contains("server"), "{errors}");
}

#[test]
fn the_program_prints_the_example() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvpick-agent")).arg("config-reference").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), EXAMPLE);
}

#[test]
fn the_program_prints_the_flags_of_one_engine_or_of_all() {
    let (code, all, _) = command(&["engine-args"], EXAMPLE);
    assert_eq!((code, all.matches("vllm serve").count()), (Some(0), 4), "{all}");
    let (_, one, _) = command(&["engine-args", "--engine", "127.0.0.1:8001"], EXAMPLE);
    assert_eq!(one.matches("# engine").count(), 1, "{one}");
    assert_eq!(settings(&one)["endpoint"], "tcp://127.0.0.1:5657");
    let (code, _, errors) = command(&["engine-args", "--engine", "127.0.0.1:9"], EXAMPLE);
    assert_eq!(code, Some(64));
    assert!(errors.contains("127.0.0.1:9"), "{errors}");
}
