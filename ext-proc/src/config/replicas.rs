//! The replicas.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A replica.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// Its serving address `ip:port`, exactly as Envoy's cluster knows it.
    pub address: SocketAddr,
    /// Its data-parallel rank, where several share the address.
    #[serde(default)]
    pub rank: u32,
    /// How many ranks, from `rank` on, share the address: this entry then stands for one replica for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// The node whose agent may describe it. Without one it is balanced by what this server sent there.
    #[serde(default)]
    pub node: Option<String>,
    /// The models that it serves, as in requests.
    #[serde(default)]
    pub models: Vec<String>,
}

/// Most data-parallel ranks behind one address.
pub(super) const MOST_RANKS: u32 = 1_024;

impl ReplicaConfig {
    /// The ranks that this entry stands for; never more than there may be.
    pub(super) fn all_ranks(&self) -> impl Iterator<Item = u32> {
        (0..self.ranks.unwrap_or(1).min(MOST_RANKS)).filter_map(|it| self.rank.checked_add(it))
    }
}
