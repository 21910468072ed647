//! The models whose prompts are made here: their tokenizers and templates, read from local folders.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use anyhow::Context as _;
use kvpick_core::{
    prompts::{ModelFiles, Prompter, Settings},
    request::{Api, Request},
};

use crate::{clock, config::ModelConfig};

/// Prompters by model name.
#[derive(Clone, Default)]
pub struct Models {
    by_name: BTreeMap<String, Arc<Prompter>>,
    only: Option<Arc<Prompter>>,
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

impl Models {
    /// Reads and warms up all of them. Takes about a second each; keep it off the I/O threads.
    ///
    /// # Errors
    /// A file that is missing or broken, with its name.
    pub fn load(configs: &[ModelConfig]) -> anyhow::Result<Self> {
        let mut by_name = BTreeMap::new();
        for config in configs {
            let prompter = Arc::new(load(config).with_context(|| format!("model {:?}", config.name))?);
            for name in std::iter::once(&config.name).chain(&config.aliases) {
                by_name.insert(name.clone(), Arc::clone(&prompter));
            }
        }
        let only = if configs.len() == 1 { by_name.values().next().cloned() } else { None };
        Ok(Self { by_name, only })
    }

    /// The prompter of that name; where none is named, the only one.
    #[must_use]
    pub fn find(&self, name: Option<&str>) -> Option<&Arc<Prompter>> {
        match name {
            Some(name) => self.by_name.get(name),
            None => self.only.as_ref(),
        }
    }
}

fn load(config: &ModelConfig) -> anyhow::Result<Prompter> {
    let read = |file: &Path| {
        std::fs::read(file).with_context(|| format!("can't read {}; check the model's path", file.display()))
    };
    let optional = |name: &str| {
        let file = config.path.join(name);
        file.is_file().then(|| read(&file)).transpose()
    };
    let tokenizer_json = read(&config.path.join("tokenizer.json"))?;
    let tokenizer_config_json = optional("tokenizer_config.json")?;
    let config_json = optional("config.json")?;
    let template = match &config.chat_template {
        Some(file) => Some(read(file)?),
        None => optional("chat_template.jinja")?,
    };
    let template = template.map(String::from_utf8).transpose().context("the chat template is not UTF-8")?;
    let settings = Settings {
        trust_request_chat_template: config.trust_request_chat_template,
        exclude_tools_when_tool_choice_none: config.exclude_tools_when_tool_choice_none,
        default_chat_template_kwargs: config.default_chat_template_kwargs.clone(),
        content_format: config.chat_template_content_format.into(),
        keeps_developer_role: config.keeps_developer_role,
        max_model_len: config.max_model_len,
        harmony: config.harmony,
        start_date: config.start_date.clone(),
        harmony_system_instructions: config.harmony_system_instructions,
        clock: Some(clock::ahead_of_utc(config.utc_offset_minutes)),
    };
    let files = ModelFiles {
        tokenizer_json: &tokenizer_json,
        tokenizer_config_json: tokenizer_config_json.as_deref(),
        config_json: config_json.as_deref(),
        chat_template: template.as_deref(),
    };
    let prompter = Prompter::new(files, settings)?;
    warm_up(&prompter);
    Ok(prompter)
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
