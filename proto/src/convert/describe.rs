//! What is said of a replica apart from blocks and load.

use std::num::NonZeroU32;

use super::{ConvertError, tier, value};
use crate::{
    naming::{Algorithm, Domain, ExtraKeyShape},
    pb,
    words::{
        Adapter, Completeness, Description, EngineStatus, Events, Group, Handle, KeyKind, KeyKindStatus,
        KeyState, ReplicaName,
    },
};

pub(super) fn describe(handle: Handle, it: Description) -> pb::Describe {
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
