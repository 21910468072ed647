//! A tokenizer of letters, so that prompts can be read.
#![allow(dead_code, reason = "not each test has use for all of it")]

use kvpick_core::{
    prompts::{LoadError, ModelFiles, Prompter, Settings},
    request::{Api, Request},
};

/// A prompter with a token for each byte and nothing else, so that the text of its ids is what was encoded.
pub(crate) fn letters(chat_template: &str, settings: Settings) -> Prompter {
    letters_and(None, chat_template, settings)
}

/// The same with a `tokenizer_config.json`.
pub(crate) fn letters_and(config: Option<&str>, chat_template: &str, settings: Settings) -> Prompter {
    let tokenizer = tokenizer(&[]);
    let files = ModelFiles {
        tokenizer_json: tokenizer.as_bytes(),
        tokenizer_config_json: config.map(str::as_bytes),
        config_json: None,
        chat_template: Some(chat_template),
        ..ModelFiles::default()
    };
    Prompter::new(files, settings).expect("the tokenizer loads")
}

/// One with special tokens and a `config.json`.
pub(crate) fn letters_of(config: &serde_json::Value, chat_template: &str, special: &[&str]) -> Prompter {
    let config = config.to_string();
    let more = ModelFiles {
        config_json: Some(config.as_bytes()),
        chat_template: Some(chat_template),
        ..ModelFiles::default()
    };
    letters_with(more, special, Settings::default()).expect("the tokenizer loads")
}

/// One with special tokens and whatever other files.
pub(crate) fn letters_with(
    more: ModelFiles<'_>,
    special: &[&str],
    settings: Settings,
) -> Result<Prompter, LoadError> {
    let tokenizer = tokenizer(special);
    Prompter::new(ModelFiles { tokenizer_json: tokenizer.as_bytes(), ..more }, settings)
}

/// A `tokenizer.json`.
fn tokenizer(special: &[&str]) -> String {
    // The usual names of bytes in such vocabularies: printing ones stand for themselves, the others follow.
    let prints = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let plain = (0..=u8::MAX).filter(prints).map(char::from);
    let others = (256..).take(256 - plain.clone().count()).filter_map(char::from_u32);
    let vocabulary: serde_json::Map<_, _> = plain
        .chain(others)
        .zip(0..)
        .map(|(name, id)| (name.to_string(), serde_json::Value::from(id)))
        .collect();
    let bytes = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    let added = special.iter().zip(256..).map(|(content, id)| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": true})
    });
    let added: Vec<_> = added.collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [],
        },
    });
    tokenizer.to_string()
}

/// Prints every message and the tools.
pub(crate) const DUMP: &str = "{% for m in messages %}{{ m|tojson }}\n{% endfor %}\
                    tools={{ tools|default(none)|tojson }} effort={{ reasoning_effort|default('-') }} \
                    {{ 'answer' if add_generation_prompt }}";

/// The texts of a body's prompts.
#[track_caller]
pub(crate) fn texts(prompter: &Prompter, api: Api, body: &str) -> Vec<String> {
    let request = Request::parse(api, body.as_bytes()).expect("a request");
    let prompts = prompter.token_ids(&request).unwrap_or_else(|error| panic!("{error}: {body}"));
    prompts.iter().map(|ids| prompter.decode(ids)).collect()
}

/// Holds the one prompt of a body to lines of text.
#[track_caller]
pub(crate) fn shown(template: &str, api: Api, body: &str, want: &[&str]) {
    let prompter = letters(template, Settings::default());
    assert_eq!(texts(&prompter, api, body), [want.join("\n")], "{body}");
}

/// Why a body has no prompt.
#[track_caller]
pub(crate) fn label(api: Api, body: &str) -> &'static str {
    let request = Request::parse(api, body.as_bytes()).expect("a request");
    letters(DUMP, Settings::default()).token_ids(&request).expect_err("no prompt").label()
}
