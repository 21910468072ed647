//! Whose batch it is, without reading all of it.

use super::read::Reader;

/// The data-parallel rank that a payload names, which comes after the events; `None` where it names none, or can't be
/// read so far.
#[must_use]
pub fn rank_of(payload: &[u8]) -> Option<u32> {
    let mut reader = Reader::new(payload);
    if reader.array().ok()?? < 3 {
        return None;
    }
    reader.skip().ok()?;
    reader.skip().ok()?;
    reader.int().ok()?.and_then(|it| u32::try_from(it).ok())
}

/// The rank that a payload names, if that is another one than `rank`.
///
/// Nearly always the last byte tells that it is the right one: msgpack writes numbers below 128 as one byte, and the
/// last byte of those from 128 to 255 is above. Only a rank above 255 could be taken for another.
#[must_use]
pub fn other_rank(payload: &[u8], rank: u32) -> Option<u32> {
    if rank < 128 && payload.last().is_some_and(|it| u32::from(*it) == rank) {
        return None;
    }
    rank_of(payload).filter(|it| *it != rank)
}
