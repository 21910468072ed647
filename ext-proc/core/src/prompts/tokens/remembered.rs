//! Ids of texts whose pieces were encoded before.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use super::{Model, PromptError};
use crate::memo::{Entry, Kept, Memo, Tally, Text, What, text_key};

/// Pieces below that many bytes are encoded sooner than looked up.
const LEAST_KEPT: usize = 128;

/// Pieces above that many bytes, where a text has no place to be cut, would push much else out.
const MOST_KEPT: usize = 64 << 10;

/// One text of so many is encoded in full as well.
const CHECKED_OF: u32 = 1_000;

/// A memo in the use of one model.
pub(super) struct Remembered {
    memo: Arc<dyn Memo>,
    was_wrong: AtomicBool,
    since_check: AtomicU32,
}

impl Remembered {
    pub(super) fn new(memo: Arc<dyn Memo>) -> Self {
        Self { memo, was_wrong: AtomicBool::new(false), since_check: AtomicU32::new(0) }
    }

    /// The memo, unless it was wrong once.
    pub(super) fn memo(&self) -> Option<&dyn Memo> {
        (!self.was_wrong.load(Ordering::Relaxed)).then_some(&*self.memo)
    }

    /// Ids of `text` without those that a post-processor adds.
    pub(super) fn ids(&self, model: &Model, text: &str, is_ordinary: bool) -> Result<Vec<u32>, PromptError> {
        let Some(memo) = self.memo() else { return model.full(text, is_ordinary) };
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut tally = Tally { bytes: text.len() as u64, ..Tally::default() };
        let mut from = 0;
        for end in model.ends(text, is_ordinary) {
            let piece = &text[from..end];
            from = end;
            if (LEAST_KEPT..=MOST_KEPT).contains(&piece.len()) {
                piece_ids(memo, model, piece, is_ordinary, &mut ids, &mut tally)?;
            } else {
                model.full_into(piece, is_ordinary, &mut ids)?;
            }
        }
        memo.asked(What::Text, tally);
        if 0 < tally.hits && self.is_check_due() {
            let full = model.full(text, is_ordinary)?;
            if full != ids {
                self.was_wrong.store(true, Ordering::Relaxed);
                memo.differs();
            }
            return Ok(full);
        }
        Ok(ids)
    }

    fn is_check_due(&self) -> bool {
        let is_due = CHECKED_OF <= self.since_check.fetch_add(1, Ordering::Relaxed) + 1;
        if is_due {
            self.since_check.store(0, Ordering::Relaxed);
        }
        is_due
    }
}

/// Appends the ids of a piece, found or made.
fn piece_ids(
    memo: &dyn Memo,
    model: &Model,
    piece: &str,
    is_ordinary: bool,
    ids: &mut Vec<u32>,
    tally: &mut Tally,
) -> Result<(), PromptError> {
    let key = text_key(memo, model.fingerprint, is_ordinary, piece);
    let entry = memo.get(key);
    if let Some(found) = entry.as_ref().and_then(|it| it.ids_of(model.fingerprint, is_ordinary, piece)) {
        tally.hits += 1;
        tally.hit_bytes += piece.len() as u64;
        ids.extend_from_slice(found);
        return Ok(());
    }
    tally.misses += 1;
    let start = ids.len();
    model.full_into(piece, is_ordinary, ids)?;
    let made =
        Text { tokenizer: model.fingerprint, is_ordinary, text: piece.into(), ids: ids[start..].into() };
    memo.put(key, Entry(Kept::Text(made)));
    Ok(())
}
