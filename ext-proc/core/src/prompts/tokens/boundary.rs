//! Where a text's tokens no longer depend on what follows.
//!
//! Text is cut at added tokens before anything else is done with it, so what stands before such a token, and the token
//! itself, are encoded the same whatever comes behind.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{PromptError, Tokenizer};

/// The added tokens of a tokenizer.
#[derive(Default)]
pub(super) struct Boundaries {
    /// All of them, with their ids, sorted by their texts.
    tokens: Vec<(String, u32)>,
    /// Those at which any text is cut: not the ones that are looked for in normalised text, which is another one.
    cutting: BTreeSet<String>,
    /// Their lengths in bytes, without repetition.
    lengths: Vec<usize>,
    /// Their first bytes.
    firsts: BTreeSet<u8>,
    /// Of those, the ones that take spaces before them away, or depend on the letter beside them.
    reaching: BTreeSet<String>,
    /// Whether runs of line feeds are added tokens.
    has_line_feeds: bool,
}

impl Boundaries {
    /// Of a `tokenizer.json`, all added tokens in it.
    pub(super) fn new(file: &Value) -> Self {
        let is_normalised = !file["normalizer"].is_null();
        let mut all = Self::default();
        for token in file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok());
            let (Some(text), Some(id)) = (token["content"].as_str().filter(|it| !it.is_empty()), id) else {
                continue;
            };
            all.tokens.push((text.to_owned(), id));
            all.has_line_feeds |= text == "\n\n\n";
            if !is_normalised || token["normalized"] != true {
                all.cutting.insert(text.to_owned());
                all.lengths.push(text.len());
                all.firsts.extend(text.bytes().next());
            }
            if token["lstrip"] == true || token["single_word"] == true {
                all.reaching.insert(text.to_owned());
            }
        }
        all.tokens.sort();
        all.lengths.sort_unstable();
        all.lengths.dedup();
        all
    }

    /// The longest token that cuts any text and stands at the beginning of this one.
    fn at_start<'t>(&self, text: &'t str) -> Option<&'t str> {
        if !text.bytes().next().is_some_and(|first| self.firsts.contains(&first)) {
            return None;
        }
        let heads = self.lengths.iter().rev().filter_map(|length| text.get(..*length));
        heads.into_iter().find(|head| self.cutting.contains(*head))
    }

    fn id_of(&self, token: &str) -> Option<u32> {
        let at = self.tokens.binary_search_by(|(text, _)| text.as_str().cmp(token)).ok()?;
        Some(self.tokens[at].1)
    }

    /// Whether some token begins in `text` before `end`, and goes on behind the text.
    fn may_straddle(&self, text: &str, end: usize) -> bool {
        let longest = self.tokens.iter().map(|(token, _)| token.len()).max().unwrap_or(0);
        let starts = (text.len().saturating_sub(longest)..end).filter(|at| text.is_char_boundary(*at));
        starts.into_iter().any(|at| {
            let tail = &text[at..];
            let from = self.tokens.partition_point(|(token, _)| token.as_str() < tail);
            let begun = self.tokens[from..].iter().take_while(|(token, _)| token.starts_with(tail));
            begun.into_iter().any(|(token, _)| tail.len() < token.len())
        })
    }
}

impl Tokenizer {
    /// The ids of as much of `text` as has the same ones whatever follows it: up to its last added token.
    pub(in crate::prompts) fn settled(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        let all = self.open(text, add_special_tokens)?;
        for (at, _) in text.char_indices().rev() {
            let Some(token) = self.model.boundaries.at_start(&text[at..]) else { continue };
            let end = at + token.len();
            // At the very end of the text the letter beside it is not known.
            let is_open = end == text.len() && self.model.boundaries.reaching.contains(token);
            if is_open || self.model.boundaries.may_straddle(text, end) {
                continue;
            }
            let head = self.open(&text[..end], add_special_tokens)?;
            // A token may itself be a part of a longer one.
            if head.last().copied() == self.model.boundaries.id_of(token) && all.starts_with(&head) {
                return Ok(head);
            }
        }
        Ok(Vec::new())
    }

    /// The ids of `text` without those that the tokenizer puts behind it.
    pub(in crate::prompts) fn open(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        let bare = self.encode(text, false)?;
        if !add_special_tokens {
            return Ok(bare);
        }
        let mut all = self.encode(text, true)?;
        let added = all.len().saturating_sub(bare.len());
        match (0..=added).find(|at| all[*at..].starts_with(&bare)) {
            Some(before) => all.truncate(before + bare.len()),
            None => all.clear(),
        }
        Ok(all)
    }

    /// The id of the added token with which `text` begins, if none of what stands before it can depend on it.
    pub(in crate::prompts) fn cut_at_start(&self, text: &str) -> Option<u32> {
        let token = self.model.boundaries.at_start(text)?;
        if self.model.boundaries.reaching.contains(token) { None } else { self.model.boundaries.id_of(token) }
    }

    /// Those of `ids` that are added tokens.
    pub(in crate::prompts) fn added_among(&self, ids: &[u32]) -> BTreeSet<u32> {
        let added: BTreeSet<u32> = self.model.boundaries.tokens.iter().map(|(_, id)| *id).collect();
        ids.iter().copied().filter(|id| added.contains(id)).collect()
    }

    /// Whether runs of line feeds are added tokens.
    pub(in crate::prompts) fn has_line_feeds(&self) -> bool {
        self.model.boundaries.has_line_feeds
    }
}
