//! Live batches that wait while it is being found out what comes before them.

use std::collections::VecDeque;

use crate::decode::Message;

/// Batches kept; past either bound they are left out, and asked for later.
const MAX: usize = 4_096;
const MAX_BYTES: usize = 64 << 20;

/// A bounded queue that knows whether it had to leave something out.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    batches: VecDeque<Message>,
    bytes: usize,
    left_out: bool,
}

impl Waiting {
    pub(super) const fn new() -> Self {
        Self { batches: VecDeque::new(), bytes: 0, left_out: false }
    }

    /// Puts a batch at the end. Where one was left out, those after it are of no use.
    pub(super) fn push(&mut self, message: Message) {
        let bytes = self.bytes + message.payload.len();
        self.left_out |= self.batches.len() >= MAX || bytes > MAX_BYTES;
        if !self.left_out {
            self.bytes = bytes;
            self.batches.push_back(message);
        }
    }

    /// Puts back the batch that was taken last.
    pub(super) fn push_front(&mut self, message: Message) {
        self.bytes += message.payload.len();
        self.batches.push_front(message);
    }

    pub(super) fn pop(&mut self) -> Option<Message> {
        let message = self.batches.pop_front()?;
        self.bytes -= message.payload.len();
        Some(message)
    }

    /// Whether nothing came that was not taken out again.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty() && !self.left_out
    }

    /// Whether batches were left out since this was asked last.
    pub(super) const fn take_left_out(&mut self) -> bool {
        std::mem::replace(&mut self.left_out, false)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}
