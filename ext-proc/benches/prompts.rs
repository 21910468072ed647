//! How long it takes from a request's body to its prompts and their blocks, beside the least that anybody would have to
//! do: let the tokenizer encode the rendered text. Both in turn in one run, since a machine's speed changes from minute
//! to minute; what to look at is the ratio.
//!
//! Conversations of Markdown and code in words of an invented vocabulary: never seen before, the same once more, and with
//! nothing new but the last message.
//!
//! Names of families as arguments run those alone; `parts` among them runs a warm request alone, long enough for a
//! profiler.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic, and prints its result")]

use std::{
    fmt::Write as _,
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use kvpick::{
    config::ModelConfig,
    memo::{MemoConfig, Memos},
    models::Models,
    prepare::{self, Serving, Step},
};
use kvpick_core::{
    pick::{self, Naming},
    prompts::Prompter,
    request::{Api, Request},
    world::Plan,
};
use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, Domain, ExtraKeyShape};
use prometheus::Registry;

const FAMILIES: [&str; 5] = ["qwen3", "llama3_1", "gemma3", "gpt_oss", "deepseek_v3"];

/// Tokens of a conversation, and rounds.
const SIZES: [(usize, usize); 3] = [(1_000, 41), (8_000, 31), (100_000, 9)];

/// Bytes of a token, roughly.
const BYTES_PER_TOKEN: usize = 4;

/// Bytes of a message at least.
const MESSAGE: usize = 1_600;

const WORDS: &str = "the of and to in is that for it as was with be by on not this are or from at which have an they \
    you were their one all there can has more if no man out other what time up go about than into could state only new \
    year some take come these know see use get like then first any work now may such give over think most even find day \
    also after way many must look before great back through long where much should well people down own just because \
    good each those feel seem how high too place little world very still nation hand old life tell write become here \
    show house both between need mean call develop under last right move thing general school never same another begin \
    while number part turn real leave might want point form off child few small since against ask late home interest \
    large person end open public follow during present without again hold govern around possible head consider word \
    program problem however lead system set order eye plan run keep face fact group play stand increase early course \
    change help line request replica cache prefix token block engine server kernel memory latency budget queue stream \
    parser buffer vector matrix window attention schedule tensor layer batch decode harbour vessel tide lantern quay";

const ENDINGS: [&str; 12] = ["", "", "", "", "s", "ed", "ing", "ly", "er", "ness", "able", "ment"];

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn word(&mut self) -> String {
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        format!("{}{}", words[self.roll(words.len())], ENDINGS[self.roll(ENDINGS.len())])
    }

    fn sentence(&mut self, text: &mut String) {
        let length = 5 + self.roll(14);
        for i in 0..length {
            let word = match self.roll(40) {
                0 => self.roll(30_000).to_string(),
                1 => format!("`{}_{}`", self.word(), self.word()),
                2 => format!("**{}**", self.word()),
                3 => format!("{},", self.word()),
                4 => format!("{}'s", self.word()),
                _ => self.word(),
            };
            let word = if i == 0 { word[..1].to_uppercase() + &word[1..] } else { word };
            text.push_str(&word);
            text.push(if i + 1 == length { '.' } else { ' ' });
        }
    }

    fn code(&mut self, text: &mut String) {
        writeln!(text, "```rust\nfn {}_{}(it: &{}) -> u32 {{", self.word(), self.word(), self.word())
            .unwrap();
        for _ in 0..2 + self.roll(6) {
            let (a, b, c) = (self.word(), self.word(), self.word());
            let number = self.roll(1_000);
            writeln!(text, "    let {a}_{b} = it.{c}({number}) + {};", self.word()).unwrap();
        }
        writeln!(text, "    {}\n}}\n```\n", self.roll(99)).unwrap();
    }

    /// A message of Markdown.
    fn message(&mut self) -> String {
        let mut text = String::new();
        while text.len() < MESSAGE {
            match self.roll(8) {
                0 => writeln!(text, "## {} {}\n", self.word(), self.word()).unwrap(),
                1 => self.code(&mut text),
                2 => {
                    for _ in 0..2 + self.roll(4) {
                        text.push_str("- ");
                        self.sentence(&mut text);
                        text.push('\n');
                    }
                    text.push('\n');
                }
                _ => {
                    for _ in 0..1 + self.roll(5) {
                        self.sentence(&mut text);
                        text.push(' ');
                    }
                    text.push_str("\n\n");
                }
            }
        }
        text
    }

    /// Messages of a conversation of that many bytes, in turn of user and assistant, the user's last.
    fn conversation(&mut self, bytes: usize) -> Vec<String> {
        let mut messages = vec![self.message()];
        while messages.iter().map(String::len).sum::<usize>() < bytes {
            messages.extend([self.message(), self.message()]);
        }
        messages
    }
}

fn body(messages: &[String]) -> Vec<u8> {
    let messages: Vec<_> = (messages.iter().enumerate())
        .map(|(i, it)| serde_json::json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": it}))
        .collect();
    serde_json::json!({"model": "m", "messages": messages, "max_tokens": 100}).to_string().into_bytes()
}

/// One replica of each model, which names blocks as vLLM does when it is not told otherwise.
struct One;

impl Serving for One {
    fn plan(&self, _: Option<&str>) -> Plan {
        let domain = Domain {
            algorithm: Algorithm::Sha256Pickle,
            root: DEFAULT_ROOT.to_owned(),
            block_size: 16.try_into().unwrap(),
            extra_keys: ExtraKeyShape::Tagged,
        };
        Plan { model_known: true, namings: vec![Naming { domain, adapter: None }], ..Plan::default() }
    }

    fn base_models(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn addresses(&self, _: &Plan) -> Vec<std::net::SocketAddr> {
        Vec::new()
    }

    fn is_distrusted(&self, _: Option<&str>, _: Api) -> bool {
        false
    }
}

/// A model, with and without a memo.
struct Subject {
    plain: Models,
    with_memo: Models,
}

impl Subject {
    fn load(family: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/tokenizers").join(family);
        assert!(path.is_dir(), "{}: missing; run `make tools` first", path.display());
        let config = serde_json::json!({"name": "m", "path": path, "start_date": "2026-01-15"});
        let configs: Vec<ModelConfig> = vec![serde_json::from_value(config).unwrap()];
        let memos = Memos::new(MemoConfig::default(), &Registry::new()).unwrap();
        Self { plain: Models::load(&configs), with_memo: Models::load_with(&configs, &memos) }
    }

    fn prompter(&self) -> &Prompter {
        self.plain.find(Some("m")).unwrap()
    }

    /// What the tokenizer alone takes.
    fn least(&self, text: &str) -> Duration {
        time(|| self.prompter().encode(text, false).unwrap())
    }
}

/// The text of a body's prompt. The models' tokenizer, which has caches of words itself, has then seen it.
fn text(models: &Models, body: &[u8]) -> String {
    let prompter = models.find(Some("m")).unwrap();
    let request = Request::parse(Api::ChatCompletions, body).unwrap();
    prompter.decode(&prompter.token_ids(&request).unwrap()[0])
}

fn whole(models: &Models, body: &[u8]) -> Duration {
    let body = body.to_vec().into();
    time(|| {
        let Step::Done(prepared) = prepare::begin(&One, models, Api::ChatCompletions, body, None) else {
            panic!("no other server is configured");
        };
        assert!(prepared.prompts.is_ok(), "{:?}", prepared.prompts);
        prepared
    })
}

fn time<T>(what: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    let it = black_box(what());
    let took = start.elapsed();
    drop(it);
    took
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Times of the tokenizer alone, of the whole without a memo, and of the whole.
type Row = Vec<[Duration; 3]>;

fn print(family: &str, tokens: usize, case: &str, rows: &Row) {
    let of = |i: usize| median(rows.iter().map(|it| it[i].as_secs_f64() * 1e6).collect());
    let ratio = |i: usize| median(rows.iter().map(|it| it[i].div_duration_f64(it[0])).collect());
    println!(
        "{family:12} {tokens:7} {case:10} {:10.0} {:10.0} {:10.0} {:8.2} {:8.2}",
        of(0),
        of(1),
        of(2),
        ratio(1),
        ratio(2)
    );
}

fn measure(family: &str, subject: &Subject, tokens: usize, rounds: usize, dice: &mut Dice) {
    let bytes = tokens * BYTES_PER_TOKEN;
    let seen = dice.conversation(bytes);
    let (seen_body, mut rows) = (body(&seen), [Row::new(), Row::new(), Row::new()]);
    let seen_text = text(&subject.plain, &seen_body);
    let count = subject.prompter().encode(&seen_text, false).unwrap().len();
    whole(&subject.with_memo, &seen_body);
    for _ in 0..rounds {
        // Never seen, each by one of the three alone.
        let [a, b, c] = [0; 3].map(|_| body(&dice.conversation(bytes)));
        let fresh = text(&subject.with_memo, &a);
        let plain = [subject.least(&fresh), whole(&subject.plain, &b)];
        rows[0].push([plain[0], plain[1], whole(&subject.with_memo, &c)]);
        rows[1].push([
            subject.least(&seen_text),
            whole(&subject.plain, &seen_body),
            whole(&subject.with_memo, &seen_body),
        ]);
        let mut grown = seen.clone();
        grown.extend([dice.message(), dice.message()]);
        // The answer was seen by no one, but is old to the request that measures.
        let answered = body(&grown);
        grown.pop();
        grown.push(dice.message());
        let grown = body(&grown);
        whole(&subject.with_memo, &answered);
        let with_memo = whole(&subject.with_memo, &grown);
        let grown_text = text(&subject.with_memo, &grown);
        rows[2].push([subject.least(&grown_text), whole(&subject.plain, &grown), with_memo]);
    }
    for (case, rows) in ["cold", "warm", "last new"].iter().zip(&rows) {
        print(family, count, case, rows);
    }
}

/// Where the time of a request goes that was seen before.
fn parts(family: &str, subject: &Subject, rounds: usize, dice: &mut Dice) {
    let body = body(&dice.conversation(8_000 * BYTES_PER_TOKEN));
    let prompter = subject.with_memo.find(Some("m")).unwrap();
    let text = text(&subject.plain, &body);
    let mut rows: Vec<[Duration; 4]> = Vec::new();
    for _ in 0..=rounds {
        let start = Instant::now();
        let request = Request::parse(Api::ChatCompletions, &body).unwrap();
        let parsed = start.elapsed();
        let start = Instant::now();
        let prompts = prompter.prompts(&request).unwrap();
        let made = start.elapsed();
        let chained = time(|| pick::chain_with(prompter.memo(), One.plan(None).namings, &prompts, None));
        let encoded = time(|| prompter.encode(&text, false).unwrap());
        rows.push([parsed, made, encoded, chained]);
    }
    let of = |i: usize| median(rows.iter().skip(1).map(|it| it[i].as_secs_f64() * 1e6).collect());
    println!(
        "{family:12} 8k warm: parse {:.0}, render and look up ids {:.0} (look up alone {:.0}), look up blocks {:.0} us",
        of(0),
        of(1),
        of(2),
        of(3)
    );
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    println!("medians, us; `least` is the tokenizer's encoding of the rendered text, ratios are to it");
    println!(
        "{:12} {:>7} {:10} {:>10} {:>10} {:>10} {:>8} {:>8}",
        "family", "tokens", "request", "least", "no memo", "whole", "ratio", "ratio"
    );
    let parts_alone = wanted.iter().any(|it| it == "parts");
    let mut dice = Dice(1);
    for family in FAMILIES {
        if !wanted.is_empty() && !wanted.iter().any(|it| it == family) {
            continue;
        }
        let subject = Subject::load(family);
        if parts_alone {
            parts(family, &subject, 20_000, &mut dice);
            continue;
        }
        for (tokens, rounds) in SIZES {
            measure(family, &subject, tokens, rounds, &mut dice);
        }
        parts(family, &subject, 300, &mut dice);
    }
}
