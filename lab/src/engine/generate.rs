//! What the engine answers: words that depend on the prompt and a seed, and on nothing else.

use std::collections::HashMap;

use crate::seeded::Seeded;

/// Chooses generated tokens.
#[derive(Clone, Debug)]
pub struct Generator {
    seed: u64,
    ids: Vec<u32>,
    texts: HashMap<u32, String>,
}

/// Where one answer is; advanced by [`Generator::next`].
#[derive(Clone, Copy, Debug)]
pub struct Answer(Seeded);

impl Generator {
    /// A generator of these tokens, each with its text; at least one.
    #[must_use]
    pub fn new(seed: u64, tokens: Vec<(u32, String)>) -> Option<Self> {
        let ids: Vec<u32> = tokens.iter().map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| Self { seed, ids, texts: tokens.into_iter().collect() })
    }

    /// Begins the answer to a prompt. Answers to the same prompt differ by `sample`.
    #[must_use]
    pub fn answer(&self, prompt: &[u32], sample: u32) -> Answer {
        let mut state = Seeded::new(&[self.seed, u64::from(sample)]);
        for token in prompt {
            state.mix(u64::from(*token));
        }
        Answer(state)
    }

    /// How many tokens the answer has where the request does not limit it.
    #[must_use]
    pub fn natural_length(&self, answer: Answer) -> usize {
        let mut state = answer.0;
        state.mix(NATURAL_LENGTH_STREAM);
        SHORTEST_ANSWER + state.below(LONGEST_ANSWER - SHORTEST_ANSWER + 1)
    }

    /// The answer's next token.
    #[must_use]
    pub fn next(&self, answer: &mut Answer) -> u32 {
        self.ids[answer.0.below(self.ids.len())]
    }

    /// The text of a token that this generator chose.
    #[must_use]
    pub fn text(&self, token: u32) -> &str {
        self.texts.get(&token).map_or("", String::as_str)
    }
}

/// Keeps the length of an answer apart from its words.
const NATURAL_LENGTH_STREAM: u64 = 1;

/// Tokens in the shortest answer that ends by itself.
const SHORTEST_ANSWER: usize = 16;

/// Tokens in the longest one.
const LONGEST_ANSWER: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(seed: u64) -> Generator {
        Generator::new(seed, (0..50).map(|id| (id, format!(" w{id}"))).collect()).unwrap()
    }

    fn words(generator: &Generator, prompt: &[u32], sample: u32) -> Vec<u32> {
        let mut answer = generator.answer(prompt, sample);
        (0..20).map(|_| generator.next(&mut answer)).collect()
    }

    #[test]
    fn depends_on_seed_prompt_and_sample_alone() {
        let same = words(&generator(1), &[1, 2, 3], 0);
        assert_eq!(same, words(&generator(1), &[1, 2, 3], 0));
        assert_ne!(same, words(&generator(2), &[1, 2, 3], 0));
        assert_ne!(same, words(&generator(1), &[1, 2, 4], 0));
        assert_ne!(same, words(&generator(1), &[1, 2, 3], 1));
    }

    #[test]
    fn needs_something_to_say() {
        assert!(Generator::new(1, vec![]).is_none());
        assert_eq!(generator(1).text(7), " w7");
    }
}
