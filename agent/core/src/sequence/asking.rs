//! A replay that was asked for.

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
}
