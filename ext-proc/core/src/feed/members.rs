//! Replicas that come and go while agents speak of them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kvpick_proto::words::{Description, Handle, ReplicaName, ServerMessage};

use super::{
    Feed, StreamId,
    stream::{Bound, admit},
};
use crate::replicas::{Replica, ReplicaId, Replicas};

/// For so long after a replica has gone, what is said of another at its address counts only if it is of another process: the
/// agent may not have noticed yet.
const DOUBT: Duration = Duration::from_secs(10);

/// Which processes were last described at addresses whose replicas are gone.
#[derive(Debug)]
pub(super) struct Former(BTreeMap<ReplicaName, (String, Instant)>);

impl Former {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn forget(&mut self, name: &ReplicaName) {
        self.0.remove(name);
    }

    fn has(&self, description: &Description, now: Instant) -> bool {
        let Some((incarnation, since)) = self.0.get(&description.name) else { return false };
        // An agent that does not know which process it is may mean either.
        let may_be = description.incarnation.is_empty() || *incarnation == description.incarnation;
        may_be && now < *since + DOUBT
    }
}

impl Feed {
    /// The table has been set anew, and these are no longer in it. The first time of all, what replicas owe before this
    /// server is ready counts from now.
    pub fn on_members(
        &mut self,
        gone: &[(ReplicaId, Replica)],
        is_first: bool,
        replicas: &mut Replicas,
        now: Instant,
    ) {
        if is_first {
            self.started = now;
        }
        let gone: BTreeMap<_, _> = gone.iter().map(|(id, it)| (*id, it)).collect();
        for replica in gone.values() {
            let name = replica.spec.name;
            self.refused.remove(&name);
            if let Some(described) = &replica.description {
                self.former.0.insert(name, (described.incarnation.clone(), now));
            }
        }
        for stream in self.streams.values_mut() {
            let left: Vec<(Handle, &Replica)> = stream
                .handles
                .iter()
                .filter_map(|(handle, bound)| match bound {
                    Bound::To(id) => Some((*handle, *gone.get(id)?)),
                    Bound::Refused(_) => None,
                })
                .collect();
            for (handle, replica) in left {
                let name = replica.spec.name;
                stream.handles.insert(handle, Bound::Refused(name));
                stream.told_in_flight.remove(&handle);
                if let Some(described) = &replica.description {
                    stream.keep(handle, described.clone());
                }
                stream.outbox.push(ServerMessage::Refused(handle, format!("{name} is no replica any more")));
            }
        }
        self.admit_kept(replicas, now);
    }

    /// Whether a stream's agent may give that description, of which replica; else why not.
    pub(super) fn admit(
        &self,
        id: StreamId,
        handle: Handle,
        description: &Description,
        replicas: &Replicas,
        now: Instant,
    ) -> Result<ReplicaId, String> {
        let stream = self.streams.get(&id).ok_or("the stream is closed")?;
        let node = stream.hello.as_ref().map_or("", |it| it.node.as_str());
        let replica = admit(stream, handle, node, description.name, replicas)?;
        if self.former.has(description, now) {
            return Err(format!(
                "{} is another replica now, and this tells of the process before it; it is taken in {} seconds if it \
                 stands",
                description.name,
                DOUBT.as_secs()
            ));
        }
        Ok(replica)
    }

    /// Takes what was refused and may be said by now.
    pub(super) fn admit_kept(&mut self, replicas: &mut Replicas, now: Instant) {
        self.former.0.retain(|_, (_, since)| now < *since + DOUBT);
        let streams = self.streams.iter().filter(|(_, it)| !it.superseded && it.hello.is_some());
        let kept = streams.flat_map(|(id, it)| it.kept.iter().map(|kept| (*id, kept)));
        let may_be_said = |(id, (handle, description)): &(StreamId, (&Handle, &Description))| {
            self.admit(*id, **handle, description, replicas, now).is_ok()
        };
        let taken: Vec<_> = kept
            .filter(may_be_said)
            .map(|(id, (handle, description))| (id, *handle, description.clone()))
            .collect();
        for (id, handle, description) in taken {
            self.on_describe(id, handle, description, replicas, now);
        }
    }
}
