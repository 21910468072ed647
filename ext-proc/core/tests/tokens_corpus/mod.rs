//! Texts that tokenizers get wrong, made from a seed.

mod characters;
mod dice;
mod texts;

use characters::Characters;
pub(crate) use dice::Dice;
use texts::Texts;

/// A source of documents for one tokenizer.
pub(crate) struct Corpus {
    dice: Dice,
    characters: Characters,
    texts: Texts,
}

impl Corpus {
    /// `vocabulary` has texts of the tokenizer's tokens, `added` those that are cut out of any text.
    pub(crate) fn new(seed: u64, vocabulary: Vec<Vec<u8>>, added: Vec<String>) -> Self {
        let texts = Texts { vocabulary, added };
        Self { dice: Dice::new(seed), characters: Characters::new(), texts }
    }

    /// A document of about `bytes`: pieces of one kind, or of all of them.
    pub(crate) fn document(&mut self, bytes: usize) -> String {
        let kinds = characters::KINDS + texts::KINDS;
        // A third of all documents mixes kinds; three kinds together are the most usual in the rest.
        let chosen = [(); 3].map(|()| self.dice.below(kinds));
        let mixes = self.dice.below(3) == 0;
        let mut text = String::with_capacity(bytes + 4096);
        while text.len() < bytes {
            let kind = if mixes { self.dice.below(kinds) } else { chosen[self.dice.below(3)] };
            match kind.checked_sub(characters::KINDS) {
                None => self.characters.push(kind, &mut self.dice, &mut text),
                Some(kind) => self.texts.push(kind, &mut self.dice, &mut text),
            }
            match self.dice.below(6) {
                0 => text.push(' '),
                1 => text.push('\n'),
                2 => text.push_str(self.dice.pick(&["'", ". ", "  ", "\r\n", "\t", "-", "/", "a", "7"])),
                _ => {}
            }
        }
        text
    }
}
