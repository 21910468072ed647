//! Token counts by the names that the APIs have for them.

use serde::Deserialize;

/// Tokens of one answer, as far as the engine told.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Of its prompts, the cached ones included.
    pub prompt: Option<u64>,
    /// Of those, how many were in the engine's cache. vLLM tells it with `--enable-prompt-tokens-details` alone.
    pub cached: Option<u64>,
    /// Of what was made.
    pub output: Option<u64>,
}

impl Usage {
    /// Takes in what `json`, the value of a `usage`, says. Anthropic tells of the prompt first and of the output at the
    /// end, so what is not said again stands.
    pub(super) fn add(&mut self, json: &[u8]) {
        let Ok(words) = serde_json::from_slice::<Words>(json) else { return };
        let details = words.prompt_tokens_details.or(words.input_tokens_details);
        // Anthropic's `input_tokens` are those that no cache had a part in.
        let by_anthropic = (words.cache_read_input_tokens.is_some()
            || words.cache_creation_input_tokens.is_some())
        .then(|| words.cache_read_input_tokens.unwrap_or(0));
        let beside = by_anthropic.unwrap_or(0).saturating_add(words.cache_creation_input_tokens.unwrap_or(0));
        let prompt = words.prompt_tokens.or_else(|| words.input_tokens.map(|it| it.saturating_add(beside)));
        self.prompt = prompt.or(self.prompt);
        self.cached = details.and_then(|it| it.cached_tokens).or(by_anthropic).or(self.cached);
        self.output = words.completion_tokens.or(words.output_tokens).or(self.output);
    }
}

/// OpenAI's words (chat and completions, then responses), and Anthropic's.
#[derive(Deserialize)]
struct Words {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<Details>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}
