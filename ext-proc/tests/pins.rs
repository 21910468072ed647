//! Requests that name a response, over real gRPC, spoken to as Envoy does.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{collections::HashMap, time::Duration};

use envoy_types::pb::{
    envoy::{
        config::core::v3::{HeaderMap, HeaderValue},
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
            external_processor_client::ExternalProcessorClient, processing_request::Request,
            processing_response::Response,
        },
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use kvpick::{app::App, config::Config};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Longest wait for anything; on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);

const REPLICAS: [&str; 3] = ["127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002"];

async fn start(more: &str) -> App {
    let replicas: String =
        REPLICAS.iter().map(|it| format!("  - {{address: '{it}', models: [m]}}\n")).collect();
    let yaml =
        format!("listen: 127.0.0.1:0\nfeed: 127.0.0.1:0\nadmin: 127.0.0.1:0\nreplicas:\n{replicas}{more}");
    let config: Config = kvpick_service::config::parse(&yaml).unwrap();
    assert_eq!(config.mistakes(), Vec::<String>::new());
    App::start(config, None).await.unwrap()
}

struct Exchange {
    say: mpsc::Sender<ProcessingRequest>,
    heard: Streaming<ProcessingResponse>,
}

impl Exchange {
    /// Sends a request, with no body where it is empty, and answers with its destination.
    async fn open(app: &App, path: &str, body: &str, session: &str) -> (Self, String) {
        let url = format!("http://{}", app.addresses["ext_proc"]);
        let mut client = ExternalProcessorClient::connect(url).await.unwrap();
        let (say, requests) = mpsc::channel(16);
        let heard = client.process(ReceiverStream::new(requests)).await.unwrap().into_inner();
        let mut exchange = Self { say, heard };
        let config = ProtocolConfiguration {
            request_body_mode: BodySendMode::Buffered.into(),
            response_body_mode: BodySendMode::Streamed.into(),
            ..ProtocolConfiguration::default()
        };
        let headers = headers(&[(":path", path), ("x-session-id", session)], body.is_empty());
        exchange.send(Request::RequestHeaders(headers), Some(config), HashMap::new()).await;
        let mut answer = exchange.next().await;
        if !body.is_empty() {
            let body = HttpBody { body: body.into(), end_of_stream: true, ..HttpBody::default() };
            exchange.send(Request::RequestBody(body), None, HashMap::new()).await;
            answer = exchange.next().await;
        }
        let destination = destination(answer);
        (exchange, destination)
    }

    /// The answer of a replica, and what is seen of its body.
    async fn answered(mut self, by: &str, status: &str, body: &str) {
        let address = Value { kind: Some(Kind::StringValue(by.to_owned())) };
        let fields = HashMap::from([("upstream.address".to_owned(), address)]);
        let attributes = HashMap::from([("envoy.filters.http.ext_proc".to_owned(), Struct { fields })]);
        let begun = headers(&[(":status", status)], false);
        self.send(Request::ResponseHeaders(begun), None, attributes).await;
        self.next().await;
        if !body.is_empty() {
            let body = HttpBody { body: body.into(), ..HttpBody::default() };
            self.send(Request::ResponseBody(body), None, HashMap::new()).await;
            self.next().await;
        }
    }

    async fn send(
        &self,
        request: Request,
        protocol_config: Option<ProtocolConfiguration>,
        attributes: HashMap<String, Struct>,
    ) {
        let request = Some(request);
        let message = ProcessingRequest { request, protocol_config, attributes, ..Default::default() };
        self.say.send(message).await.unwrap();
    }

    async fn next(&mut self) -> ProcessingResponse {
        let next = tokio::time::timeout(PATIENCE, self.heard.message()).await;
        next.expect("no answer in time").unwrap().expect("the stream ended")
    }
}

fn headers(pairs: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    let headers = HeaderMap { headers: pairs.iter().map(header).collect() };
    HttpHeaders { headers: Some(headers), end_of_stream, ..HttpHeaders::default() }
}

fn destination(response: ProcessingResponse) -> String {
    let common = match response.response.unwrap() {
        Response::RequestBody(it) => it.response.unwrap(),
        Response::RequestHeaders(it) => it.response.unwrap(),
        other => panic!("{other:?}"),
    };
    let set = &common.header_mutation.unwrap().set_headers[0];
    String::from_utf8(set.header.as_ref().unwrap().raw_value.clone()).unwrap()
}

async fn decisions(app: &App, tier: &str, reason: &str) -> u64 {
    let url = format!("http://{}/metrics", app.addresses["admin"]);
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    let name = format!("kvpick_decisions_total{{reason=\"{reason}\",tier=\"{tier}\"}} ");
    text.lines().find_map(|it| it.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
}

const RESPONSES: &str = "/v1/responses";

fn naming(id: &str) -> String {
    format!(r#"{{"model": "m", "input": "x", "previous_response_id": "{id}"}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_names_a_response_goes_where_it_was_made() {
    let app = start("").await;
    let asks = r#"{"model": "m", "input": "x"}"#;
    // Each is answered by another replica than was picked, as after a retry.
    for (n, by) in REPLICAS.iter().enumerate() {
        let body = format!(r#"{{"model": "m", "input": "x", "request_id": "own-{n}"}}"#);
        let (exchange, _) = Exchange::open(&app, RESPONSES, &body, &format!("session-{n}")).await;
        exchange.answered(by, "200", "").await;
        let (exchange, _) = Exchange::open(&app, RESPONSES, asks, "").await;
        exchange.answered(by, "200", &format!(r#"{{"id":"json-{n}","object":"response"}}"#)).await;
        let (exchange, _) = Exchange::open(&app, RESPONSES, asks, "").await;
        let event = format!("event: response.created\ndata: {{\"response\":{{\"id\":\"sse-{n}\"}}}}\n\n");
        exchange.answered(by, "200", &event).await;
    }
    for (n, by) in REPLICAS.iter().enumerate() {
        for id in ["own", "json", "sse"] {
            let (_, to) = Exchange::open(&app, RESPONSES, &naming(&format!("{id}-{n}")), "").await;
            assert_eq!(to, *by, "{id}");
            for path in ["", "/cancel", "?stream=true"] {
                let (_, to) = Exchange::open(&app, &format!("{RESPONSES}/{id}-{n}{path}"), "", "").await;
                assert_eq!(to, *by, "{id} {path}");
            }
        }
        let (_, to) = Exchange::open(&app, RESPONSES, &naming("unseen"), &format!("session-{n}")).await;
        assert_eq!(to, *by, "by its session");
    }
    assert_eq!(decisions(&app, "pinned", "ok").await, 3 * 13);
    assert_eq!(decisions(&app, "load", "stateful_unpinned").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_goes_by_load_and_says_so() {
    let app = start("pins: {session_header: null}\n").await;
    let (exchange, _) = Exchange::open(&app, RESPONSES, r#"{"model": "m", "input": "x"}"#, "session").await;
    exchange.answered(REPLICAS[1], "404", r#"{"id":"refused"}"#).await;
    for (path, body) in [
        (RESPONSES, naming("refused")),
        (RESPONSES, naming("unseen")),
        ("/v1/responses/unseen", String::new()),
        ("/v1/responses/unseen/cancel", String::new()),
    ] {
        let (_, to) = Exchange::open(&app, path, &body, "session").await;
        assert!(to.contains(','), "with the next best, as any may answer that it has none: {to}");
    }
    assert_eq!(decisions(&app, "load", "stateful_unpinned").await, 4);
    assert_eq!(decisions(&app, "pinned", "ok").await, 0);
}

#[test]
fn the_fields_of_pins_and_reloads_are_checked() {
    let yaml = "
replicas: [{address: 127.0.0.1:1, models: [m]}]
reload_check_s: 1000000
pins: {max: 0, expiry_s: 0, session_header: X-Session}
";
    let config: Config = kvpick_service::config::parse(yaml).unwrap();
    let mistakes = config.mistakes().join("\n");
    for field in ["reload_check_s:", "pins.max:", "pins.expiry_s:", "pins.session_header:"] {
        assert!(mistakes.contains(field), "{field} is not in\n{mistakes}");
    }
}
