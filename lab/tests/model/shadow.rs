//! The plainest form of what a server was sent, to hold its index against.

use std::collections::BTreeSet;

use kvpick_proto::{
    naming::BlockKey,
    words::{AgentMessage, Change, CopyChunk, Step},
};

use super::{engine::Held, feed::Server};

/// The fold of what a server was sent of one replica, in the plainest form.
#[derive(Default)]
pub(super) struct Shadow {
    pub(super) held: BTreeSet<Held>,
    pub(super) copy: Option<BTreeSet<Held>>,
    incarnation: String,
    /// The stream that described it, and whether its copy is through.
    pub(super) stream: Option<(u64, bool)>,
}

impl Shadow {
    fn steps(held: &mut BTreeSet<Held>, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Gained { place, keys, .. } => held.extend(keys.iter().map(|it| (place.group, *it))),
                Step::Lost { place, keys } => {
                    held.retain(|it| it.0 != place.group || !keys.contains(&it.1));
                }
                Step::Cleared => held.clear(),
            }
        }
    }

    pub(super) fn hear(&mut self, stream: u64, message: &AgentMessage) {
        match message {
            AgentMessage::Describe(_, it) => {
                if self.stream.is_none_or(|(of, _)| of != stream) {
                    (self.stream, self.copy) = (Some((stream, false)), None);
                }
                if !it.incarnation.is_empty() && self.incarnation != it.incarnation {
                    if !self.incarnation.is_empty() {
                        self.held.clear();
                    }
                    self.incarnation.clone_from(&it.incarnation);
                }
            }
            AgentMessage::Change(_, change) if self.stream == Some((stream, true)) => {
                Self::steps(&mut self.held, &change.steps);
            }
            AgentMessage::Copy(_, chunk) => {
                if chunk.first {
                    self.copy = Some(BTreeSet::new());
                }
                let Some(mut copy) = self.copy.take() else { return };
                Self::steps(&mut copy, &chunk.steps);
                if chunk.last {
                    self.held = copy;
                    self.stream = Some((stream, true));
                } else {
                    self.copy = Some(copy);
                }
            }
            _ => (),
        }
    }
}

impl Server {
    /// The index against the plain fold: all that the message named, and how many blocks there are.
    pub(super) fn check_shadow(&self, at: usize, site: usize, message: &AgentMessage) {
        let shadow = &self.shadows[site];
        let (_, replica) = self.world.replicas.iter().nth(site).unwrap();
        let keys: BTreeSet<BlockKey> = shadow.held.iter().map(|it| it.1).collect();
        assert_eq!(
            replica.holdings.len(),
            keys.len(),
            "server {at}: blocks of engine {site} after {message:?}"
        );
        let (AgentMessage::Change(_, Change { steps, .. }) | AgentMessage::Copy(_, CopyChunk { steps, .. })) =
            message
        else {
            return;
        };
        for step in steps {
            let (Step::Gained { place, keys, .. } | Step::Lost { place, keys }) = step else { continue };
            for block in keys.iter().map(|it| (place.group, *it)) {
                let want = shadow.held.contains(&block);
                assert_eq!(self.has(site, block), want, "server {at}: {block:?} of engine {site}");
            }
        }
    }

    /// All of it.
    pub(crate) fn check_whole_shadow(&self, site: usize, universe: &BTreeSet<Held>) {
        for block in universe {
            assert_eq!(self.has(site, *block), self.shadows[site].held.contains(block), "{block:?}");
        }
    }
}
