//! Why a stream ends, and what happened on streams that people want to read of.

use kvpick_proto::words::{PROTOCOL, ReplicaName, SILENCE};

use crate::health::Failure;

/// Why a stream must end; the text is for the agent's log.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Close {
    /// The first message is not Hello, or a later one is.
    #[error("a stream begins with hello, and has only one")]
    HelloOutOfPlace,
    /// The other side speaks another version.
    #[error(
        "this server speaks version {PROTOCOL} of the feed, the agent version {0}; upgrade the older of the two"
    )]
    Protocol(u32),
    /// Hello names no node.
    #[error("hello.node is empty; set `node` in the agent's configuration")]
    NoNode,
    /// Hello names another node than the agent's certificate.
    #[error(
        "the agent's certificate is not for node {0}; give it one that has this name among its DNS names, or at the end \
         of a URI"
    )]
    Unproven(String),
    /// Its peer's address is not that of an agent's pod on that node.
    #[error("{0}")]
    NotThePod(String),
    /// A newer stream of the same node is there.
    #[error("another agent speaks for node {0} on a newer stream; run one agent per node")]
    Superseded(String),
    /// More replicas than any node has.
    #[error("one agent describes too many replicas; list its own node's engines only")]
    TooManyReplicas,
    /// What it is told is not read.
    #[error("the agent does not read what it is told")]
    NotReading,
    /// Nothing was heard for too long.
    #[error("nothing was heard for {} seconds", SILENCE.as_secs())]
    Silent,
    /// The stream was never opened, or is closed.
    #[error("the stream is closed")]
    Closed,
}

impl Close {
    /// Label in metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::HelloOutOfPlace => "hello_out_of_place",
            Self::Protocol(_) => "protocol",
            Self::NoNode => "no_node",
            Self::Unproven(_) => "unproven",
            Self::NotThePod(_) => "not_the_pod",
            Self::Superseded(_) => "superseded",
            Self::TooManyReplicas => "too_many_replicas",
            Self::NotReading => "not_reading",
            Self::Silent => "silent",
            Self::Closed => "closed",
        }
    }
}

/// Something that operators want to read of, or to count.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Note {
    /// An agent described a replica that is not its own. Said once per stream and replica.
    Refused {
        /// The agent's node.
        node: String,
        /// The replica.
        replica: ReplicaName,
        /// Why.
        reason: String,
    },
    /// A newer stream of a node has taken over from an older one.
    TookOver {
        /// The node.
        node: String,
    },
    /// A full copy has been applied.
    Copied {
        /// The replica.
        replica: ReplicaName,
        /// Blocks it holds.
        blocks: usize,
    },
    /// An engine is another process now, and holds nothing.
    Restarted {
        /// The replica.
        replica: ReplicaName,
    },
    /// An engine does not serve, by its agent's word.
    Out {
        /// The replica.
        replica: ReplicaName,
        /// How it was seen.
        how: Failure,
    },
    /// The agent is gone; what it said counts half for a while.
    Stale {
        /// The replica.
        replica: ReplicaName,
    },
    /// The agent was gone for too long; nothing is known any more.
    Emptied {
        /// The replica.
        replica: ReplicaName,
    },
}
