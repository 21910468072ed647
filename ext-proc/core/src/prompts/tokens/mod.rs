//! Text to token ids, by the model's own tokenizer.

mod added;
mod boundary;
mod bounds;
mod cuts;
mod doubts;
mod fast;
mod known;
mod library;
mod remembered;
mod unicode;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::{LoadError, PromptError};
use crate::{memo::Memo, request::json::Object};
use boundary::Boundaries;
use cuts::Cuts;
use library::Library;
use remembered::Remembered;

/// A model's tokenizer, as its `tokenizer.json` describes it. Cheap to copy.
#[derive(Clone)]
pub(super) struct Tokenizer {
    model: Arc<Model>,
    remembered: Option<Arc<Remembered>>,
}

/// What makes ids.
struct Model {
    library: Library,
    /// Tells it from others.
    fingerprint: u128,
    /// Where texts may be cut, or why not.
    cuts: Result<Cuts, &'static str>,
    /// What the post-processor puts around the ids of a text, if it is the same around any.
    around: Option<Around>,
    /// Added tokens that are not special: they are cut out of any text.
    never_ordinary: Vec<String>,
    boundaries: Boundaries,
}

/// Ids that the post-processor puts before and after those of a text.
#[derive(Debug, Eq, PartialEq)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` of any version. Tokens that only `config`, the `tokenizer_config.json`, has are added, as
    /// transformers does.
    pub(super) fn new(json: &[u8], config: &Object) -> Result<Self, LoadError> {
        let failed = |error: &dyn std::fmt::Display| LoadError::Tokenizer(error.to_string());
        let mut file: Value = serde_json::from_slice(json).map_err(|error| failed(&error))?;
        if !file.is_object() {
            return Err(failed(&"is no JSON object"));
        }
        added::add_tokens(&mut file, config);
        let cuts = known::cuts(&file);
        let library = Library::new(&mut file).map_err(|error| failed(&error))?;
        let added = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        let plain = added.iter().filter(|token| token["special"] != true);
        let plain = plain.filter_map(|token| token["content"].as_str().map(str::to_owned));
        let text = file.to_string();
        let model = Model {
            fingerprint: xxh3_128(text.as_bytes()),
            around: Around::of(&library),
            library,
            cuts,
            never_ordinary: plain.filter(|content| !content.is_empty()).collect(),
            boundaries: Boundaries::new(&file),
        };
        Ok(Self { model: Arc::new(model), remembered: None })
    }

    /// The same, which keeps in `memo` what it has encoded, where pieces of a text have the ids that they have in the
    /// whole.
    pub(super) fn with_memo(&self, memo: Arc<dyn Memo>) -> Self {
        let remembered = self.model.cuts.is_ok().then(|| Arc::new(Remembered::new(memo)));
        Self { model: Arc::clone(&self.model), remembered }
    }

    /// Whether both are one in memory, whatever their memos.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.model, &other.model)
    }

    /// How texts are cut for a memo, or why it is of no use: a short fixed name.
    pub(super) fn cut_label(&self) -> &'static str {
        match &self.model.cuts {
            Ok(Cuts::Places(_)) => "anywhere",
            Ok(Cuts::Tokens(_)) => "added_tokens",
            Ok(Cuts::Nowhere) => "whole",
            Err(reason) => reason,
        }
    }

    /// Whether a memo can be of use.
    pub(super) fn can_remember(&self) -> bool {
        self.model.cuts.is_ok()
    }

    /// Fails where the texts of a request would hold a worker for too long.
    pub(super) fn check<'t>(texts: impl Iterator<Item = &'t str> + Clone) -> Result<(), PromptError> {
        bounds::problem(texts).map_or(Ok(()), |it| Err(PromptError::Tokenizer(it.to_owned())))
    }

    /// Ids of `text`. Special tokens that stand in it as text become their ids; `add_special_tokens` is whether the
    /// post-processor may add any around it.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        let model = &self.model;
        Self::check([text].into_iter())?;
        let (Some(remembered), false) = (&self.remembered, text.is_empty()) else {
            return model.whole(text, add_special_tokens);
        };
        match &model.around {
            _ if !add_special_tokens => remembered.ids(model, text, false),
            None => model.whole(text, true),
            Some(around) => {
                let mut ids = remembered.ids(model, text, false)?;
                ids.splice(0..0, around.before.iter().copied());
                ids.extend(&around.after);
                Ok(ids)
            }
        }
    }

    /// Ids of `text` as ordinary text: special tokens that stand in it are text like any other. An added token that is
    /// not special cannot be, and is an error.
    pub(super) fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        let model = &self.model;
        if model.never_ordinary.iter().any(|token| text.contains(token.as_str())) {
            return Err(PromptError::Tokenizer("the text has an added token that is not special".to_owned()));
        }
        Self::check([text].into_iter())?;
        match &self.remembered {
            Some(remembered) => remembered.ids(model, text, true),
            None => model.full(text, true),
        }
    }

    /// Text of `ids`, special tokens included.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.model.library.decode(ids)
    }
}

impl Model {
    /// The ends of the pieces of `text` that may be encoded apart.
    fn ends(&self, text: &str, is_ordinary: bool) -> Vec<usize> {
        self.cuts.as_ref().map_or_else(|_| vec![text.len()], |it| it.ends(text, is_ordinary))
    }

    /// Ids of a text in full, with those that the post-processor adds where they are wanted.
    fn whole(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        let mut ids = Vec::new();
        self.append(text, add_special_tokens, false, &mut ids)?;
        Ok(ids)
    }

    /// Ids of a text in full, without any that the post-processor adds.
    fn full(&self, text: &str, is_ordinary: bool) -> Result<Vec<u32>, PromptError> {
        let mut ids = Vec::new();
        self.full_into(text, is_ordinary, &mut ids)?;
        Ok(ids)
    }

    fn full_into(&self, text: &str, is_ordinary: bool, ids: &mut Vec<u32>) -> Result<(), PromptError> {
        self.append(text, false, is_ordinary, ids)
    }

    fn append(
        &self,
        text: &str,
        add_special_tokens: bool,
        is_ordinary: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), PromptError> {
        self.library.encode_into(text, add_special_tokens, is_ordinary, ids).map_err(PromptError::Tokenizer)
    }
}

impl Around {
    /// Found out from two texts.
    fn of(library: &Library) -> Option<Self> {
        let of = |text: &str| {
            let (mut whole, mut bare) = (Vec::new(), Vec::new());
            library.encode_into(text, true, false, &mut whole).ok()?;
            library.encode_into(text, false, false, &mut bare).ok()?;
            let before = (0..=whole.len()).find(|at| whole[*at..].starts_with(&bare))?;
            let after = whole[before + bare.len()..].to_vec();
            whole.truncate(before);
            Some(Self { before: whole, after })
        };
        let around = of("a")?;
        (of("Another one, 12.")? == around).then_some(around)
    }
}
