//! Words to and from the wire. A message that breaks a rule of `feed.proto` is an error that names the field.

mod describe;

use std::time::Duration;

use describe::describe;

use crate::{
    naming::BlockKey,
    pb,
    words::{
        AgentMessage, Change, CopyChunk, Handle, Hello, InFlight, Load, Place, ServerMessage, Step, Tier,
        Welcome,
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
