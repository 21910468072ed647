//! Why no prompt could be made.

/// Why a request has no token ids here. The caller then takes another source of knowledge.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PromptError {
    /// A message carries a medium, whose tokens only the engine can count.
    #[error("{0}: carries media, whose tokens only the engine can count")]
    Media(String),
    /// The template does not compile or does not render.
    #[error("chat template: {0}")]
    Template(String),
    /// A chat for a model that has no chat template.
    #[error("the model has no chat template; put chat_template.jinja beside its tokenizer.json")]
    NoTemplate,
    /// The request brings its own template, which the engine would not trust.
    #[error("chat_template: the request brings its own, and trust_request_chat_template is off")]
    UntrustedTemplate,
    /// A chat without any message; only Harmony makes a prompt of that.
    #[error("messages: empty; a chat template needs at least one")]
    NoMessages,
    /// A field has a value of which no prompt can be made.
    #[error("{field}: {problem}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The request goes on from an answer that one replica keeps.
    #[error("previous_response_id: the conversation so far is known to the replica that answered it")]
    Stateful,
    /// The prompt, or one of several, has no token at all.
    #[error("the prompt has no token; an engine refuses it")]
    Empty,
    /// The tokenizer failed on the text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The engine makes such prompts by code of its own, not by a template.
    #[error("tokenizer mode {0}: the engine makes such prompts by code of its own")]
    OwnCode(String),
}

impl PromptError {
    /// Short fixed name for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Media(_) => "media",
            Self::Template(_) => "template",
            Self::NoTemplate => "no_template",
            Self::UntrustedTemplate => "untrusted_template",
            Self::NoMessages => "no_messages",
            Self::Field { .. } => "bad_field",
            Self::Stateful => "stateful",
            Self::Empty => "empty",
            Self::Tokenizer(_) => "tokenizer",
            Self::OwnCode(_) => "own_code",
        }
    }
}
