//! From a model's files to its prompter.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use kvpick_core::{
    prompts::{Prompter, Settings},
    request::{Api, Request},
};

use super::{Digest, Loaded, Model, Models, Stamp, files::Files};
use crate::{clock, config::ModelConfig, memo::Memos, remote::Remote};

/// Models that are loaded together, by one thread or by several. What is in force already, by content, is not loaded
/// again, and tokenizers made of the same bytes are one.
#[derive(Default)]
pub struct Batch {
    in_force: BTreeMap<Digest, Loaded>,
    /// By the models' names.
    remotes: BTreeMap<String, Arc<Remote>>,
    memos: Memos,
    /// By [`Loaded::tokenizer`].
    tokenizers: Mutex<BTreeMap<Digest, Cell>>,
}

/// Any prompter that has a tokenizer. Locked while the first is made: who wants the same tokenizer waits.
type Cell = Arc<Mutex<Option<Arc<Prompter>>>>;

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("in_force", &self.in_force).finish_non_exhaustive()
    }
}

impl Batch {
    /// A batch that takes over what it can from the models in force.
    #[must_use]
    pub fn new(in_force: &Models) -> Self {
        let loaded: Vec<_> = in_force.listed().iter().filter_map(|it| it.loaded.clone()).collect();
        let cell = |it: &Loaded| (it.tokenizer, Arc::new(Mutex::new(Some(Arc::clone(&it.prompter)))));
        let tokenizers = Mutex::new(loaded.iter().map(cell).collect());
        let remote = |it: &Arc<Model>| Some((it.config.name.clone(), it.remote.clone()?));
        Self {
            in_force: loaded.into_iter().map(|it| (it.fingerprint, it)).collect(),
            remotes: in_force.listed().iter().filter_map(remote).collect(),
            memos: Memos::default(),
            tokenizers,
        }
    }

    /// The same, which gives each model that it loads a memo.
    #[must_use]
    pub fn with_memos(self, memos: Memos) -> Self {
        Self { memos, ..self }
    }

    /// Reads and warms up a model. Takes about a second; keep it off the I/O threads.
    ///
    /// What is wrong with a file is in the model's `error`, with the file's name, and in the log.
    #[must_use]
    pub fn load(&self, config: ModelConfig) -> Model {
        // Looked at before they are read: a later change differs from it.
        let stamp = Stamp::of(&config);
        let loaded = config.source.is_local().then(|| self.loaded(&config)).transpose();
        let remote = config.source.is_remote().then(|| self.remote(&config)).transpose();
        let errors: Vec<_> = [loaded.as_ref().err(), remote.as_ref().err()].into_iter().flatten().collect();
        let made = loaded.as_ref().ok().and_then(Option::as_ref);
        let template = made.and_then(|it| it.prompter.template_problem());
        let template = template.map(|it| format!("chat template: {it}; chats go by load"));
        let errors: Vec<_> = errors.into_iter().map(|it| format!("{it:#}")).chain(template).collect();
        let error = (!errors.is_empty()).then(|| errors.join("; "));
        if let Some(error) = &error {
            tracing::error!(model = config.name, path = %config.path.display(), error, "can't load the model");
        }
        let (loaded, remote) = (loaded.unwrap_or_default(), remote.unwrap_or_default());
        Model { config, loaded, remote, error, stamp }
    }

    /// What is in force where it is the same: it knows its servers.
    fn remote(&self, config: &ModelConfig) -> anyhow::Result<Arc<Remote>> {
        let remote = Remote::new(config)?;
        let in_force = self.remotes.get(&config.name).filter(|it| it.is_as(&remote));
        Ok(in_force.map_or_else(|| Arc::new(remote), Arc::clone))
    }

    fn loaded(&self, config: &ModelConfig) -> anyhow::Result<Loaded> {
        let read = Files::read(config)?;
        let fingerprint = read.fingerprint(config);
        if let Some(same) = self.in_force.get(&fingerprint) {
            return Ok(same.clone());
        }
        let (files, settings) = (read.as_model_files(), settings(config));
        let tokenizer = read.tokenizer();
        let cell = Arc::clone(lock(&self.tokenizers).entry(tokenizer).or_default());
        let mut cell = lock(&cell);
        let prompter = match cell.as_ref() {
            Some(other) => Prompter::sharing(other, files, settings)?,
            None => Prompter::new(files, settings)?,
        };
        let prompter = Arc::new(self.memos.give(&config.name, prompter));
        cell.get_or_insert_with(|| Arc::clone(&prompter));
        drop(cell);
        warm_up(&prompter);
        Ok(Loaded { prompter, fingerprint, tokenizer, at: SystemTime::now() })
    }
}

/// A panic of another holder leaves a tokenizer or none, and is told of where it happened.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settings(config: &ModelConfig) -> Settings {
    Settings {
        trust_request_chat_template: config.trust_request_chat_template,
        chat_template_is_servers: config.chat_template.is_some(),
        exclude_tools_when_tool_choice_none: config.exclude_tools_when_tool_choice_none,
        default_chat_template_kwargs: config.default_chat_template_kwargs.clone(),
        content_format: config.chat_template_content_format.into(),
        keeps_developer_role: config.keeps_developer_role,
        max_model_len: config.max_model_len,
        harmony: config.harmony,
        start_date: config.start_date.clone(),
        harmony_system_instructions: config.harmony_system_instructions,
        tokenizer_mode: config.tokenizer_mode.clone(),
        clock: Some(clock::ahead_of_utc(config.utc_offset_minutes)),
    }
}

/// Lets the tokenizer and the template build what they build at first use, so that no request waits for it.
fn warm_up(prompter: &Prompter) {
    let body = br#"{"messages": [{"role": "user", "content": "Warm up, 1 2 3."}], "prompt": "Warm up."}"#;
    for api in [Api::ChatCompletions, Api::Completions] {
        // A model without a chat template serves completions all the same.
        if let Ok(request) = Request::parse(api, body) {
            prompter.token_ids(&request).ok();
        }
    }
}
