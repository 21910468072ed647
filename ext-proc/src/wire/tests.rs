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
    let Some(Kind::StructValue(inner)) = metadata.fields[METADATA_NAMESPACE].kind.clone() else { panic!() };
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
        let Some(body_mutation::Mutation::Body(body)) = it.response.unwrap().body_mutation.unwrap().mutation
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
    for (refusal, status, reason) in
        [(Refusal::NoEndpoint, 503, "rejected-no-endpoints"), (Refusal::Saturated, 429, "rejected-saturated")]
    {
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
    let values = vec![text("10.0.0.1:1"), Value { kind: Some(Kind::BoolValue(true)) }, text("10.0.0.1:2")];
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
    let want = Served {
        address: "10.0.0.2:8000".to_owned(),
        attempts: 2,
        flags: 32,
        status: 200,
        ..Served::default()
    };
    let fields = HashMap::from(fields);
    assert_eq!(served(Some(&Struct { fields }), None, &HttpHeaders::default()), want);
}

#[test]
fn who_answered_is_read_from_the_load_balancers_metadata() {
    let with = |namespace: &str, key: &str, kind| {
        let fields = HashMap::from([(key.to_owned(), Value { kind: Some(kind) })]);
        let filter_metadata = HashMap::from([(namespace.to_owned(), Struct { fields })]);
        let metadata = Metadata { filter_metadata, ..Metadata::default() };
        let Served { address, named, .. } = served(None, Some(&metadata), &HttpHeaders::default());
        (address, named)
    };
    let text = |it: &str| Kind::StringValue(it.to_owned());
    let there = Named::Endpoint("10.0.0.2:8000".to_owned());
    assert_eq!(with("envoy.lb", SERVED_KEY, text("10.0.0.2:8000")), ("10.0.0.2:8000".to_owned(), there));
    for (namespace, key, kind, named) in [
        ("envoy.lb", "x-gateway-destination-endpoint", text("10.0.0.2:8000"), Named::NoEndpoint),
        ("envoy.lb", SERVED_KEY, Kind::NumberValue(1.0), Named::NoEndpoint),
        ("other", SERVED_KEY, text("10.0.0.2:8000"), Named::NoMetadata),
    ] {
        assert_eq!(with(namespace, key, kind), (String::new(), named));
    }
    assert_eq!(served(None, None, &HttpHeaders::default()), Served::default());
}

#[test]
fn an_answers_own_headers_are_read() {
    let of = |headers: &[(&str, &str)], end_of_stream| {
        let headers = headers.iter().map(|(name, value)| HeaderValue {
            key: (*name).to_owned(),
            raw_value: value.as_bytes().to_vec(),
            ..HeaderValue::default()
        });
        let headers = Some(HeaderMap { headers: headers.collect() });
        served(None, None, &HttpHeaders { headers, end_of_stream, ..HttpHeaders::default() })
    };
    let json = [(":status", "201"), ("content-type", "application/json"), ("content-encoding", "identity")];
    let Served { status, content_type, end, .. } = of(&json, true);
    assert_eq!((status, content_type.as_str(), end), (201, "application/json", true));
    let packed = of(&[("content-type", "application/json"), ("content-encoding", "gzip")], false);
    assert_eq!((packed.content_type.as_str(), packed.end), ("", false), "its bytes say nothing here");
}

#[test]
fn what_an_answer_shows_is_set_on_its_headers() {
    let headers = |shown| {
        let Some(Response::ResponseHeaders(it)) = response(Reply::ResponseHeaders(shown)).response else {
            panic!()
        };
        it.response.unwrap().header_mutation.unwrap_or_default()
    };
    assert_eq!(headers(Shown::default()), HeaderMutation::default());
    let shown = Shown { evidence: Some("tier=load".to_owned()), served: Some("10.0.0.1:1".to_owned()) };
    let want = [(EVIDENCE, "tier=load".to_owned()), (TEST_SERVED, "10.0.0.1:1".to_owned())];
    assert_eq!(set(&headers(shown)), want);
}

#[test]
fn an_empty_message_is_no_input() {
    assert_eq!(input(ProcessingRequest::default(), None), None);
}

#[test]
fn headers_and_body_go_as_one_before_trailers() {
    let way = Way { destination: None, rank: Some(1), echo: false };
    let reply = Reply::RequestWhole { way, stripped: Vec::new(), bytes: "{}".into() };
    let Some(Response::RequestHeaders(it)) = response(reply).response else { panic!() };
    let common = it.response.unwrap();
    assert_eq!(common.status(), ResponseStatus::ContinueAndReplace);
    assert_eq!(set(common.header_mutation.as_ref().unwrap()), [(RANK, "1".to_owned())]);
    assert_eq!(common.body_mutation, Some(whole("{}".into())));
}
