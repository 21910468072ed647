//! Engines with data-parallel ranks in the configuration.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use kvpick_agent::{
    config::{Config, File, Source},
    engine_args::engine_args,
};

fn check(engines: &str) -> Result<Config, Vec<String>> {
    let yaml = format!("node: n\nservers: ['kvpick:9004']\nengines:\n{engines}");
    let file: File = kvpick_service::config::parse(&yaml).unwrap();
    file.check().map_err(|all| all.iter().map(ToString::to_string).collect())
}

/// Name, events and replay of each.
fn shown(config: &Config) -> Vec<(String, String, Option<&str>)> {
    let show = |source: &Source| match source {
        Source::Subscribe(it) => it.clone(),
        Source::Listen(it) => format!("listen {it}"),
        Source::Discover => "discover".to_owned(),
    };
    let engine = |it: &kvpick_agent::config::EngineConfig| {
        let events = it.events.clone();
        let source = events.map_or_else(|| "off".to_owned(), |it| show(&it.source));
        (it.name.to_string(), source)
    };
    let all = config.engines.iter();
    all.map(|it| {
        let (name, source) = engine(it);
        (name, source, it.events.as_ref().and_then(|it| it.replay.as_deref()))
    })
    .collect()
}

#[test]
fn an_entry_with_ranks_is_one_engine_for_each_at_the_next_ports() {
    let config = check(
        "  - {address: '10.0.0.7:8000', ranks: 2, subscribe: 'tcp://10.0.0.7:5557', replay: 'tcp://10.0.0.7:5567'}
  - {address: '10.0.0.7:8001', rank: 2, ranks: 2, listen: 'tcp://127.0.0.1:5657', replay: 'tcp://127.0.0.1:5757'}
  - {address: '10.0.0.7:8002', ranks: 2, events: off}
  - {address: '10.0.0.7:8003', ranks: 1, subscribe: discover}
  - {address: '10.0.0.7:8004', subscribe: discover}",
    )
    .unwrap();
    let shown = shown(&config);
    let shown: Vec<_> =
        shown.iter().map(|(name, source, replay)| (name.as_str(), source.as_str(), *replay)).collect();
    assert_eq!(
        shown,
        [
            ("10.0.0.7:8000", "tcp://10.0.0.7:5557", Some("tcp://10.0.0.7:5567")),
            ("10.0.0.7:8000#1", "tcp://10.0.0.7:5558", Some("tcp://10.0.0.7:5568")),
            ("10.0.0.7:8001#2", "listen tcp://127.0.0.1:5659", Some("tcp://127.0.0.1:5759")),
            ("10.0.0.7:8001#3", "listen tcp://127.0.0.1:5660", Some("tcp://127.0.0.1:5760")),
            ("10.0.0.7:8002", "off", None),
            ("10.0.0.7:8002#1", "off", None),
            ("10.0.0.7:8003", "discover", None),
            ("10.0.0.7:8004", "discover", None),
        ]
    );
    let by_header: Vec<_> = config.engines.iter().map(|it| (it.rank_by_header, it.ranks)).collect();
    let two = (true, 2);
    assert_eq!(by_header, [two, two, two, two, two, two, (true, 1), (false, 1)]);
}

#[test]
fn ports_of_ranks_that_do_not_fit_are_mistakes() {
    let one = |fields: &str, field: &str, remedy: &str| {
        let mistakes = check(&format!("  - {{address: '10.0.0.7:8000', {fields}}}")).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:#?}");
        assert!(mistakes[0].starts_with(&format!("engines[0].{field}: ")), "{mistakes:#?}");
        assert!(mistakes[0].contains(remedy), "{mistakes:#?}");
    };
    one("ranks: 0, events: off", "ranks", "1 to 1024");
    one("ranks: 4000000000, events: off", "ranks", "1 to 1024");
    one("rank: 4294967295, ranks: 2, events: off", "rank", "0 to 1024");
    one("ranks: 2, subscribe: 'ipc:///run/e'", "subscribe", "tcp://host:port");
    one("ranks: 4, subscribe: 'tcp://e:65533'", "subscribe", "at most 65532");
    one("ranks: 4, subscribe: 'tcp://e:1', replay: 'tcp://e:65533'", "replay", "at most 65532");
    one("rank: 3, ranks: 1, subscribe: 'tcp://e:65533'", "subscribe", "at most 65532");
    one("ranks: 2, listen: 'tcp://127.0.0.1:0'", "listen", "write one");
    one("ranks: 4, subscribe: 'tcp://e:5557', replay: 'tcp://e:5560'", "replay", "at least 4 apart");
    one("ranks: 4, subscribe: 'tcp://e:5557', replay: 'tcp://e:5554'", "replay", "at least 4 apart");
    one("subscribe: discover, replay: 'tcp://e:1'", "replay", "leave it out");
    one("subscribe: discover, topic: kv", "topic", "leave it out");
    check("  - {address: '10.0.0.7:8000', ranks: 4, subscribe: 'tcp://e:65532', replay: 'tcp://e:65528'}")
        .unwrap();
    check("  - {address: '10.0.0.7:8000', ranks: 1, subscribe: 'ipc:///run/e'}").unwrap();
}

#[test]
fn what_two_engines_share_is_a_mistake() {
    let mistakes = check(
        "  - {address: '10.0.0.7:8000', ranks: 4, subscribe: 'tcp://e:5557', replay: 'tcp://e:5567'}
  - {address: '10.0.0.7:8000', rank: 3, events: off}
  - {address: '10.0.0.7:8001', subscribe: 'tcp://e:5560'}
  - {address: '10.0.0.7:8002', subscribe: 'tcp://e:5577', replay: 'tcp://e:5567'}
  - {address: '10.0.0.7:8003', listen: 'tcp://127.0.0.1:0'}
  - {address: '10.0.0.7:8004', listen: 'tcp://127.0.0.1:0'}",
    )
    .unwrap_err();
    let fields: Vec<_> = mistakes.iter().map(|it| it.split(": ").next().unwrap()).collect();
    assert_eq!(fields, ["engines[1].address", "engines[2].subscribe", "engines[3].replay"], "{mistakes:#?}");
}

#[test]
fn ranks_of_one_process_have_one_command() {
    let config = check(
        "  - {address: '10.0.0.7:8000', ranks: 3, subscribe: 'tcp://10.0.0.7:5557', replay: 'tcp://10.0.0.7:5567'}",
    )
    .unwrap();
    let text = engine_args(&config, None).unwrap();
    assert_eq!(text.matches("vllm serve").count(), 1, "{text}");
    assert!(
        text.contains("3 data-parallel ranks") && text.contains(r#""endpoint":"tcp://*:5557""#),
        "{text}"
    );
}

#[test]
fn an_engine_that_is_asked_chooses_its_ports() {
    let config = check("  - {address: '10.0.0.7:8000', ranks: 2, subscribe: discover}").unwrap();
    let text = engine_args(&config, None).unwrap();
    assert_eq!(text.matches("vllm serve").count(), 1, "{text}");
    for part in
        ["VLLM_HOST_IP=10.0.0.7 ", r#""endpoint":"tcp://*:0""#, r#""replay_endpoint":"tcp://*:0""#, "0.31"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}
