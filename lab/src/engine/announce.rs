//! What an engine announces about its blocks.

use std::sync::Arc;

use kvpick_proto::naming::{Digest, ExtraKey};

use super::attention::Group;

/// One announcement.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Consecutive full blocks of one sequence were registered, or are held and announced again on demand.
    Stored(Stored),
    /// One physical copy of a block was given to somebody else.
    Removed(Removed),
    /// Every registered block was forgotten.
    Cleared,
}

/// Consecutive full blocks of one sequence in one cache group.
///
/// A group that attends to a window leaves out blocks that no hit can need: then there are fewer hashes than blocks in
/// the range, or none at all.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored {
    /// The group's number.
    pub group: usize,
    /// Its kind.
    pub kind: Group,
    /// One per registered block.
    pub hashes: Vec<Digest>,
    /// The block before the range; `None` where the range begins the sequence.
    pub parent: Option<Digest>,
    /// Tokens of the whole range.
    pub tokens: Vec<u32>,
    /// What entered each hash besides tokens; one list per hash.
    pub extra: Vec<Vec<ExtraKey>>,
    /// The adapter that computed them.
    pub adapter: Option<Arc<Adapter>>,
    /// The session of the request, where the engine's version tells it.
    pub session: Option<Arc<str>>,
}

impl Stored {
    /// Blocks of the plain model, of no session.
    #[must_use]
    pub const fn new(
        group: usize,
        kind: Group,
        hashes: Vec<Digest>,
        parent: Option<Digest>,
        tokens: Vec<u32>,
        extra: Vec<Vec<ExtraKey>>,
    ) -> Self {
        Self { group, kind, hashes, parent, tokens, extra, adapter: None, session: None }
    }

    /// Tokens that the group attends to, where they are limited.
    #[must_use]
    pub fn window(&self) -> Option<u32> {
        match self.kind {
            Group::Full => None,
            Group::Window(window) => Some(window.get()),
        }
    }
}

/// One copy of one block in one cache group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Removed {
    /// The group's number.
    pub group: usize,
    /// The block's hash.
    pub hash: Digest,
}

/// A LoRA adapter that an engine has loaded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Adapter {
    /// The engine's own number of it, from 1; other replicas may number otherwise.
    pub id: u32,
    /// As clients name it, in place of a model.
    pub name: String,
    /// Where it was loaded from: `root` of its card in `/v1/models`.
    pub path: String,
}
