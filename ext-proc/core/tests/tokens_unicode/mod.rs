//! Every character has the ids that the engine's own library gives it, alone and beside letters, digits, spaces,
//! punctuation and itself: the libraries' Unicode is not of one version.

use crate::tokens_oracles::Oracles;

#[test]
fn qwen3() {
    agree("qwen3", true, TELLING);
}

#[test]
fn llama3_1() {
    agree("llama3_1", true, TELLING);
}

#[test]
fn deepseek_v3() {
    agree("deepseek_v3", true, TELLING);
}

#[test]
fn gemma3() {
    agree("gemma3", false, TELLING);
}

#[test]
fn gpt_oss() {
    agree("gpt_oss", true, TELLING);
}

/// All code points that there are.
#[test]
#[ignore = "takes minutes for each tokenizer"]
fn all() {
    for (model, is_fast) in
        [("qwen3", true), ("llama3_1", true), ("deepseek_v3", true), ("gemma3", false), ("gpt_oss", true)]
    {
        agree(model, is_fast, |_| true);
    }
}

/// Whether a code point may tell versions apart: most blocks of characters that are alike, or are none, are left out
/// but for a sample and their ends.
const TELLING: fn(u32) -> bool = |code| match code {
    0x3500..=0x4d00 | 0x4e20..=0x9f00 | 0xac80..=0xd700 | 0xe040..=0xf800 => code % 61 == 0,
    0x12000..=0x167ff | 0x17000..=0x187e0 | 0x18800..=0x18c00 | 0x1b200..=0x1bb00 => code % 7 == 0,
    0x20000..=0x2a600 | 0x2a800..=0x2b700 | 0x2b800..=0x2ce00 | 0x2cf00..=0x32300 | 0x32400..=0x33400 => {
        code % 61 == 0
    }
    0x33500..=0xe0000 | 0xe0200..=0x10_ffff => code % 997 == 0 || code & 0xffff >= 0xfffe,
    _ => true,
};

fn agree(model: &str, is_fast: bool, is_chosen: fn(u32) -> bool) {
    let oracles = Oracles::new(model);
    let (mut compared, mut refused) = (0, [0; 2]);
    let chars: Vec<_> = ('\0'..=char::MAX).filter(|char| is_chosen(u32::from(*char))).collect();
    for chars in chars.chunks(32) {
        let text: String = chars.iter().map(|char| beside(*char)).collect();
        let ids = oracles.engine(&text);
        compared += text.len();
        for (which, refused) in refused.iter_mut().enumerate() {
            match oracles.ours(which, &text) {
                Some(ours) => assert!(ours == ids, "{model}, {which}: {}", oracles.difference(which, &text)),
                None => *refused += chars.iter().filter(|char| !agrees(&oracles, which, **char)).count(),
            }
        }
    }
    eprintln!("{model}: {compared} bytes, refused {refused:?}");
    assert_eq!(refused[0] == 0, is_fast, "the fast library has the engine's Unicode and refuses nothing");
    assert!(refused[1] > 500, "the other refuses what is new in Unicode 17");
}

/// Whether one character is not refused. If so, its ids are the engine's.
fn agrees(oracles: &Oracles, which: usize, char: char) -> bool {
    let text = beside(char);
    let Some(ours) = oracles.ours(which, &text) else { return false };
    assert!(ours == oracles.engine(&text), "{which}: {}", oracles.difference(which, &text));
    true
}

/// A character in many places.
fn beside(char: char) -> String {
    // The long s as a contraction is refused; that has a test of its own.
    let quoted = if char == '\u{17f}' { ' ' } else { char };
    format!("{char} a{char}a B{char}1{char} {char}{char}.{char}.\n{char}\n'{quoted} I'{quoted}a'll{char}'s\n")
}
