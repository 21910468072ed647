//! What such an engine publishes, as vLLM before 0.24 does.

use kvpick_agent_core::decode::{Removed, Stored};
use kvpick_proto::{naming::BlockKey, words::Tier};

fn hash(into: &mut Vec<u8>, key: BlockKey) {
    rmp::encode::write_uint(into, key.as_u64()).unwrap();
}

fn hashes(into: &mut Vec<u8>, keys: &[BlockKey]) {
    rmp::encode::write_array_len(into, keys.len() as u32).unwrap();
    keys.iter().for_each(|it| hash(into, *it));
}

pub(crate) fn event(kind: &str, fields: u32) -> Vec<u8> {
    let mut event = Vec::new();
    rmp::encode::write_array_len(&mut event, 1 + fields).unwrap();
    rmp::encode::write_str(&mut event, kind).unwrap();
    event
}

fn nil(into: &mut Vec<u8>) {
    rmp::encode::write_nil(into).unwrap();
}

fn medium(into: &mut Vec<u8>, tier: Option<Tier>) {
    rmp::encode::write_str(into, if tier == Some(Tier::Cpu) { "CPU" } else { "GPU" }).unwrap();
}

pub(crate) fn stored_event(it: &Stored) -> Vec<u8> {
    let mut event = event("BlockStored", 8);
    hashes(&mut event, &it.keys);
    match it.parent {
        Some(parent) => hash(&mut event, parent),
        None => nil(&mut event),
    }
    rmp::encode::write_array_len(&mut event, it.tokens.len() as u32).unwrap();
    for token in &it.tokens {
        rmp::encode::write_uint(&mut event, u64::from(*token)).unwrap();
    }
    rmp::encode::write_uint(&mut event, it.block_size.into()).unwrap();
    nil(&mut event);
    medium(&mut event, it.tier);
    nil(&mut event);
    nil(&mut event);
    event
}

pub(crate) fn removed_event(it: &Removed) -> Vec<u8> {
    let mut event = event("BlockRemoved", 2);
    hashes(&mut event, &it.keys);
    medium(&mut event, it.tier);
    event
}
