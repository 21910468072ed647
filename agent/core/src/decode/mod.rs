//! vLLM's KV cache events: ZMQ frames to values.
//!
//! A batch is `[time, events, rank]`. An event is an array whose first item is its kind (vLLM 0.8 to 0.23) or a map
//! with the kind under `type` (0.24 and later); hashes are integers or bytes. All of that is told apart event by
//! event, so that a mixed batch is legal input. A field that is absent, nil or unknown is tolerated; an event of an
//! unknown kind is counted and left out.

mod budget;
mod fields;
mod rank;
mod read;

use kvpick_proto::{naming::BlockKey, words::Tier};

use budget::{Budget, Part};
pub use budget::{MAX_EVENTS, MAX_EXTRA_KEYS, MAX_KEYS, MAX_TEXT_BYTES, MAX_TOKENS, most_decoded};
use fields::Fields;
pub use rank::{other_rank, rank_of};
use read::Reader;

/// Frames that are not a batch of events. What was in it is lost, so what is known of the engine is in doubt.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// vLLM sends topic, sequence and payload.
    #[error("the message has {0} frames where topic, sequence and payload were expected")]
    Frames(usize),
    /// The sequence is 8 bytes, big-endian.
    #[error("the sequence frame is {0} bytes long, not 8")]
    Sequence(usize),
    /// The payload ended within a value.
    #[error("the payload ends within a value")]
    Truncated,
    /// Bytes after the batch.
    #[error("the payload goes on after its end")]
    Trailing,
    /// The one byte that msgpack gives no meaning.
    #[error("the payload is not msgpack: it holds the reserved byte c1")]
    Reserved,
    /// A value is not what vLLM puts there.
    #[error("{field} is not {want}")]
    Field {
        /// Which, as `kind.field`.
        field: &'static str,
        /// What it should be.
        want: &'static str,
    },
    /// More than a step of any engine makes.
    #[error("{field} of one batch are more than {most}")]
    TooMany {
        /// Which, as `kind.field`.
        field: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// Values of so few bytes each that in memory they would take many times as much.
    #[error("{field} of one batch take far more memory than its payload has bytes")]
    TooDense {
        /// The field at which that showed, as `kind.field`.
        field: &'static str,
    },
}

/// A batch of events as it came: its number, and its payload not yet read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Message {
    /// Counts the publisher's batches from 0.
    pub sequence: u64,
    /// msgpack.
    pub payload: Vec<u8>,
}

impl Message {
    /// The live message in these frames: topic, sequence, payload.
    ///
    /// # Errors
    ///
    /// Other frames than these.
    pub fn live(frames: Vec<Vec<u8>>) -> Result<Self, DecodeError> {
        let [_topic, sequence, payload]: [Vec<u8>; 3] =
            frames.try_into().map_err(|frames: Vec<_>| DecodeError::Frames(frames.len()))?;
        Ok(Self { sequence: number(&sequence)?, payload })
    }
}

/// One message of a replay socket's answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Replayed {
    /// A batch out of the publisher's buffer.
    Message(Message),
    /// There are no more.
    End,
}

impl Replayed {
    /// The answer in these frames, read from the end: vLLM 0.26 put a topic before the sequence.
    ///
    /// # Errors
    ///
    /// Fewer than two frames, or a sequence that is not 8 bytes long.
    pub fn from_frames(mut frames: Vec<Vec<u8>>) -> Result<Self, DecodeError> {
        let len = frames.len();
        let payload = frames.pop().ok_or(DecodeError::Frames(len))?;
        let sequence = number(&frames.pop().ok_or(DecodeError::Frames(len))?)?;
        // -1 as a signed number.
        if sequence == u64::MAX {
            return Ok(Self::End);
        }
        Ok(Self::Message(Message { sequence, payload }))
    }
}

/// The number of the batch in these frames of a replay socket's answer, if there is one.
#[must_use]
pub fn replayed_number(frames: &[Vec<u8>]) -> Option<u64> {
    number(&frames[frames.len().checked_sub(2)?]).ok().filter(|it| *it != u64::MAX)
}

/// Whether these frames are the end of a replay socket's answer.
#[must_use]
pub fn is_replay_end(frames: &[Vec<u8>]) -> bool {
    frames.len().checked_sub(2).is_some_and(|at| frames[at] == [0xff; 8])
}

fn number(frame: &[u8]) -> Result<u64, DecodeError> {
    frame.try_into().map(u64::from_be_bytes).map_err(|_| DecodeError::Sequence(frame.len()))
}

/// What one scheduler step of an engine did to its cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// When it was published, Unix time in seconds.
    pub time: f64,
    /// Data-parallel rank of the publisher.
    pub rank: Option<u32>,
    /// In order.
    pub events: Vec<Event>,
    /// How many events were of a kind that this build does not know.
    pub unknown: u32,
}

/// One event.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Blocks are held from now on.
    Stored(Box<Stored>),
    /// A copy of each of these blocks went.
    Removed(Removed),
    /// Everything went.
    Cleared,
}

/// Blocks that an engine began to hold.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Stored {
    /// The blocks, in chain order; may be empty.
    pub keys: Vec<BlockKey>,
    /// The block before the event's first token; `None` where that is token 0 of a prompt.
    pub parent: Option<BlockKey>,
    /// The tokens of the blocks. Only where [`Self::is_dense`] do they belong to the keys one by one.
    pub tokens: Vec<u32>,
    /// Tokens in a block; 0 where the sender does not say.
    pub block_size: u32,
    /// Where they are.
    pub tier: Option<Tier>,
    /// KV cache group.
    pub group: Option<u32>,
    /// The engine's own number of the request's adapter.
    pub lora_id: Option<i64>,
    /// Name of the request's adapter.
    pub lora_name: Option<String>,
    /// What entered the hash of block `.0` besides tokens; blocks with nothing are left out.
    pub extra_keys: Vec<(u32, Vec<ExtraItem>)>,
    /// Whether the sender is of a version that does not publish extra keys, so that they may be there unseen.
    pub hides_extra_keys: bool,
    /// vLLM's name of the group's attention kind.
    pub kind: Option<String>,
    /// In tokens.
    pub sliding_window: Option<u32>,
}

impl Stored {
    /// Whether the tokens belong to the keys one by one. Groups that skip blocks break this.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        let (keys, tokens) = (self.keys.len() as u64, self.tokens.len() as u64);
        self.block_size > 0 && keys > 0 && keys.checked_mul(self.block_size.into()) == Some(tokens)
    }
}

/// One extra key in the form in which events carry it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExtraItem {
    /// An adapter's name, a salt, or (before vLLM 0.19) a media identifier.
    Text(String),
    /// A media item.
    Media {
        /// vLLM's identifier of it.
        identifier: String,
        /// Its start less the block's start, in tokens.
        offset: i64,
    },
    /// Digest of prompt embeddings.
    Bytes(Vec<u8>),
    /// Something else.
    Other,
}

/// Copies of blocks that an engine gave up.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Removed {
    /// The blocks.
    pub keys: Vec<BlockKey>,
    /// Where they were.
    pub tier: Option<Tier>,
    /// KV cache group.
    pub group: Option<u32>,
    /// Copies left of each block, 0 where that was the last; empty where the engine does not say.
    pub remaining: Vec<u32>,
}

impl Batch {
    /// Reads a payload.
    ///
    /// # Errors
    ///
    /// Anything but one batch in one of vLLM's encodings.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, mut budget) = (Reader::new(payload), Budget::new(payload.len()));
        let field = |field, want| DecodeError::Field { field, want };
        let len = reader.array()?.ok_or_else(|| field("batch", "an array"))?;
        if len < 2 {
            return Err(field("batch", "an array of time, events and rank"));
        }
        let mut batch =
            Self { time: reader.float()?.ok_or_else(|| field("batch.time", "a number"))?, ..Self::default() };
        let events = reader.array()?.ok_or_else(|| field("batch.events", "an array"))?;
        for _ in 0..events {
            match event(&mut reader, &mut budget)? {
                Some(event) => {
                    budget.take(Part::Event, 1)?;
                    batch.events.push(event);
                }
                None => batch.unknown += 1,
            }
        }
        for index in 2..len {
            let rank = if index == 2 { reader.int()? } else { None };
            match rank {
                Some(rank) => batch.rank = u32::try_from(rank).ok(),
                None => reader.skip()?,
            }
        }
        if reader.is_empty() { Ok(batch) } else { Err(DecodeError::Trailing) }
    }
}

/// One event, in either encoding; `None` for a kind that is not known.
fn event(reader: &mut Reader<'_>, budget: &mut Budget) -> Result<Option<Event>, DecodeError> {
    if let Some(items) = reader.array()? {
        let Some(rest) = items.checked_sub(1) else {
            return Err(DecodeError::Field { field: "event", want: "an array that begins with its kind" });
        };
        let kind = Kind::read(reader)?;
        let mut fields = Fields::default();
        for index in 0..rest {
            match kind.by_position().get(index as usize) {
                Some(name) => fields.read(name, reader, budget)?,
                None => reader.skip()?,
            }
        }
        // Position 8, after the kind: vLLM 0.17 and later.
        let hides_extra_keys = items < 9;
        return kind.event(fields, hides_extra_keys, budget);
    }
    let want = DecodeError::Field { field: "event", want: "an array or a map" };
    let pairs = reader.fork().map()?.ok_or(want)?;
    // The kind says how to read the other fields and need not come first.
    let kind = kind_of_map(&mut reader.fork())?;
    reader.map()?;
    let mut fields = Fields::default();
    for _ in 0..pairs {
        let name = reader.str()?;
        if name.is_none() {
            reader.skip()?;
        }
        match kind.by_name(name) {
            Some(name) => fields.read(name, reader, budget)?,
            None => reader.skip()?,
        }
    }
    kind.event(fields, false, budget)
}

fn kind_of_map(reader: &mut Reader<'_>) -> Result<Kind, DecodeError> {
    let mut kind = Kind::Unknown;
    for _ in 0..reader.map()?.unwrap_or(0) {
        let name = reader.str()?;
        if name.is_none() {
            reader.skip()?;
        }
        if name == Some(b"type") { kind = Kind::read(reader)? } else { reader.skip()? }
    }
    Ok(kind)
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

impl Kind {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let Some(name) = reader.str()? else {
            reader.skip()?;
            return Ok(Self::Unknown);
        };
        Ok(match name {
            b"BlockStored" => Self::Stored,
            b"BlockRemoved" => Self::Removed,
            b"AllBlocksCleared" => Self::Cleared,
            _ => Self::Unknown,
        })
    }

    /// The fields after the kind, in the order of the array form. `lora_id` and what comes later was added version
    /// by version, always at the end.
    const fn by_position(self) -> &'static [&'static str] {
        match self {
            Self::Stored => &[
                "block_hashes",
                "parent_block_hash",
                "token_ids",
                "block_size",
                "lora_id",
                "medium",
                "lora_name",
                "extra_keys",
                "group_idx",
                "kv_cache_spec_kind",
                "kv_cache_spec_sliding_window",
            ],
            Self::Removed => &["block_hashes", "medium", "group_idx"],
            Self::Cleared | Self::Unknown => &[],
        }
    }

    fn by_name(self, name: Option<&[u8]>) -> Option<&'static str> {
        // The array form was given up before this field came.
        let later: &[&str] = match self {
            Self::Removed => &["remaining_copy_counts"],
            Self::Stored | Self::Cleared | Self::Unknown => &[],
        };
        self.by_position().iter().chain(later).find(|it| Some(it.as_bytes()) == name).copied()
    }

    fn event(
        self,
        it: Fields,
        hides_extra_keys: bool,
        budget: &mut Budget,
    ) -> Result<Option<Event>, DecodeError> {
        if matches!(self, Self::Stored) {
            budget.take(Part::Stored, 1)?;
        }
        Ok(Some(match self {
            Self::Stored => Event::Stored(Box::new(Stored {
                keys: it.keys,
                parent: it.parent,
                tokens: it.tokens,
                block_size: it.block_size,
                tier: it.tier,
                group: it.group,
                lora_id: it.lora_id,
                lora_name: it.lora_name,
                extra_keys: it.extra_keys,
                hides_extra_keys,
                kind: it.kind,
                sliding_window: it.sliding_window,
            })),
            Self::Removed => Event::Removed(Removed {
                keys: it.keys,
                tier: it.tier,
                group: it.group,
                remaining: it.remaining,
            }),
            Self::Cleared => Event::Cleared,
            Self::Unknown => return Ok(None),
        }))
    }
}
