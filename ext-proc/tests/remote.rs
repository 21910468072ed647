//! Prompts that another server makes, over real HTTP.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod fake;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use fake::{Act, Fake, json, rendered};
use kvpick::{
    config::{BudgetConfig, Config},
    decide::Decider,
    metrics::Metrics,
    models::Models,
    prepare::{self, Maker, Prepared, Step},
    shared::Shared,
};
use kvpick_core::{outcome::Reason, request::Api, session::Question, world::World};
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;

const CHAT: &str = "/v1/chat/completions";
const HELLO: &str = r#"{"model": "m", "messages": [{"role": "user", "content": "hello"}]}"#;
const PICTURE: &str = r#"{"model": "m", "messages": [{"role": "user", "content": [
    {"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]}]}"#;

/// Everything behind Envoy's streams.
struct Server {
    decider: Arc<Decider>,
    shared: Arc<Shared>,
    models: Arc<Models>,
}

impl Server {
    /// A server of one model, whose other fields are `model`, with replicas there.
    fn new(model: &str, replicas: &[SocketAddr]) -> Self {
        let replicas: String =
            replicas.iter().map(|it| format!("  - {{address: {it}, models: [m]}}\n")).collect();
        let yaml = format!("models:\n  - {{name: m, {model}}}\nreplicas:\n{replicas}");
        let config: Config = kvpick_service::config::parse(&yaml).unwrap();
        assert_eq!(config.mistakes(), Vec::<String>::new());
        let (memory, now) = (config.memory.into(), Instant::now());
        let world = World::new("s".to_owned(), config.replica_specs(), &memory, config.score.into(), 0, now);
        let shared = Shared::new(world, Metrics::new(&Registry::new()).unwrap());
        let models = Arc::new(Models::load(&config.models));
        let (sender, receiver) = watch::channel(Arc::clone(&models));
        drop(sender);
        let budget = BudgetConfig {
            base_ms: 60_000,
            max_ms: 60_000,
            full_duplex_ms: 60_000,
            ..BudgetConfig::default()
        };
        let decider = Decider::new(Arc::clone(&shared), receiver, 2, budget, 10_000.0);
        Self { decider: Arc::new(decider), shared, models }
    }

    /// A server whose prompts come from these URLs alone.
    fn of(urls: &[String], more: &str) -> Self {
        let urls = urls.join(", ");
        Self::new(
            &format!("source: remote, remote: {{urls: [{urls}]{more}}}"),
            &["127.0.0.1:8000".parse().unwrap()],
        )
    }

    /// The reason and the number of prompt tokens.
    async fn decide(&self, path: &str, body: &str) -> (&'static str, u64) {
        let question = Question {
            path: path.to_owned(),
            session: None,
            body: body.as_bytes().to_vec(),
            lack: None,
            envoy_has_a_clock: true,
        };
        let underway = self.decider.decide(question).await;
        (underway.decision.reason.label(), underway.decision.prompt_tokens)
    }

    async fn prepared(&self, body: &str) -> Prepared {
        let body = body.as_bytes().to_vec().into();
        match prepare::begin(&*self.shared, &self.models, Api::ChatCompletions, body, None) {
            Step::Done(prepared) => prepared,
            Step::Ask(pending) => {
                let told = pending.ask(Instant::now() + Duration::from_secs(60)).await;
                pending.finish(told)
            }
        }
    }

    fn results(&self, result: &str) -> u64 {
        self.shared.metrics.remote_requests.with_label_values(&["m", result]).get()
    }
}

/// Longer than any answer takes.
const PATIENT: &str = ", timeout_ms: 60000";

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_comes_from_the_server_that_is_sent_the_bytes_of_the_client() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "s3cret\n").unwrap();
    let fake = Fake::start(|_| json(&rendered(&[1, 2, 3], &Value::Null))).await;
    let more = format!("{PATIENT}, api_key_file: {}", key.display());
    let server = Server::of(&[fake.url()], &more);
    assert_eq!(server.decide(CHAT, HELLO).await, ("no_agent", 3));
    let seen = fake.seen();
    assert_eq!(
        (seen[0].path.as_str(), seen[0].body.as_slice()),
        ("/v1/chat/completions/render", HELLO.as_bytes())
    );
    assert!(seen[0].head.contains("authorization: Bearer s3cret"), "{}", seen[0].head);
    assert!(seen[0].head.contains("content-type: application/json"));
    assert_eq!(server.results("ok"), 1);
    assert_eq!(server.shared.metrics.remote_seconds.get_sample_count(), 1);
    assert_eq!(server.prepared(HELLO).await.maker, Maker::Remote);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_the_reason_and_the_request_goes_by_load() {
    let error = |kind: &str| json!({"error": {"message": "no", "type": kind, "code": 0}}).to_string();
    let ids = |ids: &str| Act::Answer(200, format!("{{\"token_ids\": {ids}}}"));
    for (act, reason) in [
        (Act::Silent, "remote_timeout"),
        (Act::Drip, "remote_timeout"),
        (Act::Endless, "remote_bad_answer"),
        (Act::Hangup, "remote_down"),
        (Act::Answer(500, String::new()), "remote_down"),
        (Act::Answer(503, "x".repeat(1 << 20)), "remote_down"),
        (Act::Answer(302, String::new()), "remote_down"),
        (Act::Answer(400, error("BadRequestError")), "engine_refuses"),
        (Act::Answer(401, String::new()), "remote_denied"),
        (Act::Answer(404, error("NotFoundError")), "remote_unknown_model"),
        (Act::Answer(404, r#"{"detail": "Not Found"}"#.to_owned()), "remote_no_route"),
        (Act::Answer(429, String::new()), "remote_overloaded"),
        (Act::Answer(200, "{".to_owned()), "remote_bad_answer"),
        (Act::Answer(200, String::new()), "remote_bad_answer"),
        (ids("[99999999999]"), "remote_bad_answer"),
        (ids("[]"), "remote_bad_answer"),
        (ids("[[1]]"), "remote_bad_answer"),
    ] {
        let shown = format!("{act:?}").chars().take(60).collect::<String>();
        let is_slow = matches!(act, Act::Silent | Act::Drip);
        let fake = Fake::start(move |_| act.clone()).await;
        let server = Server::of(&[fake.url()], if is_slow { ", timeout_ms: 200" } else { PATIENT });
        assert_eq!(server.decide(CHAT, HELLO).await, (reason, 0), "{shown}");
    }
    let nobody = Server::of(&["http://127.0.0.1:1".to_owned()], PATIENT);
    assert_eq!(nobody.decide(CHAT, HELLO).await, ("remote_down", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_server_closes_costs_no_request() {
    let fake = Fake::start(|_| Act::AnswerAndClose(rendered(&[1, 2], &Value::Null).to_string())).await;
    let server = Server::of(&[fake.url()], PATIENT);
    for _ in 0..20 {
        assert_eq!(server.decide(CHAT, HELLO).await, ("no_agent", 2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_kept() {
    let fake = Fake::start(|_| json(&rendered(&[1, 2], &Value::Null))).await;
    let server = Server::of(&[fake.url()], PATIENT);
    for _ in 0..20 {
        assert_eq!(server.decide(CHAT, HELLO).await, ("no_agent", 2));
    }
    assert_eq!(fake.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_render_tokenizes_what_is_the_same_there() {
    let fake = Fake::start(|path| match path {
        "/tokenize" => json(&json!({"count": 2, "max_model_len": 9, "tokens": [7, 8]})),
        _ => Act::Answer(404, r#"{"detail": "Not Found"}"#.to_owned()),
    })
    .await;
    let server = Server::of(&[fake.url()], PATIENT);
    for _ in 0..3 {
        assert_eq!(server.decide(CHAT, HELLO).await, ("no_agent", 2));
    }
    let paths: Vec<_> = fake.seen().into_iter().map(|it| it.path).collect();
    assert_eq!(
        paths,
        ["/v1/chat/completions/render", "/tokenize", "/tokenize", "/tokenize"],
        "it is remembered"
    );
    let cut =
        r#"{"model": "m", "truncate_prompt_tokens": 1, "messages": [{"role": "user", "content": "x"}]}"#;
    assert_eq!(server.decide(CHAT, cut).await, ("remote_inexact", 0));
    assert_eq!(server.decide(CHAT, PICTURE).await, ("remote_inexact", 0));
    assert_eq!(
        server.decide("/v1/responses", r#"{"model": "m", "input": "x"}"#).await,
        ("remote_no_route", 0)
    );
    assert_eq!(server.decide("/v1/embeddings", r#"{"model": "m", "input": "x"}"#).await, ("no_agent", 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_nobody_or_helps_nobody_is_not_asked() {
    let fake = Fake::start(|_| Act::Answer(500, String::new())).await;
    let server = Server::of(&[fake.url()], PATIENT);
    let ids = r#"{"model": "m", "prompt": [[1, 2], [3]]}"#;
    assert_eq!(server.decide("/v1/completions", ids).await, ("no_agent", 3));
    let goes_on = r#"{"model": "m", "input": "x", "previous_response_id": "r"}"#;
    assert_eq!(server.decide("/v1/responses", goes_on).await, ("stateful_unpinned", 0));
    assert_eq!(server.decide(CHAT, "not json").await, ("not_json", 0));
    assert_eq!(
        server.decide(CHAT, r#"{"model": "n", "messages": [{"role": "user"}]}"#).await,
        ("unknown_model", 0)
    );
    assert_eq!(fake.seen().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_is_left_alone() {
    let fake = Fake::start(|_| Act::Answer(500, String::new())).await;
    let server = Server::of(&[fake.url()], PATIENT);
    for _ in 0..5 {
        assert_eq!(server.decide(CHAT, HELLO).await, ("remote_down", 0));
    }
    let remote = server.models.get("m").unwrap().remote.clone().unwrap();
    assert_eq!((remote.resting(), remote.status()["servers"][0]["breaker"].clone()), (1, json!("open")));
    assert_eq!(server.shared.metrics.remote_resting.with_label_values(&["m"]).get(), 1);
    // Twenty more are done with long before its rest is over; on a machine where they are not, a probe goes through.
    for _ in 0..20 {
        assert_eq!(server.decide(CHAT, HELLO).await, ("remote_down", 0));
    }
    assert!(fake.seen().len() < 25 && 0 < server.results("resting"), "{}", fake.seen().len());
    drop((server, remote));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_request_does_not_count_against_the_server() {
    let fake = Fake::start(|_| Act::Answer(400, "{}".to_owned())).await;
    let server = Server::of(&[fake.url()], PATIENT);
    for _ in 0..20 {
        assert_eq!(server.decide(CHAT, HELLO).await, ("engine_refuses", 0));
    }
    assert_eq!(fake.seen().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_bound_nobody_waits() {
    let fake = Fake::start(|_| Act::Silent).await;
    let server = Server::of(&[fake.url()], ", timeout_ms: 60000, max_in_flight: 1");
    let first = {
        let decider = Arc::clone(&server.decider);
        let question = Question {
            path: CHAT.to_owned(),
            session: None,
            body: HELLO.as_bytes().to_vec(),
            lack: None,
            envoy_has_a_clock: true,
        };
        tokio::spawn(async move { decider.decide(question).await.decision.reason })
    };
    fake.until_seen(1).await;
    assert_eq!(server.decide(CHAT, HELLO).await, ("remote_overloaded", 0));
    // Who goes away makes room.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let remote = server.models.get("m").unwrap().remote.clone().unwrap();
    assert_eq!(remote.status()["servers"][0]["in_flight"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_takes_over_at_once() {
    let good = Fake::start(|_| json(&rendered(&[1, 2, 3, 4], &Value::Null))).await;
    let bad = Fake::start(|_| Act::Hangup).await;
    let server = Server::of(&[bad.url(), good.url()], PATIENT);
    for _ in 0..8 {
        assert_eq!(server.decide(CHAT, HELLO).await, ("no_agent", 4));
    }
    assert!((1..=5).contains(&bad.seen().len()), "{}", bad.seen().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_the_model_are_asked_in_turn() {
    let answer = |_: &str| json(&rendered(&[1, 2, 3], &Value::Null));
    let (one, two) = (Fake::start(answer).await, Fake::start(answer).await);
    let model = format!("source: remote, remote: {{from: replicas{PATIENT}}}");
    let server = Server::new(&model, &[one.address(), two.address()]);
    for _ in 0..4 {
        assert_eq!(server.decide(CHAT, HELLO).await, ("no_agent", 3));
    }
    assert_eq!((one.seen().len(), two.seen().len()), (2, 2));
}

/// A model of a few words in a folder, and another server for what can't be made of it.
fn local_then_remote(url: &str, template: Option<&str>) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    fake::write_model(folder.path(), template);
    let model = format!(
        "path: {}, source: local-then-remote, remote: {{urls: ['{url}']{PATIENT}}}",
        folder.path().display()
    );
    let server = Server::new(&model, &["127.0.0.1:8000".parse().unwrap()]);
    (folder, server)
}

const TEMPLATE: &str = "one {{ messages[-1].content }}";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_here_needs_no_other_server() {
    let fake = Fake::start(|_| Act::Answer(500, String::new())).await;
    let (_folder, server) = local_then_remote(&fake.url(), Some(TEMPLATE));
    let prepared = server.prepared(HELLO).await;
    assert_eq!((prepared.maker, prepared.prompts.unwrap()[0].ids.len()), (Maker::Local, 2));
    // What no engine takes, the other server would not take either.
    assert_eq!(
        server
            .decide("/v1/completions", r#"{"model": "m", "prompt": "x", "truncate_prompt_tokens": 0}"#)
            .await
            .0,
        "bad_field"
    );
    assert_eq!(fake.seen().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_server_makes_what_can_not_be_made_here() {
    let features = json!({
        "mm_hashes": {"image": ["i"]}, "mm_placeholders": {"image": [{"offset": 2, "length": 30}]},
    });
    let fake = Fake::start(move |_| json(&rendered(&[9; 40], &features))).await;
    let (_folder, server) = local_then_remote(&fake.url(), Some(TEMPLATE));
    let prepared = server.prepared(PICTURE).await;
    let prompts = prepared.prompts.unwrap();
    assert_eq!((prepared.maker, prepared.asked), (Maker::Remote, Some("ok")));
    assert_eq!((prompts[0].ids.len(), prompts[0].media[0].length, prompts[0].is_cut), (40, 30, false));
    assert_eq!(fake.seen().len(), 1);

    // No template, or one that does not render.
    let text = Fake::start(|_| json(&rendered(&[1, 2, 3], &Value::Null))).await;
    for template in [None, Some("{{ raise_exception('no') }}")] {
        let (_folder, server) = local_then_remote(&text.url(), template);
        assert_eq!(server.decide(CHAT, HELLO).await, ("no_agent", 3), "{template:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_other_server_does_not_help_what_was_made_here_stands() {
    for (act, reason, result) in [
        (Act::Answer(500, String::new()), "remote_down", "down"),
        (Act::Answer(400, String::new()), "engine_refuses", "refused"),
        // It was not asked in the end; what stood in the way here says more.
        (Act::Answer(404, String::new()), "no_template", "no_route"),
    ] {
        let fake = Fake::start(move |_| act.clone()).await;
        let (_folder, server) = local_then_remote(&fake.url(), None);
        assert_eq!(server.decide(CHAT, HELLO).await, (reason, 0));
        assert_eq!(server.results(result), 1, "{reason}");
    }
}

#[test]
fn mistakes_in_sources_name_field_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tekken.json"), "{}").unwrap();
    let path = folder.path().display();
    let mistake = |model: &str| {
        let yaml =
            format!("models: [{{name: m, {model}}}]\nreplicas: [{{address: '127.0.0.1:1', models: [m]}}]");
        let config: Config = kvpick_service::config::parse(&yaml).unwrap();
        config.mistakes().join("\n")
    };
    for (model, field, remedy) in [
        ("source: local", "models[0].path: missing", "set source: remote"),
        (&format!("path: {path}"), "models[0].path: /", "source: remote"),
        ("source: remote", "models[0].remote: missing", "vllm launch render"),
        ("source: remote, remote: {}", "models[0].remote.urls: the list is empty", "from: replicas"),
        ("source: remote, remote: {urls: ['http://a'], from: replicas}", "remote.from", "keep one"),
        ("source: remote, remote: {urls: ['https://a']}", "remote.urls[0]", "write http://"),
        ("source: remote, remote: {urls: ['a:1']}", "remote.urls[0]", "http://host:port"),
        ("source: remote, remote: {urls: ['http://u:p@a']}", "remote.urls[0]", "api_key_file"),
        (
            "source: remote, remote: {urls: ['http://a/v1/completions/']}",
            "remote.urls[0]",
            "http://host:port",
        ),
        ("source: remote, remote: {from: replicas, timeout_ms: 0}", "remote.timeout_ms", "use 1 to"),
        ("source: remote, remote: {from: replicas, max_in_flight: 0}", "remote.max_in_flight", "use 1 to"),
        (
            "source: remote, remote: {from: replicas, api_key_file: /none}",
            "remote.api_key_file",
            "can be read",
        ),
        (&format!("path: {path}, remote: {{from: replicas}}"), "is not asked", "local-then-remote"),
    ] {
        let found = mistake(model);
        assert!(found.contains(field) && found.contains(remedy), "{model}: {found}");
    }
    assert_eq!(mistake("source: remote, remote: {urls: ['http://a:1/base/']}"), "");
    let config: Config =
        kvpick_service::config::parse(&format!("models: [{{name: m, path: {path}}}]\nreplicas: []")).unwrap();
    let models = Models::load(&config.models);
    assert!(models.get("m").unwrap().error.as_ref().unwrap().contains("source: remote"), "at a reload too");
}

#[test]
fn a_reload_keeps_a_source_that_has_not_changed() {
    let models = |model: &str, batch: Option<&Models>| {
        let yaml = format!("models: [{{name: m, source: remote, {model}}}]\nreplicas: []");
        let config: Config = kvpick_service::config::parse(&yaml).unwrap();
        let none = Models::default();
        let batch = kvpick::models::Batch::new(batch.unwrap_or(&none));
        Models::new(config.models.into_iter().map(|it| Arc::new(batch.load(it))).collect())
    };
    let remote = |it: &Models| it.get("m").unwrap().remote.clone().unwrap();
    let first = models("remote: {urls: ['http://a']}", None);
    assert_eq!(first.get("m").unwrap().state(), "ready");
    let same = models("remote: {urls: ['http://a']}", Some(&first));
    assert!(Arc::ptr_eq(&remote(&first), &remote(&same)));
    let other = models("remote: {urls: ['http://a'], timeout_ms: 9}", Some(&first));
    assert!(!Arc::ptr_eq(&remote(&first), &remote(&other)));
    assert_eq!(Reason::REMOTE_DOWN.label(), "remote_down");
}

/// The program's answer to a line.
async fn tokenized(yaml: &str, flags: Vec<String>, line: Value) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvpick.yaml");
    std::fs::write(&file, yaml).unwrap();
    let run = move || {
        use std::io::Write as _;
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_kvpick"))
            .args(["tokenize", "--config", file.to_str().unwrap()])
            .args(flags)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{line}").unwrap();
        let output = child.wait_with_output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let answer = tokio::task::spawn_blocking(run).await.unwrap();
    drop(folder);
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_with_media_are_named_as_vllm_names_them() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/hashes/golden_hashes.json");
    let goldens: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases: Vec<_> =
        goldens["cases"].as_array().unwrap().iter().filter(|it| it["mm"].is_array()).collect();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let media = case["mm"].as_array().unwrap();
        let features = json!({
            "mm_hashes": {"image": media.iter().map(|it| &it["identifier"]).collect::<Vec<_>>()},
            "mm_placeholders": {"image": media},
        });
        let ids: Vec<u32> = serde_json::from_value(case["token_ids"].clone()).unwrap();
        let fake = Fake::start(move |_| json(&rendered(&ids, &features))).await;
        let yaml = format!(
            "models: [{{name: m, source: remote, remote: {{urls: ['{}']{PATIENT}}}}}]\n\
             replicas: [{{address: '127.0.0.1:1', models: [m]}}]\n",
            fake.url()
        );
        let text = |it: &Value| it.as_str().unwrap().to_owned();
        let mut flags = vec!["--algorithm".to_owned(), text(&case["algo"])];
        flags.extend(["--root".to_owned(), text(&case["effective_seed"])]);
        flags.extend(["--block-size".to_owned(), case["block_size"].to_string()]);
        let lora = &case["lora"];
        let is_adapter = lora.is_object();
        if is_adapter {
            flags
                .extend(["--adapter".to_owned(), format!("{}={}", text(&lora["name"]), text(&lora["path"]))]);
        }
        let mut body: Value = serde_json::from_str(PICTURE).unwrap();
        body["cache_salt"] = case["cache_salt"].clone();
        let model = if is_adapter { text(&lora["name"]) } else { "m".to_owned() };
        let line = json!({"model": model, "path": CHAT, "body": body.to_string()});
        let answer = tokenized(&yaml, flags, line).await;
        assert_eq!((&answer["source"], &answer["reason"]), (&json!("remote"), &json!("ok")), "{answer}");
        assert_eq!(answer["blocks"], json!([case["block_hashes_u64"]]), "{}", case["name"]);
        let sent: Value = serde_json::from_slice(&fake.seen()[0].body).unwrap();
        assert_eq!((&sent["model"], &sent["mm_payload"]), (&json!(model), &json!("none")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_who_failed_to_make_a_prompt() {
    let yaml = "models: [{name: m, source: remote, remote: {urls: ['http://127.0.0.1:1']}}]\n\
                replicas: [{address: '127.0.0.1:1', models: [m]}]\n";
    let line = json!({"path": CHAT, "body": HELLO});
    let want = json!({"source": "remote", "reason": "remote_down", "prompts": [], "blocks": []});
    assert_eq!(tokenized(yaml, Vec::new(), line).await, want);
}
