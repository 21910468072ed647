//! The form of what is written down. Where the feed has a message for something, it is that one.

use std::collections::BTreeSet;

use kvpick_proto::{
    naming::Domain,
    pb,
    words::{Completeness, Group, KeyKindStatus, KeyState, Step},
};

use super::{Snapshot, SnapshotError};
use crate::{
    domain::Learnt,
    mirror::{Kept, MAX_GROUPS},
    runs::{Runs, chained},
    sequence::Position,
};

/// What is inside of the file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Body {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    last: u64,
    #[prost(fixed64, tag = "3")]
    digest: u64,
    #[prost(double, optional, tag = "4")]
    process_start: Option<f64>,
    /// Unix time in milliseconds; absent where all is known.
    #[prost(uint64, optional, tag = "5")]
    partial_since_ms: Option<u64>,
    #[prost(uint64, tag = "6")]
    num_gpu_blocks: u64,
    #[prost(message, optional, tag = "7")]
    domain: Option<pb::Domain>,
    /// What was verified.
    #[prost(message, repeated, tag = "8")]
    kinds: Vec<pb::KeyKindStatus>,
    #[prost(message, repeated, tag = "9")]
    groups: Vec<pb::Group>,
    /// The blocks in order, all gained.
    #[prost(message, repeated, tag = "10")]
    steps: Vec<pb::Step>,
    /// Blocks with more than one copy, by their number in that order; and how many copies they have.
    #[prost(uint32, repeated, tag = "11")]
    copied: Vec<u32>,
    #[prost(uint32, repeated, tag = "12")]
    copies: Vec<u32>,
}

impl Body {
    pub(super) fn of(it: &mut Snapshot) -> Self {
        it.blocks.sort_unstable_by_key(|block| block.order);
        let (mut runs, mut copied, mut copies) = (Runs::default(), Vec::new(), Vec::new());
        for (index, block) in (0..=u32::MAX).zip(&it.blocks) {
            runs.gain(block.place, block.key, block.after);
            if block.copies > 1 {
                copied.push(index);
                copies.push(block.copies);
            }
        }
        let (domain, kinds) = it.learnt.clone().map_or_else(Default::default, |learnt| {
            let Learnt { algorithm, root, block_size, extra_keys, kinds } = learnt;
            (Some(Domain { algorithm, root, block_size, extra_keys }.into()), kinds)
        });
        let verified = |kind| KeyKindStatus { kind, state: KeyState::Verified }.into();
        let group = |Group { index, kind, block_size, sliding_window }| pb::Group {
            index,
            kind,
            block_size,
            sliding_window,
        };
        Self {
            name: it.name.clone(),
            last: it.position.last,
            digest: it.position.digest,
            process_start: it.position.process_start,
            partial_since_ms: match it.completeness {
                Completeness::Complete => None,
                Completeness::PartialSince { unix_ms } => Some(unix_ms),
            },
            num_gpu_blocks: it.num_gpu_blocks,
            domain,
            kinds: kinds.into_iter().map(verified).collect(),
            groups: it.groups.iter().cloned().map(group).collect(),
            steps: runs.into_steps().into_iter().map(pb::Step::from).collect(),
            copied,
            copies,
        }
    }
}

impl TryFrom<Body> for Snapshot {
    type Error = SnapshotError;

    fn try_from(it: Body) -> Result<Self, SnapshotError> {
        let learnt = match it.domain {
            None => None,
            Some(domain) => {
                let Domain { algorithm, root, block_size, extra_keys } =
                    domain.try_into().map_err(|_| SnapshotError::Value("domain"))?;
                let kinds = it.kinds.into_iter().map(|kind| Ok(KeyKindStatus::try_from(kind)?.kind));
                let kinds = kinds.collect::<Result<_, kvpick_proto::convert::ConvertError>>();
                let kinds = kinds.map_err(|_| SnapshotError::Value("kinds"))?;
                Some(Learnt { algorithm, root, block_size, extra_keys, kinds })
            }
        };
        if it.groups.len() > MAX_GROUPS as usize || it.groups.iter().any(|it| it.index >= MAX_GROUPS) {
            return Err(SnapshotError::Value("groups"));
        }
        let group = |pb::Group { index, kind, block_size, sliding_window }| Group {
            index,
            kind,
            block_size,
            sliding_window,
        };
        Ok(Self {
            name: it.name,
            position: Position { last: it.last, digest: it.digest, process_start: it.process_start },
            completeness: it
                .partial_since_ms
                .map_or(Completeness::Complete, |unix_ms| Completeness::PartialSince { unix_ms }),
            num_gpu_blocks: it.num_gpu_blocks,
            learnt,
            groups: it.groups.into_iter().map(group).collect(),
            blocks: blocks(it.steps, &it.copied, &it.copies)?,
        })
    }
}

fn blocks(steps: Vec<pb::Step>, copied: &[u32], copies: &[u32]) -> Result<Vec<Kept>, SnapshotError> {
    let mut blocks = Vec::new();
    for step in steps {
        let Ok(Step::Gained { place, parent, keys }) = Step::try_from(step) else {
            return Err(SnapshotError::Value("steps"));
        };
        if place.group >= MAX_GROUPS {
            return Err(SnapshotError::Value("steps.group"));
        }
        for (key, after) in chained(parent, &keys) {
            blocks.push(Kept { place, key, after, copies: 1, order: blocks.len() as u64 });
        }
    }
    let distinct: BTreeSet<_> = blocks.iter().map(|it| (it.place, it.key)).collect();
    if distinct.len() != blocks.len() {
        return Err(SnapshotError::Value("steps.keys"));
    }
    if copied.len() != copies.len() {
        return Err(SnapshotError::Value("copies"));
    }
    for (index, copies) in copied.iter().zip(copies) {
        let block = blocks.get_mut(*index as usize).filter(|_| *copies > 1);
        block.ok_or(SnapshotError::Value("copied"))?.copies = *copies;
    }
    Ok(blocks)
}
