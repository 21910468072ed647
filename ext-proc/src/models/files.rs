//! The files that a model's prompts depend on.

use std::{fmt, fs, path::Path, time::SystemTime};

use kvpick_core::prompts::ModelFiles;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::folder::{self, Folder};
use crate::config::ModelConfig;

/// A model's files.
pub(super) struct Files(Folder);

impl Files {
    /// Reads them all.
    pub(super) fn read(config: &ModelConfig) -> anyhow::Result<Self> {
        Folder::read(&config.path, config.chat_template.as_deref()).map(Self)
    }

    /// All of them, as the core wants them.
    pub(super) fn as_model_files(&self) -> ModelFiles<'_> {
        self.0.files()
    }

    /// Of the files that the tokenizer is made of.
    pub(super) fn tokenizer(&self) -> Digest {
        Digest::of(self.0.tokenizer_parts(), "")
    }

    /// Of the files, and of the settings but for names and places.
    pub(super) fn fingerprint(&self, config: &ModelConfig) -> Digest {
        let mut settings = serde_json::to_value(config).unwrap_or_default();
        if let Value::Object(fields) = &mut settings {
            // Whether a template is given matters, where it is does not.
            let is_given = fields.get("chat_template").is_some_and(|it| !it.is_null());
            let beside = ["name", "aliases", "source", "remote", "path", "chat_template"];
            fields.retain(|name, _| !beside.contains(&name.as_str()));
            fields.insert("has_chat_template".to_owned(), is_given.into());
        }
        Digest::of(self.0.parts(), &settings.to_string())
    }
}

/// A digest of contents; shown by its first half, which is plenty for the eye.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub struct Digest([u8; 32]);

impl Digest {
    fn of<'a>(files: impl Iterator<Item = (&'a str, &'a [u8])>, settings: &str) -> Self {
        let mut hash = Sha256::new();
        let parts = files.flat_map(|(name, bytes)| [name.as_bytes(), bytes]);
        for part in parts.chain([settings.as_bytes()]) {
            // Lengths keep parts apart.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..16].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Size and time of change of each of a model's files: differs where one may have changed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Stamp(Vec<Option<(u64, SystemTime)>>);

impl Stamp {
    /// As the files are now.
    #[must_use]
    pub fn of(config: &ModelConfig) -> Self {
        let stamp = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.len(), found.modified().ok()?))
        };
        let paths = folder::paths(&config.path, config.chat_template.as_deref());
        Self(paths.iter().map(|path| stamp(path)).collect())
    }
}
