//! Every message of an exchange has its answer, in the order that Envoy wants in that mode.

use kvpick_core::{
    outcome::{Reason, Tier},
    reply::{CHUNK, Decision, Destination, Reply, Shown, Way},
    session::{Action, BodyMode, Head, Input, Question, Served, Session, Settings},
};
use kvpick_proto::words::ReplicaName;

const SETTINGS: Settings =
    Settings { most_body: 1 << 20, destinations: 2, evidence_header: false, conformance: false };

fn name(port: u16) -> ReplicaName {
    ReplicaName { address: ([127, 0, 0, 1], port).into(), rank: 0 }
}

fn decided() -> Input {
    Input::Decided(Decision {
        names: vec![name(1), name(2)],
        rank: Some(1),
        tier: Tier::Precise,
        reason: Reason::OK,
        prompt_tokens: 100,
        predicted_tokens: 96,
        block_size: 16,
        refusal: None,
        edits: Vec::new(),
    })
}

fn destination() -> Option<Way> {
    Some(Way { destination: Destination::new(&[name(1), name(2)], 2), rank: Some(1), echo: false })
}

fn headers_reply(way: Option<Way>) -> Reply {
    Reply::RequestHeaders { way, stripped: Vec::new() }
}

fn body_reply(way: Option<Way>) -> Reply {
    Reply::RequestBody { way, changed: None }
}

fn head(path: &str) -> Head {
    Head { path: path.to_owned(), ..Head::default() }
}

fn headers(request_body: BodyMode, end: bool) -> Input {
    let response_body = BodyMode::None;
    Input::RequestHeaders { head: head("/v1/completions"), request_body, response_body, end }
}

fn body(bytes: &[u8], end: bool) -> Input {
    Input::RequestBody { bytes: bytes.to_vec().into(), end }
}

fn replies(actions: Vec<Action>) -> Vec<Reply> {
    let reply = |it| if let Action::Reply(reply) = it { Some(reply) } else { None };
    actions.into_iter().filter_map(reply).collect()
}

#[track_caller]
fn question(actions: &[Action]) -> &Question {
    let [Action::Decide(question)] = actions else { panic!("{actions:?}") };
    question
}

#[test]
fn buffered() {
    let mut session = Session::new(SETTINGS);
    assert_eq!(replies(session.on(headers(BodyMode::Buffered, false))), [headers_reply(None)]);
    let actions = session.on(body(b"{}", true));
    let want = Question {
        head: head("/v1/completions"),
        body: b"{}".to_vec().into(),
        lack: None,
        envoy_has_a_clock: true,
    };
    assert_eq!(question(&actions), &want);
    assert!(!session.request_is_out());
    assert_eq!(replies(session.on(decided())), [body_reply(destination())]);
    assert!(session.request_is_out());
    let answer = session.on(Input::ResponseHeaders(Served::default()));
    assert_eq!(
        answer,
        [Action::Observe(Served::default()), Action::Reply(Reply::ResponseHeaders(Shown::default()))]
    );
    assert_eq!(replies(session.on(Input::ResponseTrailers)), [Reply::ResponseTrailers]);
}

#[test]
fn buffered_over_the_limit_and_cut() {
    for (bytes, end, reason) in
        [(vec![0; (1 << 20) + 1], true, Reason::BODY_TOO_LARGE), (vec![7; 10], false, Reason::BODY_CUT)]
    {
        let mut session = Session::new(SETTINGS);
        let _ = session.on(headers(BodyMode::BufferedPartial, false));
        let actions = session.on(body(&bytes, end));
        assert_eq!(question(&actions).lack, Some(reason));
        let most = bytes.len().min(1 << 20);
        assert_eq!(question(&actions).body.joined(), bytes[..most], "for the model's name");
        assert_eq!(replies(session.on(decided())), [body_reply(destination())]);
    }
}

#[test]
fn without_a_body() {
    for mode in [BodyMode::None, BodyMode::Streamed, BodyMode::Buffered, BodyMode::FullDuplexStreamed] {
        let mut session = Session::new(SETTINGS);
        let actions = session.on(headers(mode, true));
        assert_eq!(question(&actions).lack, Some(Reason::NO_BODY));
        assert_eq!(replies(session.on(decided())), [headers_reply(destination())]);
    }
}

#[test]
fn streamed_is_decided_on_headers_and_each_piece_is_answered() {
    let mut session = Session::new(SETTINGS);
    let actions = session.on(headers(BodyMode::Streamed, false));
    assert_eq!(question(&actions).lack, Some(Reason::BODY_NOT_SENT));
    assert_eq!(replies(session.on(decided())), [headers_reply(destination())]);
    for end in [false, false, true] {
        assert_eq!(replies(session.on(body(b"x", end))), [body_reply(None)]);
    }
}

/// How the end of a full-duplex body may come.
#[derive(Clone, Copy, Debug)]
enum End {
    Marked,
    EmptyPiece,
    Trailers,
}

#[test]
fn full_duplex_sends_every_byte_back_after_the_destination() {
    for size in [0, 1, CHUNK, CHUNK + 1, 300_000] {
        for end in [End::Marked, End::EmptyPiece, End::Trailers] {
            let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let mut session = Session::new(SETTINGS);
            assert_eq!(session.on(headers(BodyMode::FullDuplexStreamed, false)), []);
            let half = bytes.len() / 2;
            assert_eq!(session.on(body(&bytes[..half], false)), []);
            let mut actions = session.on(body(&bytes[half..], matches!(end, End::Marked)));
            match end {
                End::Marked => (),
                End::EmptyPiece => {
                    assert_eq!(actions, []);
                    actions = session.on(body(b"", true));
                }
                End::Trailers => {
                    assert_eq!(actions, []);
                    actions = session.on(Input::RequestTrailers);
                }
            }
            let asked = question(&actions);
            assert_eq!((asked.body.joined().to_vec(), asked.lack), (bytes.clone(), None));
            assert!(!asked.envoy_has_a_clock);

            let mut replies = replies(session.on(decided()));
            assert!(session.request_is_out());
            if matches!(end, End::Trailers) && 0 < size {
                let (way, stripped) = (destination().unwrap(), Vec::new());
                assert_eq!(replies, [Reply::RequestWhole { way, stripped, bytes: bytes.into() }]);
                continue;
            }
            assert_eq!(replies.remove(0), headers_reply(destination()));
            if matches!(end, End::Trailers) {
                assert_eq!(replies.pop(), Some(Reply::RequestTrailers(None)));
            }
            let n = replies.len();
            let mut echoed = Vec::new();
            for (i, reply) in replies.into_iter().enumerate() {
                let Reply::RequestBodyPiece { bytes, end: last } = reply else { panic!("{reply:?}") };
                assert!(bytes.len() <= CHUNK);
                assert_eq!(last, i + 1 == n && !matches!(end, End::Trailers), "{size} {end:?}");
                echoed.extend(bytes);
            }
            assert_eq!(echoed, bytes, "{size} {end:?}");
        }
    }
}

#[test]
fn full_duplex_over_the_limit_goes_by_load_and_loses_nothing() {
    let mut session = Session::new(Settings { most_body: 100, ..SETTINGS });
    let _ = session.on(headers(BodyMode::FullDuplexStreamed, false));
    assert_eq!(session.on(body(&[1; 80], false)), []);
    let actions = session.on(body(&[2; 80], false));
    assert_eq!(question(&actions).lack, Some(Reason::BODY_TOO_LARGE));
    assert_eq!(session.on(body(&[3; 10], false)), [], "kept while the shell thinks");
    let mut all = replies(session.on(decided()));
    assert!(!session.request_is_out());
    all.extend(replies(session.on(body(&[4; 5], false))));
    all.extend(replies(session.on(body(&[], true))));
    assert!(session.request_is_out());
    let mut echoed = Vec::new();
    for (i, reply) in all.iter().enumerate().skip(1) {
        let Reply::RequestBodyPiece { bytes, end } = reply else { panic!("{reply:?}") };
        assert_eq!(*end, i + 1 == all.len());
        echoed.extend_from_slice(bytes);
    }
    assert_eq!(echoed, [vec![1; 80], vec![2; 80], vec![3; 10], vec![4; 5]].concat());
}

#[test]
fn a_full_duplex_answer_is_echoed_at_once() {
    let mut session = Session::new(SETTINGS);
    let (request_body, response_body) = (BodyMode::FullDuplexStreamed, BodyMode::FullDuplexStreamed);
    let _ = session.on(Input::RequestHeaders { head: head("/"), request_body, response_body, end: true });
    let _ = session.on(decided());
    for (bytes, end) in [(b"data: 1".to_vec(), false), (Vec::new(), true)] {
        let got = replies(session.on(Input::ResponseBody { bytes: bytes.clone(), end }));
        assert_eq!(got, [Reply::ResponseBodyPiece { bytes, end }]);
    }
}

#[test]
fn a_buffered_body_before_trailers_is_whole() {
    let mut session = Session::new(SETTINGS);
    let _ = session.on(headers(BodyMode::Buffered, false));
    let actions = session.on(body(b"{}", false));
    assert_eq!((&question(&actions).body.joined()[..], question(&actions).lack), (&b"{}"[..], None));
    assert_eq!(replies(session.on(decided())), [body_reply(destination())]);
    assert_eq!(replies(session.on(Input::RequestTrailers)), [Reply::RequestTrailers(None)]);
}

#[test]
fn a_last_piece_that_comes_twice_is_sent_back_once() {
    for again_before_the_decision in [true, false] {
        let mut session = Session::new(SETTINGS);
        let _ = session.on(headers(BodyMode::FullDuplexStreamed, false));
        let _ = session.on(body(b"{}", true));
        if again_before_the_decision {
            assert_eq!(session.on(body(b"{}", true)), []);
        }
        let sent = replies(session.on(decided()));
        assert_eq!(sent[1..], [Reply::RequestBodyPiece { bytes: "{}".into(), end: true }]);
        assert_eq!(session.on(body(b"{}", true)), []);
    }
}

#[test]
fn evidence_is_shown_where_switched_on() {
    let mut session = Session::new(Settings { evidence_header: true, ..SETTINGS });
    let _ = session.on(headers(BodyMode::Buffered, false));
    let _ = session.on(body(b"{}", true));
    let _ = session.on(decided());
    let [Reply::ResponseHeaders(Shown { evidence: Some(evidence), .. })] =
        &replies(session.on(Input::ResponseHeaders(Served::default())))[..]
    else {
        panic!()
    };
    assert_eq!(
        evidence,
        "tier=precise; reason=ok; replica=127.0.0.1:1; prompt_tokens=100; predicted_tokens=96; block_size=16"
    );
}

#[test]
fn an_answer_that_comes_early_is_answered_too() {
    let mut session = Session::new(SETTINGS);
    let _ = session.on(headers(BodyMode::Buffered, false));
    assert_eq!(
        replies(session.on(Input::ResponseHeaders(Served::default()))),
        [Reply::ResponseHeaders(Shown::default())]
    );
    assert_eq!(session.on(decided()), [], "nobody asked");
    assert_eq!(session.on(body(b"{}", true)).len(), 1);
    assert_eq!(replies(session.on(decided())).len(), 1);
}

/// What is learnt of a response's id from its body, which comes in pieces of that size.
fn named(path: &str, status: u32, mode: BodyMode, text: &str, size: usize) -> Vec<String> {
    let mut session = Session::new(SETTINGS);
    let (head, request_body) = (head(path), BodyMode::Buffered);
    let begun = Input::RequestHeaders { head, request_body, response_body: mode, end: false };
    let _ = session.on(begun);
    let _ = session.on(body(b"{}", true));
    let _ = session.on(decided());
    let _ = session.on(Input::ResponseHeaders(Served { status, ..Served::default() }));
    let mut found = Vec::new();
    for piece in text.as_bytes().chunks(size) {
        let actions = session.on(Input::ResponseBody { bytes: piece.to_vec(), end: false });
        let [first @ .., Action::Reply(_)] = &actions[..] else {
            panic!("a piece is held back: {actions:?}")
        };
        found.extend(first.iter().map(|it| if let Action::Named(id) = it { id.clone() } else { panic!() }));
    }
    found
}

#[test]
fn a_responses_id_is_read_from_its_body_in_every_mode_and_cut() {
    let whole = r#"{"id":"resp_1","created_at":1,"output":[{"id":"msg_1"}]}"#;
    let event = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"output\":[{\"id\":\"msg_1\"}]}}\n\n";
    for text in [whole, event] {
        for mode in [BodyMode::Streamed, BodyMode::Buffered, BodyMode::FullDuplexStreamed] {
            for size in [1, 7, 1_000] {
                assert_eq!(named("/v1/responses", 200, mode, text, size), ["resp_1"], "{mode:?} {size}");
            }
        }
    }
    let mode = BodyMode::Streamed;
    assert!(named("/v1/completions", 200, mode, whole, 10).is_empty());
    assert!(named("/v1/responses", 404, mode, whole, 10).is_empty());
    let late = format!("{}{whole}", " ".repeat(4_000));
    assert!(named("/v1/responses", 200, mode, &late, 100).is_empty(), "only so much is looked at");
}

#[test]
fn a_clients_session_reaches_the_question() {
    for request_body in [BodyMode::Buffered, BodyMode::FullDuplexStreamed] {
        let mut session = Session::new(SETTINGS);
        let (response_body, who) = (BodyMode::None, Some("s".to_owned()));
        let head = Head { session: who.clone(), ..head("/v1/responses") };
        let _ = session.on(Input::RequestHeaders { head, request_body, response_body, end: false });
        let actions = session.on(body(b"{}", true));
        assert_eq!(question(&actions).head.session, who);
    }
}
