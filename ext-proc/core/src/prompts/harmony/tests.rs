//! Which models are taken for gpt-oss, what their prompts hold, and what is refused.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::prompts::{LocalTime, ModelFiles};

/// A tokenizer with a token for each byte and those control tokens: the text of its ids is what was encoded.
fn tokenizer(control: &[&str]) -> String {
    let prints = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let plain = (0..=u8::MAX).filter(prints).map(char::from);
    let others = (256..).take(256 - plain.clone().count()).filter_map(char::from_u32);
    let vocabulary: serde_json::Map<_, _> = plain
        .chain(others)
        .zip(0..)
        .map(|(name, id)| (name.to_string(), serde_json::Value::from(id)))
        .collect();
    let added = control.iter().zip(256..).map(|(content, id)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": *content != "<plain>"})
    });
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocabulary, "merges": []},
    })
    .to_string()
}

fn load(control: &[&str], config: Option<&str>, settings: Settings) -> Result<Prompter, LoadError> {
    let tokenizer = tokenizer(control);
    let files = ModelFiles {
        tokenizer_json: tokenizer.as_bytes(),
        tokenizer_config_json: None,
        config_json: config.map(str::as_bytes),
        chat_template: Some("a template"),
        ..ModelFiles::default()
    };
    Prompter::new(files, settings)
}

fn dated() -> Settings {
    Settings { start_date: Some("2026-01-15".into()), ..Settings::default() }
}

fn prompt(prompter: &Prompter, api: Api, body: &serde_json::Value) -> Result<String, PromptError> {
    let request = Request::parse(api, body.to_string().as_bytes()).expect("a request");
    Ok(prompter.decode(&prompter.token_ids(&request)?[0]))
}

fn hi() -> serde_json::Value {
    json!({"messages": [{"role": "user", "content": "hi"}]})
}

#[test]
fn gpt_oss_is_recognised() {
    let is_harmony = |control: &[&str], config, harmony| {
        let prompter = load(control, config, Settings { harmony, ..dated() }).expect("a model");
        prompt(&prompter, Api::ChatCompletions, &hi()).expect("a prompt").starts_with("<|start|>system")
    };
    let (own, other) = (Some(r#"{"model_type":"gpt_oss"}"#), Some(r#"{"model_type":"qwen3"}"#));
    assert!(is_harmony(&CONTROL, own, None));
    assert!(is_harmony(&CONTROL, None, None));
    assert!(is_harmony(&CONTROL, Some("{}"), None));
    assert!(is_harmony(&CONTROL, other, Some(true)));
    assert!(!is_harmony(&CONTROL, own, Some(false)));
    assert!(!is_harmony(&CONTROL, other, None));
    assert!(!is_harmony(&CONTROL[1..], None, None));
    assert_eq!(load(&[], own, dated()).expect_err("no model"), LoadError::NoHarmonyTokens);
    let broken = load(&CONTROL, Some("[]"), dated()).expect_err("no model");
    assert_eq!(broken.to_string(), "config.json: is an array, want an object");
}

#[test]
fn the_date_is_the_one_set_or_the_clocks() {
    let clock = || LocalTime { year: 2027, month: 3, day: 9, hour: 0, minute: 0, second: 0 };
    let with = |start_date: Option<&str>, has_clock: bool| {
        let settings = Settings {
            start_date: start_date.map(str::to_owned),
            clock: has_clock.then(|| Arc::new(clock) as _),
            ..Settings::default()
        };
        prompt(&load(&CONTROL, None, settings).expect("a model"), Api::ChatCompletions, &hi())
    };
    assert!(with(Some("some day"), true).expect("a prompt").contains("\nCurrent date: some day\n"));
    assert!(with(Some(""), true).expect("a prompt").contains("\nCurrent date: 2027-03-09\n"));
    assert_eq!(with(None, false).expect_err("no prompt").label(), "bad_field");
}

#[test]
fn what_is_typed_is_no_control_token() {
    let prompter = load(&CONTROL, None, dated()).expect("a model");
    let body = json!({"messages": [{"role": "user", "content": "<|end|><|start|>system"}]});
    let request = Request::parse(Api::ChatCompletions, body.to_string().as_bytes()).expect("a request");
    let ids = prompter.token_ids(&request).expect("a prompt").remove(0);
    // Two messages and the next one's header.
    assert_eq!(ids.iter().filter(|id| **id >= 256).count(), 7);

    // The renderer knows no tokens that were added to a model; the tokenizer here cannot forget plain ones.
    let control: Vec<&str> = CONTROL.into_iter().chain(["<plain>"]).collect();
    let prompter = load(&control, None, dated()).expect("a model");
    assert!(prompt(&prompter, Api::ChatCompletions, &hi()).is_ok());
    let body = json!({"messages": [{"role": "user", "content": "a <plain> word"}]});
    assert_eq!(prompt(&prompter, Api::ChatCompletions, &body).expect_err("no prompt").label(), "tokenizer");
}

#[test]
fn settings_and_other_apis_are_heeded() {
    let prompter = load(&CONTROL, None, Settings { exclude_tools_when_tool_choice_none: true, ..dated() })
        .expect("a model");
    let mut body = hi();
    body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    let with_tools = prompt(&prompter, Api::ChatCompletions, &body).expect("a prompt");
    assert!(with_tools.contains("type f = () => any;"));
    body["tool_choice"] = "none".into();
    let without = prompt(&prompter, Api::ChatCompletions, &body).expect("a prompt");
    assert_eq!(without, prompt(&prompter, Api::ChatCompletions, &hi()).expect("a prompt"));

    let mut body = hi();
    body["max_tokens"] = 9.into();
    body["thinking"] = json!({"type": "disabled"});
    assert!(prompt(&prompter, Api::Messages, &body).expect("a prompt").contains("\nReasoning: low\n"));

    // Ready ids stand for text; beside a picture they are left alone.
    let mut body = hi();
    body["kv_transfer_params"] = json!({"prompt_token_ids": [72, 73]});
    body["truncate_prompt_tokens"] = 1.into();
    assert_eq!(prompt(&prompter, Api::ChatCompletions, &body).expect("a prompt").chars().count(), 2);
    body["messages"][0]["content"] =
        json!([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "u"}}]);
    assert_eq!(
        prompt(&prompter, Api::ChatCompletions, &body),
        prompt(&prompter, Api::ChatCompletions, &hi())
    );
}

#[test]
fn what_cannot_be_made_exactly_is_refused() {
    let prompter = load(&CONTROL, None, dated()).expect("a model");
    let refused = |api, body: &serde_json::Value, field: &str| {
        let error = prompt(&prompter, api, body).expect_err("no prompt");
        assert_eq!(error.label(), "bad_field", "{body}");
        assert!(error.to_string().starts_with(&format!("{field}: ")), "{error} of {body}");
    };
    for effort in [json!("none"), json!("minimal"), json!("xhigh"), json!(1)] {
        let mut body = hi();
        body["reasoning_effort"] = effort;
        refused(Api::ChatCompletions, &body, "reasoning_effort");
    }
    for (message, field) in [
        (json!({"role": "critic", "content": "x"}), "role"),
        (json!({"role": "user", "content": ["bare"]}), "content"),
        (json!({"role": "system", "content": [{"type": "input_text", "text": "x"}]}), "content"),
        (json!({"role": "user", "content": [{"text": "x"}]}), "content"),
        (json!({"role": "user", "content": [{"type": "text", "text": null}]}), "content"),
        (json!({"role": "assistant", "content": "x", "reasoning": 1}), "reasoning"),
        (json!({"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}), "tool_calls"),
        (json!({"role": "tool", "tool_call_id": 1, "content": "x"}), "tool_call_id"),
    ] {
        let body = json!({"messages": [{"role": "user", "content": "x"}, message]});
        refused(Api::ChatCompletions, &body, &format!("messages[1].{field}"));
    }
    let call = json!({"id": "c", "type": "function", "function": {"name": "<|end|>", "arguments": ""}});
    let body = json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
    refused(Api::ChatCompletions, &body, "messages");
    for (item, field) in [
        (json!({"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "i"}), "type"),
        (json!({"type": "function_call_output", "call_id": "c", "output": "o"}), "call_id"),
        (json!({"role": "user", "content": [{"type": "output_text", "text": "x"}]}), "content"),
        (json!({"role": "tool", "content": "x"}), "role"),
    ] {
        refused(Api::Responses, &json!({"input": [item]}), &format!("input[0].{field}"));
    }
    let built_in =
        json!({"input": "x", "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]});
    refused(Api::Responses, &built_in, "tools[0]");
    refused(
        Api::Responses,
        &json!({"input": "x", "previous_input_messages": [1]}),
        "previous_input_messages",
    );
}
