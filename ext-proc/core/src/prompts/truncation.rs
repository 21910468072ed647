//! `truncate_prompt_tokens`: how much of a prompt stays, and which end.

use super::PromptError;
use crate::request::json::{Json, Object};

/// What a request wants cut.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    /// Tokens to keep, at least 1.
    keep: Option<usize>,
    /// The side at which the request wants tokens taken off.
    side: Option<Side>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    Left,
    Right,
}

impl Limit {
    /// What `body` asks for. -1 keeps what a model with `max_model_len` can take while it generates one token.
    pub(super) fn of(body: &Object, max_model_len: Option<u32>) -> Result<Self, PromptError> {
        let bad = |problem| PromptError::Field { field: "truncate_prompt_tokens".into(), problem };
        let keep = match body.get("truncate_prompt_tokens") {
            None | Some(Json::Null) => None,
            Some(Json::Int(-1)) => max_model_len.map(|length| length.saturating_sub(1) as usize),
            Some(Json::Int(keep)) => Some(usize::try_from(*keep).map_err(|_| bad("want -1 or more"))?),
            Some(_) => return Err(bad("want an integer")),
        };
        if keep == Some(0) {
            return Err(bad("0 leaves no token"));
        }
        let side = match body.get("truncation_side").map(Json::as_str) {
            Some(Some("left")) => Some(Side::Left),
            Some(Some("right")) => Some(Side::Right),
            _ => None,
        };
        Ok(Self { keep, side })
    }

    /// Whether `ids` need no cut.
    pub(super) fn holds(self, ids: &[u32]) -> bool {
        self.keep.is_none_or(|keep| ids.len() <= keep)
    }

    /// Cuts a prompt that came as ids: the last ones stay unless the request says otherwise.
    pub(super) fn cut_ids(self, mut ids: Vec<u32>) -> Vec<u32> {
        let Some(keep) = self.keep.filter(|keep| *keep < ids.len()) else { return ids };
        match self.side {
            Some(Side::Right) => ids.truncate(keep),
            Some(Side::Left) | None => _ = ids.drain(..ids.len() - keep),
        }
        ids
    }

    /// Cuts a text's ids. Where the request names no side the tokenizer does it: from the left, but around the text
    /// (`bare`) alone, so that special tokens which it adds stay.
    pub(super) fn cut_text(self, ids: Vec<u32>, bare: &[u32]) -> Result<Vec<u32>, PromptError> {
        let (None, Some(keep)) = (self.side, self.keep) else { return Ok(self.cut_ids(ids)) };
        let added = ids.len().saturating_sub(bare.len());
        if keep <= added {
            return Err(PromptError::Field {
                field: "truncate_prompt_tokens".into(),
                problem: "keeps no more than the special tokens that are added",
            });
        }
        let before = (0..=added).find(|at| ids[*at..].starts_with(bare)).unwrap_or(added);
        let after = before + bare.len();
        Ok([&ids[..before], &ids[after - (keep - added)..after], &ids[after..]].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::json::parse_text;

    #[track_caller]
    fn cut(body: &str, ids: &[u32], bare: &[u32]) -> Vec<u32> {
        let Json::Object(body) = parse_text(body).unwrap() else { panic!("no object") };
        Limit::of(&body, Some(5)).unwrap().cut_text(ids.to_vec(), bare).unwrap()
    }

    #[test]
    fn added_tokens_survive_unless_a_side_is_named() {
        let (ids, bare) = ([1, 10, 11, 12, 13, 2], [10, 11, 12, 13]);
        assert_eq!(cut(r#"{"truncate_prompt_tokens":3}"#, &ids, &bare), [1, 13, 2]);
        assert_eq!(cut(r#"{"truncate_prompt_tokens":-1}"#, &ids, &bare), [1, 12, 13, 2]);
        assert_eq!(cut(r#"{"truncate_prompt_tokens":3,"truncation_side":"left"}"#, &ids, &bare), [12, 13, 2]);
        assert_eq!(
            cut(r#"{"truncate_prompt_tokens":3,"truncation_side":"right"}"#, &ids, &bare),
            [1, 10, 11]
        );
    }

    #[test]
    fn ids_keep_their_end() {
        let Json::Object(body) = parse_text(r#"{"truncate_prompt_tokens":2}"#).unwrap() else {
            panic!("no object")
        };
        assert_eq!(Limit::of(&body, None).unwrap().cut_ids(vec![1, 2, 3]), [2, 3]);
    }
}
