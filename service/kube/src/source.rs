//! Which pods are followed, and what is told of them.

use std::sync::Arc;

use crate::Pod;

/// The API group of InferencePools, unless it is said otherwise.
pub const GROUP: &str = "inference.networking.k8s.io";

/// For how long, in seconds, an API server may keep a watch open as a rule; see [`Source::watch_s`].
pub const WATCH_S: u32 = 30;

/// Which pods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// Their namespace; `None` for the client's own.
    pub namespace: Option<String>,
    /// What they have in common.
    pub which: Which,
    /// Only those of this node.
    pub node: Option<String>,
    /// How long the server may keep a watch open, in seconds, before it is asked anew. One that has died without a word is
    /// noticed a few seconds later.
    pub watch_s: u32,
}

/// What pods have in common.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Which {
    /// They are those of an InferencePool.
    Pool {
        /// Its name.
        name: String,
        /// Its API group, `inference.networking.k8s.io` as a rule.
        group: String,
    },
    /// They have these labels.
    Selector {
        /// As a query has it: `app=vllm,tier!=test`.
        selector: String,
        /// Their serving ports.
        ports: Vec<u16>,
    },
}

impl Which {
    /// What is wrong with those words for it, by field: exactly one of `pool` and `selector` is given, and `ports` with the
    /// latter alone.
    #[must_use]
    pub fn mistakes(
        pool: Option<&str>,
        selector: Option<&str>,
        ports: &[u16],
    ) -> Vec<(&'static str, &'static str)> {
        let mut found = Vec::new();
        match (pool, selector) {
            (Some(_), Some(_)) => {
                found.push(("selector", "a pool says which pods are its; give one of the two"))
            }
            (None, None) => {
                found.push(("pool", "missing; name an InferencePool, or give selector and ports"))
            }
            _ => {}
        }
        if pool.is_some() && !ports.is_empty() {
            found.push(("ports", "a pool has its own (targetPorts); leave it out"));
        }
        if selector.is_some() && ports.is_empty() {
            found.push(("ports", "missing; name the ports on which the pods serve"));
        }
        if ports.contains(&0) {
            found.push(("ports", "0 is no serving port; write the real one"));
        }
        found
    }

    /// Those words, which have no mistakes.
    #[must_use]
    pub fn of(pool: Option<&str>, group: &str, selector: Option<&str>, ports: &[u16]) -> Self {
        match pool {
            Some(name) => Self::Pool { name: name.to_owned(), group: group.to_owned() },
            None => {
                Self::Selector { selector: selector.unwrap_or_default().to_owned(), ports: ports.to_vec() }
            }
        }
    }
}

/// A picture of them that was true at one time.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Members {
    /// The pods, by uid.
    pub pods: Vec<Pod>,
    /// Their serving ports.
    pub ports: Vec<u16>,
}

/// What is known.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// `None` until the first picture is whole. A pool that was deleted has no pods.
    pub members: Option<Arc<Members>>,
    /// What is wrong now, for people, with a remedy. What was known stands meanwhile.
    pub problem: Option<String>,
}
