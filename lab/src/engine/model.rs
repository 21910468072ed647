//! A model as the engine needs it: its tokenizer and chat template, and words to answer with.

use std::{
    io,
    path::{Path, PathBuf},
};

use kvpick_core::prompts::{LoadError, ModelFiles, Prompter, Settings};

use super::generate::Generator;
use crate::words::WORDS;

/// Why a folder holds no model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that is there can't be read, or `tokenizer.json` is not there.
    #[error("{}: {source}; --tokenizer names the folder that holds the model's tokenizer.json", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file has a content that is not understood.
    #[error("{}: {source}", folder.display())]
    Load {
        /// The model's folder.
        folder: PathBuf,
        /// Which file, and why.
        source: LoadError,
    },
    /// The tokenizer has no words of one token.
    #[error("{}: the tokenizer has no token for any of the words that answers are made of", .0.display())]
    NoWords(PathBuf),
}

/// The prompter of the model in that folder: `tokenizer.json`, and where there are such `tokenizer_config.json`,
/// `config.json` and `chat_template.jinja`.
///
/// # Errors
///
/// See [`ModelError`].
pub fn load(folder: &Path, max_model_len: Option<u32>) -> Result<Prompter, ModelError> {
    let tokenizer = read(folder.join("tokenizer.json"))?;
    let config = if_there(read(folder.join("tokenizer_config.json")))?;
    let config_json = if_there(read(folder.join("config.json")))?;
    let template = if_there(read(folder.join("chat_template.jinja")))?;
    let template = template.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let files = ModelFiles {
        tokenizer_json: &tokenizer,
        tokenizer_config_json: config.as_deref(),
        config_json: config_json.as_deref(),
        chat_template: template.as_deref(),
        ..ModelFiles::default()
    };
    let settings = Settings { max_model_len, ..Settings::default() };
    Prompter::new(files, settings).map_err(|source| ModelError::Load { folder: folder.to_owned(), source })
}

/// A generator of words that the tokenizer turns into one token each, and back.
///
/// # Errors
///
/// [`ModelError::NoWords`].
pub fn generator(prompter: &Prompter, seed: u64, folder: &Path) -> Result<Generator, ModelError> {
    let tokens = WORDS.iter().filter_map(|word| {
        let text = format!(" {word}");
        match prompter.encode(&text, false).ok()?.as_slice() {
            [id] => Some((*id, text)),
            _ => None,
        }
    });
    Generator::new(seed, tokens.collect()).ok_or_else(|| ModelError::NoWords(folder.to_owned()))
}

fn read(path: PathBuf) -> Result<Vec<u8>, ModelError> {
    std::fs::read(&path).map_err(|source| ModelError::Read { path, source })
}

fn if_there(read: Result<Vec<u8>, ModelError>) -> Result<Option<Vec<u8>>, ModelError> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(ModelError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
