//! Words to and from the wire. A message that breaks a rule of `feed.proto` is an error that names the field.

use std::{num::NonZeroU32, time::Duration};

use crate::{
    naming::{Algorithm, BlockKey, Domain, ExtraKeyShape},
    pb,
    words::{
        Adapter, AgentMessage, Change, Completeness, CopyChunk, Description, EngineStatus, Events, Group,
        Handle, Hello, InFlight, KeyKind, KeyKindStatus, KeyState, Load, Place, ReplicaName, ServerMessage,
        Step, Tier, Welcome,
    },
};

/// A message from the other side that can't be understood.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ConvertError {
    /// A field that every message of this kind has.
    #[error("{0} is missing; the other side speaks another version of the feed")]
    Missing(&'static str),
    /// A value out of its range.
    #[error("{field} has the value {value:?}, which is not one this version knows")]
    Value {
        /// Dotted name of the field.
        field: &'static str,
        /// What it held.
        value: String,
    },
}

fn value(field: &'static str, value: impl ToString) -> ConvertError {
    ConvertError::Value { field, value: value.to_string() }
}

impl From<AgentMessage> for pb::AgentMessage {
    fn from(it: AgentMessage) -> Self {
        use pb::agent_message::Body;
        let body = match it {
            AgentMessage::Hello(Hello { protocol, node, epoch, version, token }) => {
                Body::Hello(pb::Hello { protocol, node, epoch, version, token })
            }
            AgentMessage::Describe(handle, description) => Body::Describe(describe(handle, *description)),
            AgentMessage::Gone(handle) => Body::Gone(pb::Gone { handle: handle.0 }),
            AgentMessage::Change(handle, Change { steps, applied }) => Body::Change(pb::Change {
                handle: handle.0,
                steps: steps.into_iter().map(pb::Step::from).collect(),
                applied,
            }),
            AgentMessage::Copy(handle, CopyChunk { first, last, steps, applied }) => {
                Body::Copy(pb::CopyChunk {
                    handle: handle.0,
                    first,
                    last,
                    steps: steps.into_iter().map(pb::Step::from).collect(),
                    applied,
                })
            }
            AgentMessage::Load(handle, load) => Body::Load(pb::Load {
                handle: handle.0,
                age_ms: millis(load.age),
                running: load.running,
                waiting: load.waiting,
                cache_use: load.cache_use,
                prefix_queries: load.prefix_queries,
                prefix_hits: load.prefix_hits,
                ttft_sum_s: load.ttft_sum_s,
                ttft_count: load.ttft_count,
                running_adapters: load.running_adapters,
                waiting_adapters: load.waiting_adapters,
            }),
            AgentMessage::Others(handle, InFlight { requests, uncached_prefill_tokens }) => {
                Body::Others(pb::Others { handle: handle.0, requests, uncached_prefill_tokens })
            }
            AgentMessage::Heartbeat => Body::Heartbeat(pb::Heartbeat {}),
        };
        Self { body: Some(body) }
    }
}

impl TryFrom<pb::AgentMessage> for AgentMessage {
    type Error = ConvertError;

    fn try_from(it: pb::AgentMessage) -> Result<Self, ConvertError> {
        use pb::agent_message::Body;
        Ok(match it.body.ok_or(ConvertError::Missing("body"))? {
            Body::Hello(pb::Hello { protocol, node, epoch, version, token }) => {
                Self::Hello(Hello { protocol, node, epoch, version, token })
            }
            Body::Describe(it) => Self::Describe(Handle(it.handle), Box::new(it.try_into()?)),
            Body::Gone(it) => Self::Gone(Handle(it.handle)),
            Body::Change(it) => {
                Self::Change(Handle(it.handle), Change { steps: steps(it.steps)?, applied: it.applied })
            }
            Body::Copy(it) => Self::Copy(
                Handle(it.handle),
                CopyChunk { first: it.first, last: it.last, steps: steps(it.steps)?, applied: it.applied },
            ),
            Body::Load(it) => Self::Load(
                Handle(it.handle),
                Load {
                    age: Duration::from_millis(it.age_ms.into()),
                    running: it.running,
                    waiting: it.waiting,
                    cache_use: it.cache_use,
                    prefix_queries: it.prefix_queries,
                    prefix_hits: it.prefix_hits,
                    ttft_sum_s: it.ttft_sum_s,
                    ttft_count: it.ttft_count,
                    running_adapters: it.running_adapters,
                    waiting_adapters: it.waiting_adapters,
                },
            ),
            Body::Others(pb::Others { handle, requests, uncached_prefill_tokens }) => {
                Self::Others(Handle(handle), InFlight { requests, uncached_prefill_tokens })
            }
            Body::Heartbeat(pb::Heartbeat {}) => Self::Heartbeat,
        })
    }
}

impl From<ServerMessage> for pb::ServerMessage {
    fn from(it: ServerMessage) -> Self {
        use pb::server_message::Body;
        let body = match it {
            ServerMessage::Welcome(Welcome { protocol, server }) => {
                Body::Welcome(pb::Welcome { protocol, server })
            }
            ServerMessage::Accepted(handle) => Body::Accepted(pb::Accepted { handle: handle.0 }),
            ServerMessage::Refused(handle, reason) => Body::Refused(pb::Refused { handle: handle.0, reason }),
            ServerMessage::CopyRequest(handle) => Body::CopyRequest(pb::CopyRequest { handle: handle.0 }),
            ServerMessage::InFlight(handle, InFlight { requests, uncached_prefill_tokens }) => {
                Body::InFlight(pb::InFlight { handle: handle.0, requests, uncached_prefill_tokens })
            }
            ServerMessage::Heartbeat => Body::Heartbeat(pb::Heartbeat {}),
        };
        Self { body: Some(body) }
    }
}

impl TryFrom<pb::ServerMessage> for ServerMessage {
    type Error = ConvertError;

    fn try_from(it: pb::ServerMessage) -> Result<Self, ConvertError> {
        use pb::server_message::Body;
        Ok(match it.body.ok_or(ConvertError::Missing("body"))? {
            Body::Welcome(pb::Welcome { protocol, server }) => Self::Welcome(Welcome { protocol, server }),
            Body::Accepted(it) => Self::Accepted(Handle(it.handle)),
            Body::Refused(it) => Self::Refused(Handle(it.handle), it.reason),
            Body::CopyRequest(it) => Self::CopyRequest(Handle(it.handle)),
            Body::InFlight(pb::InFlight { handle, requests, uncached_prefill_tokens }) => {
                Self::InFlight(Handle(handle), InFlight { requests, uncached_prefill_tokens })
            }
            Body::Heartbeat(pb::Heartbeat {}) => Self::Heartbeat,
        })
    }
}

fn describe(handle: Handle, it: Description) -> pb::Describe {
    let (complete, partial_since_ms) = match it.completeness {
        Completeness::Complete => (true, 0),
        Completeness::PartialSince { unix_ms } => (false, unix_ms),
    };
    pb::Describe {
        handle: handle.0,
        name: Some(pb::ReplicaName { address: it.name.address.to_string(), rank: it.name.rank }),
        incarnation: it.incarnation,
        events: Some(it.events.into()),
        models: it.models,
        adapters: it.adapters.into_iter().map(|Adapter { name, path }| pb::Adapter { name, path }).collect(),
        domain: it.domain.map(pb::Domain::from),
        key_kinds: it.key_kinds.into_iter().map(pb::KeyKindStatus::from).collect(),
        completeness: Some(pb::Completeness { complete, partial_since_ms }),
        num_gpu_blocks: it.num_gpu_blocks,
        groups: it
            .groups
            .into_iter()
            .map(|Group { index, kind, block_size, sliding_window }| pb::Group {
                index,
                kind,
                block_size,
                sliding_window,
            })
            .collect(),
        max_model_len: it.max_model_len,
        hit_blocks_dropped: it.hit_blocks_dropped,
        status: match it.status {
            EngineStatus::Up => pb::EngineStatus::Up,
            EngineStatus::Asleep => pb::EngineStatus::Asleep,
            EngineStatus::Down => pb::EngineStatus::Down,
            EngineStatus::Foreign => pb::EngineStatus::Foreign,
        }
        .into(),
        status_reason: it.status_reason,
        engine_version: it.engine_version,
        rank_by_header: it.rank_by_header,
        tier_weights: it
            .tier_weights
            .into_iter()
            .map(|(tier, weight)| pb::TierWeight { tier: pb::Tier::from(tier).into(), weight })
            .collect(),
    }
}

impl TryFrom<pb::Describe> for Description {
    type Error = ConvertError;

    fn try_from(it: pb::Describe) -> Result<Self, ConvertError> {
        let status = match it.status() {
            pb::EngineStatus::Up => EngineStatus::Up,
            pb::EngineStatus::Asleep => EngineStatus::Asleep,
            pb::EngineStatus::Down => EngineStatus::Down,
            pb::EngineStatus::Foreign => EngineStatus::Foreign,
            pb::EngineStatus::Unspecified => return Err(value("describe.status", it.status)),
        };
        let name = it.name.ok_or(ConvertError::Missing("describe.name"))?;
        let completeness = it.completeness.ok_or(ConvertError::Missing("describe.completeness"))?;
        Ok(Self {
            name: ReplicaName {
                address: name.address.parse().map_err(|_| value("describe.name.address", &name.address))?,
                rank: name.rank,
            },
            incarnation: it.incarnation,
            events: it.events.ok_or(ConvertError::Missing("describe.events"))?.try_into()?,
            models: it.models,
            adapters: it
                .adapters
                .into_iter()
                .map(|pb::Adapter { name, path }| Adapter { name, path })
                .collect(),
            domain: it.domain.map(Domain::try_from).transpose()?,
            key_kinds: it.key_kinds.into_iter().map(KeyKindStatus::try_from).collect::<Result<_, _>>()?,
            completeness: if completeness.complete {
                Completeness::Complete
            } else {
                Completeness::PartialSince { unix_ms: completeness.partial_since_ms }
            },
            num_gpu_blocks: it.num_gpu_blocks,
            groups: it
                .groups
                .into_iter()
                .map(|pb::Group { index, kind, block_size, sliding_window }| Group {
                    index,
                    kind,
                    block_size,
                    sliding_window,
                })
                .collect(),
            max_model_len: it.max_model_len,
            hit_blocks_dropped: it.hit_blocks_dropped,
            status,
            status_reason: it.status_reason,
            engine_version: it.engine_version,
            rank_by_header: it.rank_by_header,
            tier_weights: it
                .tier_weights
                .into_iter()
                .map(|it| Ok((tier(it.tier(), "describe.tier_weights.tier")?, it.weight)))
                .collect::<Result<_, ConvertError>>()?,
        })
    }
}

impl From<Events> for pb::EventsStatus {
    fn from(it: Events) -> Self {
        use pb::events_status::State;
        let (state, reason, remedy) = match it {
            Events::Off => (State::Off, String::new(), String::new()),
            Events::Awaited => (State::Awaited, String::new(), String::new()),
            Events::Live => (State::Live, String::new(), String::new()),
            Events::Unavailable { reason, remedy } => (State::Unavailable, reason, remedy),
        };
        Self { state: state.into(), reason, remedy }
    }
}

impl TryFrom<pb::EventsStatus> for Events {
    type Error = ConvertError;

    fn try_from(it: pb::EventsStatus) -> Result<Self, ConvertError> {
        use pb::events_status::State;
        Ok(match it.state() {
            State::Off => Self::Off,
            State::Awaited => Self::Awaited,
            State::Live => Self::Live,
            State::Unavailable => Self::Unavailable { reason: it.reason, remedy: it.remedy },
            State::Unspecified => return Err(value("describe.events.state", it.state)),
        })
    }
}

impl From<Domain> for pb::Domain {
    fn from(it: Domain) -> Self {
        use pb::domain::{Algorithm as Algo, ExtraKeys};
        let algorithm = match it.algorithm {
            Algorithm::Sha256Cbor => Algo::Sha256Cbor,
            Algorithm::Sha256Pickle => Algo::Sha256Pickle,
            Algorithm::Xxh3Cbor => Algo::Xxh3Cbor,
            Algorithm::Xxh3Pickle => Algo::Xxh3Pickle,
        };
        let extra_keys = match it.extra_keys {
            ExtraKeyShape::Bare => ExtraKeys::Bare,
            ExtraKeyShape::BareWithOffset => ExtraKeys::BareWithOffset,
            ExtraKeyShape::Tagged => ExtraKeys::Tagged,
        };
        Self {
            algorithm: algorithm.into(),
            root: it.root,
            block_size: it.block_size.get(),
            extra_keys: extra_keys.into(),
        }
    }
}

impl TryFrom<pb::Domain> for Domain {
    type Error = ConvertError;

    fn try_from(it: pb::Domain) -> Result<Self, ConvertError> {
        use pb::domain::{Algorithm as Algo, ExtraKeys};
        Ok(Self {
            algorithm: match it.algorithm() {
                Algo::Sha256Cbor => Algorithm::Sha256Cbor,
                Algo::Sha256Pickle => Algorithm::Sha256Pickle,
                Algo::Xxh3Cbor => Algorithm::Xxh3Cbor,
                Algo::Xxh3Pickle => Algorithm::Xxh3Pickle,
                Algo::Unspecified => return Err(value("domain.algorithm", it.algorithm)),
            },
            extra_keys: match it.extra_keys() {
                ExtraKeys::Bare => ExtraKeyShape::Bare,
                ExtraKeys::BareWithOffset => ExtraKeyShape::BareWithOffset,
                ExtraKeys::Tagged => ExtraKeyShape::Tagged,
                ExtraKeys::AdapterNumber | ExtraKeys::Unspecified => {
                    return Err(value("domain.extra_keys", it.extra_keys));
                }
            },
            block_size: NonZeroU32::new(it.block_size).ok_or_else(|| value("domain.block_size", 0))?,
            root: it.root,
        })
    }
}

impl From<KeyKindStatus> for pb::KeyKindStatus {
    fn from(it: KeyKindStatus) -> Self {
        use pb::key_kind_status::{Kind, State};
        let kind = match it.kind {
            KeyKind::Plain => Kind::Plain,
            KeyKind::Adapter => Kind::Adapter,
            KeyKind::Salt => Kind::Salt,
            KeyKind::Media => Kind::Multimodal,
            KeyKind::Embeds => Kind::Embeds,
        };
        let (state, why, remedy) = match it.state {
            KeyState::Verified => (State::Verified, String::new(), String::new()),
            KeyState::Assumed { evidence } => (State::Assumed, evidence, String::new()),
            KeyState::Translated => (State::Translated, String::new(), String::new()),
            KeyState::Unverified { reason, remedy } => (State::Unverified, reason, remedy),
        };
        Self { kind: kind.into(), state: state.into(), why, remedy }
    }
}

impl TryFrom<pb::KeyKindStatus> for KeyKindStatus {
    type Error = ConvertError;

    fn try_from(it: pb::KeyKindStatus) -> Result<Self, ConvertError> {
        use pb::key_kind_status::{Kind, State};
        Ok(Self {
            kind: match it.kind() {
                Kind::Plain => KeyKind::Plain,
                Kind::Adapter => KeyKind::Adapter,
                Kind::Salt => KeyKind::Salt,
                Kind::Multimodal => KeyKind::Media,
                Kind::Embeds => KeyKind::Embeds,
                Kind::Unspecified => return Err(value("describe.key_kinds.kind", it.kind)),
            },
            state: match it.state() {
                State::Verified => KeyState::Verified,
                State::Assumed => KeyState::Assumed { evidence: it.why },
                State::Translated => KeyState::Translated,
                State::Unverified => KeyState::Unverified { reason: it.why, remedy: it.remedy },
                State::Unspecified => return Err(value("describe.key_kinds.state", it.state)),
            },
        })
    }
}

impl From<Tier> for pb::Tier {
    fn from(it: Tier) -> Self {
        match it {
            Tier::Gpu => Self::Gpu,
            Tier::Cpu => Self::Cpu,
            Tier::Storage => Self::Storage,
        }
    }
}

fn tier(it: pb::Tier, field: &'static str) -> Result<Tier, ConvertError> {
    match it {
        pb::Tier::Gpu => Ok(Tier::Gpu),
        pb::Tier::Cpu => Ok(Tier::Cpu),
        pb::Tier::Storage => Ok(Tier::Storage),
        pb::Tier::Unspecified => Err(value(field, 0)),
    }
}

impl From<Step> for pb::Step {
    fn from(it: Step) -> Self {
        use pb::step::Kind;
        let (kind, place, parent, keys) = match it {
            Step::Gained { place, parent, keys } => (Kind::Gained, Some(place), parent, keys),
            Step::Lost { place, keys } => (Kind::Lost, Some(place), None, keys),
            Step::Cleared => (Kind::Cleared, None, None, Vec::new()),
        };
        Self {
            kind: kind.into(),
            group: place.map_or(0, |it| it.group),
            tier: place.map_or(pb::Tier::Unspecified, |it| it.tier.into()).into(),
            parent: parent.map(BlockKey::as_u64),
            keys: keys.into_iter().map(BlockKey::as_u64).collect(),
        }
    }
}

fn steps(steps: Vec<pb::Step>) -> Result<Vec<Step>, ConvertError> {
    steps.into_iter().map(Step::try_from).collect()
}

impl TryFrom<pb::Step> for Step {
    type Error = ConvertError;

    fn try_from(it: pb::Step) -> Result<Self, ConvertError> {
        use pb::step::Kind;
        let kind = it.kind();
        if kind == Kind::Cleared {
            return Ok(Self::Cleared);
        }
        let place = Place { group: it.group, tier: tier(it.tier(), "step.tier")? };
        let keys = it.keys.into_iter().map(BlockKey::from_u64).collect();
        match kind {
            Kind::Gained => Ok(Self::Gained { place, parent: it.parent.map(BlockKey::from_u64), keys }),
            Kind::Lost => Ok(Self::Lost { place, keys }),
            Kind::Cleared | Kind::Unspecified => Err(value("step.kind", it.kind)),
        }
    }
}

fn millis(it: Duration) -> u32 {
    u32::try_from(it.as_millis()).unwrap_or(u32::MAX)
}
