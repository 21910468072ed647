//! Replicas that come and go.

use std::time::Instant;

use kvpick_proto::words::ReplicaName;

use super::World;
use crate::replicas::ReplicaSpec;

/// Where the replicas come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Membership {
    /// A list. With none to pick Envoy is left to choose, as it may know more.
    Listed,
    /// They come and go, and it was not told yet which there are.
    Awaited,
    /// They come and go. With none to pick, requests are refused.
    Told,
}

impl World {
    /// From now on there are these replicas, and they may change again. What is known of those that stay is kept; nothing
    /// that was known of one that is gone is ever taken for another's. Returns the names of those that are gone.
    pub fn set_members(&mut self, members: Vec<ReplicaSpec>, now: Instant) -> Vec<ReplicaName> {
        let gone = self.replicas.set(members);
        let is_first = std::mem::replace(&mut self.membership, Membership::Told) != Membership::Told;
        self.feed.on_members(&gone, is_first, &mut self.replicas, now);
        let again = |it: &ReplicaName| self.replicas.find(it).is_some();
        gone.iter().map(|(_, it)| it.spec.name).filter(|it| !again(it)).collect()
    }

    /// Replicas come and go, and [`Self::set_members`] will tell of them: until then this server is not ready.
    pub const fn expect_members(&mut self) {
        self.membership = Membership::Awaited;
    }
}
