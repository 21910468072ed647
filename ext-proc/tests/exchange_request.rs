//! The request phase of the endpoint picker protocol over real gRPC: who may be picked, what is changed, what is refused.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{collections::HashMap, io::Write as _, time::Duration};

use envoy_types::pb::{
    envoy::{
        config::core::v3::{HeaderMap, HeaderValue, Metadata},
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            CommonResponse, HeaderMutation, HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest,
            ProcessingResponse, ProtocolConfiguration, body_mutation::Mutation,
            external_processor_client::ExternalProcessorClient, processing_request::Request,
            processing_response::Response,
        },
    },
    google::protobuf::{ListValue, Struct, Value, value::Kind},
};
use kvpick::{app::App, config::Config};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// Longest wait for anything; on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two ports of one machine, and one of another; a model each, and one that all have.
async fn start(more: &str) -> App {
    let yaml = format!(
        "listen: 127.0.0.1:0\nfeed: 127.0.0.1:0\nadmin: 127.0.0.1:0\nreplicas:\n\
         - {{address: 127.0.0.1:8000, models: [m, first]}}\n- {{address: 127.0.0.1:8001, models: [m, second]}}\n\
         - {{address: 127.0.0.2:8000, models: [m, third]}}\n{more}"
    );
    let config: Config = kvpick_service::config::parse(&yaml).unwrap();
    assert_eq!(config.mistakes(), Vec::<String>::new());
    App::start(config, None).await.unwrap()
}

async fn metrics(app: &App) -> String {
    reqwest::get(format!("http://{}/metrics", app.addresses["admin"])).await.unwrap().text().await.unwrap()
}

fn text(it: &str) -> Value {
    Value { kind: Some(Kind::StringValue(it.to_owned())) }
}

/// A request as Envoy tells of it.
struct Asked<'a> {
    headers: Vec<(&'a str, &'a str)>,
    hint: Option<Vec<&'a str>>,
    mode: BodySendMode,
    body: Vec<u8>,
}

impl Default for Asked<'_> {
    fn default() -> Self {
        Self {
            headers: Vec::new(),
            hint: None,
            mode: BodySendMode::Buffered,
            body: br#"{"model": "m"}"#.to_vec(),
        }
    }
}

impl Asked<'_> {
    fn headers(&self) -> ProcessingRequest {
        let all = [(":path", "/v1/completions")].into_iter().chain(self.headers.iter().copied());
        let header = |(key, value): (&str, &str)| HeaderValue {
            key: key.to_owned(),
            raw_value: value.as_bytes().to_vec(),
            ..HeaderValue::default()
        };
        let headers = Some(HeaderMap { headers: all.map(header).collect() });
        let headers = HttpHeaders { headers, ..HttpHeaders::default() };
        let metadata = |hint: &Vec<&str>| {
            let values = hint.iter().map(|it| text(it)).collect();
            let list = Value { kind: Some(Kind::ListValue(ListValue { values })) };
            let fields = HashMap::from([("x-gateway-destination-endpoint-subset".to_owned(), list)]);
            let fields = Struct { fields };
            let filter_metadata = HashMap::from([("envoy.lb.subset_hint".to_owned(), fields)]);
            Metadata { filter_metadata, ..Metadata::default() }
        };
        let mode = self.mode.into();
        let modes = ProtocolConfiguration { request_body_mode: mode, ..ProtocolConfiguration::default() };
        ProcessingRequest {
            request: Some(Request::RequestHeaders(headers)),
            protocol_config: Some(modes),
            metadata_context: self.hint.as_ref().map(metadata),
            ..ProcessingRequest::default()
        }
    }

    /// What comes of it: the answer to its headers, and those to its body.
    async fn of(&self, app: &App) -> Vec<ProcessingResponse> {
        let mut exchange = Exchange::open(app).await;
        exchange.say.send(self.headers()).await.unwrap();
        let waits = matches!(self.mode, BodySendMode::Buffered | BodySendMode::BufferedPartial);
        let mut answers = Vec::new();
        if waits {
            answers.push(exchange.next().await.unwrap());
        }
        exchange.body(&self.body, true).await;
        loop {
            answers.push(exchange.next().await.unwrap());
            if waits || is_last(answers.last().unwrap()) {
                return answers;
            }
        }
    }

    /// Where it goes; a refusal's status and reason where it does not.
    async fn picked(&self, app: &App) -> Result<String, (i32, String)> {
        let answers = self.of(app).await;
        for answer in &answers {
            if let Some(Response::ImmediateResponse(it)) = &answer.response {
                let reason = named(it.headers.as_ref(), "x-llm-d-request-dropped-reason");
                return Err((it.status.as_ref().unwrap().code, reason));
            }
            let picked = common(answer).map(|it| header(it, "x-gateway-destination-endpoint"));
            if let Some(picked) = picked.filter(|it| !it.is_empty()) {
                return Ok(picked);
            }
        }
        panic!("{answers:?}")
    }
}

fn is_last(answer: &ProcessingResponse) -> bool {
    let mutation = common(answer).and_then(|it| it.body_mutation.as_ref()?.mutation.as_ref());
    match (&answer.response, mutation) {
        (Some(Response::ImmediateResponse(_)), _) | (_, Some(Mutation::Body(_))) => true,
        (_, Some(Mutation::StreamedResponse(it))) => it.end_of_stream,
        _ => false,
    }
}

fn common(answer: &ProcessingResponse) -> Option<&CommonResponse> {
    match answer.response.as_ref()? {
        Response::RequestHeaders(it) => it.response.as_ref(),
        Response::RequestBody(it) => it.response.as_ref(),
        _ => None,
    }
}

fn header(common: &CommonResponse, name: &str) -> String {
    named(common.header_mutation.as_ref(), name)
}

/// The value that a header is set to; nothing where it is not.
fn named(mutation: Option<&HeaderMutation>, name: &str) -> String {
    let set = mutation.iter().flat_map(|it| &it.set_headers).map(|it| it.header.as_ref().unwrap());
    let found = set.filter(|it| it.key == name).map(|it| String::from_utf8(it.raw_value.clone()).unwrap());
    found.collect::<Vec<_>>().join("|")
}

/// The body that an engine gets, from the answers.
fn sent_on(answers: &[ProcessingResponse], body: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    let mut is_changed = false;
    for answer in answers {
        match common(answer).and_then(|it| it.body_mutation.as_ref()?.mutation.as_ref()) {
            Some(Mutation::Body(it)) => (sent, is_changed) = (it.clone(), true),
            Some(Mutation::StreamedResponse(it)) => {
                sent.extend_from_slice(&it.body);
                is_changed = true;
            }
            _ => (),
        }
    }
    if is_changed { sent } else { body.to_vec() }
}

struct Exchange {
    say: mpsc::Sender<ProcessingRequest>,
    heard: Streaming<ProcessingResponse>,
}

impl Exchange {
    async fn open(app: &App) -> Self {
        let url = format!("http://{}", app.addresses["ext_proc"]);
        let mut client = ExternalProcessorClient::connect(url).await.unwrap();
        let (say, requests) = mpsc::channel(16);
        let heard = client.process(ReceiverStream::new(requests)).await.unwrap().into_inner();
        Self { say, heard }
    }

    async fn body(&self, body: &[u8], end_of_stream: bool) {
        let body = HttpBody { body: body.to_vec(), end_of_stream, ..HttpBody::default() };
        self.send(Request::RequestBody(body)).await;
    }

    async fn send(&self, request: Request) {
        let message = ProcessingRequest { request: Some(request), ..ProcessingRequest::default() };
        self.say.send(message).await.unwrap();
    }

    async fn next(&mut self) -> Result<ProcessingResponse, Status> {
        let next = tokio::time::timeout(PATIENCE, self.heard.message()).await.expect("no answer in time");
        next.map(|it| it.expect("the stream ended"))
    }
}

const MODES: [BodySendMode; 3] =
    [BodySendMode::Buffered, BodySendMode::FullDuplexStreamed, BodySendMode::BufferedPartial];

#[tokio::test(flavor = "multi_thread")]
async fn a_gateways_list_is_kept_to_and_an_empty_one_refused() {
    let app = start("destinations: 1\n").await;
    let refused = Err((503, "rejected-no-endpoints".to_owned()));
    for mode in MODES {
        for _ in 0..4 {
            let asked = |hint: &[&'static str]| Asked { hint: Some(hint.to_vec()), mode, ..Asked::default() };
            let picked = asked(&["127.0.0.1:8001"]).picked(&app).await;
            assert_eq!(picked.as_deref(), Ok("127.0.0.1:8001"), "{mode:?}");
            let picked = asked(&["127.0.0.1:9,127.0.0.2:8000"]).picked(&app).await;
            assert_eq!(picked.as_deref(), Ok("127.0.0.2:8000"), "{mode:?}");
            assert_eq!(asked(&[]).picked(&app).await, refused, "{mode:?}");
            assert_eq!(asked(&["127.0.0.1", "10.0.0.1:8000"]).picked(&app).await, refused, "{mode:?}");
        }
        // Nobody in the list serves it: one of them says so.
        let body = br#"{"model": "first"}"#.to_vec();
        let asked = Asked { hint: Some(vec!["127.0.0.1:8001"]), mode, body, ..Asked::default() };
        assert_eq!(asked.picked(&app).await.as_deref(), Ok("127.0.0.1:8001"));
    }
    let metrics = metrics(&app).await;
    assert!(
        metrics.contains("kvpick_decisions_total{reason=\"no_endpoint\",tier=\"refused\"} 24"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_model_is_put_into_the_body_and_picked_for() {
    let app = start("destinations: 1\n").await;
    for mode in MODES {
        for (name, value) in
            [("x-gateway-model-name-rewrite", "second"), ("x-llm-d-model-name-rewrite", "third")]
        {
            let body = br#"{"a": 1.50, "model" : "first", "prompt": "\u00e9"}"#.to_vec();
            let length = body.len().to_string();
            let headers = vec![(name, value), ("content-length", length.as_str())];
            let asked = Asked { headers, mode, body, ..Asked::default() };
            let want = format!(r#"{{"a": 1.50, "model" : "{value}", "prompt": "\u00e9"}}"#);
            let answers = asked.of(&app).await;
            let got = String::from_utf8(sent_on(&answers, &asked.body)).unwrap();
            assert_eq!(got, want, "{mode:?}");
            let wanted = if mode == BodySendMode::Buffered { want.len().to_string() } else { String::new() };
            let length = answers.iter().filter_map(common).map(|it| header(it, "content-length"));
            assert_eq!(length.collect::<String>(), wanted, "{mode:?}");
            let removed = common(&answers[0]).unwrap().header_mutation.as_ref().unwrap();
            assert!(removed.remove_headers.iter().any(|it| it == name));
            let address = if value == "second" { "127.0.0.1:8001" } else { "127.0.0.2:8000" };
            assert_eq!(asked.picked(&app).await.as_deref(), Ok(address), "{mode:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_have_blocks_reported_twice() {
    let app = start("").await;
    for mode in MODES {
        let body =
            br#"{"model":"m","vllm_xargs":{"kv_cache_report_mode":"full","a":1},"prompt":"x"}"#.to_vec();
        let asked = Asked { mode, body, ..Asked::default() };
        let got = sent_on(&asked.of(&app).await, &asked.body);
        assert_eq!(
            str::from_utf8(&got).unwrap(),
            r#"{"model":"m","vllm_xargs":{"a":1},"prompt":"x"}"#,
            "{mode:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conformance_test_chooses_only_where_it_may() {
    let headers = |selection| vec![("test-epp-endpoint-selection", selection)];
    let asked = |selection| Asked {
        headers: headers(selection),
        hint: Some(vec!["127.0.0.2:8000"]),
        ..Asked::default()
    };
    let app = start("").await;
    assert_eq!(asked("127.0.0.1:8001").picked(&app).await.as_deref(), Ok("127.0.0.2:8000"), "off by default");

    let app = start("conformance: true\n").await;
    assert_eq!(asked("127.0.0.1:8001").picked(&app).await.as_deref(), Ok("127.0.0.1:8001"));
    let refused = Err((503, "rejected-no-endpoints".to_owned()));
    assert_eq!(asked("10.0.0.9").picked(&app).await, refused);
    let mut turns = Vec::new();
    for _ in 0..4 {
        turns.push(asked("127.0.0.1").picked(&app).await.unwrap());
    }
    assert_eq!((&turns[0], &turns[1]), (&turns[2], &turns[3]), "in turn");
    turns.sort_unstable();
    turns.dedup();
    assert_eq!(turns, ["127.0.0.1:8000", "127.0.0.1:8001"], "every port of the IP");
    let answers = asked("127.0.0.1:8001").of(&app).await;
    let echo =
        answers.iter().filter_map(common).map(|it| header(it, "x-echo-set-header")).collect::<String>();
    assert_eq!(echo, "x-conformance-test-served-endpoint:127.0.0.1:8001");
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_bodies_are_looked_at_and_go_on_as_they_came() {
    let app = start("destinations: 1\n").await;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(br#"{"model": "second", "prompt": "x"}"#).unwrap();
    let gzip = gzip.finish().unwrap();
    for mode in MODES {
        let asked = |encoding, body: &[u8]| Asked {
            headers: vec![("content-encoding", encoding), ("x-gateway-model-name-rewrite", "third")],
            mode,
            body: body.to_vec(),
            ..Asked::default()
        };
        let one = asked("gzip", &gzip);
        assert_eq!(one.picked(&app).await.as_deref(), Ok("127.0.0.1:8001"), "{mode:?}");
        assert_eq!(sent_on(&one.of(&app).await, &one.body), gzip, "{mode:?}");
        for (encoding, body) in [("gzip", &b"no"[..]), ("compress", b"no")] {
            let other = asked(encoding, body);
            assert!(other.picked(&app).await.is_ok());
            assert_eq!(sent_on(&other.of(&app).await, &other.body), body, "{mode:?}");
        }
    }
    let metrics = metrics(&app).await;
    for reason in ["encoding_broken", "encoding_unknown"] {
        assert!(metrics.contains(&format!("{{reason=\"{reason}\",tier=\"load\"}} 6")), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objectives_are_counted_by_configured_names_alone() {
    let app = start("objectives: [{name: batch, priority: -1}]\n").await;
    for name in ["x-gateway-inference-objective", "x-llm-d-inference-objective"] {
        for value in ["batch", "a client's own"] {
            let asked = Asked { headers: vec![(name, value)], ..Asked::default() };
            assert!(asked.picked(&app).await.is_ok(), "nobody is saturated");
        }
    }
    let metrics = metrics(&app).await;
    for objective in ["batch", "other"] {
        let line = format!("kvpick_objective_decisions_total{{objective=\"{objective}\",tier=\"load\"}} 2");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_body_is_not_shown_headers_decide() {
    let app = start("").await;
    for mode in [BodySendMode::None, BodySendMode::Streamed] {
        let mut exchange = Exchange::open(&app).await;
        exchange.say.send(Asked { mode, ..Asked::default() }.headers()).await.unwrap();
        let answer = exchange.next().await.unwrap();
        assert!(header(common(&answer).unwrap(), "x-gateway-destination-endpoint").contains("127.0.0."));
        for end in [false, true] {
            exchange.body(b"x", end).await;
            assert!(matches!(exchange.next().await.unwrap().response, Some(Response::RequestBody(_))));
        }
    }
    assert!(metrics(&app).await.contains("{reason=\"body_not_sent\",tier=\"load\"} 2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_fails_clearly() {
    let app = start("").await;
    let mut exchange = Exchange::open(&app).await;
    exchange.body(b"x", true).await;
    let error = exchange.next().await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("request_header_mode"), "{error}");

    let mut exchange = Exchange::open(&app).await;
    let headers = Asked::default().headers();
    exchange.say.send(headers.clone()).await.unwrap();
    exchange.next().await.unwrap();
    exchange.say.send(headers).await.unwrap();
    assert_eq!(exchange.next().await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_end_a_body_in_every_mode() {
    let app = start("").await;
    for mode in [BodySendMode::Buffered, BodySendMode::FullDuplexStreamed] {
        let asked = Asked { mode, ..Asked::default() };
        let mut exchange = Exchange::open(&app).await;
        exchange.say.send(asked.headers()).await.unwrap();
        exchange.body(&asked.body, false).await;
        exchange.send(Request::RequestTrailers(HttpTrailers::default())).await;
        let mut answers = vec![exchange.next().await.unwrap()];
        if mode == BodySendMode::Buffered {
            answers.push(exchange.next().await.unwrap());
            let trailers = exchange.next().await.unwrap().response;
            assert!(matches!(trailers, Some(Response::RequestTrailers(_))));
        }
        assert_eq!(sent_on(&answers, &asked.body), asked.body, "{mode:?}");
        assert!(answers.iter().any(|it| it.dynamic_metadata.is_some()), "{mode:?}");
    }
}
