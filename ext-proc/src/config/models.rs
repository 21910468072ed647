//! The models whose prompts are made here.

use std::path::PathBuf;

use kvpick_core::prompts::ContentFormat;
use serde::{Deserialize, Serialize};

use super::remote::{RemoteConfig, SourceConfig};

/// A model whose prompts are made here.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Its name in requests (vLLM's `--served-model-name`).
    pub name: String,
    /// Further names of the same model.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Who makes its prompts.
    #[serde(default)]
    pub source: SourceConfig,
    /// The other server, where one is asked.
    #[serde(default)]
    pub remote: Option<RemoteConfig>,
    /// Folder with the model's `tokenizer.json`, `tokenizer_config.json` and, where the model has one,
    /// `chat_template.jinja`. Not needed with `source: remote`.
    #[serde(default)]
    pub path: PathBuf,
    /// File that vLLM is given as `--chat-template`.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
    /// vLLM's `--chat-template-content-format`.
    #[serde(default)]
    pub chat_template_content_format: ContentFormatConfig,
    /// vLLM's `--default-chat-template-kwargs`.
    #[serde(default)]
    pub default_chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
    /// vLLM's `--trust-request-chat-template`.
    #[serde(default)]
    pub trust_request_chat_template: bool,
    /// vLLM's `--exclude-tools-when-tool-choice-none`.
    #[serde(default)]
    pub exclude_tools_when_tool_choice_none: bool,
    /// Leaves messages of the role `developer` as they are where the template does not know it, as vLLM 0.16 does; 0.32
    /// makes them system messages.
    #[serde(default)]
    pub keeps_developer_role: bool,
    /// vLLM's `--max-model-len`, in tokens; needed for requests with `truncate_prompt_tokens: -1` only.
    #[serde(default)]
    pub max_model_len: Option<u32>,
    /// Whether this is a gpt-oss model, whose chats vLLM writes in the Harmony format without a template. Found out from
    /// the folder's `config.json`, or else from the tokenizer, where it is not said.
    #[serde(default)]
    pub harmony: Option<bool>,
    /// The engine's `VLLM_SYSTEM_START_DATE`: the date in gpt-oss prompts. Without one, prompts change at the engine's
    /// midnight.
    #[serde(default)]
    pub start_date: Option<String>,
    /// The engine's `VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS`.
    #[serde(default)]
    pub harmony_system_instructions: bool,
    /// vLLM's `--tokenizer-mode`. Where it is not said, or `auto`, found out from the folder as vLLM does. `hf` also says
    /// that the engine's tokenizer is the folder's `tokenizer.json` as it is, where that is doubted.
    #[serde(default)]
    pub tokenizer_mode: Option<String>,
    /// The engine's local time is this many minutes ahead of UTC; for prompts that show the date.
    #[serde(default)]
    pub utc_offset_minutes: i32,
}

/// See [`ContentFormat`].
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "vLLM's own names")]
pub enum ContentFormatConfig {
    #[default]
    Auto,
    String,
    Openai,
}

impl From<ContentFormatConfig> for ContentFormat {
    fn from(it: ContentFormatConfig) -> Self {
        match it {
            ContentFormatConfig::Auto => Self::Auto,
            ContentFormatConfig::String => Self::String,
            ContentFormatConfig::Openai => Self::OpenAi,
        }
    }
}
