//! A body as it comes in, in one buffer that is shared by whoever looks at it and whoever sends it back.

use bytes::Bytes;

use crate::request::json::Edit;

/// What a buffer begins with at most, in bytes: a client may announce more than it sends.
const FIRST: usize = 1 << 20;

/// A body, or as much of it as has come.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// What is shared already, or the first piece, which is often the only one.
    pieces: Vec<Bytes>,
    is_shared: bool,
    /// What comes behind.
    tail: Vec<u8>,
    /// How long it will be, where that is told.
    expected: usize,
    len: usize,
}

impl Body {
    /// An empty one that will have so many bytes, if that is known.
    #[must_use]
    pub fn expecting(bytes: Option<u64>) -> Self {
        let expected = bytes.and_then(|it| usize::try_from(it).ok()).unwrap_or(0);
        Self { expected, ..Self::default() }
    }

    /// Adds a piece at the end. One that stays alone is never copied; others are copied once.
    pub fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if piece.is_empty() {
            return;
        }
        if !self.is_shared && self.tail.is_empty() {
            let Some(first) = self.pieces.pop() else {
                self.pieces.push(piece);
                return;
            };
            self.append(&first);
        }
        self.append(&piece);
    }

    fn append(&mut self, piece: &[u8]) {
        let needed = self.tail.len() + piece.len();
        if self.tail.capacity() < needed {
            // Doubled, but not beyond what is expected, so that at the end it fits.
            let doubled = (2 * self.tail.capacity()).max(FIRST.min(self.expected));
            let capacity = if needed <= self.expected { doubled.min(self.expected) } else { doubled };
            self.tail.reserve_exact(capacity.max(needed) - self.tail.len());
        }
        self.tail.extend_from_slice(piece);
    }

    /// The same, to be shared: what is pushed from now on is in a buffer of its own.
    #[must_use]
    pub fn shared(&mut self) -> Self {
        self.is_shared = true;
        let tail = std::mem::take(&mut self.tail);
        if !tail.is_empty() {
            self.pieces.push(tail.into());
        }
        self.expected = 0;
        self.clone()
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

    /// Its first bytes, at most so many, of what is shared.
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
        Self { len: most - left, pieces, is_shared: true, ..Self::default() }
    }

    /// All of it in one. Costs no copy where it is shared as it came.
    #[must_use]
    pub fn joined(&self) -> Bytes {
        match (self.pieces.as_slice(), self.tail.as_slice()) {
            ([one], []) => one.clone(),
            (pieces, tail) => {
                let mut joined = Vec::with_capacity(self.len);
                pieces.iter().for_each(|it| joined.extend_from_slice(it));
                joined.extend_from_slice(tail);
                joined.into()
            }
        }
    }

    /// The same with those edits, whose ranges rise. What stays is shared with this one.
    #[must_use]
    pub fn edited(mut self, edits: &[Edit]) -> Self {
        if edits.is_empty() {
            return self;
        }
        let _shared = self.shared();
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
        Self { len: edited.iter().map(Bytes::len).sum(), pieces: edited, is_shared: true, ..Self::default() }
    }

    /// The pieces, none of them longer than that, and none empty.
    pub fn into_pieces(self, most: usize) -> impl Iterator<Item = Bytes> {
        let cut = move |mut piece: Bytes| {
            std::iter::from_fn(move || {
                let next = piece.split_to(piece.len().min(most));
                (!next.is_empty()).then_some(next)
            })
        };
        let tail = Bytes::from(self.tail);
        self.pieces.into_iter().chain(Some(tail).filter(|it| !it.is_empty())).flat_map(cut)
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
        Body { pieces, len: bytes.len(), is_shared: true, ..Body::default() }
    }

    #[test]
    fn a_body_is_not_copied_more_often_than_needed() {
        let alone = Bytes::from(vec![1; 100]);
        let mut body = Body::default();
        body.push(alone.clone());
        body.push(Bytes::new());
        assert_eq!(body.shared().joined().as_ptr(), alone.as_ptr(), "moved");
        let mut body = Body::expecting(Some(3 * FIRST as u64));
        for _ in 0..3 * 16 {
            body.push(vec![2; FIRST / 16].into());
        }
        assert_eq!(body.tail.capacity(), 3 * FIRST, "fits");
        assert_eq!(body.shared().joined().as_ptr(), body.joined().as_ptr());
        let liar = &mut Body::expecting(Some(u64::MAX));
        liar.push("a".into());
        liar.push("b".into());
        assert!(liar.tail.capacity() <= FIRST);
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
        fn what_is_pushed_is_there(
            sizes in proptest::collection::vec(0..50_usize, 0..20),
            expected in proptest::option::of(0..800_u64),
            share_at in 0..25_usize,
        ) {
            let mut body = Body::expecting(expected);
            let mut want = Vec::new();
            let mut before = None;
            for (i, size) in sizes.iter().enumerate() {
                if i == share_at {
                    before = Some((body.shared(), want.clone()));
                }
                body.push(Bytes::from(vec![i as u8; *size]));
                want.extend(vec![i as u8; *size]);
            }
            if let Some((shared, want)) = before {
                prop_assert_eq!((shared.len(), shared.joined()), (want.len(), want.into()));
            }
            prop_assert_eq!(body.len(), want.len());
            prop_assert_eq!(body.joined(), &want);
            prop_assert_eq!(body.into_pieces(7).collect::<Vec<_>>().concat(), want);
        }

        #[test]
        fn a_beginning_is_one(cuts in proptest::collection::vec(0..9_usize, 0..9), most in 0..50_usize) {
            let bytes: Vec<u8> = (0..40).collect();
            let whole = body(&bytes, &cuts);
            prop_assert_eq!(whole.beginning(most).joined(), &bytes[..most.min(40)]);
        }
    }
}
