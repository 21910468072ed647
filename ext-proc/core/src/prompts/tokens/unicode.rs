//! Characters that the engine's Unicode does not know.

/// Letters, digits and marks that are new in Unicode 17. What vLLM has for tokenizers (tokenizers 0.23, oss-harmony
/// 0.0.11) splits text by Unicode 16, where they are none of these, and the tokenizer here by 17: it would make other
/// tokens of the text around them.
const NEW: [(u32, u32); 27] = [
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

/// Whether any of them stands in `text`.
pub(super) fn has_new(text: &str) -> bool {
    text.chars().any(|char| {
        let code = u32::from(char);
        let at = NEW.partition_point(|(_, last)| *last < code);
        NEW.get(at).is_some_and(|(first, _)| *first <= code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_characters_are_seen() {
        assert!(NEW.is_sorted_by(|before, after| before.1 < after.0));
        for (text, want) in [
            ("", false),
            ("潮 abc \u{1f30a}", false),
            ("a\u{1ad9}", true),
            ("\u{88e}\u{890}\u{1ace}\u{1ade}\u{1adf}\u{1aec}", false),
            ("x\u{323b0}", true),
            ("\u{33479}", true),
            ("\u{3347a}\u{10ffff}", false),
        ] {
            assert_eq!(has_new(text), want, "{text:?}");
        }
    }
}
