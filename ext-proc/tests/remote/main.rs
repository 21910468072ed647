//! Prompts that another server makes, over real HTTP.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod configured;
mod fake;
mod local_first;
mod program;

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
    prepare::{self, Among, Maker, Prepared, Step},
    shared::Shared,
};
use kvpick_core::{
    request::Api,
    session::{Head, Question},
    world::World,
};
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
            head: Head { path: path.to_owned(), ..Head::default() },
            body: body.as_bytes().to_vec().into(),
            lack: None,
            envoy_has_a_clock: true,
        };
        let underway = self.decider.decide(question).await;
        (underway.decision.reason.label(), underway.decision.prompt_tokens)
    }

    async fn prepared(&self, body: &str) -> Prepared {
        let body = body.as_bytes().to_vec().into();
        let serving = Among { shared: Arc::clone(&self.shared), among: Arc::default() };
        match prepare::begin(&serving, &self.models, Api::ChatCompletions, body, None) {
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
    // One that is idle for long is given up.
    assert!(fake.connections() < 5, "{}", fake.connections());
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
            head: Head { path: CHAT.to_owned(), ..Head::default() },
            body: HELLO.as_bytes().to_vec().into(),
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
