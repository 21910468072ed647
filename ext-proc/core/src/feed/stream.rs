//! One agent connection, and which replicas it may speak of.

use std::{collections::BTreeMap, time::Instant};

use kvpick_proto::words::{Description, Handle, Hello, InFlight, ReplicaName, ServerMessage};

use crate::replicas::{ReplicaId, Replicas};

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) hello: Option<Hello>,
    pub(super) handles: BTreeMap<Handle, Bound>,
    pub(super) last_heard: Instant,
    pub(super) last_said: Instant,
    pub(super) outbox: Vec<ServerMessage>,
    pub(super) told_in_flight: BTreeMap<Handle, InFlight>,
    pub(super) superseded: bool,
    /// What was said of replicas that the agent may not describe, for when it may: agents do not repeat it.
    pub(super) kept: BTreeMap<Handle, Description>,
}

/// What a handle stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Bound {
    To(ReplicaId),
    Refused(ReplicaName),
}

impl Stream {
    pub(super) fn replica(&self, handle: Handle) -> Option<ReplicaId> {
        match self.handles.get(&handle) {
            Some(Bound::To(replica)) => Some(*replica),
            Some(Bound::Refused(_)) | None => None,
        }
    }

    /// Keeps what was said of a replica that it may not describe.
    pub(super) fn keep(&mut self, handle: Handle, description: Description) {
        if self.kept.len() < MOST_KEPT {
            self.kept.insert(handle, description);
        }
    }

    pub(super) fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        self.handles.values().filter_map(|it| match it {
            Bound::To(replica) => Some(*replica),
            Bound::Refused(_) => None,
        })
    }
}

/// Most descriptions that one stream's agent may not give and that are kept for it: a node has a few dozen replicas.
const MOST_KEPT: usize = 128;

/// Whether a node's agent may describe a replica, and under that handle; else why not.
pub(super) fn admit(
    stream: &Stream,
    handle: Handle,
    node: &str,
    name: ReplicaName,
    replicas: &Replicas,
) -> Result<ReplicaId, String> {
    let id = replicas.find(&name).ok_or_else(|| {
        format!(
            "{name} is no replica of this server; add it to `replicas` in the server's configuration, or, where they are \
             a pool's pods, see whether one has this address"
        )
    })?;
    match &replicas[id].spec.node {
        Some(owner) if owner == node => (),
        Some(owner) => return Err(format!("{name} is on node {owner}, this agent speaks for node {node}")),
        None => {
            return Err(format!(
                "{name} has no node by the server's knowledge (`node` in its configuration), so no agent may describe it"
            ));
        }
    }
    let other = stream.handles.iter().find(|(it, bound)| **it != handle && **bound == Bound::To(id));
    match other {
        Some(_) => Err(format!("{name} is described under another handle of this stream already")),
        None => Ok(id),
    }
}
