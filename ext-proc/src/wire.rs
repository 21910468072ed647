//! Envoy's messages to plain values and back; nothing else knows the generated types.

use std::collections::HashMap;

use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            HeaderMap, HeaderValue, HeaderValueOption, Metadata, header_value_option::HeaderAppendAction,
        },
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
            ProcessingRequest, ProcessingResponse, ProtocolConfiguration, StreamedBodyResponse,
            TrailersResponse, body_mutation, processing_request::Request, processing_response::Response,
        },
        r#type::v3::HttpStatus,
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use kvpick_core::{
    outcome::Refusal,
    reply::{
        Changed, DESTINATION, DROPPED_REASON, Destination, ECHO, EVIDENCE, METADATA_NAMESPACE, RANK, REMOVED,
        Reply, TEST_SERVED, Way,
    },
    session::{BodyMode, Head, Input, Served},
};

/// Key of the filter's attributes in a message.
const ATTRIBUTES: &str = "envoy.filters.http.ext_proc";

/// Where a gateway says which replicas may be picked, among the metadata that Envoy forwards (`forwarding_namespaces`).
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET_KEY: &str = "x-gateway-destination-endpoint-subset";

/// What a message says; `None` for one that says nothing that is known here. `session_header` names a client's session.
#[must_use]
pub fn input(message: ProcessingRequest, session_header: Option<&str>) -> Option<Input> {
    let ProcessingRequest { attributes, protocol_config, request, metadata_context, .. } = message;
    Some(match request? {
        Request::RequestHeaders(it) => {
            let (request_body, response_body) = modes(protocol_config);
            let hint = metadata_context.as_ref().and_then(subset_hint);
            let headers = it.headers.iter().flat_map(|it| &it.headers).map(|it| (it.key.as_str(), value(it)));
            let head = Head::read(headers, session_header, hint.as_deref());
            Input::RequestHeaders { head, request_body, response_body, end: it.end_of_stream }
        }
        Request::RequestBody(it) => Input::RequestBody { bytes: it.body.into(), end: it.end_of_stream },
        Request::RequestTrailers(_) => Input::RequestTrailers,
        Request::ResponseHeaders(it) => {
            let mut served = attributes.get(ATTRIBUTES).map_or_else(Served::default, served);
            if let Some(status) = header(it.headers.as_ref(), ":status") {
                served.status = status.parse().unwrap_or_default();
            }
            Input::ResponseHeaders(served)
        }
        Request::ResponseBody(it) => Input::ResponseBody { bytes: it.body, end: it.end_of_stream },
        Request::ResponseTrailers(_) => Input::ResponseTrailers,
    })
}

/// What Envoy is sent.
#[must_use]
pub fn response(reply: Reply) -> ProcessingResponse {
    let mut metadata = None;
    let response = match reply {
        Reply::RequestHeaders { way, stripped } => {
            metadata = way.as_ref().and_then(|it| it.destination.as_ref()).map(dynamic_metadata);
            let always = REMOVED.map(|(name, _)| name.to_owned());
            let mutation = HeaderMutation {
                set_headers: way.map(set_headers).unwrap_or_default(),
                // Those that are set are among them: Envoy removes first.
                remove_headers: always.into_iter().chain(stripped).collect(),
            };
            let common = CommonResponse { header_mutation: Some(mutation), ..CommonResponse::default() };
            Response::RequestHeaders(HeadersResponse { response: Some(common) })
        }
        Reply::RequestBody { way, changed } => {
            metadata = way.as_ref().and_then(|it| it.destination.as_ref()).map(dynamic_metadata);
            Response::RequestBody(BodyResponse { response: Some(body(way, changed)) })
        }
        Reply::RequestBodyPiece { bytes, end } => Response::RequestBody(piece(bytes.into(), end)),
        Reply::RequestTrailers(destination) => {
            metadata = destination.as_ref().map(dynamic_metadata);
            Response::RequestTrailers(TrailersResponse::default())
        }
        Reply::Refuse(refusal) => Response::ImmediateResponse(immediate(refusal)),
        Reply::ResponseHeaders(evidence) => {
            let set =
                |it| HeaderMutation { set_headers: vec![header_value(EVIDENCE, it)], ..Default::default() };
            let header_mutation = evidence.map(set);
            let common = CommonResponse { header_mutation, ..CommonResponse::default() };
            Response::ResponseHeaders(HeadersResponse { response: Some(common) })
        }
        Reply::ResponseBody => Response::ResponseBody(BodyResponse::default()),
        Reply::ResponseBodyPiece { bytes, end } => Response::ResponseBody(piece(bytes, end)),
        Reply::ResponseTrailers => Response::ResponseTrailers(TrailersResponse::default()),
    };
    ProcessingResponse {
        dynamic_metadata: metadata,
        response: Some(response),
        ..ProcessingResponse::default()
    }
}

/// Envoy tells the modes in the first message since 1.34; an older one is taken to be set up as our own
/// configurations are.
fn modes(config: Option<ProtocolConfiguration>) -> (BodyMode, BodyMode) {
    let Some(config) = config else { return (BodyMode::Buffered, BodyMode::None) };
    let mode = |it| match it {
        BodySendMode::None => BodyMode::None,
        BodySendMode::Streamed => BodyMode::Streamed,
        BodySendMode::Buffered => BodyMode::Buffered,
        BodySendMode::BufferedPartial => BodyMode::BufferedPartial,
        // gRPC bodies are sent back piece by piece as well.
        BodySendMode::FullDuplexStreamed | BodySendMode::Grpc => BodyMode::FullDuplexStreamed,
    };
    (mode(config.request_body_mode()), mode(config.response_body_mode()))
}

fn header(headers: Option<&HeaderMap>, name: &str) -> Option<String> {
    let header = headers?.headers.iter().find(|it| it.key == name)?;
    Some(String::from_utf8_lossy(value(header)).into_owned())
}

/// Envoy fills one of the two, by a runtime switch.
const fn value(header: &HeaderValue) -> &[u8] {
    if header.raw_value.is_empty() { header.value.as_bytes() } else { header.raw_value.as_slice() }
}

/// The gateway's list of replicas: a list of texts, or one text. `None` where there is no such metadata.
fn subset_hint(metadata: &Metadata) -> Option<Vec<String>> {
    let hint = metadata.filter_metadata.get(SUBSET_NAMESPACE)?.fields.get(SUBSET_KEY)?;
    let text = |it: &Value| if let Some(Kind::StringValue(it)) = &it.kind { Some(it.clone()) } else { None };
    Some(match &hint.kind {
        Some(Kind::ListValue(list)) => list.values.iter().filter_map(text).collect(),
        _ => text(hint).into_iter().collect(),
    })
}

fn served(attributes: &Struct) -> Served {
    let get = |name| attributes.fields.get(name).and_then(|it| it.kind.as_ref());
    let number = |name| match get(name) {
        // Envoy sends them as doubles; a negative one would be a bug of its own.
        Some(Kind::NumberValue(it)) if 0.0 <= *it => *it as u64,
        _ => 0,
    };
    Served {
        address: match get("upstream.address") {
            Some(Kind::StringValue(it)) => it.clone(),
            _ => String::new(),
        },
        attempts: number("upstream.request_attempt_count"),
        flags: number("response.flags"),
        status: u32::try_from(number("response.code")).unwrap_or_default(),
    }
}

fn set_headers(way: Way) -> Vec<HeaderValueOption> {
    let Way { destination, rank, echo } = way;
    let served = destination.as_ref().filter(|_| echo).map(|it| format!("{TEST_SERVED}:{}", it.first()));
    let destination = destination.map(|it| header_value(DESTINATION, it.as_str().to_owned()));
    let rank = rank.map(|it| header_value(RANK, it.to_string()));
    destination.into_iter().chain(rank).chain(served.map(|it| header_value(ECHO, it))).collect()
}

fn body(way: Option<Way>, changed: Option<Changed>) -> CommonResponse {
    let mut set_headers = way.map(set_headers).unwrap_or_default();
    // Envoy compares it with the body that it has now.
    if let Some(changed) = changed.as_ref().filter(|it| it.has_length) {
        set_headers.push(header_value("content-length", changed.bytes.len().to_string()));
    }
    let header_mutation =
        (!set_headers.is_empty()).then(|| HeaderMutation { set_headers, ..HeaderMutation::default() });
    let body_mutation =
        changed.map(|it| BodyMutation { mutation: Some(body_mutation::Mutation::Body(it.bytes.into())) });
    CommonResponse { header_mutation, body_mutation, ..CommonResponse::default() }
}

fn immediate(refusal: Refusal) -> ImmediateResponse {
    let mut set_headers = vec![
        header_value(DROPPED_REASON, refusal.dropped_reason().to_owned()),
        header_value("content-type", "application/json".to_owned()),
    ];
    if let Some(seconds) = refusal.retry_after_s() {
        set_headers.push(header_value("retry-after", seconds.to_string()));
    }
    let (message, code) = (refusal.message(), refusal.status());
    let error =
        serde_json::json!({"error": {"message": message, "type": refusal.dropped_reason(), "code": code}});
    ImmediateResponse {
        // Envoy's names for statuses are their numbers.
        status: Some(HttpStatus { code: code.into() }),
        headers: Some(HeaderMutation { set_headers, ..HeaderMutation::default() }),
        body: error.to_string().into_bytes(),
        details: format!("kvpick_{}", refusal.reason().label()),
        ..ImmediateResponse::default()
    }
}

fn header_value(name: &str, value: String) -> HeaderValueOption {
    let header =
        HeaderValue { key: name.to_owned(), raw_value: value.into_bytes(), ..HeaderValue::default() };
    HeaderValueOption {
        header: Some(header),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

fn dynamic_metadata(destination: &Destination) -> Struct {
    let string = Value { kind: Some(Kind::StringValue(destination.as_str().to_owned())) };
    let inner = Struct { fields: HashMap::from([(DESTINATION.to_owned(), string)]) };
    let namespace = Value { kind: Some(Kind::StructValue(inner)) };
    Struct { fields: HashMap::from([(METADATA_NAMESPACE.to_owned(), namespace)]) }
}

fn piece(bytes: Vec<u8>, end: bool) -> BodyResponse {
    let streamed =
        StreamedBodyResponse { body: bytes, end_of_stream: end, ..StreamedBodyResponse::default() };
    let body_mutation =
        Some(BodyMutation { mutation: Some(body_mutation::Mutation::StreamedResponse(streamed)) });
    BodyResponse { response: Some(CommonResponse { body_mutation, ..CommonResponse::default() }) }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::ext_proc::v3::HttpHeaders;
    use kvpick_core::among::Among;

    use super::*;

    #[test]
    fn header_and_metadata_are_equal() {
        let name = kvpick_proto::words::ReplicaName { address: ([10, 0, 0, 1], 8000).into(), rank: 0 };
        let way = Way { destination: Destination::new(&[name], 2), rank: None, echo: false };
        let response = response(Reply::RequestBody { way: Some(way), changed: None });
        let Some(Response::RequestBody(body)) = response.response else { panic!() };
        let set = &body.response.unwrap().header_mutation.unwrap().set_headers[0];
        assert_eq!(set.append_action(), HeaderAppendAction::OverwriteIfExistsOrAdd);
        let header = set.header.clone().unwrap();
        assert_eq!((header.key.as_str(), header.raw_value.as_slice()), (DESTINATION, &b"10.0.0.1:8000"[..]));
        let metadata = response.dynamic_metadata.unwrap();
        let Some(Kind::StructValue(inner)) = metadata.fields[METADATA_NAMESPACE].kind.clone() else {
            panic!()
        };
        assert_eq!(inner.fields[DESTINATION].kind, Some(Kind::StringValue("10.0.0.1:8000".to_owned())));
    }

    fn mutation(reply: Reply) -> HeaderMutation {
        let common = match response(reply).response {
            Some(Response::RequestHeaders(it)) => it.response,
            Some(Response::RequestBody(it)) => it.response,
            other => panic!("{other:?}"),
        };
        common.unwrap().header_mutation.unwrap()
    }

    fn set(mutation: &HeaderMutation) -> Vec<(&str, String)> {
        let headers = mutation.set_headers.iter().map(|it| it.header.as_ref().unwrap());
        headers.map(|it| (it.key.as_str(), String::from_utf8(it.raw_value.clone()).unwrap())).collect()
    }

    #[test]
    fn a_rank_is_named_once_or_not_at_all() {
        for rank in [None, Some(0), Some(3)] {
            let way = Some(Way { destination: None, rank, echo: true });
            let mutation = mutation(Reply::RequestHeaders { way, stripped: Vec::new() });
            assert!(mutation.remove_headers.iter().any(|it| it == RANK), "what the client said");
            let want: Vec<_> = rank.into_iter().map(|it| (RANK, it.to_string())).collect();
            assert_eq!(set(&mutation), want);
        }
    }

    #[test]
    fn what_a_client_may_not_say_is_removed_with_the_first_reply() {
        let stripped = vec!["x-kvpick-more".to_owned()];
        let mutation = mutation(Reply::RequestHeaders { way: None, stripped });
        let mut want: Vec<_> = REMOVED.iter().map(|it| it.0).collect();
        want.push("x-kvpick-more");
        assert_eq!(mutation.remove_headers, want);
        assert!(mutation.set_headers.is_empty(), "the body decides");
    }

    #[test]
    fn a_changed_body_has_its_length_where_one_is_told() {
        for has_length in [true, false] {
            let changed = Some(Changed { bytes: "{}".into(), has_length });
            let way = Some(Way { destination: None, rank: Some(1), echo: false });
            let reply = Reply::RequestBody { way, changed };
            let want = [(RANK, "1".to_owned()), ("content-length", "2".to_owned())];
            assert_eq!(set(&mutation(reply.clone())), want[..1 + usize::from(has_length)]);
            let Some(Response::RequestBody(it)) = response(reply).response else { panic!() };
            let Some(body_mutation::Mutation::Body(body)) =
                it.response.unwrap().body_mutation.unwrap().mutation
            else {
                panic!()
            };
            assert_eq!(body, b"{}");
        }
        let reply = Reply::RequestBody { way: None, changed: None };
        let Some(Response::RequestBody(it)) = response(reply).response else { panic!() };
        assert_eq!(it.response, Some(CommonResponse::default()));
    }

    #[test]
    fn a_conformance_test_is_told_the_first_destination() {
        let name = |port| kvpick_proto::words::ReplicaName { address: ([10, 0, 0, 1], port).into(), rank: 0 };
        let way = Way { destination: Destination::new(&[name(1), name(2)], 2), rank: None, echo: true };
        let mutation = mutation(Reply::RequestHeaders { way: Some(way), stripped: Vec::new() });
        assert_eq!(
            set(&mutation),
            [
                (DESTINATION, "10.0.0.1:1,10.0.0.1:2".to_owned()),
                (ECHO, "x-conformance-test-served-endpoint:10.0.0.1:1".to_owned()),
            ]
        );
    }

    #[test]
    fn a_refusal_is_an_answer() {
        for (refusal, status, reason) in [
            (Refusal::NoEndpoint, 503, "rejected-no-endpoints"),
            (Refusal::Saturated, 429, "rejected-saturated"),
        ] {
            let Some(Response::ImmediateResponse(it)) = response(Reply::Refuse(refusal)).response else {
                panic!()
            };
            assert_eq!(it.status.unwrap().code, status);
            let headers = it.headers.unwrap();
            assert_eq!(set(&headers)[0], (DROPPED_REASON, reason.to_owned()));
            let body: serde_json::Value = serde_json::from_slice(&it.body).unwrap();
            assert_eq!(body["error"]["code"], status);
            assert_eq!(set(&headers).iter().any(|it| it.0 == "retry-after"), status == 429);
        }
    }

    #[test]
    fn a_subset_hint_is_a_list_or_a_text() {
        use envoy_types::pb::google::protobuf::ListValue;
        let text = |it: &str| Value { kind: Some(Kind::StringValue(it.to_owned())) };
        let hint = |kind| {
            let fields = HashMap::from([(SUBSET_KEY.to_owned(), Value { kind: Some(kind) })]);
            let filter_metadata = HashMap::from([(SUBSET_NAMESPACE.to_owned(), Struct { fields })]);
            let metadata = Metadata { filter_metadata, ..Metadata::default() };
            let request = Some(Request::RequestHeaders(HttpHeaders::default()));
            let metadata_context = Some(metadata);
            let message = ProcessingRequest { request, metadata_context, ..ProcessingRequest::default() };
            let Some(Input::RequestHeaders { head, .. }) = input(message, None) else { panic!() };
            head.subset
        };
        let want = Among::hinted(["10.0.0.1:1", "10.0.0.1:2"]);
        let values =
            vec![text("10.0.0.1:1"), Value { kind: Some(Kind::BoolValue(true)) }, text("10.0.0.1:2")];
        assert_eq!(hint(Kind::ListValue(ListValue { values })), want);
        assert_eq!(hint(Kind::StringValue("10.0.0.1:1, 10.0.0.1:2".to_owned())), want);
        assert_eq!(hint(Kind::ListValue(ListValue::default())), Among::hinted([]));
        assert_eq!(hint(Kind::NumberValue(1.0)), Among::hinted([]), "there, and names none");
        let request = Some(Request::RequestHeaders(HttpHeaders::default()));
        let message = ProcessingRequest { request, ..ProcessingRequest::default() };
        let Some(Input::RequestHeaders { head, .. }) = input(message, None) else { panic!() };
        assert_eq!(head.subset, Among::All);
    }

    #[test]
    fn who_answered_is_read_from_the_attributes() {
        let fields = [
            ("upstream.address", Kind::StringValue("10.0.0.2:8000".to_owned())),
            ("upstream.request_attempt_count", Kind::NumberValue(2.0)),
            ("response.flags", Kind::NumberValue(32.0)),
            ("response.code", Kind::NumberValue(200.0)),
        ];
        let fields = fields.map(|(name, kind)| (name.to_owned(), Value { kind: Some(kind) }));
        let got = served(&Struct { fields: HashMap::from(fields) });
        let want = Served { address: "10.0.0.2:8000".to_owned(), attempts: 2, flags: 32, status: 200 };
        assert_eq!(got, want);
    }

    #[test]
    fn an_empty_message_is_no_input() {
        assert_eq!(input(ProcessingRequest::default(), None), None);
    }
}
