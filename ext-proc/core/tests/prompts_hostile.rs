//! Requests and templates that mean harm, or nothing.

mod prompts_common;

use kvpick_core::{
    prompts::Settings,
    request::{Api, Request},
};
use prompts_common::{answer, prompter};
use serde_json::Value;

/// A template that would run for ever ends, and one that raises says why.
#[test]
fn hostile_templates_end() {
    let prompter = prompter("qwen3", Settings { trust_request_chat_template: true, ..Settings::default() });
    let error = |template: &str| {
        let body =
            serde_json::json!({"messages": [{"role": "user", "content": "x"}], "chat_template": template});
        let request = Request::parse(Api::ChatCompletions, body.to_string().as_bytes()).expect("a chat");
        let error = prompter.token_ids(&request).expect_err("no prompt");
        assert_eq!(error.label(), "template", "{error}");
        error.to_string()
    };
    assert!(error("{{ raise_exception('roles must alternate') }}").contains("roles must alternate"));
    assert!(error("{{ strftime_now('%Y') }}").contains("clock"));
    assert!(error("{% if %}").contains("syntax error"));
    for template in [
        "{{ 'x' * 20000000 }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 99999999 }}",
        "{% set n = namespace(s='x') %}{% for i in range(99999) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ ('x,' * 9999).replace('x', 'y' * 99999) }}",
        "{{ 'x'.center(9999999999) }}",
        "{% set n = namespace(s=[]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
        "{% set n = namespace(s=[]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s|tojson }}",
        "{% set n = namespace(s=[], t=[]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}\
         {% endfor %}{{ n.s == n.t }}",
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ [1] * 99999999 }}",
        "{% for x in 'x' * 9999999 %}{% endfor %}",
        "{{ '%99999d' % 1 }}",
        "{{ ('y' * 99999).join(('x ' * 99999).split()) }}",
        "{% set n = namespace(s=[1]) %}{% for i in range(90000) %}{% set n.s = [n.s] %}{% endfor %}",
        "{% set n = namespace(s=[1]) %}{% for i in range(90000) %}{% set n.s = {'a': n.s} %}{% endfor %}",
        "{% set n = namespace(s=(1, 2)) %}{% for i in range(40) %}{% set n.s = (n.s, n.s) %}{% endfor %}",
        "{% set a = (1, 2) %}{{ {a: 1}|length }}",
        "{{ ('a' * 100000)|join('b' * 100000)|length }}",
    ] {
        error(template);
    }
    // Objects hold values too.
    for (start, next) in [
        ("[1]", "[n.s]|reverse"),
        ("[1]", "[n.s]|batch(1)"),
        ("{'a': 1}", "{'a': n.s.items()}"),
        ("[1]", "cycler(n.s)"),
        ("[1]", "joiner(n.s)"),
        ("[1]", "namespace(s=n.s)"),
        ("[1]", "[n.s]|map('list')"),
        ("[1]", "[n.s].copy"),
        ("[1]", "dict(a=n.s)"),
    ] {
        error(&format!(
            "{{% set n = namespace(s={start}) %}}{{% for i in range(90000) %}}{{% set n.s = {next} %}}{{% endfor %}}"
        ));
    }
    let macros = "{% macro m() %}{{ p() }}{% endmacro %}{% set n.s = m %}";
    error(&format!(
        "{{% set n = namespace(s=0) %}}{{% for i in range(9000) %}}{{% set p = n.s %}}{macros}{{% endfor %}}"
    ));
    let elifs = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(2_500));
    assert!(error(&elifs).contains("elif"));
    let (open, close) = ("(".repeat(8_000), ")".repeat(8_000));
    assert!(error(&format!("{{% set {open}a{close} = 1 %}}")).contains("brackets"));
    assert!(error(&format!("{{% for {open}a{close} in [] %}}{{% endfor %}}")).contains("brackets"));
    // What they look through is paid for.
    for compared in [
        "b < b",
        "b <= b",
        "b == b",
        "b != b",
        "b.count(a)",
        "a in b[1:]",
        "b.index([1])",
        "b|min",
        "b|max",
        "b|sort",
        "{'a': b}|dictsort(by='value')",
    ] {
        error(&format!(
            "{{% set a = range(2000)|list %}}{{% set b = [a] * 60 %}}{{% for i in range(90000) %}}\
             {{% set x = {compared} %}}{{% endfor %}}"
        ));
    }
    let twins = "{% set a = (1, 2) %}".to_owned() + &"{% set a = (a, a) %}".repeat(40);
    for end in ["{{ {a: 1}|length }}", "{{ [a, a]|sort|length }}", "{{ [a, a]|unique|list|length }}"] {
        error(&(twins.clone() + end));
    }
    assert!(error(&"{{ 1 }}".repeat(5_000)).contains("32 KiB"));
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    /// Bits of requests, put together at random.
    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "user|system|developer|tool|assistant|text|function|left|tool_use|tool_result|thinking|reasoning|message".prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        let key = "messages|role|content|tool_calls|function|arguments|type|text|tools|reasoning|documents|name|output|input";
        leaf.prop_recursive(5, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(key, inner, 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    fn config() -> ProptestConfig {
        ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for api in Api::ALL {
                let _ = Request::parse(api, &bytes);
            }
        }

        /// The parser of request bodies agrees with a strict one wherever that one accepts.
        #[test]
        fn json_reads_as_json(value in json()) {
            let text = value.to_string();
            let ours = kvpick_core::request::json::parse_text(&text).expect("valid JSON");
            prop_assert_eq!(ours, kvpick_core::request::json::Json::from(&value));
        }
    }

    /// Requests of any shape give ids or a reason.
    #[test]
    fn any_request_is_answered() {
        let dated = Settings { start_date: Some("2026-01-15".into()), ..Settings::default() };
        let prompters = [prompter("qwen3", Settings::default()), prompter("gpt_oss", dated)];
        let strategy = (prop::collection::vec(json(), 1..4), json(), json(), json());
        proptest!(config(), |((messages, tools, kwargs, other) in strategy)| {
            let body = serde_json::json!({
                "messages": messages, "tools": tools, "chat_template_kwargs": kwargs,
                "add_generation_prompt": other, "continue_final_message": true, "prompt": messages,
                "input": messages, "system": other, "instructions": other, "truncation": other,
            });
            for (prompter, api) in prompters.iter().flat_map(|prompter| Api::ALL.map(|api| (prompter, api))) {
                let _ = answer(prompter, api, body.to_string().as_bytes());
            }
        });
    }
}
