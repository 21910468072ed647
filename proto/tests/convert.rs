//! Every word survives the wire, and a message that breaks a rule says which.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{num::NonZeroU32, time::Duration};

use kvpick_proto::{
    convert::ConvertError,
    naming::{Algorithm, BlockKey, Domain, ExtraKeyShape},
    pb,
    words::{
        Adapter, AgentMessage, Change, Completeness, CopyChunk, Description, EngineStatus, Events, Group,
        Handle, Hello, InFlight, KEYS_PER_MESSAGE, KeyKind, KeyKindStatus, KeyState, Load, Place,
        ReplicaName, ServerMessage, Step, Tier, Welcome,
    },
};
use prost::Message as _;

fn text(it: &str) -> String {
    it.to_owned()
}

fn keys(range: std::ops::Range<u64>) -> Vec<BlockKey> {
    // Spread over all 64 bits.
    range.map(|it| BlockKey::from_u64(it.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

fn description() -> Description {
    Description {
        name: ReplicaName { address: "[2001:db8::1]:8000".parse().unwrap(), rank: 3 },
        incarnation: text("pod-uid/1"),
        events: Events::Unavailable { reason: text("refused"), remedy: text("start it") },
        models: vec![text("qwen3"), text("alias")],
        adapters: vec![Adapter { name: text("sql"), path: text("/adapters/sql") }],
        domain: Some(Domain {
            algorithm: Algorithm::Sha256Pickle,
            root: text("42"),
            block_size: NonZeroU32::new(784).unwrap(),
            extra_keys: ExtraKeyShape::BareWithOffset,
        }),
        key_kinds: vec![
            KeyKindStatus { kind: KeyKind::Plain, state: KeyState::Verified },
            KeyKindStatus { kind: KeyKind::Adapter, state: KeyState::Assumed { evidence: text("version") } },
            KeyKindStatus { kind: KeyKind::Salt, state: KeyState::Translated },
            KeyKindStatus {
                kind: KeyKind::Media,
                state: KeyState::Unverified { reason: text("no store"), remedy: text("wait") },
            },
            KeyKindStatus { kind: KeyKind::Embeds, state: KeyState::Verified },
        ],
        completeness: Completeness::PartialSince { unix_ms: 1_796_063_901_000 },
        num_gpu_blocks: 1 << 40,
        groups: vec![Group { index: 1, kind: text("sliding_window"), block_size: 16, sliding_window: 512 }],
        max_model_len: 131_072,
        hit_blocks_dropped: 1,
        status: EngineStatus::Asleep,
        status_reason: text("sleep level 1"),
        engine_version: text("0.32.0"),
        rank_by_header: true,
        tier_weights: vec![(Tier::Gpu, 1.0), (Tier::Cpu, 0.75), (Tier::Storage, 0.25)],
    }
}

fn agent_messages() -> Vec<AgentMessage> {
    let handle = Handle(7);
    let steps = vec![
        Step::Cleared,
        Step::Gained { place: Place::GPU, parent: Some(BlockKey::from_u64(u64::MAX)), keys: keys(0..3) },
        Step::Gained { place: Place { group: 2, tier: Tier::Cpu }, parent: None, keys: keys(3..4) },
        Step::Lost { place: Place { group: 0, tier: Tier::Storage }, keys: keys(4..6) },
    ];
    let plain = Description {
        events: Events::Off,
        domain: None,
        completeness: Completeness::Complete,
        status: EngineStatus::Foreign,
        ..description()
    };
    let copy = CopyChunk { first: true, last: true, steps: steps[1..3].to_vec(), applied: Some(0) };
    let load = Load {
        age: Duration::from_millis(250),
        running: 3,
        waiting: 4,
        cache_use: 0.5,
        prefix_queries: 10,
        prefix_hits: 9,
        ttft_sum_s: 1.25,
        ttft_count: 8,
        running_adapters: vec![text("sql")],
        waiting_adapters: vec![text("code")],
    };
    let hello = Hello {
        protocol: 1,
        node: text("node-a"),
        epoch: u64::MAX,
        version: text("0.1.0"),
        token: text("t"),
    };
    let mut all = vec![
        AgentMessage::Hello(hello),
        AgentMessage::Describe(handle, Box::new(description())),
        AgentMessage::Describe(handle, Box::new(plain)),
        AgentMessage::Gone(handle),
        AgentMessage::Change(handle, Change { steps, applied: None }),
        AgentMessage::Copy(handle, copy),
        AgentMessage::Load(handle, load),
        AgentMessage::Others(handle, InFlight { requests: 5, uncached_prefill_tokens: 6 }),
        AgentMessage::Heartbeat,
    ];
    for events in [Events::Awaited, Events::Live] {
        let status = if events == Events::Live { EngineStatus::Up } else { EngineStatus::Down };
        all.push(AgentMessage::Describe(handle, Box::new(Description { events, status, ..description() })));
    }
    for algorithm in Algorithm::ALL {
        for extra_keys in [ExtraKeyShape::Bare, ExtraKeyShape::BareWithOffset, ExtraKeyShape::Tagged] {
            let domain = description().domain.map(|it| Domain { algorithm, extra_keys, ..it });
            all.push(AgentMessage::Describe(handle, Box::new(Description { domain, ..description() })));
        }
    }
    all
}

#[test]
fn what_an_agent_says_survives_the_wire() {
    for message in agent_messages() {
        let bytes = pb::AgentMessage::from(message.clone()).encode_to_vec();
        let back = pb::AgentMessage::decode(bytes.as_slice()).unwrap();
        assert_eq!(AgentMessage::try_from(back), Ok(message));
    }
}

#[test]
fn what_a_server_says_survives_the_wire() {
    let handle = Handle(7);
    for message in [
        ServerMessage::Welcome(Welcome { protocol: 1, server: text("kvpick-0") }),
        ServerMessage::Accepted(handle),
        ServerMessage::Refused(handle, text("not yours")),
        ServerMessage::CopyRequest(handle),
        ServerMessage::InFlight(handle, InFlight { requests: 1, uncached_prefill_tokens: 2 }),
        ServerMessage::Heartbeat,
    ] {
        let bytes = pb::ServerMessage::from(message.clone()).encode_to_vec();
        let back = pb::ServerMessage::decode(bytes.as_slice()).unwrap();
        assert_eq!(ServerMessage::try_from(back), Ok(message));
    }
}

#[test]
fn a_broken_message_names_the_field() {
    let broken = |break_it: &dyn Fn(&mut pb::Describe)| {
        let message = pb::AgentMessage::from(AgentMessage::Describe(Handle(1), Box::new(description())));
        let Some(pb::agent_message::Body::Describe(mut describe)) = message.body else { panic!() };
        break_it(&mut describe);
        let body = Some(pb::agent_message::Body::Describe(describe));
        AgentMessage::try_from(pb::AgentMessage { body }).unwrap_err().to_string()
    };
    type Break = fn(&mut pb::Describe);
    let cases: [(Break, &str); 6] = [
        (|it| it.name = None, "describe.name"),
        (|it| it.name.as_mut().unwrap().address = text("vllm-0:8000"), "describe.name.address"),
        (|it| it.status = 99, "describe.status"),
        (|it| it.events = None, "describe.events"),
        (|it| it.domain.as_mut().unwrap().block_size = 0, "domain.block_size"),
        (|it| it.domain.as_mut().unwrap().algorithm = 0, "domain.algorithm"),
    ];
    for (break_it, field) in cases {
        let error = broken(&break_it);
        assert!(error.contains(field), "{field}: {error}");
    }
    let empty = AgentMessage::try_from(pb::AgentMessage { body: None });
    assert_eq!(empty, Err(ConvertError::Missing("body")));
}

#[test]
fn the_largest_message_stays_below_64_kib() {
    let step = Step::Gained {
        place: Place { group: 31, tier: Tier::Storage },
        parent: Some(BlockKey::from_u64(u64::MAX)),
        keys: keys(0..KEYS_PER_MESSAGE as u64),
    };
    let chunk = CopyChunk { first: true, last: true, steps: vec![step], applied: Some(u64::MAX) };
    let size = pb::AgentMessage::from(AgentMessage::Copy(Handle(u32::MAX), chunk)).encoded_len();
    assert!(size < 64 << 10, "{size}");
}
