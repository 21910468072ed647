//! A prompt as tokens.

/// A prompt, as far as its tokens are known.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Prompt {
    /// Its token ids, from the first on.
    pub ids: Vec<u32>,
    /// The media among them, in the order of their first tokens.
    pub media: Vec<Medium>,
    /// Whether it goes on with tokens that only the engine can count.
    pub is_cut: bool,
}

/// An image or the like, which stands as tokens in a prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Medium {
    /// vLLM's identifier of it: the hash of its content, or what the client named it.
    pub identifier: String,
    /// Where its first token is.
    pub offset: usize,
    /// How many tokens it has.
    pub length: usize,
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, ..Self::default() }
    }
}

impl Prompt {
    /// How many blocks of that size an engine may find in its cache: it computes one token at least anew.
    #[must_use]
    pub const fn reusable_blocks(&self, block_size: usize) -> usize {
        let tokens = if self.is_cut { self.ids.len() } else { self.ids.len().saturating_sub(1) };
        tokens / block_size
    }

    /// The media that overlap tokens `from` to `to`, that one left out.
    pub fn media_within(&self, from: usize, to: usize) -> impl Iterator<Item = &Medium> {
        self.media.iter().filter(move |it| it.offset < to && from < it.offset + it.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_at_least_is_computed_anew() {
        let prompt = |len: usize, is_cut| Prompt { is_cut, ..vec![1; len].into() };
        assert_eq!(prompt(32, false).reusable_blocks(16), 1);
        assert_eq!(prompt(33, false).reusable_blocks(16), 2);
        assert_eq!(prompt(32, true).reusable_blocks(16), 2);
        assert_eq!(prompt(0, false).reusable_blocks(16), 0);
    }

    #[test]
    fn a_medium_belongs_to_every_block_that_it_touches() {
        let medium = Medium { identifier: "a".to_owned(), offset: 4, length: 8 };
        let prompt = Prompt { ids: vec![1; 20], media: vec![medium], is_cut: false };
        let touched: Vec<usize> =
            (0..5).filter(|i| prompt.media_within(i * 4, i * 4 + 4).next().is_some()).collect();
        assert_eq!(touched, [1, 2]);
    }
}
