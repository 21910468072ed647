//! What an agent says of blocks, applied to a replica.

use kvpick_proto::words::{Change, CopyChunk, Step};

use crate::{
    index::Told,
    replicas::{Knowledge, Replica},
};

/// Returns whether the change could be applied.
pub(super) fn change(replica: &mut Replica, change: &Change) -> bool {
    if replica.knowledge != Knowledge::Live {
        return false;
    }
    let Replica { holdings, expected, routed, watched, .. } = replica;
    holdings.apply(&change.steps, |told| match told {
        Told::Gained(key) => {
            expected.forget(key);
            watched.on_store(key);
        }
        Told::Lost(key) => {
            watched.on_eviction();
            expected.forget(key);
            routed.forget(key);
        }
        Told::Cleared => {
            expected.clear();
            routed.clear();
            watched.void();
        }
    });
    // After a clear the engine may be another one, whose batches count from 0 again.
    let cleared = change.steps.contains(&Step::Cleared);
    replica.applied = change.applied.or(if cleared { None } else { replica.applied });
    true
}

/// Returns whether the part could be used.
pub(super) fn copy(replica: &mut Replica, chunk: &CopyChunk) -> bool {
    if !replica.holdings.apply_copy(chunk.first, chunk.last, &chunk.steps) {
        return false;
    }
    // A copy tells what is held, and not what was stored.
    replica.watched.void();
    if chunk.last {
        replica.knowledge = Knowledge::Live;
        replica.applied = chunk.applied;
        replica.expected.clear();
    }
    true
}
