//! The fields of an event, whatever its encoding.

use kvpick_proto::naming::BlockKey;

use super::{DecodeError, ExtraItem, read::Reader};

/// All fields of all kinds; what an event does not have stays as it is here.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) keys: Vec<BlockKey>,
    pub(super) parent: Option<BlockKey>,
    pub(super) tokens: Vec<u32>,
    pub(super) block_size: u32,
    pub(super) lora_id: Option<i64>,
    pub(super) medium: Option<String>,
    pub(super) lora_name: Option<String>,
    pub(super) extra_keys: Vec<(u32, Vec<ExtraItem>)>,
    pub(super) group: Option<u32>,
    pub(super) kind: Option<String>,
    pub(super) sliding_window: Option<u32>,
    pub(super) remaining: Vec<u32>,
}

impl Fields {
    /// Reads the field of that name. The fields that place a block must be what they should be; of the others, a
    /// look-alike's value of another type counts as absent.
    pub(super) fn read(&mut self, name: &str, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        match name {
            "block_hashes" => self.keys = hashes(reader)?,
            "parent_block_hash" => {
                self.parent = if reader.nil()? {
                    None
                } else {
                    Some(
                        hash(reader)?
                            .ok_or(DecodeError::Field { field: "event.parent_block_hash", want: HASH })?,
                    )
                };
            }
            "token_ids" => self.tokens = tokens(reader)?,
            "block_size" => self.block_size = small(reader)?.unwrap_or(0),
            "lora_id" => {
                self.lora_id = match reader.int()? {
                    Some(id) => i64::try_from(id).ok(),
                    None => reader.skip().map(|()| None)?,
                }
            }
            "medium" => self.medium = text(reader)?,
            "lora_name" => self.lora_name = text(reader)?,
            "extra_keys" => self.extra_keys = extra_keys(reader)?,
            "group_idx" => self.group = small(reader)?,
            "kv_cache_spec_kind" => self.kind = text(reader)?,
            "kv_cache_spec_sliding_window" => self.sliding_window = small(reader)?,
            "remaining_copy_counts" => self.remaining = counts(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    }
}

const HASH: &str = "an integer of 64 bits, or at least 8 bytes";

fn hashes(reader: &mut Reader<'_>) -> Result<Vec<BlockKey>, DecodeError> {
    let error = |want| DecodeError::Field { field: "event.block_hashes", want };
    if reader.nil()? {
        return Ok(Vec::new());
    }
    let len = reader.array()?.ok_or_else(|| error("an array"))?;
    let mut keys = Vec::new();
    for _ in 0..len {
        keys.push(hash(reader)?.ok_or_else(|| error("an array of hashes, each an integer or bytes"))?);
    }
    Ok(keys)
}

/// Integers come in the least width that fits, and signed from senders whose hash is signed.
fn hash(reader: &mut Reader<'_>) -> Result<Option<BlockKey>, DecodeError> {
    if let Some(bytes) = reader.bin()? {
        return Ok(BlockKey::from_digest(bytes));
    }
    #[expect(clippy::cast_sign_loss, reason = "a negative hash is meant as its two's complement")]
    Ok(reader.int()?.and_then(|it| match u64::try_from(it) {
        Ok(it) => Some(BlockKey::from_u64(it)),
        Err(_) => i64::try_from(it).ok().map(|it| BlockKey::from_u64(it as u64)),
    }))
}

fn tokens(reader: &mut Reader<'_>) -> Result<Vec<u32>, DecodeError> {
    let error = || DecodeError::Field { field: "event.token_ids", want: "an array of token ids" };
    if reader.nil()? {
        return Ok(Vec::new());
    }
    let len = reader.array()?.ok_or_else(error)?;
    let mut tokens = Vec::new();
    for _ in 0..len {
        let token = reader.int()?.and_then(|it| u32::try_from(it).ok());
        tokens.push(token.ok_or_else(error)?);
    }
    Ok(tokens)
}

/// Empty where one of them is no count.
fn counts(reader: &mut Reader<'_>) -> Result<Vec<u32>, DecodeError> {
    let Some(len) = reader.array()? else {
        return reader.skip().map(|()| Vec::new());
    };
    let mut counts = Some(Vec::new());
    for _ in 0..len {
        match (small(reader)?, &mut counts) {
            (Some(count), Some(counts)) => counts.push(count),
            _ => counts = None,
        }
    }
    Ok(counts.unwrap_or_default())
}

fn small(reader: &mut Reader<'_>) -> Result<Option<u32>, DecodeError> {
    match reader.int()? {
        Some(it) => Ok(u32::try_from(it).ok()),
        None => reader.skip().map(|()| None),
    }
}

fn text(reader: &mut Reader<'_>) -> Result<Option<String>, DecodeError> {
    match reader.str()? {
        Some(bytes) => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
        None => reader.skip().map(|()| None),
    }
}

fn extra_keys(reader: &mut Reader<'_>) -> Result<Vec<(u32, Vec<ExtraItem>)>, DecodeError> {
    let Some(blocks) = reader.array()? else {
        return reader.skip().map(|()| Vec::new());
    };
    let mut all = Vec::new();
    for block in 0..blocks {
        let Some(len) = reader.array()? else {
            if !reader.nil()? {
                // One that we do not understand is still one.
                reader.skip()?;
                all.push((block, vec![ExtraItem::Other]));
            }
            continue;
        };
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(extra_item(reader)?);
        }
        if !items.is_empty() {
            all.push((block, items));
        }
    }
    Ok(all)
}

fn extra_item(reader: &mut Reader<'_>) -> Result<ExtraItem, DecodeError> {
    if let Some(text) = reader.str()? {
        return Ok(ExtraItem::Text(String::from_utf8_lossy(text).into_owned()));
    }
    if let Some(bytes) = reader.bin()? {
        return Ok(ExtraItem::Bytes(bytes.to_vec()));
    }
    let mut inside = reader.fork();
    reader.skip()?;
    if inside.array()? == Some(2)
        && let Some(identifier) = inside.str()?
        && let Some(offset) = inside.int()?
        && let Ok(offset) = i64::try_from(offset)
    {
        let identifier = String::from_utf8_lossy(identifier).into_owned();
        return Ok(ExtraItem::Media { identifier, offset });
    }
    Ok(ExtraItem::Other)
}
