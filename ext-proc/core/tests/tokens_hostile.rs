//! Texts that mean harm, or nothing, have the ids that the engine's own library gives them.
#![expect(clippy::print_stderr, reason = "a test says how much it has compared")]

mod tokens_corpus;
mod tokens_oracles;
mod tokens_unicode;

use serde_json::{Value, json};
use tokens_corpus::{Corpus, Dice};
use tokens_oracles::Oracles;

/// What is compared of each tokenizer, in bytes.
const COMPARED: usize = 5_000_000;

#[test]
fn qwen3() {
    agree("qwen3", &mut Oracles::new("qwen3"), 1, COMPARED);
}

#[test]
fn llama3_1() {
    agree("llama3_1", &mut Oracles::new("llama3_1"), 2, COMPARED);
}

#[test]
fn deepseek_v3() {
    agree("deepseek_v3", &mut Oracles::new("deepseek_v3"), 3, COMPARED);
}

#[test]
fn gemma3() {
    agree("gemma3", &mut Oracles::new("gemma3"), 4, COMPARED);
}

#[test]
fn gpt_oss() {
    agree("gpt_oss", &mut Oracles::new("gpt_oss"), 5, COMPARED);
}

/// Other patterns that the fast library has a scanner for.
#[test]
fn other_patterns() {
    for (name, pattern) in
        [("qwen35", fastokens::tiktoken::QWEN35_PATTERN), ("tekken", fastokens::tiktoken::TEKKEN_PATTERN)]
    {
        let mut oracles = Oracles::changed("gpt_oss", |file| {
            file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(pattern);
        });
        agree(name, &mut oracles, 6, 700_000);
    }
}

/// Tokens that take the spaces beside them, stand alone only, or are sought in normalised text.
#[test]
fn odd_tokens() {
    let mut oracles = Oracles::changed("qwen3", |file| {
        add(file, &["<mask>", "[ R ]", "Caf\u{e9}", "one7", "<|im", "\u{301}x"])
    });
    oracles.ours[1] = None;
    agree("odd tokens", &mut oracles, 7, 700_000);
}

/// Adds tokens: the first takes spaces before it, the second those after it, the third is sought in normalised text,
/// the fourth stands alone only.
fn add(file: &mut Value, contents: &[&str]) {
    for (at, content) in contents.iter().enumerate() {
        let flag = |number: usize| at == number;
        file["added_tokens"].as_array_mut().expect("a list").push(json!({
            "id": 151_700 + at, "content": content, "lstrip": flag(0), "rstrip": flag(1), "normalized": flag(2),
            "single_word": flag(3), "special": at % 2 == 0,
        }));
    }
}

fn agree(name: &str, oracles: &mut Oracles, seed: u64, bytes: usize) {
    let (vocabulary, added) = oracles.tokens();
    let mut corpus = Corpus::new(seed, vocabulary, added);
    let mut dice = Dice::new(seed);
    let (mut compared, mut documents, mut refused) = (0, 0, [0; 2]);
    while compared < bytes {
        let length = dice.length(80_000);
        let mut text = corpus.document(length);
        compared += text.len();
        documents += 1;
        let mut ids = None;
        // The second refuses more than the first.
        for (which, refused) in refused.iter_mut().enumerate() {
            if oracles.ours[which].is_none() {
                continue;
            }
            if oracles.ours(which, &text).is_none() {
                *refused += 1;
                text = oracles.allowed(which, &text);
                ids = None;
            }
            let ids = ids.get_or_insert_with(|| oracles.engine(&text));
            let ours = oracles.ours(which, &text).expect("what is refused was left out");
            assert!(ours == *ids, "{name}, {which}: {}", oracles.difference(which, &text));
        }
        if documents % 16 == 0 {
            assert_eq!(ids, Some(oracles.engine_with_offsets(&text)), "{name}");
        }
    }
    eprintln!("{name}: {compared} bytes in {documents} documents; with refused characters {refused:?}");
}
