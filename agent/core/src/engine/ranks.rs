//! Whether batches are of the rank that is expected at an endpoint. A batch of another one speaks of another cache, and
//! its numbers are of another sequence: it is left out before it gets into either.

use std::time::Instant;

use super::{Config, PATIENCE};
use crate::decode::{other_rank, rank_of};

/// What is expected of an endpoint, and what came there.
#[derive(Debug)]
pub(super) struct Ranks {
    /// The rank that alone is right, where several share the engine's address.
    wanted: Option<u32>,
    /// Elsewhere any is right that does not change: the one that came first on this connection.
    heard: Option<u32>,
    /// When a batch of another one came last.
    strayed: Option<Instant>,
}

/// A batch of another rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Stray {
    rank: u32,
    expected: u32,
    /// Whether the configuration expects it, or what came before.
    is_configured: bool,
}

impl Ranks {
    pub(super) fn new(config: &Config) -> Self {
        Self { wanted: config.rank_by_header.then_some(config.name.rank), heard: None, strayed: None }
    }

    /// From here on it may be another publisher.
    pub(super) const fn on_disconnected(&mut self) {
        (self.heard, self.strayed) = (None, None);
    }

    /// Looks at a batch.
    ///
    /// # Errors
    ///
    /// It is of another rank. A batch that names none is taken, as those of very old versions do not.
    pub(super) fn check(&mut self, payload: &[u8], now: Instant) -> Result<(), Stray> {
        let Some(expected) = self.wanted.or(self.heard) else {
            self.heard = rank_of(payload);
            return Ok(());
        };
        let Some(rank) = other_rank(payload, expected) else { return Ok(()) };
        self.strayed = Some(now);
        Err(Stray { rank, expected, is_configured: self.wanted.is_some() })
    }

    /// Whether none of another rank came for a while, so that the endpoint is this rank's alone.
    pub(super) fn are_right(&self, now: Instant) -> bool {
        self.strayed.is_none_or(|at| at + PATIENCE <= now)
    }
}

impl Stray {
    pub(super) fn reason(self) -> String {
        let Self { rank, expected, is_configured } = self;
        if is_configured {
            format!(
                "events of rank {rank} arrive at the endpoint configured for rank {expected}: they are left out"
            )
        } else {
            format!(
                "events of rank {rank} arrive where those of rank {expected} do: two publishers share the endpoint, and \
                 those of rank {rank} are left out"
            )
        }
    }

    pub(super) fn remedy(self) -> String {
        let remedy = if self.is_configured {
            "check the ports: vLLM adds the rank to the ports of `endpoint` and `replay_endpoint`; with `ranks` in the \
             agent's configuration the agent does so too, without it each rank's entry names its own"
        } else {
            "give each rank an endpoint of its own, and its own entry in the agent's configuration"
        };
        remedy.to_owned()
    }
}
