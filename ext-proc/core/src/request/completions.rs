//! Bodies of `/v1/completions`.

use super::{
    Fields, RequestError, count, flag, given,
    json::{Json, Object},
    wants_usage, wrong,
};

/// Tokens that vLLM generates for a completion that does not say how many.
const DEFAULT_MAX_TOKENS: u32 = 16;

pub(super) fn fields(body: &Object) -> Result<Fields, RequestError> {
    Ok(Fields {
        has_media: check(body)?,
        max_tokens: Some(count(body, "max_tokens").unwrap_or(DEFAULT_MAX_TOKENS)),
        n: count(body, "n").unwrap_or(1).max(1),
        stream: flag(body, "stream"),
        include_usage: wants_usage(body),
        // Log probabilities of a prompt come of running all of it; `echo` asks for them along with the answer's.
        reads_cache: !(given(body, "prompt_logprobs") || flag(body, "echo") && given(body, "logprobs")),
    })
}

/// Checks the shape of `prompt`; answers whether embeddings stand in for text.
fn check(body: &Object) -> Result<bool, RequestError> {
    if given(body, "prompt_embeds") {
        return Ok(true);
    }
    match body.get("prompt") {
        None | Some(Json::Null) => Err(RequestError::NoPrompt),
        Some(prompt) if check_texts_or_ids("prompt", prompt)? => Ok(false),
        Some(_) => Err(RequestError::NoPrompt),
    }
}

/// Checks the shape of a text, several, or the ids of one or several; answers whether all that matters to vLLM of
/// `value` is filled: the list itself, the one text, each list of ids.
pub(super) fn check_texts_or_ids(name: &str, value: &Json) -> Result<bool, RequestError> {
    const WANT: &str = "a string, an array of strings, an array of token ids, or an array of such arrays";
    let prompts = match value {
        Json::String(text) => return Ok(!text.is_empty()),
        Json::Array(prompts) => prompts,
        other => return Err(wrong(name, other, WANT)),
    };
    let Some(first) = prompts.first() else { return Ok(false) };
    if prompts.iter().all(|prompt| matches!(prompt, Json::String(_))) {
        return Ok(true);
    }
    let mut filled = true;
    for (index, prompt) in prompts.iter().enumerate() {
        let field = || format!("{name}[{index}]");
        match (first, prompt) {
            (Json::Array(_), Json::Array(ids)) => {
                filled &= !ids.is_empty();
                for (at, id) in ids.iter().enumerate() {
                    check_id(id, || format!("{name}[{index}][{at}]"))?;
                }
            }
            (Json::Array(_), other) | (_, other @ Json::Array(_)) => return Err(wrong(field(), other, WANT)),
            (_, id) => check_id(id, field)?,
        }
    }
    Ok(filled)
}

fn check_id(id: &Json, field: impl FnOnce() -> String) -> Result<(), RequestError> {
    match id.as_number().map(u32::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(wrong(field(), id, "a token id (an integer from 0 to 4294967295)")),
    }
}
