//! The models whose prompts can be made: by their tokenizers and templates, read from local folders, or by other servers.
//!
//! A table of them never changes; [`crate::reload`] puts a new one in its place.

mod files;
mod folder;
mod load;

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use kvpick_core::prompts::Prompter;

use crate::{config::ModelConfig, memo::Memos, remote::Remote};
pub use files::{Digest, Stamp};
pub use load::Batch;

/// All listed models, by name.
#[derive(Clone, Debug, Default)]
pub struct Models {
    listed: Vec<Arc<Model>>,
    /// Positions in `listed`, by name and by alias.
    by_name: BTreeMap<String, usize>,
}

/// One listed model.
#[derive(Clone, Debug)]
pub struct Model {
    /// As it is listed now.
    pub config: ModelConfig,
    /// What is in force; `None` until it is loaded, and as long as it can't be.
    pub loaded: Option<Loaded>,
    /// Who else makes its prompts.
    pub remote: Option<Arc<Remote>>,
    /// Why it could not be loaded when that was last tried; what was in force before is so still.
    pub error: Option<String>,
    /// What its files were like before they were last read.
    pub stamp: Stamp,
}

/// A loaded model. Cheap to clone.
#[derive(Clone)]
pub struct Loaded {
    /// Makes its prompts.
    pub prompter: Arc<Prompter>,
    /// Of all that its prompts depend on: files and settings.
    pub fingerprint: Digest,
    /// Of the files of which the tokenizer was made.
    pub tokenizer: Digest,
    /// When it was loaded.
    pub at: SystemTime,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl Model {
    /// A model that is yet to be loaded.
    #[must_use]
    pub fn awaited(config: ModelConfig) -> Self {
        Self { config, loaded: None, remote: None, error: None, stamp: Stamp::default() }
    }

    /// `ready` when it makes prompts, else `failed`, or `loading` when that was never tried.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match (self.is_ready(), &self.error) {
            (true, _) => "ready",
            (false, Some(_)) => "failed",
            (false, None) => "loading",
        }
    }

    /// Whether what is configured to make its prompts does so; another server is taken to.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        if self.config.source.is_local() { self.loaded.is_some() } else { self.remote.is_some() }
    }

    /// Its names in requests, its own first.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.config.name).chain(&self.config.aliases)
    }
}

impl Models {
    /// A table of these. Of two models of one name the later one has it; a configuration without mistakes has none.
    #[must_use]
    pub fn new(listed: Vec<Arc<Model>>) -> Self {
        let names =
            listed.iter().enumerate().flat_map(|(at, it)| it.names().map(move |name| (name.clone(), at)));
        let by_name = names.collect();
        Self { listed, by_name }
    }

    /// Loads all of them here and now, which takes about a second each. What fails is logged and in the table.
    #[must_use]
    pub fn load(configs: &[ModelConfig]) -> Self {
        Self::load_with(configs, &Memos::default())
    }

    /// The same, with memos.
    #[must_use]
    pub fn load_with(configs: &[ModelConfig], memos: &Memos) -> Self {
        let batch = Batch::default().with_memos(memos.clone());
        let load = |config: &ModelConfig| Arc::new(batch.load(config.clone()));
        Self::new(configs.iter().map(load).collect())
    }

    /// The prompter of that name; where none is named, that of the only model.
    #[must_use]
    pub fn find(&self, name: Option<&str>) -> Option<&Arc<Prompter>> {
        Some(&self.asked_for(name)?.loaded.as_ref()?.prompter)
    }

    /// The model of that name or alias; where none is named, the only one.
    #[must_use]
    pub fn asked_for(&self, name: Option<&str>) -> Option<&Arc<Model>> {
        match (name, self.listed.as_slice()) {
            (Some(name), _) => self.get(name),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    /// The model of that name or alias.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Model>> {
        self.by_name.get(name).map(|at| &self.listed[*at])
    }

    /// All of them, as they are listed.
    #[must_use]
    pub fn listed(&self) -> &[Arc<Model>] {
        &self.listed
    }

    /// The same table with another model at that position.
    #[must_use]
    pub fn with(&self, at: usize, model: Model) -> Self {
        let mut listed = self.listed.clone();
        listed[at] = Arc::new(model);
        Self::new(listed)
    }
}
