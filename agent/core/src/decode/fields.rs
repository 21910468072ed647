//! The fields of an event, whatever its encoding.

use kvpick_proto::{naming::BlockKey, words::Tier};

use super::{
    DecodeError, ExtraItem,
    budget::{Budget, Part},
    read::Reader,
};

/// All fields of all kinds; what an event does not have stays as it is here.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) keys: Vec<BlockKey>,
    pub(super) parent: Option<BlockKey>,
    pub(super) tokens: Vec<u32>,
    pub(super) block_size: u32,
    pub(super) lora_id: Option<i64>,
    pub(super) tier: Option<Tier>,
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
    pub(super) fn read(
        &mut self,
        name: &str,
        reader: &mut Reader<'_>,
        budget: &mut Budget,
    ) -> Result<(), DecodeError> {
        match name {
            "block_hashes" => self.keys = hashes(reader, budget)?,
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
            "token_ids" => self.tokens = tokens(reader, budget)?,
            "block_size" => self.block_size = small(reader)?.unwrap_or(0),
            "lora_id" => {
                self.lora_id = match reader.int()? {
                    Some(id) => i64::try_from(id).ok(),
                    None => reader.skip().map(|()| None)?,
                }
            }
            "medium" => self.tier = tier(reader)?,
            "lora_name" => self.lora_name = text(reader, budget)?,
            "extra_keys" => self.extra_keys = extra_keys(reader, budget)?,
            "group_idx" => self.group = small(reader)?,
            "kv_cache_spec_kind" => self.kind = text(reader, budget)?,
            "kv_cache_spec_sliding_window" => self.sliding_window = small(reader)?,
            "remaining_copy_counts" => self.remaining = counts(reader, budget)?,
            _ => reader.skip()?,
        }
        Ok(())
    }
}

const HASH: &str = "an integer of 64 bits, or at least 8 bytes";

fn hashes(reader: &mut Reader<'_>, budget: &mut Budget) -> Result<Vec<BlockKey>, DecodeError> {
    let error = |want| DecodeError::Field { field: "event.block_hashes", want };
    if reader.nil()? {
        return Ok(Vec::new());
    }
    let len = reader.array()?.ok_or_else(|| error("an array"))?;
    budget.take(Part::Key, len as usize)?;
    let mut keys = Vec::with_capacity(len as usize);
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

/// TensorRT-LLM may have texts among its token ids: then there are none that a hash could be made of.
fn tokens(reader: &mut Reader<'_>, budget: &mut Budget) -> Result<Vec<u32>, DecodeError> {
    let Some(len) = reader.array()? else {
        return reader.skip().map(|()| Vec::new());
    };
    budget.take(Part::Token, len as usize)?;
    let mut tokens = Vec::with_capacity(len as usize);
    for _ in 0..len {
        match reader.int()? {
            Some(it) => tokens.extend(u32::try_from(it)),
            None => reader.skip()?,
        }
    }
    let are_all = tokens.len() == len as usize;
    Ok(if are_all { tokens } else { Vec::new() })
}

/// Empty where one of them is no count.
fn counts(reader: &mut Reader<'_>, budget: &mut Budget) -> Result<Vec<u32>, DecodeError> {
    let Some(len) = reader.array()? else {
        return reader.skip().map(|()| Vec::new());
    };
    budget.take(Part::Count, len as usize)?;
    let mut counts = Some(Vec::with_capacity(len as usize));
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

fn text(reader: &mut Reader<'_>, budget: &mut Budget) -> Result<Option<String>, DecodeError> {
    match reader.str()? {
        Some(bytes) => owned(bytes, budget).map(Some),
        None => reader.skip().map(|()| None),
    }
}

fn owned(bytes: &[u8], budget: &mut Budget) -> Result<String, DecodeError> {
    budget.take(Part::Text, bytes.len())?;
    let text = String::from_utf8_lossy(bytes);
    // What is not UTF-8 becomes longer.
    budget.take(Part::Text, text.len().saturating_sub(bytes.len()))?;
    Ok(text.into_owned())
}

/// vLLM says `GPU`, `CPU`, `STORAGE`; connectors say `cpu`, `FS`, `OBJ` or a name of their own.
fn tier(reader: &mut Reader<'_>) -> Result<Option<Tier>, DecodeError> {
    let Some(medium) = reader.str()? else {
        return reader.skip().map(|()| None);
    };
    let is_cpu = medium.get(..3).is_some_and(|it| it.eq_ignore_ascii_case(b"CPU"));
    Ok(Some(match medium {
        it if it.eq_ignore_ascii_case(b"GPU") => Tier::Gpu,
        _ if is_cpu => Tier::Cpu,
        _ => Tier::Storage,
    }))
}

fn extra_keys(
    reader: &mut Reader<'_>,
    budget: &mut Budget,
) -> Result<Vec<(u32, Vec<ExtraItem>)>, DecodeError> {
    let Some(blocks) = reader.array()? else {
        return reader.skip().map(|()| Vec::new());
    };
    let mut all = Vec::new();
    for block in 0..blocks {
        let items = match reader.array()? {
            Some(len) => {
                budget.take(Part::ExtraKey, len as usize)?;
                let mut items = Vec::with_capacity(len as usize);
                for _ in 0..len {
                    items.push(extra_item(reader, budget)?);
                }
                items
            }
            None if reader.nil()? => Vec::new(),
            // One that we do not understand is still one.
            None => {
                reader.skip()?;
                budget.take(Part::ExtraKey, 1)?;
                vec![ExtraItem::Other]
            }
        };
        if !items.is_empty() {
            budget.take(Part::ExtraBlock, 1)?;
            all.push((block, items));
        }
    }
    Ok(all)
}

fn extra_item(reader: &mut Reader<'_>, budget: &mut Budget) -> Result<ExtraItem, DecodeError> {
    if let Some(text) = reader.str()? {
        return owned(text, budget).map(ExtraItem::Text);
    }
    if let Some(bytes) = reader.bin()? {
        budget.take(Part::Text, bytes.len())?;
        return Ok(ExtraItem::Bytes(bytes.to_vec()));
    }
    let mut inside = reader.fork();
    reader.skip()?;
    if inside.array()? == Some(2)
        && let Some(identifier) = inside.str()?
        && let Some(offset) = inside.int()?
        && let Ok(offset) = i64::try_from(offset)
    {
        return Ok(ExtraItem::Media { identifier: owned(identifier, budget)?, offset });
    }
    Ok(ExtraItem::Other)
}
