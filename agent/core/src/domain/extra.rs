//! What entered a store's hashes besides tokens.
//!
//! Events carry it in one form and hashes in another, which depends on the version: see [`ExtraKeyShape`].

use std::collections::BTreeSet;

use kvpick_proto::{
    naming::{ExtraKey, ExtraKeyShape},
    words::{Adapter, KeyKind},
};

use crate::{
    bounds::fits,
    decode::{ExtraItem, Stored},
};

/// The extra keys of one block, and of which kinds they surely are.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockKeys {
    pub(crate) keys: Vec<ExtraKey>,
    pub(super) kinds: BTreeSet<KeyKind>,
    /// Whether some of them are of a kind that can't be told: before vLLM 0.19 a salt and a media identifier in a
    /// prompt's first block look alike, and hash alike.
    pub(crate) is_vague: bool,
}

/// The extra keys of a store's blocks.
pub(crate) struct Extras<'a> {
    items: Vec<&'a [ExtraItem]>,
    is_root: bool,
    adapter: Option<ExtraKey>,
}

/// Why a store's extra keys are not known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Untold;

impl<'a> Extras<'a> {
    /// Those of an engine that serves `adapters`. Where an adapter's path does not enter the hash, it need not be among
    /// them.
    pub(crate) fn of(stored: &'a Stored, shape: ExtraKeyShape, adapters: &[Adapter]) -> Result<Self, Untold> {
        let adapter = match (stored.lora_name.as_deref(), stored.lora_id) {
            (None, None) => None,
            // The engine's own number of it.
            (None, Some(_)) => return Err(Untold),
            // It enters each block's hash, so that a long name of many blocks takes without end. No such adapter is known.
            (Some(name), _) if !fits(name) => return Err(Untold),
            (Some(name), _) => {
                let path = match adapters.iter().find(|it| it.name == name) {
                    Some(it) => it.path.clone(),
                    None if shape == ExtraKeyShape::Tagged => return Err(Untold),
                    None => String::new(),
                };
                Some(ExtraKey::Adapter { name: name.to_owned(), path })
            }
        };
        let mut items: Vec<&[ExtraItem]> = vec![&[]; stored.keys.len()];
        for (block, all) in &stored.extra_keys {
            *items.get_mut(*block as usize).ok_or(Untold)? = all;
        }
        Ok(Self { items, is_root: stored.parent.is_none(), adapter })
    }

    /// Whether there are any.
    pub(super) fn is_plain(&self) -> bool {
        self.adapter.is_none() && self.items.iter().all(|it| it.is_empty())
    }

    /// Those of one block of the store, as an engine of that shape hashes them.
    pub(crate) fn block(&self, index: usize, shape: ExtraKeyShape) -> Result<BlockKeys, Untold> {
        let mut all = BlockKeys::default();
        let mut items = self.items.get(index).copied().unwrap_or_default();
        if let Some(key) = &self.adapter {
            if let (ExtraKey::Adapter { name, .. }, Some(ExtraItem::Text(text))) = (key, items.first())
                && name == text
            {
                items = &items[1..];
            }
            all.kinds.insert(KeyKind::Adapter);
            all.keys.push(key.clone());
        }
        let is_first = self.is_root && index == 0;
        for item in items {
            let (kind, key) = match (item, shape) {
                (ExtraItem::Text(text), ExtraKeyShape::Bare) if is_first => {
                    all.is_vague = true;
                    (None, ExtraKey::Salt(text.clone()))
                }
                (ExtraItem::Text(text), ExtraKeyShape::Bare) => {
                    let identifier = text.clone();
                    (Some(KeyKind::Media), ExtraKey::Media { identifier, offset: 0 })
                }
                (ExtraItem::Text(salt), _) if is_first && !all.kinds.contains(&KeyKind::Salt) => {
                    (Some(KeyKind::Salt), ExtraKey::Salt(salt.clone()))
                }
                (ExtraItem::Media { identifier, offset }, it) if it != ExtraKeyShape::Bare => {
                    let identifier = identifier.clone();
                    (Some(KeyKind::Media), ExtraKey::Media { identifier, offset: *offset })
                }
                (ExtraItem::Bytes(digest), _) => (Some(KeyKind::Embeds), ExtraKey::Embeds(digest.clone())),
                (ExtraItem::Text(_) | ExtraItem::Media { .. } | ExtraItem::Other, _) => return Err(Untold),
            };
            all.kinds.extend(kind);
            all.keys.push(key);
        }
        Ok(all)
    }

    /// Those of the hashed blocks that one block of the store is made of, where it is made of several: an adapter enters
    /// all of them, a salt the first. Where a media item begins and ends is not known.
    pub(super) fn fine(&self, block: &BlockKeys, index: usize) -> Result<Vec<ExtraKey>, Untold> {
        let with = |it: &ExtraKey| matches!(it, ExtraKey::Adapter { .. }) || index == 0;
        let can_tell = |it: &ExtraKey| matches!(it, ExtraKey::Adapter { .. } | ExtraKey::Salt(_));
        if block.is_vague || !block.keys.iter().all(can_tell) {
            return Err(Untold);
        }
        Ok(block.keys.iter().filter(|it| with(it)).cloned().collect())
    }
}
