//! How fast text becomes token ids, beside other libraries that do it: the one that the engine has, and two fast ones.
//!
//! Each text is encoded by all in turn in one run, since a machine's speed changes from minute to minute; what to look
//! at is the ratios. Fresh texts are such as this repository has (prose and code), their lines in an order never seen;
//! warm ones were encoded before. The last lines are texts that mean harm: one word, or none, of a megabyte.
//!
//! `make tools` fetches the tokenizers. Names of models as arguments choose among them.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic, and prints its result")]
#![expect(clippy::disallowed_methods, reason = "a bench reads clocks and files")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kvpick_core::prompts::{ModelFiles, Prompter, Settings};
use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

#[expect(dead_code, reason = "a part of what tests need")]
#[path = "../tests/tokens_corpus/dice.rs"]
mod dice;

use dice::Dice;

const MODELS: [&str; 5] = ["qwen3", "llama3_1", "deepseek_v3", "gemma3", "gpt_oss"];

/// Tokens of a text, about; and how many texts of that length are encoded.
const SIZES: [(usize, usize); 3] = [(1_000, 60), (8_000, 30), (100_000, 6)];

/// Bytes of a token of such texts, about.
const BYTES: usize = 4;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What encodes.
#[expect(clippy::large_enum_variant, reason = "there are four of them")]
enum Encoder {
    Ours(Prompter),
    Fastokens(fastokens::Tokenizer),
    Tokenizers(PipelineTokenizer),
    Engine(oracle::Tokenizer),
}

const NAMES: [&str; 4] = ["kvpick", "fastokens", "tokenizers", "engine's"];

impl Encoder {
    fn load(kind: usize, json: &[u8], config: &[u8]) -> Self {
        match kind {
            0 => {
                let files = ModelFiles {
                    tokenizer_json: json,
                    tokenizer_config_json: Some(config),
                    ..ModelFiles::default()
                };
                Self::Ours(Prompter::new(files, Settings::default()).unwrap())
            }
            1 => Self::Fastokens(
                fastokens::Tokenizer::from_json(serde_json::from_slice(json).unwrap()).unwrap(),
            ),
            2 => {
                let mut file = serde_json::from_slice(json).unwrap();
                tokenizers::canonicalize_value(&mut file).unwrap();
                Self::Tokenizers(tokenizers::from_json(&file.to_string()).unwrap())
            }
            _ => Self::Engine(oracle::Tokenizer::from_bytes(json).unwrap()),
        }
    }

    /// How many ids there are, and how long they took.
    fn encode(&self, text: &str) -> (usize, Duration) {
        let start = Instant::now();
        let ids = match self {
            Self::Ours(it) => it.encode(text, false).unwrap(),
            Self::Fastokens(it) => it.encode(text).unwrap(),
            Self::Tokenizers(it) => {
                let options = EncodeOptions {
                    add_special_tokens: false,
                    encode_special_tokens: false,
                    padding: Override::Off,
                    truncation: Override::Off,
                };
                let mut ids = Vec::with_capacity(text.len() / 3);
                it.encode_into(text, &options, &mut ids).unwrap();
                ids.into_iter().map(u32::from).collect()
            }
            Self::Engine(it) => it.encode_fast(text, false).unwrap().get_ids().to_vec(),
        };
        (ids.len(), start.elapsed())
    }
}

/// Lines of prose and code.
fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    let mut folders =
        vec![root().join("ext-proc"), root().join("agent"), root().join("lab"), root().join("service")];
    let mut files =
        vec![root().join("README.md"), root().join("ARCHITECTURE.md"), root().join("CONTRIBUTING.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|it| it.to_str()) {
                None if path.is_dir() && !path.ends_with("target") => folders.push(path),
                Some("rs" | "md" | "yaml" | "py") => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    for file in files {
        lines.extend(fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned));
    }
    lines
}

/// A text of about `bytes` that was not seen before. A tenth of its words is made up.
fn fresh(lines: &[String], dice: &mut Dice, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 200);
    while text.len() < bytes {
        let from = dice.below(lines.len());
        for line in &lines[from..(from + 12).min(lines.len())] {
            for word in line.split_inclusive(' ') {
                if dice.below(10) == 0 {
                    let length = dice.length(10);
                    text.extend((0..length).map(|_| char::from(b'a' + dice.below(26) as u8)));
                    text.push(' ');
                }
                text.push_str(word);
            }
            text.push('\n');
        }
    }
    text
}

/// A megabyte of one kind.
fn harmful() -> Vec<(&'static str, String)> {
    const SIZE: usize = 1_000_000;
    let mut dice = Dice::new(7);
    let letters = |dice: &mut Dice, from: &str| {
        let from: Vec<_> = from.chars().collect();
        let mut text = String::new();
        while text.len() < SIZE {
            text.push(from[dice.below(from.len())]);
        }
        text
    };
    let han: String = ('\u{4e00}'..'\u{9fa5}').collect();
    let mut texts: Vec<_> = [
        ("a", "a"),
        ("space", " "),
        ("newline", "\n"),
        ("tab", "\t"),
        ("digit", "7"),
        ("!", "!"),
        ("han", "\u{4e2d}"),
        ("acute", "\u{301}"),
        ("e acute", "e\u{301}"),
        ("nbsp", "\u{a0}"),
        ("emoji", "\u{1f600}"),
        ("nul", "\0"),
        ("quote s", "'s"),
        ("crlf", "\r\n"),
        ("space newline", " \n"),
        ("<|", "<|"),
        ("unassigned", "\u{e0080}"),
        ("<", "<"),
        ("marks", "\u{301}\u{327}"),
    ]
    .map(|(name, unit)| (name, unit.repeat(SIZE / unit.len())))
    .into();
    texts.push(("one word", letters(&mut dice, "abcdefghijklmnopqrstuvwxyz")));
    texts.push(("word of two", letters(&mut dice, "ab")));
    texts.push(("random han", letters(&mut dice, &han)));
    texts.push(("word in capitals", letters(&mut dice, "ABCDEFGHIJ")));
    texts.push(("punctuation", letters(&mut dice, "!#$%&()*+-/<=>?@^_|~")));
    texts.push(("spaces", letters(&mut dice, " \t\u{a0}\u{3000}")));
    texts.push((
        "base64",
        letters(&mut dice, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"),
    ));
    texts
}

/// `text` without its first characters.
fn without(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or("", |(at, _)| &text[at..])
}

/// Bytes that the process has in memory.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|it| it.parse::<usize>().ok()).unwrap_or_default() * 4096
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

fn main() {
    let chosen: Vec<_> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let lines = lines();
    for model in MODELS {
        if !chosen.is_empty() && !chosen.iter().any(|it| it == model) {
            continue;
        }
        let folder = root().join("target/tools/tokenizers").join(model);
        let read = |file: &str| fs::read(folder.join(file)).expect("run `make tools` first");
        bench(model, &read("tokenizer.json"), &read("tokenizer_config.json"), &lines);
    }
}

fn bench(model: &str, json: &[u8], config: &[u8], lines: &[String]) {
    let mut dice = Dice::new(1);
    let mut encoders = Vec::new();
    println!("\n{model:26}{:>12}{:>12}{:>12}{:>12}", NAMES[0], NAMES[1], NAMES[2], NAMES[3]);
    let line = |name: &str, unit: &str, values: &[f64]| {
        let values: String = values.iter().map(|it| format!("{it:12.2}")).collect();
        println!("{name:18}{unit:>8}{values}");
    };
    let first = fresh(lines, &mut dice, 4000);
    let loads: Vec<_> = (0..NAMES.len())
        .map(|kind| {
            let (before, start) = (resident(), Instant::now());
            let encoder = Encoder::load(kind, json, config);
            let load = start.elapsed();
            let (_, time) = encoder.encode(&first);
            encoders.push(encoder);
            [load.as_secs_f64(), time.as_secs_f64() * 1e3, (resident().saturating_sub(before)) as f64 / 1e6]
        })
        .collect();
    for (at, (name, unit)) in
        [("load", "s"), ("first 1k tokens", "ms"), ("memory", "MB")].into_iter().enumerate()
    {
        line(name, unit, &loads.iter().map(|it| it[at]).collect::<Vec<_>>());
    }
    for (tokens, count) in SIZES {
        let mut times: [[Vec<Duration>; 4]; 2] = Default::default();
        for round in 0..count {
            let text = fresh(lines, &mut dice, tokens * BYTES);
            let mut counts = [0; 4];
            for at in 0..encoders.len() {
                let kind = (at + round) % encoders.len();
                // What takes a second is measured less often.
                if kind == 3 && round * tokens > 24_000 {
                    continue;
                }
                let (ids, time) = encoders[kind].encode(&text);
                counts[kind] = ids;
                times[0][kind].push(time);
                times[1][kind].push(encoders[kind].encode(&text).1);
            }
            assert!(counts.iter().all(|it| *it == 0 || *it == counts[0]), "{counts:?}");
        }
        for (name, times) in ["fresh", "warm"].iter().zip(&mut times) {
            let medians: Vec<_> = times.iter_mut().map(|it| median(it) * 1e6).collect();
            line(&format!("{name} {}k", tokens / 1000), "us", &medians);
        }
    }
    for (name, text) in harmful() {
        // Of other lengths each time, so that it is no word that was seen. A part is enough for the engine's.
        let times = [0, 1, 2, 3].map(|kind| {
            let (rounds, part) = if kind < 3 { (3, 1) } else { (1, 20) };
            let chars = text.chars().count();
            let mut times: Vec<_> = (0..rounds)
                .map(|round| {
                    let text = without(&text, chars - chars / part + round);
                    encoders[kind].encode(text).1.as_secs_f64() * 1e9 / text.len() as f64
                })
                .collect();
            times.sort_unstable_by(f64::total_cmp);
            times[rounds / 2]
        });
        line(name, "ns/byte", &times);
    }
}
