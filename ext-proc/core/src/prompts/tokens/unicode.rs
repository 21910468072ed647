//! Characters that the engine's Unicode does not know.
//!
//! What vLLM has for tokenizers (tokenizers 0.23, oss-harmony 0.0.11) splits text by the classes of Unicode 16, and
//! normalises by the tables of Unicode 9; tokenizers 1.0 does both by those of 17. Beside a character that is new in
//! it, text would become other tokens.

/// Whether `text` has a character that is of another class there; `all` tells whether symbols and punctuation matter
/// beside letters, digits and marks.
pub(super) fn has_new(text: &str, all: bool) -> bool {
    text.chars().map(u32::from).any(|code| is_in(&LETTERS, code) || all && is_in(&SYMBOLS, code))
}

/// Whether `text` has a character that composes, decomposes or changes places there as Unicode 9 does not have it.
pub(super) fn has_recomposed(text: &str) -> bool {
    text.chars().map(u32::from).any(|code| is_in(&RECOMPOSED, code))
}

fn is_in(table: &[(u32, u32)], code: u32) -> bool {
    // Most text is before all of them.
    if code < table[0].0 {
        return false;
    }
    let at = table.partition_point(|(_, last)| *last < code);
    table.get(at).is_some_and(|(first, _)| *first <= code)
}

/// Whether a normaliser brings text into one of Unicode's normal forms.
pub(super) fn composes(normalizer: &str) -> bool {
    ["\"NFC\"", "\"NFD\"", "\"NFKC\"", "\"NFKD\"", "\"BertNormalizer\"", "\"Precompiled\""]
        .iter()
        .any(|it| normalizer.contains(it))
}

/// Whether a `tokenizer.json` splits text at symbols or punctuation.
pub(super) fn splits_at_symbols(json: &str) -> bool {
    [r"p{P", r"p{S", "[:punct:]", "\"Punctuation\"", "\"BertPreTokenizer\""]
        .iter()
        .any(|it| json.contains(it))
}

/// New letters, digits and marks: first and last of each run.
const LETTERS: [(u32, u32); 27] = [
    (0x88f, 0x88f),
    (0xc5c, 0xc5c),
    (0xcdc, 0xcdc),
    (0x1acf, 0x1add),
    (0x1ae0, 0x1aeb),
    (0xa7ce, 0xa7cf),
    (0xa7d2, 0xa7d2),
    (0xa7d4, 0xa7d4),
    (0xa7f1, 0xa7f1),
    (0x10940, 0x10959),
    (0x10ec5, 0x10ec7),
    (0x10efa, 0x10efb),
    (0x11b60, 0x11b67),
    (0x11db0, 0x11ddb),
    (0x11de0, 0x11de9),
    (0x16ea0, 0x16eb8),
    (0x16ebb, 0x16ed3),
    (0x16ff2, 0x16ff6),
    (0x187f8, 0x187ff),
    (0x18d09, 0x18d1e),
    (0x18d80, 0x18df2),
    (0x1e6c0, 0x1e6de),
    (0x1e6e0, 0x1e6f5),
    (0x1e6fe, 0x1e6ff),
    (0x2b73a, 0x2b73f),
    (0x2cea2, 0x2cead),
    (0x323b0, 0x33479),
];

/// New symbols and punctuation.
const SYMBOLS: [(u32, u32); 20] = [
    (0x20c1, 0x20c1),
    (0x2b96, 0x2b96),
    (0xfbc3, 0xfbd2),
    (0xfd90, 0xfd91),
    (0xfdc8, 0xfdce),
    (0x10ed0, 0x10ed8),
    (0x1ccfa, 0x1ccfc),
    (0x1ceba, 0x1ced0),
    (0x1cee0, 0x1cef0),
    (0x1f6d8, 0x1f6d8),
    (0x1f777, 0x1f77a),
    (0x1f8d0, 0x1f8d8),
    (0x1fa54, 0x1fa57),
    (0x1fa8a, 0x1fa8a),
    (0x1fa8e, 0x1fa8e),
    (0x1fac8, 0x1fac8),
    (0x1facd, 0x1facd),
    (0x1faea, 0x1faea),
    (0x1faef, 0x1faef),
    (0x1fbfa, 0x1fbfa),
];

/// Characters whose combining class or (de)composition is not that of Unicode 9, with the parts of new ones.
const RECOMPOSED: [(u32, u32); 75] = [
    (0x7fd, 0x7fd),
    (0x897, 0x89f),
    (0x8ca, 0x8d3),
    (0x9fe, 0x9fe),
    (0xc3c, 0xc3c),
    (0xd3b, 0xd3c),
    (0xeba, 0xeba),
    (0x1715, 0x1715),
    (0x1abf, 0x1add),
    (0x1ae0, 0x1aeb),
    (0x1df6, 0x1dfa),
    (0x32ff, 0x32ff),
    (0xa7f1, 0xa7f4),
    (0xa82c, 0xa82c),
    (0xab69, 0xab69),
    (0x105c9, 0x105c9),
    (0x105d2, 0x105d2),
    (0x105da, 0x105da),
    (0x105e4, 0x105e4),
    (0x10781, 0x10785),
    (0x10787, 0x107b0),
    (0x107b2, 0x107ba),
    (0x10d24, 0x10d27),
    (0x10d69, 0x10d6d),
    (0x10eab, 0x10eac),
    (0x10efa, 0x10efb),
    (0x10efd, 0x10eff),
    (0x10f46, 0x10f50),
    (0x10f82, 0x10f85),
    (0x11070, 0x11070),
    (0x1133b, 0x1133b),
    (0x11382, 0x11385),
    (0x1138b, 0x1138b),
    (0x1138e, 0x1138e),
    (0x11390, 0x11391),
    (0x113b8, 0x113b8),
    (0x113bb, 0x113bb),
    (0x113c2, 0x113c2),
    (0x113c5, 0x113c5),
    (0x113c7, 0x113c9),
    (0x113ce, 0x113d0),
    (0x1145e, 0x1145e),
    (0x11839, 0x1183a),
    (0x11930, 0x11930),
    (0x11935, 0x11935),
    (0x11938, 0x11938),
    (0x1193d, 0x1193e),
    (0x11943, 0x11943),
    (0x119e0, 0x119e0),
    (0x11a34, 0x11a34),
    (0x11a47, 0x11a47),
    (0x11a99, 0x11a99),
    (0x11d42, 0x11d42),
    (0x11d44, 0x11d45),
    (0x11d97, 0x11d97),
    (0x11f41, 0x11f42),
    (0x1611e, 0x16129),
    (0x1612f, 0x1612f),
    (0x16d63, 0x16d63),
    (0x16d67, 0x16d6a),
    (0x16ff0, 0x16ff1),
    (0x1ccd6, 0x1ccf9),
    (0x1e030, 0x1e06d),
    (0x1e08f, 0x1e08f),
    (0x1e130, 0x1e136),
    (0x1e2ae, 0x1e2ae),
    (0x1e2ec, 0x1e2ef),
    (0x1e4ec, 0x1e4ef),
    (0x1e5ee, 0x1e5ef),
    (0x1e6e3, 0x1e6e3),
    (0x1e6e6, 0x1e6e6),
    (0x1e6ee, 0x1e6ef),
    (0x1e6f5, 0x1e6f5),
    (0x1f16c, 0x1f16c),
    (0x1fbf0, 0x1fbf9),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_characters_are_seen() {
        for table in [&LETTERS[..], &SYMBOLS[..], &RECOMPOSED[..]] {
            assert!(table.is_sorted_by(|before, after| before.1 < after.0));
        }
        for (text, letters, all) in [
            ("", false, false),
            ("潮 abc \u{1f30a}", false, false),
            ("a\u{1ad9}", true, true),
            ("a\u{20c1}", false, true),
            ("\u{1fac8}", false, true),
            ("\u{88e}\u{890}\u{1ace}\u{1ade}\u{1adf}\u{1aec}\u{20c0}\u{20c2}", false, false),
            ("x\u{323b0}", true, true),
            ("\u{33479}", true, true),
            ("\u{3347a}\u{10ffff}", false, false),
        ] {
            assert_eq!((has_new(text, false), has_new(text, true)), (letters, all), "{text:?}");
        }
    }

    #[test]
    fn characters_of_other_forms_are_seen() {
        assert!(has_recomposed("\u{9bc}\u{9fe}") && has_recomposed("\u{16d67}"));
        assert!(!has_recomposed("e\u{301}\u{ac00}\u{9bc}\u{307}"));
        assert!(composes(r#"{"type":"NFC"}"#) && !composes(r#"{"type":"Replace"}"#) && !composes("null"));
    }

    #[test]
    fn patterns_that_ask_for_symbols_are_seen() {
        assert!(splits_at_symbols(r#"{"Regex":"[^\\s\\p{P}]+"}"#));
        assert!(splits_at_symbols(r#"{"type":"Punctuation"}"#));
        assert!(!splits_at_symbols(r#"{"Regex":"\\p{L}+|\\p{N}"}"#));
    }
}
