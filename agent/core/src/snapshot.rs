//! What an agent writes down of one engine, so that it can go on from it after its own restart.
//!
//! A file is a protobuf message around another one, with a checksum of that: what was cut short, was changed or is not
//! of this program is told from what it wrote. What a file says counts for nothing until the engine itself has proved
//! it, so that an old file does no harm.

mod body;

use kvpick_proto::words::{Completeness, Group};
use prost::Message as _;
use xxhash_rust::xxh3::xxh3_64;

use crate::{domain::Learnt, mirror::Kept, sequence::Position};

/// Largest file that is read or written. A block takes 8 bytes and its chain some 20 more, so that this is room for
/// millions of blocks, where an engine of eight large GPUs has some hundred thousand.
pub const MAX_BYTES: usize = 128 << 20;

/// Version of what is inside; another one is not read.
const VERSION: u32 = 1;

/// What each file begins with.
const FORMAT: &str = "kvpick-agent state";

/// What is known of one engine at one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The engine's name.
    pub name: String,
    /// Batch up to which everything is in it.
    pub position: Position,
    /// How much of what the engine held then is in it.
    pub completeness: Completeness,
    /// Physical blocks; 0 when unknown.
    pub num_gpu_blocks: u64,
    /// How the engine names its blocks, as far as that was verified.
    pub learnt: Option<Learnt>,
    /// KV cache groups.
    pub groups: Vec<Group>,
    /// What it held then.
    pub blocks: Vec<Kept>,
}

/// Why a file is not gone on from.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SnapshotError {
    /// More than [`MAX_BYTES`].
    #[error("it would be, or is, larger than {MAX_BYTES} bytes")]
    TooLarge,
    /// No file of this kind.
    #[error("it is not a state file of kvpick-agent, or the start of one is missing")]
    Foreign,
    /// Written by another version of the program.
    #[error("it is of version {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// Cut short, or changed.
    #[error("its checksum is wrong: it was not written to its end, or was changed")]
    Checksum,
    /// The checksum is right and the rest is not what this program writes.
    #[error("{0} has a value that this program does not write")]
    Value(&'static str),
}

/// The file.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct File {
    #[prost(string, tag = "1")]
    format: String,
    #[prost(uint32, tag = "2")]
    version: u32,
    /// XXH3 64 of `body`.
    #[prost(fixed64, tag = "3")]
    checksum: u64,
    #[prost(bytes = "vec", tag = "4")]
    body: Vec<u8>,
}

impl Snapshot {
    /// The file's content. Puts the blocks in order.
    ///
    /// # Errors
    ///
    /// It would be too large.
    pub fn encode(&mut self) -> Result<Vec<u8>, SnapshotError> {
        let body = body::Body::of(self).encode_to_vec();
        let checksum = xxh3_64(&body);
        let file = File { format: FORMAT.to_owned(), version: VERSION, checksum, body };
        if file.encoded_len() > MAX_BYTES {
            return Err(SnapshotError::TooLarge);
        }
        Ok(file.encode_to_vec())
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Anything but what [`Self::encode`] of this version gave.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if bytes.len() > MAX_BYTES {
            return Err(SnapshotError::TooLarge);
        }
        let file = File::decode(bytes).map_err(|_| {
            // The start tells what was cut short from what is something else.
            let start = File { format: FORMAT.to_owned(), ..File::default() }.encode_to_vec();
            if bytes.starts_with(&start) { SnapshotError::Checksum } else { SnapshotError::Foreign }
        })?;
        if file.format != FORMAT {
            return Err(SnapshotError::Foreign);
        }
        if file.version != VERSION {
            return Err(SnapshotError::Version(file.version));
        }
        if xxh3_64(&file.body) != file.checksum {
            return Err(SnapshotError::Checksum);
        }
        let body = body::Body::decode(&file.body[..]).map_err(|_| SnapshotError::Value("the body"))?;
        Self::try_from(body)
    }
}
