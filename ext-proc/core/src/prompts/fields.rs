//! Fields of a request's body.

use crate::request::{Api, Request};

/// Where a request of that API carries media.
pub(super) fn media_field(request: &Request) -> &'static str {
    match request.api {
        Api::ChatCompletions | Api::Messages => "messages",
        Api::Completions => "prompt_embeds",
        Api::Responses | Api::Embeddings | Api::Pooling => "input",
    }
}
