//! Whatever Envoy sends, in whatever order: each message has its one answer, and no byte is lost or sent twice.

use kvpick_core::{
    outcome::{Reason, Refusal, Tier},
    reply::{CHUNK, Decision, Reply},
    session::{Action, BodyMode, Head, Input, Session, Settings},
};
use kvpick_proto::words::ReplicaName;
use proptest::prelude::*;

const SETTINGS: Settings =
    Settings { most_body: 3_000, destinations: 2, evidence_header: false, conformance: false };

#[derive(Clone, Copy, Debug)]
enum Sent {
    Headers {
        end: bool,
    },
    Body {
        size: usize,
        end: bool,
    },
    Trailers,
    ResponseHeaders,
    /// What the shell was asked for.
    Decided,
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        1 => any::<bool>().prop_map(|end| Sent::Headers { end }),
        8 => (prop_oneof![Just(0), 1..2_000_usize, Just(CHUNK + 1)], proptest::bool::weighted(0.2))
            .prop_map(|(size, end)| Sent::Body { size, end }),
        1 => Just(Sent::Trailers),
        1 => Just(Sent::ResponseHeaders),
        3 => Just(Sent::Decided),
    ]
}

fn decision(refusal: Option<Refusal>) -> Decision {
    let name = ReplicaName { address: ([127, 0, 0, 1], 1).into(), rank: 0 };
    Decision {
        names: refusal.is_none().then_some(name).into_iter().collect(),
        rank: None,
        tier: Tier::Load,
        reason: Reason::NO_TOKENIZER,
        prompt_tokens: 0,
        predicted_tokens: 0,
        block_size: 0,
        refusal,
        edits: Vec::new(),
    }
}

/// What a session was sent, and what it said.
struct Run {
    session: Session,
    asked: bool,
    refusal: Option<Refusal>,
    replies: Vec<Reply>,
    failed: bool,
}

impl Run {
    fn on(&mut self, input: Input) {
        for action in self.session.on(input) {
            match action {
                Action::Decide(_) => {
                    assert!(!std::mem::replace(&mut self.asked, true), "two decisions at a time");
                }
                Action::Reply(reply) => self.replies.push(reply),
                Action::Fail(_) => self.failed = true,
                Action::Observe(_) | Action::Named(_) | Action::FirstEvent => (),
            }
        }
    }

    fn decide(&mut self) {
        if std::mem::take(&mut self.asked) {
            self.on(Input::Decided(decision(self.refusal)));
        }
    }
}

/// What of a sequence is the request, as Envoy means it: a body ends where it is marked, or by trailers.
#[derive(Default)]
struct Meant {
    bytes: Vec<u8>,
    begun: bool,
    ended: bool,
    bodies: usize,
    trailers: usize,
    responses: usize,
    headers: usize,
}

fn run(mode: BodyMode, sequence: &[Sent], refusal: Option<Refusal>) -> (Run, Meant) {
    let mut run =
        Run { session: Session::new(SETTINGS), asked: false, refusal, replies: Vec::new(), failed: false };
    let mut meant = Meant::default();
    for (i, sent) in sequence.iter().enumerate() {
        match *sent {
            Sent::Headers { end } => {
                meant.headers += 1;
                meant.begun = true;
                meant.ended |= end;
                let head = Head { path: "/v1/completions".to_owned(), ..Head::default() };
                let response_body = BodyMode::None;
                run.on(Input::RequestHeaders { head, request_body: mode, response_body, end });
            }
            Sent::Body { size, end } => {
                let bytes = vec![i as u8; size];
                meant.bodies += 1;
                if !meant.ended {
                    meant.bytes.extend(&bytes);
                }
                meant.ended |= end;
                run.on(Input::RequestBody { bytes: bytes.into(), end });
            }
            Sent::Trailers => {
                meant.trailers += 1;
                meant.ended = true;
                run.on(Input::RequestTrailers);
            }
            Sent::ResponseHeaders => {
                meant.responses += 1;
                run.on(Input::ResponseHeaders(Default::default()));
            }
            Sent::Decided => run.decide(),
        }
        if run.failed {
            break;
        }
    }
    run.decide();
    (run, meant)
}

fn modes() -> impl Strategy<Value = BodyMode> {
    prop_oneof![
        Just(BodyMode::None),
        Just(BodyMode::Streamed),
        Just(BodyMode::Buffered),
        Just(BodyMode::BufferedPartial),
        Just(BodyMode::FullDuplexStreamed),
    ]
}

fn destinations(replies: &[Reply]) -> usize {
    let is_one = |it: &&Reply| match it {
        Reply::RequestHeaders { way, .. } | Reply::RequestBody { way, .. } => way.is_some(),
        Reply::RequestTrailers(destination) => destination.is_some(),
        Reply::RequestWhole { .. } => true,
        _ => false,
    };
    replies.iter().filter(is_one).count()
}

/// Where an answer of the request belongs.
fn place(reply: &Reply) -> Option<u8> {
    match reply {
        Reply::RequestHeaders { .. } | Reply::RequestWhole { .. } => Some(0),
        Reply::RequestBody { .. } | Reply::RequestBodyPiece { .. } => Some(1),
        Reply::RequestTrailers(_) => Some(2),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_order_of_messages_is_too_much(
        mode in modes(),
        first in any::<bool>(),
        rest in proptest::collection::vec(sent(), 0..14),
    ) {
        // Most exchanges begin as they should.
        let sequence: Vec<_> = first.then_some(Sent::Headers { end: false }).into_iter().chain(rest).collect();
        let (run, meant) = run(mode, &sequence, None);
        let requests = sequence.iter().filter(|it| !matches!(it, Sent::ResponseHeaders | Sent::Decided));
        let mut kinds = requests.clone().map(|it| matches!(it, Sent::Headers { .. }));
        // Headers, once, before all else; or nothing at all.
        let is_clear = kinds.next().unwrap_or(true) && !kinds.any(|it| it);
        prop_assert_eq!(run.failed, !is_clear, "{:?}", sequence);
        if run.failed {
            return Ok(());
        }
        let count = |of: fn(&Reply) -> bool| run.replies.iter().filter(|it| of(it)).count();
        prop_assert_eq!(count(|it| matches!(it, Reply::ResponseHeaders(_))), meant.responses);
        prop_assert!(destinations(&run.replies) <= 1);
        let headers = count(|it| matches!(it, Reply::RequestHeaders { .. }));
        let pieces: Vec<_> = run.replies.iter().filter_map(|it| match it {
            Reply::RequestBodyPiece { bytes, end } => Some((bytes, *end)),
            _ => None,
        }).collect();
        if mode != BodyMode::FullDuplexStreamed {
            prop_assert_eq!(headers, meant.headers, "{:?}", sequence);
            prop_assert_eq!(count(|it| matches!(it, Reply::RequestBody { .. })), meant.bodies, "{:?}", sequence);
            prop_assert_eq!(count(|it| matches!(it, Reply::RequestTrailers(_))), meant.trailers, "{:?}", sequence);
            prop_assert!(pieces.is_empty());
            // In the order in which they were sent, the answers being those of a request that is decided on the way.
            if mode == BodyMode::None || mode == BodyMode::Streamed {
                let at = run.replies.iter().position(|it| matches!(it, Reply::RequestHeaders { .. }));
                let body = run.replies.iter().position(|it| matches!(it, Reply::RequestBody { .. }));
                prop_assert!(body.is_none() || at < body, "{:?}", sequence);
            }
            return Ok(());
        }
        // Nothing is said of a body before its end, unless it is too large to be looked at.
        let has_answer = meant.ended || SETTINGS.most_body < meant.bytes.len();
        let whole: Vec<_> = run.replies.iter().filter_map(|it| match it {
            Reply::RequestWhole { bytes, .. } => Some(bytes),
            _ => None,
        }).collect();
        prop_assert_eq!(headers + whole.len(), usize::from(meant.begun && has_answer));
        let marks = pieces.iter().filter(|it| it.1).count();
        let trailers = count(|it| matches!(it, Reply::RequestTrailers(_)));
        let sent_back: Vec<u8> =
            whole.iter().copied().chain(pieces.iter().map(|it| it.0)).flatten().copied().collect();
        if has_answer {
            prop_assert_eq!(sent_back, meant.bytes, "{:?}", sequence);
        } else {
            prop_assert!(pieces.is_empty());
        }
        prop_assert!(pieces.iter().all(|it| it.0.len() <= CHUNK));
        prop_assert!(whole.is_empty() || pieces.is_empty() && 0 < meant.trailers);
        prop_assert_eq!(trailers + whole.len(), usize::from(0 < meant.trailers));
        prop_assert!(marks <= 1 && pieces.iter().rev().skip(1).all(|it| !it.1), "{:?}", sequence);
        let had_no_body = matches!(requests.clone().next(), Some(Sent::Headers { end: true }));
        if meant.ended && !had_no_body {
            prop_assert!(marks == 1 || trailers + whole.len() == 1, "the end is told: {:?}", sequence);
        }
        let order: Vec<_> = run.replies.iter().filter_map(place).collect();
        prop_assert!(order.is_sorted(), "headers, body, trailers: {:?}", sequence);
    }

    #[test]
    fn a_refused_request_has_one_answer(mode in modes(), rest in proptest::collection::vec(sent(), 0..14)) {
        let rest = rest.into_iter().filter(|it| !matches!(it, Sent::Headers { .. } | Sent::ResponseHeaders));
        let sequence: Vec<_> = std::iter::once(Sent::Headers { end: false }).chain(rest).collect();
        let (run, _) = run(mode, &sequence, Some(Refusal::NoEndpoint));
        prop_assert!(!run.failed);
        let refusals: Vec<_> = run.replies.iter().enumerate().filter(|(_, it)| matches!(it, Reply::Refuse(_))).collect();
        prop_assert!(refusals.len() <= 1);
        if let [(at, _)] = refusals[..] {
            prop_assert_eq!(at + 1, run.replies.len(), "it is the last word: {:?}", sequence);
            prop_assert!(run.session.request_is_out());
        }
        prop_assert_eq!(destinations(&run.replies), 0);
    }
}
