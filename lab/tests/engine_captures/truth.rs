//! The agent's mirror against the pool of the engine that makes the very frames which the agent heard: after every frame
//! it holds no block that the engine does not, and what it lacks has a name.

use std::collections::{BTreeMap, BTreeSet};

use kvpick_agent_core::recording::{Known, Run};
use kvpick_lab::engine::pool::Pool;
use kvpick_proto::{
    naming::BlockKey,
    words::{Adapter, Place},
};

use crate::recording::{Happening, Recording};

/// Copies by group and key.
pub(crate) type Copies = BTreeMap<(u32, BlockKey), u32>;

/// What the pool of an engine with so many groups holds.
pub(crate) fn of_pool(pool: &Pool, groups: usize) -> Copies {
    let of_group = |group: usize| {
        let number = u32::try_from(group).unwrap();
        pool.copies(group)
            .into_iter()
            .map(move |(digest, copies)| ((number, digest.key()), u32::try_from(copies).unwrap()))
    };
    (0..groups).flat_map(of_group).collect()
}

/// Where the mirror and the pool differ: after how many frames, and by at most how many blocks or copies.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Differ {
    /// Frames with blocks that only the mirror holds, and the most of them.
    pub(crate) phantoms: (usize, usize),
    /// The groups in which that is so.
    pub(crate) phantom_groups: BTreeSet<u32>,
    /// Frames with blocks that only the engine holds, and the most of them.
    pub(crate) losses: (usize, usize),
    /// Frames with blocks of which the mirror counts more copies than there are, and the most of these blocks.
    pub(crate) too_many: (usize, usize),
    /// Frames with blocks of which it counts fewer, and the most of these blocks.
    pub(crate) too_few: (usize, usize),
    /// The request at which the first difference came.
    pub(crate) since: Option<String>,
    /// Blocks held by the engine, summed over all frames.
    pub(crate) compared: usize,
}

/// An agent that has heard nothing of the engine of this recording.
pub(crate) fn agent(recording: &Recording, start: std::time::Instant) -> Run {
    let adapters = recording.happenings.iter().flat_map(|it| match it {
        Happening::Asked(together) => together.as_slice(),
        Happening::Reset | Happening::Restarted => &[],
    });
    let adapters: BTreeMap<String, String> = adapters
        .flat_map(|it| &it.requests)
        .filter_map(|it| it.adapter.as_ref())
        .map(|it| (it.name.clone(), it.path.clone()))
        .collect();
    let adapters = adapters.into_iter().map(|(name, path)| Adapter { name, path }).collect();
    Run::new(Known { adapters, ..Known::default() }, start)
}

/// Lets the agent hear the recording, beside what the engine's pool held after each frame.
pub(crate) fn compare(recording: &Recording, run: &mut Run, truth: &[Copies]) -> Differ {
    assert_eq!(truth.len(), recording.frames.len(), "one state for each frame");
    let mut differ = Differ::default();
    for (i, (frame, pool)) in recording.frames.iter().zip(truth).enumerate() {
        run.on_line(frame.line.clone());
        let held = run.engines()[&0].mirror().held();
        let mirror: Copies = held.map(|(Place { group, .. }, key, copies)| ((group, key), copies)).collect();
        let mut note = |at: fn(&mut Differ) -> &mut (usize, usize), blocks: usize| {
            if blocks == 0 {
                return;
            }
            let (frames, most) = at(&mut differ);
            (*frames, *most) = (*frames + 1, (*most).max(blocks));
            differ.since.get_or_insert_with(|| recording.name_of(i));
        };
        note(|it| &mut it.phantoms, only(&mirror, pool));
        note(|it| &mut it.losses, only(pool, &mirror));
        note(|it| &mut it.too_many, more_copies(&mirror, pool));
        note(|it| &mut it.too_few, more_copies(pool, &mirror));
        differ.phantom_groups.extend(mirror.keys().filter(|it| !pool.contains_key(it)).map(|it| it.0));
        differ.compared += pool.len();
    }
    differ
}

/// Blocks that the first has and the second has not.
fn only(a: &Copies, b: &Copies) -> usize {
    a.keys().filter(|it| !b.contains_key(it)).count()
}

/// Blocks of which the first has more copies.
fn more_copies(a: &Copies, b: &Copies) -> usize {
    a.iter().filter(|(block, copies)| b.get(block).is_none_or(|it| it < *copies)).count()
}
