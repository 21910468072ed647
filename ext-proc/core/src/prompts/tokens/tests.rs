//! Pieces of texts against whole texts.

mod made_up;

use std::{collections::BTreeMap, path::Path, sync::Mutex};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::memo::testing::Map;
use made_up::{BYTE_LETTERS, added, by_regex, made_up, made_up_tokenizers};

/// The tokenizer packages that the build tools fetch.
const FAMILIES: [&str; 5] = ["qwen3", "llama3_1", "gpt_oss", "deepseek_v3", "gemma3"];

/// Reading a tokenizer takes seconds: each is read once.
fn family(name: &'static str) -> Tokenizer {
    static READ: Mutex<BTreeMap<&str, Tokenizer>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let tokenizer = read.entry(name).or_insert_with(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/tokenizers").join(name);
        let file = folder.join("tokenizer.json");
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}; run `make tools` first", file.display()));
        Tokenizer::new(text.as_bytes(), &Object::new()).unwrap()
    });
    tokenizer.clone()
}

/// Bits of text that meet badly.
const BITS: [&str; 81] = [
    "a",
    "b",
    "ab",
    "A",
    "B",
    "s",
    "'s",
    "'S",
    "1",
    "1234",
    ".",
    "/",
    "//",
    "<",
    ">",
    "|",
    "> ",
    ". ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r",
    "\r\n",
    "\r\n\r\n",
    "\t",
    "\t\t",
    " \n",
    "\n ",
    "\n/",
    ".\n",
    ".\n/",
    "a\n",
    "\nb",
    "\u{a0}",
    "\u{2028}",
    "\u{85}",
    "\u{3000}",
    "\u{200b}",
    "\u{feff}",
    "\u{b}",
    "字",
    "字。",
    "。",
    "。\n",
    "か",
    "か\u{3099}",
    "\u{3099}",
    "é",
    "e\u{301}",
    "\u{301}",
    "\u{345}",
    "\u{37a}",
    "\u{37e} ",
    "\u{212a}",
    "ſ",
    "각",
    "\u{1100}\u{1161}",
    "🌊",
    "👩\u{200d}🚀",
    "▁",
    "▁▁",
    "<s>",
    "</s>",
    "<|a|>",
    "<s",
    "s><",
    "abA",
    "éa",
    "e\u{301}a",
    "<|im_start|>",
    "<|im_end|>\n",
    "<|begin_of_text|>",
    "<｜User｜>",
    "<start_of_turn>user\n",
    "<|start|>",
    "<|end",
    "¼",
    "ﷺ",
];

/// Hostile texts of up to that many bits, some of which are repeated.
fn text(bits: usize) -> impl Strategy<Value = String> {
    let one =
        (prop::sample::select(&BITS), prop_oneof![8 => 1..2_usize, 2 => 2..9_usize, 1 => 100..700_usize])
            .prop_map(|(bit, times)| bit.repeat(times));
    let other = prop_oneof![4 => "[ab1'./ \n]{1,60}", 1 => ".{0,9}", 1 => "[ -~]{1,80}"];
    prop::collection::vec(prop_oneof![3 => one, 2 => other], 0..bits).prop_map(|it| it.concat())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases, ..ProptestConfig::default() }
}

/// Ids of the pieces of `text` between all places where it may be cut, put together.
fn of_smallest_pieces(tokenizer: &Tokenizer, text: &str, is_ordinary: bool) -> Option<Vec<u32>> {
    let Ok(Cuts::Places(places)) = &tokenizer.model.cuts else { return None };
    let mut ids = Vec::new();
    let mut from = 0;
    for at in 1..=text.len() {
        if at == text.len() || places.is_cut(text, at) {
            tokenizer.model.full_into(&text[from..at], is_ordinary, &mut ids).ok()?;
            from = at;
        }
    }
    Some(ids)
}

fn check_places(tokenizers: &[(&str, Tokenizer)], text: &str) {
    for (name, tokenizer) in tokenizers {
        for is_ordinary in [false, true] {
            let Ok(want) = tokenizer.model.full(text, is_ordinary) else { continue };
            if let Some(got) = of_smallest_pieces(tokenizer, text, is_ordinary) {
                assert_eq!(got, want, "{name}, {is_ordinary}: {text:?}");
            }
        }
    }
}

#[test]
fn every_place_is_a_cut_of_made_up_tokenizers() {
    let all = made_up_tokenizers();
    proptest!(config(500), |(text in text(30))| check_places(&all, &text));
}

#[test]
fn every_place_is_a_cut_of_packaged_tokenizers() {
    let all = FAMILIES.map(|name| (name, family(name)));
    for (name, tokenizer) in &all {
        assert_eq!(tokenizer.cut_label(), "anywhere", "{name}");
    }
    proptest!(config(250), |(text in text(30))| check_places(&all, &text));
}

/// All short strings over one character of each class.
#[test]
fn no_short_string_is_cut_wrong() {
    const CLASSES: [&str; 12] = ["a", "B", "1", ".", "/", "'", "s", " ", "\n", "\r", "字", "。"];
    let all = made_up_tokenizers();
    let mut texts = vec![String::new()];
    for _ in 0..4 {
        texts = texts.iter().flat_map(|it| CLASSES.map(|bit| format!("{it}{bit}"))).collect();
        texts.iter().for_each(|text| check_places(&all, text));
    }
}

fn check_remembered(name: &str, plain: &Tokenizer, with_memo: &Tokenizer, text: &str) {
    // A text with two mistakes may be refused for another one.
    for special in [false, true] {
        let got = with_memo.encode(text, special).ok();
        assert_eq!(got, plain.encode(text, special).ok(), "{name}: {text:?}");
    }
    let got = with_memo.encode_ordinary(text).ok();
    assert_eq!(got, plain.encode_ordinary(text).ok(), "{name}: {text:?}");
}

/// A text, and the same with some bits put in place of others.
fn edited() -> impl Strategy<Value = Vec<String>> {
    let edit = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), text(4));
    (text(60), prop::collection::vec(edit, 1..4)).prop_map(|(text, edits)| {
        let mut all = vec![text.clone(), text.clone()];
        for (from, to, new) in edits {
            let at = |it: prop::sample::Index| text.floor_char_boundary(it.index(text.len() + 1));
            let (from, to) = (at(from).min(at(to)), at(from).max(at(to)));
            all.push(format!("{}{new}{}", &text[..from], &text[to..]));
            all.push(format!("{new}{text}"));
            all.push(format!("{text}{new}"));
        }
        all.push(text);
        all
    })
}

/// Memos of all kinds: roomy, of no room, always evicting, and one in which all texts have one key.
fn memos() -> [Arc<Map>; 4] {
    [(100_000, 9), (0, 9), (3, 9), (1, 0)].map(|(room, seed)| Arc::new(Map::new(room, seed)))
}

fn check_memos(tokenizers: &[(&str, Tokenizer)], cases: u32) {
    let memos = memos();
    let remembering: Vec<_> = tokenizers
        .iter()
        .flat_map(|(name, plain)| memos.iter().map(move |memo| (*name, plain, plain.with_memo(memo.clone()))))
        .collect();
    proptest!(config(cases), |(texts in edited())| {
        for text in &texts {
            for (name, plain, with_memo) in &remembering {
                check_remembered(name, plain, with_memo, text);
            }
        }
    });
    assert!(memos.iter().all(|it| it.differences.load(std::sync::atomic::Ordering::Relaxed) == 0));
    assert!(0 < memos[0].hits() && memos[1].hits() == 0 && 0 < memos[2].hits());
}

#[test]
fn ids_are_those_without_a_memo_by_made_up_tokenizers() {
    check_memos(&made_up_tokenizers(), 40);
}

#[test]
fn ids_are_those_without_a_memo_by_packaged_tokenizers() {
    check_memos(&FAMILIES.map(|name| (name, family(name))), 25);
}

/// Workers share a memo, which forgets all the time.
#[test]
fn ids_are_those_without_a_memo_in_many_threads() {
    let memo = Arc::new(Map::new(20, 5));
    let all = FAMILIES.map(|name| (name, family(name), family(name).with_memo(memo.clone())));
    let texts: Vec<_> = (0..40).map(|i| BITS.map(|bit| bit.repeat(1 + i % 7 * 9)).join(" ok.\n")).collect();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (all, texts) = (&all, &texts);
            scope.spawn(move || {
                for i in 0..texts.len() {
                    let (name, plain, with_memo) = &all[(i * 7 + worker) % all.len()];
                    check_remembered(name, plain, with_memo, &texts[(i * (worker + 1)) % texts.len()]);
                }
            });
        }
    });
    assert!(0 < memo.hits());
}

#[test]
fn what_forbids_a_memo_is_seen() {
    let bytes = |changes| known::cuts(&made_up(BYTE_LETTERS, changes)).map(|_| ()).unwrap_err();
    let qwen = || by_regex(known::PATTERNS[0]);
    let tokens =
        |tokens: &[(&str, &[&str])]| bytes(json!({"added_tokens": added(tokens), "pre_tokenizer": qwen()}));
    assert_eq!(bytes(json!({"model": {"dropout": 0.1}})), "dropout");
    assert_eq!(tokens(&[("<s>", &["single_word"])]), "single_word");
    assert_eq!(tokens(&[("ab", &[])]), "foreign_ids");
    assert_eq!(bytes(json!({"normalizer": {"type": "Novel"}})), "unknown_parts");
    assert_eq!(
        bytes(json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Novel"}]}})),
        "unknown_parts"
    );
    assert_eq!(tokens(&[("<s>", &["rstrip"]), (" x", &[])]), "strips_beside_whitespace");
    assert_eq!(tokens(&[("x <s>", &[]), ("<s><s>", &["normalized"])]), "overlapping_tokens");
}

/// A memo that gives wrong ids is found out by comparison with a full encoding, and is not asked again.
#[test]
fn a_memo_that_is_wrong_is_switched_off() {
    struct Liar(Map);
    impl Memo for Liar {
        fn seed(&self) -> u64 {
            1
        }
        fn get(&self, key: u64) -> Option<Arc<crate::memo::Entry>> {
            self.0.get(key)
        }
        fn put(&self, key: u64, mut entry: crate::memo::Entry) {
            if let crate::memo::Kept::Text(it) = &mut entry.0 {
                it.ids[0] += 1;
            }
            self.0.put(key, entry);
        }
        fn asked(&self, _: crate::memo::What, _: crate::memo::Tally) {}
        fn differs(&self) {
            self.0.differs();
        }
    }
    let liar = Arc::new(Liar(Map::new(10, 1)));
    let plain = family("qwen3");
    let with_memo = plain.with_memo(liar.clone());
    let text = "a b\n".repeat(100);
    let is_right = || with_memo.encode(&text, false) == plain.encode(&text, false);
    // The first is not from the memo.
    assert!(is_right());
    let wrong = (0..3_000).take_while(|_| !is_right()).count();
    assert_eq!(wrong, 999);
    assert!((0..3_000).all(|_| is_right()));
    assert_eq!(liar.0.differences.load(std::sync::atomic::Ordering::Relaxed), 1);
}
