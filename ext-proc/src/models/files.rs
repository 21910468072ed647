//! The files that a model's prompts depend on.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context as _;
use kvpick_core::prompts::ModelFiles;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::config::ModelConfig;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CONFIG: &str = "config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// What is read of a model's folder, where it is there. The tokenizer is made of all of them but those in [`BESIDE`].
const FOLDER: [&str; 4] = [TOKENIZER, TOKENIZER_CONFIG, CONFIG, TEMPLATE];

/// Files that the tokenizer does not depend on.
const BESIDE: [&str; 2] = [CONFIG, TEMPLATE];

/// The bytes of a model's files, by their names in [`FOLDER`].
pub(super) struct Files(BTreeMap<&'static str, Vec<u8>>);

impl Files {
    /// Reads them all.
    pub(super) fn read(config: &ModelConfig) -> anyhow::Result<Self> {
        let mut found = BTreeMap::new();
        for (name, path) in paths(config) {
            let is_wanted = name == TOKENIZER || name == TEMPLATE && config.chat_template.is_some();
            if is_wanted || path.is_file() {
                found.insert(name, read(&path)?);
            }
        }
        Ok(Self(found))
    }

    /// All of them, as the core wants them.
    pub(super) fn as_model_files(&self) -> anyhow::Result<ModelFiles<'_>> {
        let template = self.get(TEMPLATE).map(str::from_utf8).transpose();
        Ok(ModelFiles {
            tokenizer_json: self.get(TOKENIZER).unwrap_or_default(),
            tokenizer_config_json: self.get(TOKENIZER_CONFIG),
            config_json: self.get(CONFIG),
            chat_template: template.context("the chat template is not UTF-8")?,
        })
    }

    /// Of the files that the tokenizer is made of.
    pub(super) fn tokenizer(&self) -> Digest {
        Digest::of(self.0.iter().filter(|(name, _)| !BESIDE.contains(name)), "")
    }

    /// Of the files, and of the settings but for names and places.
    pub(super) fn fingerprint(&self, config: &ModelConfig) -> Digest {
        let mut settings = serde_json::to_value(config).unwrap_or_default();
        if let Value::Object(fields) = &mut settings {
            fields.retain(|name, _| !["name", "aliases", "path", "chat_template"].contains(&name.as_str()));
        }
        Digest::of(self.0.iter(), &settings.to_string())
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

/// A digest of contents; shown by its first half, which is plenty for the eye.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub struct Digest([u8; 32]);

impl Digest {
    fn of<'a>(files: impl Iterator<Item = (&'a &'static str, &'a Vec<u8>)>, settings: &str) -> Self {
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
        Self(paths(config).map(|(_, path)| stamp(&path)).collect())
    }
}

/// The files, by their names in [`FOLDER`]: a template that is configured takes the place of the folder's own.
fn paths(config: &ModelConfig) -> impl Iterator<Item = (&'static str, PathBuf)> {
    FOLDER.into_iter().map(|name| match &config.chat_template {
        Some(file) if name == TEMPLATE => (name, file.clone()),
        _ => (name, config.path.join(name)),
    })
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("can't read {}; check the model's path", file.display()))
}
