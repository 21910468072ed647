//! `truncate_prompt_tokens`: how much of a prompt stays, and which end.

use super::{
    PromptError,
    build::{field, given},
};
use crate::request::{
    Api, Request,
    json::{Json, Object},
};

/// What a request wants cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Tokens to keep, at least 1.
    keep: Option<usize>,
    /// The side at which the request wants tokens taken off.
    side: Option<Side>,
    /// The side at which the tokenizer takes them off where the request names none.
    usual_side: Side,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    Left,
    Right,
}

impl Limit {
    /// What `request` asks for. -1 keeps what a model with `max_model_len` can take, less one token where it says
    /// how many it wants generated.
    pub(super) fn of(request: &Request, max_model_len: Option<u32>) -> Result<Self, PromptError> {
        let body = request.body();
        // vLLM loads the tokenizer of a model that generates such that prompts keep their end, others their beginning.
        let usual_side = match request.api {
            Api::Embeddings | Api::Pooling => Side::Right,
            Api::ChatCompletions | Api::Completions | Api::Responses | Api::Messages => Side::Left,
        };
        let bad = |problem| Err(field("truncate_prompt_tokens", problem));
        let longest =
            max_model_len.map(|length| length.saturating_sub(output_budget(request.api, body)) as usize);
        let (keep, side) = match request.api {
            // It has a field of its own, in which null is not the default.
            Api::Responses => match body.get("truncation") {
                None => (None, None),
                Some(given) if given.as_str() == Some("disabled") => (None, None),
                Some(_) => (longest, None),
            },
            Api::Messages => (None, None),
            Api::ChatCompletions | Api::Completions | Api::Embeddings | Api::Pooling => {
                let keep = match body.get("truncate_prompt_tokens") {
                    None | Some(Json::Null) => None,
                    Some(given) => match given.as_number() {
                        None => return bad("want an integer"),
                        Some(-1) => longest,
                        Some(0) => return bad("0 leaves no token"),
                        Some(keep) => match usize::try_from(keep) {
                            Ok(keep) => Some(keep),
                            Err(_) => return bad("want -1 or more"),
                        },
                    },
                };
                let side = match body.get("truncation_side").and_then(Json::as_str) {
                    Some("left") => Some(Side::Left),
                    Some("right") => Some(Side::Right),
                    _ => None,
                };
                (keep, side)
            }
        };
        Ok(Self { keep, side, usual_side })
    }

    /// Whether `request` wants any prompt cut that is too long, by however much.
    pub(super) fn is_asked(request: &Request) -> bool {
        let body = request.body();
        match request.api {
            Api::Responses => body.get("truncation").is_some_and(|it| it.as_str() != Some("disabled")),
            Api::Messages => false,
            Api::ChatCompletions | Api::Completions | Api::Embeddings | Api::Pooling => {
                !matches!(body.get("truncate_prompt_tokens"), None | Some(Json::Null))
            }
        }
    }

    /// Whether `ids` need no cut.
    pub(super) fn holds(self, ids: &[u32]) -> bool {
        self.keep.is_none_or(|keep| ids.len() <= keep)
    }

    /// Cuts a prompt that came as ids.
    pub(super) fn cut_ids(self, mut ids: Vec<u32>) -> Vec<u32> {
        let Some(keep) = self.keep.filter(|keep| *keep < ids.len()) else { return ids };
        match self.side.unwrap_or(self.usual_side) {
            Side::Right => ids.truncate(keep),
            Side::Left => _ = ids.drain(..ids.len() - keep),
        }
        ids
    }

    /// Cuts a text's ids. Where the request names no side the tokenizer does it, around the text (`bare`) alone, so
    /// that special tokens which it adds stay.
    pub(super) fn cut_text(self, ids: Vec<u32>, bare: &[u32]) -> Result<Vec<u32>, PromptError> {
        let (None, Some(keep)) = (self.side, self.keep) else { return Ok(self.cut_ids(ids)) };
        let added = ids.len().saturating_sub(bare.len());
        let Some(kept) = keep.checked_sub(added) else {
            return Err(field("truncate_prompt_tokens", "keeps less than the special tokens that are added"));
        };
        let before = (0..=added).find(|at| ids[*at..].starts_with(bare)).unwrap_or(added);
        let after = before + bare.len();
        let kept = match self.usual_side {
            Side::Left => after - kept..after,
            Side::Right => before..before + kept,
        };
        Ok([&ids[..before], &ids[kept], &ids[after..]].concat())
    }
}

/// Tokens that -1 leaves for the answer: one, if the request says how many it may have.
fn output_budget(api: Api, body: &Object) -> u32 {
    let asked = |name: &str| given(body, name).is_some_and(|budget| budget.as_number() != Some(0));
    u32::from(match api {
        Api::ChatCompletions => match body.get("max_completion_tokens") {
            None | Some(Json::Null) => asked("max_tokens"),
            Some(_) => asked("max_completion_tokens"),
        },
        Api::Completions => !body.contains_key("max_tokens") || asked("max_tokens"),
        Api::Responses => asked("max_output_tokens"),
        Api::Messages => asked("max_tokens"),
        Api::Embeddings | Api::Pooling => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(api: Api, fields: &str) -> Limit {
        let body = format!(r#"{{"messages":[{{"role":"user"}}],"prompt":"x","input":"x",{fields}}}"#);
        Limit::of(&Request::parse(api, body.as_bytes()).unwrap(), Some(5)).unwrap()
    }

    #[test]
    fn added_tokens_survive_unless_a_side_is_named() {
        let (ids, bare) = ([1, 10, 11, 12, 13, 2], [10, 11, 12, 13]);
        let cut = |api, fields: &str| limit(api, fields).cut_text(ids.to_vec(), &bare).unwrap();
        let chat = |fields| cut(Api::ChatCompletions, fields);
        assert_eq!(chat(r#""truncate_prompt_tokens":3"#), [1, 13, 2]);
        assert_eq!(chat(r#""truncate_prompt_tokens":2"#), [1, 2]);
        assert_eq!(chat(r#""truncate_prompt_tokens":3,"truncation_side":"left""#), [12, 13, 2]);
        assert_eq!(chat(r#""truncate_prompt_tokens":3,"truncation_side":"right""#), [1, 10, 11]);
        assert_eq!(cut(Api::Embeddings, r#""truncate_prompt_tokens":3"#), [1, 10, 2]);
    }

    #[test]
    fn what_the_model_can_take_is_less_by_one_where_an_answer_is_asked_for() {
        let keep = |api, fields: &str| limit(api, fields).keep;
        let minus_one = r#""truncate_prompt_tokens":-1"#;
        assert_eq!(keep(Api::ChatCompletions, minus_one), Some(5));
        assert_eq!(keep(Api::ChatCompletions, &format!(r#"{minus_one},"max_tokens":9"#)), Some(4));
        assert_eq!(keep(Api::Completions, minus_one), Some(4));
        assert_eq!(keep(Api::Completions, &format!(r#"{minus_one},"max_tokens":null"#)), Some(5));
        assert_eq!(keep(Api::Pooling, minus_one), Some(5));
        assert_eq!(keep(Api::Responses, minus_one), None);
        assert_eq!(keep(Api::Responses, r#""truncation":"disabled""#), None);
        assert_eq!(keep(Api::Responses, r#""truncation":null"#), Some(5));
        assert_eq!(keep(Api::Responses, r#""truncation":"auto","max_output_tokens":9"#), Some(4));
    }

    #[test]
    fn ids_keep_their_end_unless_nothing_is_generated() {
        let cut = |api| limit(api, r#""truncate_prompt_tokens":2"#).cut_ids(vec![1, 2, 3]);
        assert_eq!(cut(Api::Completions), [2, 3]);
        assert_eq!(cut(Api::Embeddings), [1, 2]);
    }
}
