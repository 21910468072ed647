//! What a body says, whatever it came in, and what is changed in it on its way.

use bytes::Bytes;
use kvpick_core::{
    outcome::Reason,
    request::json::{self, Edit},
    session::{Body, Encoding},
};

use crate::decompress::decompressed;

/// A body that is looked at in less time than it takes to have another thread do it, in bytes.
pub const QUICK: usize = 256 << 10;

/// What is seen of a body.
#[derive(Debug, Default)]
pub struct Seen {
    /// What an engine will read: in one, plain, and with the edits; or its beginning.
    pub bytes: Bytes,
    /// What is to be changed in it as it came.
    pub edits: Vec<Edit>,
}

/// Looks at a body that came as it is. `model` is the one that the gateway wants in it.
#[must_use]
pub fn plain(body: &Body, model: Option<&str>) -> Seen {
    let bytes = body.joined();
    let edits = json::edits(&bytes, model);
    let bytes = if edits.is_empty() { bytes } else { json::applied(&bytes, &edits).into() };
    Seen { bytes, edits }
}

/// Looks at one that is compressed: it goes on as it came, so no model is changed in it.
///
/// # Errors
/// Why nothing is seen.
pub fn compressed(body: &Body, encoding: Encoding, most: usize, is_cut: bool) -> Result<Seen, Reason> {
    let bytes = decompressed(encoding, &body.joined(), most, is_cut)?.into();
    Ok(Seen { bytes, edits: Vec::new() })
}
