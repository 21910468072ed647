//! A body in the pieces in which it came. They are shared, never copied.

use bytes::{Bytes, BytesMut};

use crate::request::json::Edit;

/// A piece smaller than this is added to the one before it, which may grow to [`GROWN`]: a client may send single bytes,
/// and each piece costs about a hundred.
const SMALL: usize = 1 << 10;
const GROWN: usize = 16 << 10;

/// A body, or as much of it as has come.
#[derive(Clone, Debug, Default)]
pub struct Body {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Body {
    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        match self.pieces.last_mut() {
            // An empty one would be a message of its own on the way back.
            _ if piece.is_empty() => (),
            Some(last) if piece.len() < SMALL && last.len() < GROWN => {
                let grown = std::mem::take(last).try_into_mut();
                let mut grown = grown.unwrap_or_else(|shared| BytesMut::from(&shared[..]));
                grown.extend_from_slice(&piece);
                *last = grown.freeze();
            }
            Some(_) | None => self.pieces.push(piece),
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its first bytes, at most so many.
    #[must_use]
    pub fn beginning(&self, most: usize) -> Self {
        let mut left = most;
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            if left == 0 {
                break;
            }
            let piece = piece.slice(..piece.len().min(left));
            left -= piece.len();
            pieces.push(piece);
        }
        Self { len: most - left, pieces }
    }

    /// All of it in one. Costs a copy where it came in more than one piece.
    #[must_use]
    pub fn joined(&self) -> Bytes {
        match self.pieces.as_slice() {
            [] => Bytes::new(),
            [one] => one.clone(),
            pieces => {
                let mut joined = Vec::with_capacity(self.len);
                pieces.iter().for_each(|it| joined.extend_from_slice(it));
                joined.into()
            }
        }
    }

    /// The same with those edits, whose ranges rise. What stays is shared with this one.
    #[must_use]
    pub fn edited(self, edits: &[Edit]) -> Self {
        if edits.is_empty() {
            return self;
        }
        let mut edited = Vec::new();
        let mut edits = edits.iter().peekable();
        // How much of the body lies behind, and from where on it stays.
        let (mut start, mut from) = (0, 0);
        for piece in &self.pieces {
            let end = start + piece.len();
            while let Some(edit) = edits.peek().filter(|it| it.range.start < end) {
                if from < edit.range.start {
                    edited.push(piece.slice(from.max(start) - start..edit.range.start - start));
                }
                if start <= edit.range.start {
                    edited.push(edit.text.clone());
                }
                from = from.max(edit.range.end);
                if end < edit.range.end {
                    break;
                }
                edits.next();
            }
            if from < end {
                edited.push(piece.slice(from.max(start) - start..));
            }
            start = end;
        }
        edited.retain(|it| !it.is_empty());
        Self { len: edited.iter().map(Bytes::len).sum(), pieces: edited }
    }

    /// The pieces, none of them longer than that, and none empty.
    pub fn into_pieces(self, most: usize) -> impl Iterator<Item = Bytes> {
        let cut = move |mut piece: Bytes| {
            std::iter::from_fn(move || {
                let next = piece.split_to(piece.len().min(most));
                (!next.is_empty()).then_some(next)
            })
        };
        self.pieces.into_iter().flat_map(cut)
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        let mut body = Self::default();
        body.push(bytes.into());
        body
    }
}

/// By its bytes, however they came.
impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.joined() == other.joined()
    }
}

impl Eq for Body {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(bytes: &[u8], cuts: &[usize]) -> Body {
        let mut rest = Bytes::copy_from_slice(bytes);
        let mut pieces: Vec<_> = cuts
            .iter()
            .map(|cut| rest.split_to((*cut).min(rest.len())))
            .filter(|it| !it.is_empty())
            .collect();
        pieces.extend(Some(rest).filter(|it| !it.is_empty()));
        Body { pieces, len: bytes.len() }
    }

    proptest! {
        #[test]
        fn edits_mean_the_same_in_pieces(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            cuts in proptest::collection::vec(0..9_usize, 0..9),
            edits in proptest::collection::vec((0..6_usize, 0..12_usize, 0..4_usize), 0..5),
            most in 1..12_usize,
        ) {
            let mut list = Vec::new();
            let mut at = 0;
            for (gap, length, text) in edits {
                let start = at + gap;
                let end = start + length;
                // An insertion behind the last byte has no piece to stand in; none is ever made there.
                if bytes.len() <= start || bytes.len() < end {
                    break;
                }
                list.push(Edit { range: start..end, text: Bytes::from(vec![b'#'; text]) });
                at = end + 1;
            }
            let mut want = bytes.clone();
            for edit in list.iter().rev() {
                want.splice(edit.range.clone(), edit.text.iter().copied());
            }
            let edited = body(&bytes, &cuts).edited(&list);
            prop_assert_eq!(edited.len(), want.len());
            prop_assert_eq!(edited.joined(), &want);
            let pieces: Vec<_> = edited.into_pieces(most).collect();
            prop_assert!(pieces.iter().all(|it| !it.is_empty() && it.len() <= most));
            prop_assert_eq!(pieces.concat(), want);
        }

        #[test]
        fn small_pieces_are_put_together(sizes in proptest::collection::vec(0..2 * SMALL, 0..40)) {
            let mut body = Body::default();
            let mut want = Vec::new();
            for (i, size) in sizes.iter().enumerate() {
                body.push(Bytes::from(vec![i as u8; *size]));
                want.extend(vec![i as u8; *size]);
            }
            prop_assert_eq!(body.joined(), &want);
            prop_assert!(body.pieces.windows(2).all(|it| SMALL <= it[1].len() || GROWN <= it[0].len()));
        }

        #[test]
        fn a_beginning_is_one(cuts in proptest::collection::vec(0..9_usize, 0..9), most in 0..50_usize) {
            let bytes: Vec<u8> = (0..40).collect();
            let whole = body(&bytes, &cuts);
            prop_assert_eq!(whole.beginning(most).joined(), &bytes[..most.min(40)]);
        }
    }
}
