//! What is being found out about a publisher.

/// How much earlier than it was a process may say that it started, in seconds: it counts from when the kernel did, and
/// that is told in whole seconds.
const START_EARLY: f64 = 1.0;

/// A question to the replay socket that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) id: u64,
    pub(super) from: u64,
    /// Digest of batch `from`, where that is known and has to be proved; else everything is asked for.
    pub(super) proof: Option<u64>,
    /// Whether what is known stands only if this is answered. Else it only looks for what may be missing.
    pub(super) urgent: bool,
    pub(super) answered: bool,
    pub(super) next_before: Option<u64>,
    /// Whether a batch waited already, so that the answer is all that there is before it.
    pub(super) had_waiting: bool,
}

/// Whether a batch that was published then is certainly not from before a process that started then. Both are Unix time
/// in seconds, by the engine's clock.
pub(crate) fn is_of(start: Option<f64>, published: Option<f64>) -> bool {
    start.zip(published).is_some_and(|(start, published)| start + START_EARLY <= published)
}
