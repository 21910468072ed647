//! Envoy's messages to plain values and back; nothing else knows the generated types.

use std::collections::HashMap;

use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            HeaderMap, HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction,
        },
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ProcessingRequest,
            ProcessingResponse, ProtocolConfiguration, StreamedBodyResponse, TrailersResponse, body_mutation,
            processing_request::Request, processing_response::Response,
        },
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use kvpick_core::{
    reply::{DESTINATION, Destination, EVIDENCE, METADATA_NAMESPACE, RANK, Reply, Way},
    session::{BodyMode, Input, Served},
};

/// Key of the filter's attributes in a message.
const ATTRIBUTES: &str = "envoy.filters.http.ext_proc";

/// What a message says; `None` for one that says nothing that is known here. `session_header` names a client's session.
#[must_use]
pub fn input(message: ProcessingRequest, session_header: Option<&str>) -> Option<Input> {
    let ProcessingRequest { attributes, protocol_config, request, .. } = message;
    Some(match request? {
        Request::RequestHeaders(it) => {
            let (request_body, response_body) = modes(protocol_config);
            Input::RequestHeaders {
                path: header(it.headers.as_ref(), ":path").unwrap_or_default(),
                session: session_header
                    .and_then(|name| header(it.headers.as_ref(), name))
                    .filter(|it| !it.is_empty()),
                request_body,
                response_body,
                end: it.end_of_stream,
            }
        }
        Request::RequestBody(it) => Input::RequestBody { bytes: it.body, end: it.end_of_stream },
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
        Reply::RequestHeaders(way) => {
            metadata = way.as_ref().and_then(|it| it.destination.as_ref()).map(dynamic_metadata);
            Response::RequestHeaders(HeadersResponse { response: Some(common(way)) })
        }
        Reply::RequestBody(way) => {
            metadata = way.as_ref().and_then(|it| it.destination.as_ref()).map(dynamic_metadata);
            Response::RequestBody(BodyResponse { response: Some(common(way)) })
        }
        Reply::RequestBodyPiece { bytes, end } => Response::RequestBody(piece(bytes, end)),
        Reply::RequestTrailers => Response::RequestTrailers(TrailersResponse::default()),
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
    // Envoy fills one of the two, by a runtime switch.
    if header.raw_value.is_empty() {
        Some(header.value.clone())
    } else {
        Some(String::from_utf8_lossy(&header.raw_value).into_owned())
    }
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

fn common(way: Option<Way>) -> CommonResponse {
    let header_mutation = way.map(|Way { destination, rank }| {
        let destination = destination.map(|it| header_value(DESTINATION, it.as_str().to_owned()));
        let rank = rank.map(|it| header_value(RANK, it.to_string()));
        HeaderMutation {
            set_headers: destination.into_iter().chain(rank).collect(),
            // Removed even where it is set: Envoy removes first, and of several values overwrites the first alone.
            remove_headers: vec![RANK.to_owned()],
        }
    });
    CommonResponse { header_mutation, ..CommonResponse::default() }
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
    use super::*;

    #[test]
    fn header_and_metadata_are_equal() {
        let name = kvpick_proto::words::ReplicaName { address: ([10, 0, 0, 1], 8000).into(), rank: 0 };
        let way = Way { destination: Destination::new(&[name], 2), rank: None };
        let response = response(Reply::RequestBody(Some(way)));
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

    #[test]
    fn a_rank_is_named_once_or_not_at_all() {
        for rank in [None, Some(0), Some(3)] {
            let Some(Response::RequestHeaders(it)) =
                response(Reply::RequestHeaders(Some(Way { destination: None, rank }))).response
            else {
                panic!()
            };
            let mutation = it.response.unwrap().header_mutation.unwrap();
            assert_eq!(mutation.remove_headers, [RANK], "what the client said");
            let set: Vec<_> = mutation.set_headers.into_iter().map(|it| it.header.unwrap()).collect();
            let set: Vec<_> = set.iter().map(|it| (it.key.as_str(), it.raw_value.clone())).collect();
            let want: Vec<_> = rank.into_iter().map(|it| (RANK, it.to_string().into_bytes())).collect();
            assert_eq!(set, want);
        }
        let undecided = response(Reply::RequestHeaders(None)).response;
        let Some(Response::RequestHeaders(it)) = undecided else { panic!() };
        assert_eq!(it.response.unwrap().header_mutation, None, "the body decides");
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
