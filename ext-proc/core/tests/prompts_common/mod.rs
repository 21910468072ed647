//! What the tests of prompts share.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Mutex};

use kvpick_core::{
    prompts::{LoadError, ModelFiles, Prompter, Settings},
    request::{Api, Request},
};

/// The workspace.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of a tokenizer package that the build tools fetch.
#[track_caller]
fn tool(model: &str, file: &str) -> String {
    let path = root().join("target/tools/tokenizers").join(model).join(file);
    match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => panic!("{}: {error}; run `make tools` first", path.display()),
    }
}

/// A prompter of a package's files.
#[track_caller]
pub(crate) fn prompter(model: &str, settings: Settings) -> Prompter {
    prompter_with(model, None, settings)
}

/// The same with another template than the package's own. Reading a tokenizer takes seconds: each is read once.
#[track_caller]
pub(crate) fn prompter_with(model: &str, chat_template: Option<&str>, settings: Settings) -> Prompter {
    static READ: Mutex<BTreeMap<String, Prompter>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().expect("no test has failed while it read one");
    let prompter = read.entry(model.to_owned()).or_insert_with(|| {
        let (tokenizer, config) = (tool(model, "tokenizer.json"), tool(model, "tokenizer_config.json"));
        let files = ModelFiles {
            tokenizer_json: tokenizer.as_bytes(),
            tokenizer_config_json: Some(config.as_bytes()),
            config_json: None,
            chat_template: None,
            ..ModelFiles::default()
        };
        Prompter::new(files, Settings::default()).expect("the package's files load")
    });
    prompter.set_up(chat_template, settings)
}

/// Loads a package's files beside the `config.json` with which the goldens of it were made.
pub(crate) fn load_as_served(model: &str) -> Result<Prompter, LoadError> {
    let (tokenizer, config) = (tool(model, "tokenizer.json"), tool(model, "tokenizer_config.json"));
    let meta =
        fs::read_to_string(root().join(format!("testdata/prompts/{model}.meta.json"))).expect("goldens");
    let meta: serde_json::Value = serde_json::from_str(&meta).expect("JSON");
    let model_config = meta["config"].to_string();
    let files = ModelFiles {
        tokenizer_json: tokenizer.as_bytes(),
        tokenizer_config_json: Some(config.as_bytes()),
        config_json: Some(model_config.as_bytes()),
        ..ModelFiles::default()
    };
    Prompter::new(files, Settings::default())
}

/// The answer to a body: its ids, or the label of why there are none.
pub(crate) fn answer(prompter: &Prompter, api: Api, body: &[u8]) -> Result<Vec<Vec<u32>>, String> {
    let request = Request::parse(api, body).map_err(|error| format!("{}: {error}", error.label()))?;
    prompter.token_ids(&request).map_err(|error| format!("{}: {error}", error.label()))
}
