//! Finds out how an engine names its blocks, by naming some of them itself.
//!
//! A store that begins at token 0 of a prompt carries all that its hashes are made of, and so does one that goes on
//! where a recomputed chain ended. If one combination of algorithm and root gives its hashes, that is the engine's.
//! Nothing about hashing has to be configured. Where none ever does, the engine's blocks are given names of the
//! agent's own: see [`crate::translate`].

mod candidates;
mod chains;
pub(crate) mod extra;
mod kinds;
mod known;
mod learnt;
mod search;
mod version;

use std::{collections::BTreeSet, num::NonZeroU32};

use kvpick_proto::{
    naming::{Digest, ExtraKeyShape},
    words::{Adapter, KeyKind},
};

use crate::decode::Stored;
use candidates::{Candidates, Question, SHAPES};
use chains::{Chains, Link, is_watched};
use extra::{Extras, Untold};
pub(crate) use known::canonical;
pub use learnt::Learnt;
use search::Effort;
use version::Version;

/// Plain stores in a row that must fit nothing before an engine's naming counts as unknown. One may be hidden keys:
/// vLLM before 0.17 does not publish a salt.
const MISFITS: u32 = 8;

/// Stores that are recomputed whole after the first that fits.
const SETTLE: u32 = 256;

/// Block sizes of one engine's groups that are remembered.
const MAX_SIZES: usize = 8;

/// What is known of how one engine names its blocks.
#[derive(Clone, Debug)]
pub struct Naming {
    candidates: Candidates,
    version: Option<Version>,
    /// In which extra keys are hashed: by the version, or as a store has shown.
    shape: ExtraKeyShape,
    is_shape_shown: bool,
    /// As the engine's metrics name them.
    algorithm: Option<String>,
    block_size: Option<NonZeroU32>,
    hash_block_size: Option<NonZeroU32>,
    adapters: Vec<Adapter>,
    /// Block sizes of its stores, and that of the first of a dense group.
    sizes: BTreeSet<NonZeroU32>,
    dense_size: Option<NonZeroU32>,
    /// Whether its events leave out what enters hashes besides tokens and adapter.
    hides_extra_keys: bool,
    /// The candidate that fitted, and tokens in a hashed block. Where nothing is verified, of the process before.
    found: Option<Scheme>,
    chains: Chains,
    /// Stores that fitted since.
    fits: u32,
    verified: BTreeSet<KeyKind>,
    /// Kinds of key that did not fit a domain in which plain keys do.
    misfitting: BTreeSet<KeyKind>,
    /// Plain stores in a row that fitted nothing.
    misfits: u32,
    effort: Effort,
    is_foreign: bool,
    wants_identity: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Scheme {
    candidate: usize,
    block_size: NonZeroU32,
}

/// Whether a store's hashes could be recomputed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fit {
    /// Its chain is not known from a prompt's first token on, or it lacks something that enters its hashes, or there
    /// is no need.
    Untestable,
    /// They were.
    Fits,
    /// No known way gives them.
    Misfit,
    /// As [`Self::Misfit`], from an engine that does not publish all that enters its hashes, and whose naming is
    /// known.
    Hidden,
}

/// The best that was found for one store.
struct Found {
    digests: Vec<Digest>,
    scheme: Scheme,
    shape: ExtraKeyShape,
}

impl Naming {
    /// Nothing known yet. `roots` are tried beside the usual ones.
    #[must_use]
    pub fn new(roots: &[String]) -> Self {
        Self {
            candidates: Candidates::new(roots),
            version: None,
            shape: ExtraKeyShape::Tagged,
            is_shape_shown: false,
            algorithm: None,
            block_size: None,
            hash_block_size: None,
            adapters: Vec::new(),
            sizes: BTreeSet::new(),
            dense_size: None,
            hides_extra_keys: false,
            found: None,
            chains: Chains::default(),
            fits: 0,
            verified: BTreeSet::new(),
            misfitting: BTreeSet::new(),
            misfits: 0,
            effort: Effort::default(),
            is_foreign: false,
            wants_identity: false,
        }
    }

    // === What the engine's API shows ===

    /// The engine says its version. Another one than before is another process.
    pub fn on_version(&mut self, version: &str) {
        let before = self.version;
        self.version = Version::parse(version);
        if self.version == before {
            return;
        }
        if before.is_some() && self.version.is_some() {
            self.on_new_process();
        }
        let shape = self.version.map_or(ExtraKeyShape::Tagged, Version::shape);
        if shape != self.shape && !self.is_shape_shown {
            self.shape = shape;
            self.verified.retain(|kind| *kind == KeyKind::Plain);
            self.misfitting.clear();
        }
    }

    /// The engine's metrics say which algorithm it was told to use, and how many tokens are in a block.
    pub fn on_cache_config(&mut self, algorithm: Option<&str>, block_size: Option<u32>) {
        self.algorithm = algorithm.map(str::to_owned);
        self.block_size = block_size.and_then(NonZeroU32::new);
    }

    /// The engine's metrics say how many tokens are in a hashed block.
    pub fn on_hash_block_size(&mut self, size: Option<u32>) {
        self.hash_block_size = size.and_then(NonZeroU32::new);
    }

    /// The engine serves these adapters.
    pub fn on_adapters(&mut self, adapters: &[Adapter]) {
        self.adapters = adapters.to_vec();
    }

    /// Whether the engine is of another make than vLLM.
    pub const fn on_make(&mut self, is_foreign: bool) {
        self.is_foreign = is_foreign;
    }

    /// It is another process of the engine now, or may be one: what was verified of the one before is a guess.
    pub fn on_new_process(&mut self) {
        self.verified.clear();
        self.misfitting.clear();
        self.chains.clear();
        self.sizes.clear();
        self.dense_size = None;
        self.hides_extra_keys = false;
        self.is_shape_shown = false;
        self.shape = self.version.map_or(self.shape, Version::shape);
        (self.fits, self.misfits, self.effort) = (0, 0, Effort::default());
        self.wants_identity = true;
    }

    /// Whether version and models should be asked for again, since they may be those of another process. Once.
    #[must_use]
    pub const fn take_wants_identity(&mut self) -> bool {
        std::mem::replace(&mut self.wants_identity, false)
    }

    // === What its stores show ===

    /// The engine stored blocks: tries to name them itself.
    ///
    /// Until the kinds of key in it are verified, and for some hundreds of stores more, it is recomputed whole. After
    /// that the first block of each prompt is, and all of one prompt in eight, with what continues it.
    pub fn on_stored(&mut self, stored: &Stored) -> Fit {
        self.note(stored);
        let is_given_up = MISFITS <= self.misfits && self.effort.is_spent();
        if self.is_foreign || is_given_up || !stored.is_dense() {
            return Fit::Untestable;
        }
        let Ok(extras) = Extras::of(stored, self.shape, &self.adapters)
            .or_else(|_| Extras::of(stored, ExtraKeyShape::Bare, &self.adapters))
        else {
            return Fit::Untestable;
        };
        let is_plain = extras.is_plain();
        let link = match stored.parent {
            None => None,
            Some(parent) => match self.chains.get(parent) {
                Some(link) => Some(link),
                None => return Fit::Untestable,
            },
        };
        let watched = link.map_or_else(|| is_watched(stored.keys[0]), |it| it.is_watched);
        let settled = self.is_settled(stored, &extras);
        if settled && !watched && link.is_some() {
            return Fit::Untestable;
        }
        let blocks = if settled && !watched { 1 } else { stored.keys.len() };
        let question = Question { stored, parent: link.map(|it| it.digest), blocks };
        match self.answer(&question, is_plain, watched) {
            Err(Untold) => Fit::Untestable,
            Ok(None) => self.on_misfit(stored, is_plain),
            Ok(Some(found)) => self.on_found(stored, found, blocks, watched),
        }
    }

    fn note(&mut self, stored: &Stored) {
        if stored.tokens.is_empty() {
            return;
        }
        self.hides_extra_keys = stored.hides_extra_keys;
        let Some(size) = NonZeroU32::new(stored.block_size) else { return };
        if self.sizes.len() < MAX_SIZES {
            self.sizes.insert(size);
        }
        if self.dense_size.is_none() && stored.is_dense() && crate::translate::is_of_dense_group(stored) {
            self.dense_size = Some(size);
        }
    }

    /// Whether there is nothing left to be learnt from such a store.
    fn is_settled(&self, stored: &Stored, extras: &Extras<'_>) -> bool {
        let known = |index| match extras.block(index, self.shape) {
            Ok(it) => it.kinds.is_subset(&self.verified),
            Err(Untold) => false,
        };
        SETTLE <= self.fits
            && self.verified.contains(&KeyKind::Plain)
            && (extras.is_plain() || (0..stored.keys.len()).all(known))
    }

    /// The way that gives the most of the store's hashes; `None` where none gives the first.
    fn answer(
        &mut self,
        question: &Question<'_>,
        is_plain: bool,
        watched: bool,
    ) -> Result<Option<Found>, Untold> {
        let stored = question.stored;
        let mut best: Option<Found> = None;
        let schemes = self.schemes(question, watched);
        let (mut untold, mut tried, mut searches) = (false, false, false);
        for scheme in schemes {
            let is_first_other = Some(scheme) != self.found && !std::mem::replace(&mut searches, true);
            if is_first_other && !self.effort.search() {
                break;
            }
            tried = true;
            let others = SHAPES.into_iter().filter(|it| !is_plain && *it != self.shape);
            for shape in std::iter::once(self.shape).chain(others) {
                let candidate = &mut self.candidates[scheme.candidate];
                let size = scheme.block_size.get() as usize;
                let digests = Extras::of(stored, shape, &self.adapters)
                    .and_then(|extras| candidate.recompute(question, size, shape, &extras));
                match digests {
                    Err(Untold) => untold = true,
                    Ok(digests) if digests.len() > best.as_ref().map_or(0, |it| it.digests.len()) => {
                        best = Some(Found { digests, scheme, shape });
                    }
                    Ok(_) => (),
                }
            }
            if best.is_some() {
                break;
            }
        }
        // What fits in part under one shape may fit under the one that could not be tried.
        let is_whole = best.as_ref().is_some_and(|it| it.digests.len() == question.blocks);
        if (untold || !tried) && !is_whole { Err(Untold) } else { Ok(best) }
    }

    fn on_found(&mut self, stored: &Stored, found: Found, blocks: usize, watched: bool) -> Fit {
        if MISFITS <= self.misfits {
            self.effort.came_back();
        }
        if self.found != Some(found.scheme) {
            self.verified.clear();
            self.misfitting.clear();
            self.chains.clear();
            self.fits = 0;
        }
        self.found = Some(found.scheme);
        self.verified.insert(KeyKind::Plain);
        self.misfits = 0;
        for (digest, key) in found.digests.iter().zip(&stored.keys) {
            self.chains.insert(*key, Link { digest: *digest, is_watched: watched });
        }
        let kinds = self.kinds_of(stored, found.shape, found.digests.len());
        if found.digests.len() < blocks {
            if kinds.len() == 1 && !stored.hides_extra_keys {
                self.misfitting.extend(kinds.difference(&self.verified));
            }
            return self.misfit(stored);
        }
        self.fits = self.fits.saturating_add(1);
        if found.shape != self.shape {
            self.shape = found.shape;
            self.is_shape_shown = true;
            self.verified.retain(|kind| *kind == KeyKind::Plain);
        }
        self.is_shape_shown |= kinds.contains(&KeyKind::Media);
        self.misfitting.retain(|kind| !kinds.contains(kind));
        self.verified.extend(kinds);
        Fit::Fits
    }

    /// The kinds of key in the first blocks of a store, as far as the shape tells.
    fn kinds_of(&self, stored: &Stored, shape: ExtraKeyShape, blocks: usize) -> BTreeSet<KeyKind> {
        let Ok(extras) = Extras::of(stored, shape, &self.adapters) else { return BTreeSet::new() };
        let kinds = (0..blocks).filter_map(|it| extras.block(it, shape).ok()).flat_map(|it| it.kinds);
        let all: BTreeSet<_> = kinds.collect();
        // One of the two older shapes is told from the other by media only.
        let is_sure = shape == ExtraKeyShape::Tagged
            || self.is_shape_sure(shape)
            || (shape == ExtraKeyShape::BareWithOffset && all.contains(&KeyKind::Media));
        all.into_iter().filter(|it| is_sure || *it != KeyKind::Salt).collect()
    }

    fn is_shape_sure(&self, shape: ExtraKeyShape) -> bool {
        self.version.map(Version::shape) == Some(shape) || (self.is_shape_shown && self.shape == shape)
    }

    fn on_misfit(&mut self, stored: &Stored, is_plain: bool) -> Fit {
        let fit = self.misfit(stored);
        if fit == Fit::Hidden || stored.parent.is_some() {
            return fit;
        }
        if !is_plain {
            let kinds = self.kinds_of(stored, self.shape, stored.keys.len());
            if kinds.len() == 1 && self.verified.contains(&KeyKind::Plain) {
                self.misfitting.extend(kinds.difference(&self.verified));
            }
            return fit;
        }
        self.misfits = self.misfits.saturating_add(1);
        if self.misfits >= MISFITS {
            self.found = None;
            self.verified.clear();
            self.chains.clear();
        }
        fit
    }

    fn misfit(&mut self, stored: &Stored) -> Fit {
        if !self.verified.contains(&KeyKind::Plain) {
            return Fit::Misfit;
        }
        if stored.hides_extra_keys {
            return Fit::Hidden;
        }
        self.wants_identity = true;
        Fit::Misfit
    }
}
