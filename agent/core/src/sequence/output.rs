//! What a publisher is asked, and what follows from what it says.

use crate::decode::Message;

/// What to ask the publisher's replay socket for. A later request replaces an earlier one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReplayRequest {
    /// Goes with the answers.
    pub id: u64,
    /// First batch wanted.
    pub from: u64,
}

/// What follows from an input, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output {
    /// The next batch.
    Deliver(Message),
    /// It is proved that what was restored is of this publisher, and nothing is missing.
    Proved,
    /// Whatever was known of the engine is not known any more. What is delivered from here on is all that it holds
    /// if `complete`, else a part of it.
    Reset {
        /// Whether batches are delivered from the publisher's first.
        complete: bool,
        /// What happened.
        why: Why,
    },
}

/// Why knowledge was given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Why {
    /// There was none yet.
    Start,
    /// It is another publisher now.
    Restarted,
    /// Batches are missing and can't be had.
    Lost,
    /// The connection was lost, and nothing proves that it is still the same publisher.
    Unproven,
}
