//! Envoy's messages to plain values and back; nothing else knows the generated types.

use std::collections::HashMap;

use bytes::Bytes;
use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            HeaderMap, HeaderValue, HeaderValueOption, Metadata, header_value_option::HeaderAppendAction,
        },
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpHeaders,
            ImmediateResponse, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
            StreamedBodyResponse, TrailersResponse, body_mutation, common_response::ResponseStatus,
            processing_request::Request, processing_response::Response,
        },
        r#type::v3::HttpStatus,
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use kvpick_core::{
    outcome::Refusal,
    reply::{
        Changed, DESTINATION, DROPPED_REASON, Destination, ECHO, EVIDENCE, METADATA_NAMESPACE, RANK, REMOVED,
        Reply, Shown, TEST_SERVED, Way,
    },
    session::{BodyMode, Head, Input, Named, Served},
};

/// Key of the filter's attributes in a message.
const ATTRIBUTES: &str = "envoy.filters.http.ext_proc";

/// Where a gateway says which replicas may be picked, among the metadata that Envoy forwards (`forwarding_namespaces`).
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET_KEY: &str = "x-gateway-destination-endpoint-subset";

/// Under which a load balancer says whom it has chosen (`override_host`'s `selected_host_key`), among its metadata.
const SERVED_KEY: &str = "x-gateway-destination-endpoint-served";

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
            let attributes = attributes.get(ATTRIBUTES);
            Input::ResponseHeaders(served(attributes, metadata_context.as_ref(), &it))
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
            let header_mutation = Some(headers(way, stripped));
            let common = CommonResponse { header_mutation, ..CommonResponse::default() };
            Response::RequestHeaders(HeadersResponse { response: Some(common) })
        }
        Reply::RequestWhole { way, stripped, bytes } => {
            metadata = way.destination.as_ref().map(dynamic_metadata);
            let common = CommonResponse {
                status: ResponseStatus::ContinueAndReplace.into(),
                header_mutation: Some(headers(Some(way), stripped)),
                body_mutation: Some(whole(bytes)),
                ..CommonResponse::default()
            };
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
        Reply::ResponseHeaders(Shown { evidence, served }) => {
            let named = [(EVIDENCE, evidence), (TEST_SERVED, served)];
            let set_headers: Vec<_> =
                named.into_iter().filter_map(|(name, it)| Some(header_value(name, it?))).collect();
            let header_mutation = (!set_headers.is_empty())
                .then(|| HeaderMutation { set_headers, ..HeaderMutation::default() });
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

/// Who answered, and how: by Envoy's attributes, the load balancer's metadata and the answer's own headers.
fn served(attributes: Option<&Struct>, metadata: Option<&Metadata>, answer: &HttpHeaders) -> Served {
    let get = |name| attributes?.fields.get(name)?.kind.as_ref();
    let number = |name| match get(name) {
        // Envoy sends them as doubles; a negative one would be a bug of its own.
        Some(Kind::NumberValue(it)) if 0.0 <= *it => *it as u64,
        _ => 0,
    };
    let header = |name| header(answer.headers.as_ref(), name);
    let code = || u32::try_from(number("response.code")).unwrap_or_default();
    let named = metadata.map_or(Named::NoMetadata, named);
    let address = match (get("upstream.address"), &named) {
        (Some(Kind::StringValue(it)), _) | (_, Named::Endpoint(it)) => it.clone(),
        _ => String::new(),
    };
    let is_plain = header("content-encoding").is_none_or(|it| it.trim().eq_ignore_ascii_case("identity"));
    Served {
        address,
        named,
        attempts: number("upstream.request_attempt_count"),
        flags: number("response.flags"),
        status: header(":status").and_then(|it| it.parse().ok()).unwrap_or_else(code),
        content_type: header("content-type").filter(|_| is_plain).unwrap_or_default(),
        end: answer.end_of_stream,
    }
}

fn named(metadata: &Metadata) -> Named {
    let Some(balancer) = metadata.filter_metadata.get(METADATA_NAMESPACE) else { return Named::NoMetadata };
    match balancer.fields.get(SERVED_KEY).and_then(|it| it.kind.as_ref()) {
        Some(Kind::StringValue(it)) => Named::Endpoint(it.clone()),
        _ => Named::NoEndpoint,
    }
}

fn headers(way: Option<Way>, stripped: Vec<String>) -> HeaderMutation {
    let always = REMOVED.map(|(name, _)| name.to_owned());
    HeaderMutation {
        set_headers: way.map(set_headers).unwrap_or_default(),
        // Those that are set are among them: Envoy removes first.
        remove_headers: always.into_iter().chain(stripped).collect(),
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
    let body_mutation = changed.map(|it| whole(it.bytes));
    CommonResponse { header_mutation, body_mutation, ..CommonResponse::default() }
}

fn whole(bytes: Bytes) -> BodyMutation {
    BodyMutation { mutation: Some(body_mutation::Mutation::Body(bytes.into())) }
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
mod tests;
