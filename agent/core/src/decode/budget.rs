//! How much memory a batch may take. Its payload is as large as a frame may be, and a byte of msgpack can stand for
//! some dozens in memory: without a bound one frame of 16 MiB would take a gigabyte.
//!
//! The bounds are far above what vLLM can announce of one step, and each is checked before anything is allocated.

use kvpick_proto::naming::BlockKey;

use super::{DecodeError, Event, ExtraItem, Stored};

/// Most events in a batch. vLLM names each evicted block in an event of its own, so that this is a step that needs
/// room for two million tokens in blocks of 16.
pub const MAX_EVENTS: usize = 1 << 17;

/// Most block hashes in a batch: a step of a million tokens in blocks of one.
pub const MAX_KEYS: usize = 1 << 20;

/// Most token ids in a batch: a step of a million tokens, announced by each of four groups.
pub const MAX_TOKENS: usize = 1 << 22;

/// Most blocks with extra keys in a batch, and most extra keys.
pub const MAX_EXTRA_KEYS: usize = 1 << 17;

/// Most bytes of text and of digests in a batch.
pub const MAX_TEXT_BYTES: usize = 8 << 20;

/// Bytes of memory for one of payload. The worst of what vLLM sends, stores of one block by name alone, takes six.
const RATIO: usize = 32;

/// Bytes of memory that any batch may take.
const BASE: usize = 64 << 10;

/// What an allocation takes beside what is in it.
const HEAP: usize = 16;

/// An upper bound of the memory that the batch decoded from a payload of so many bytes takes, in bytes.
#[must_use]
pub const fn most_decoded(payload: usize) -> usize {
    let by_payload = payload.saturating_mul(RATIO).saturating_add(BASE);
    let mut by_count = 0;
    let mut at = 0;
    while at < Part::ALL.len() {
        by_count += Part::ALL[at].most() * Part::ALL[at].bytes();
        at += 1;
    }
    if by_payload < by_count { by_payload } else { by_count }
}

/// What a batch is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Event,
    Stored,
    Key,
    /// How many copies of a block are left.
    Count,
    Token,
    /// A block that has extra keys.
    ExtraBlock,
    ExtraKey,
    /// A byte of text.
    Text,
}

impl Part {
    const ALL: [Self; 8] = [
        Self::Event,
        Self::Stored,
        Self::Key,
        Self::Count,
        Self::Token,
        Self::ExtraBlock,
        Self::ExtraKey,
        Self::Text,
    ];

    const fn field(self) -> &'static str {
        match self {
            Self::Event | Self::Stored => "batch.events",
            Self::Key => "event.block_hashes",
            Self::Count => "event.remaining_copy_counts",
            Self::Token => "event.token_ids",
            Self::ExtraBlock | Self::ExtraKey => "event.extra_keys",
            Self::Text => "event's texts",
        }
    }

    const fn most(self) -> usize {
        match self {
            Self::Event | Self::Stored => MAX_EVENTS,
            Self::Key | Self::Count => MAX_KEYS,
            Self::Token => MAX_TOKENS,
            Self::ExtraBlock | Self::ExtraKey => MAX_EXTRA_KEYS,
            Self::Text => MAX_TEXT_BYTES,
        }
    }

    /// Memory that one takes. A vector that grows is up to twice as large as what is in it.
    const fn bytes(self) -> usize {
        match self {
            Self::Event => 2 * size_of::<Event>(),
            // Its lists and texts have an allocation each.
            Self::Stored => size_of::<Stored>() + 6 * HEAP,
            Self::Key => size_of::<BlockKey>(),
            Self::Count | Self::Token => size_of::<u32>(),
            Self::ExtraBlock => 2 * size_of::<(u32, Vec<ExtraItem>)>() + HEAP,
            Self::ExtraKey => size_of::<ExtraItem>() + HEAP,
            Self::Text => 1,
        }
    }
}

/// What one batch may still take.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    left: [usize; Part::ALL.len()],
}

impl Budget {
    pub(super) fn new(payload: usize) -> Self {
        Self { bytes: most_decoded(payload), left: Part::ALL.map(Part::most) }
    }

    /// Takes room for so many.
    pub(super) const fn take(&mut self, part: Part, count: usize) -> Result<(), DecodeError> {
        let left = &mut self.left[part as usize];
        let (some, bytes) =
            (left.checked_sub(count), self.bytes.checked_sub(count.saturating_mul(part.bytes())));
        match (some, bytes) {
            (Some(some), Some(bytes)) => {
                *left = some;
                self.bytes = bytes;
                Ok(())
            }
            (None, _) => Err(DecodeError::TooMany { field: part.field(), most: part.most() }),
            (_, None) => Err(DecodeError::TooDense { field: part.field() }),
        }
    }
}
