//! Bodies that are not quite as documented, and which vLLM takes all the same.

mod prompts_letters;

use kvpick_core::{
    prompts::{ContentFormat, Settings},
    request::{Api, Request},
};
use prompts_letters::{DUMP, label, letters, shown, texts};

#[test]
fn fields_of_other_types_mean_the_same() {
    let tool = |strict: &str| {
        let function = format!(r#"{{"name":"f","strict":{strict}}}"#);
        format!(
            r#"{{"messages":[{{"role":"user","content":"q"}}],"add_generation_prompt":"no",
                 "tools":[{{"type":"function","function":{function}}}]}}"#
        )
    };
    for (given, strict) in [("1", "true"), ("\"off\"", "false"), ("0.0", "false")] {
        let function =
            format!(r#"{{"name": "f", "description": null, "parameters": null, "strict": {strict}}}"#);
        let tools = format!(r#"tools=[{{"type": "function", "function": {function}}}] effort=- "#);
        let user = r#"{"role": "user", "content": "q"}"#;
        shown(DUMP, Api::ChatCompletions, &tool(given), &[user, &tools]);
    }
    let cut = r#"{"prompt":"abcdef","truncate_prompt_tokens":"3.0"}"#;
    shown(DUMP, Api::Completions, cut, &["def"]);
}

#[test]
fn what_a_client_adds_to_calls_and_parts_stays() {
    let call = r#"{"index":0,"function":{"more":1,"name":"f","arguments":"{}"},"type":"function","id":"c"}"#;
    let part = r#"{"detail":"low","text":"q","type":"text","name":"n","prompt_cache_breakpoint":null}"#;
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":[{part}]}},{{"role":"assistant","tool_calls":[{call}]}},
             {{"role":"user","content":[{{"type":"thinking"}},{{"type":"text"}}]}},
             {{"role":"assistant","content":{{}},"tool_calls":{{}}}}],"add_generation_prompt":false}}"#
    );
    let settings = Settings { content_format: ContentFormat::OpenAi, ..Settings::default() };
    let want = [
        r#"{"role": "user", "content": [{"type": "text", "text": "q", "detail": "low"}]}"#,
        concat!(
            r#"{"role": "assistant", "content": [], "tool_calls": [{"id": "c", "function": {"arguments": {}, "#,
            r#""name": "f", "more": 1}, "type": "function", "index": 0}]}"#
        ),
        r#"{"role": "user", "content": [{"type": "text", "text": null}]}"#,
        r#"{"role": "assistant", "content": []}"#,
        "tools=null effort=- ",
    ];
    assert_eq!(texts(&letters(DUMP, settings), Api::ChatCompletions, &body), [want.join("\n")]);
    // An item of a response keeps what it has beside its text too.
    let item = r#"{"role":"user","content":[{"type":"input_text","text":"q","detail":"low"}],"name":"n"}"#;
    let settings = Settings { content_format: ContentFormat::OpenAi, ..Settings::default() };
    let want = concat!(
        r#"{"role": "user", "content": [{"type": "text", "text": "q", "detail": "low"}], "name": "n"}"#,
        "\ntools=null effort=- answer"
    );
    let body = format!(r#"{{"input":[{item}]}}"#);
    assert_eq!(texts(&letters(DUMP, settings), Api::Responses, &body), [want]);
}

#[test]
fn a_chat_of_no_message_has_no_template() {
    for (api, body) in [
        (Api::ChatCompletions, r#"{"messages":[]}"#),
        (Api::Messages, r#"{"messages":[]}"#),
        (Api::Responses, r#"{"input":[]}"#),
        (Api::Pooling, r#"{"messages":[]}"#),
    ] {
        assert_eq!(label(api, body), "no_messages");
    }
    let answer = "tools=null effort=- answer";
    let system = r#"{"role": "system", "content": "s"}"#;
    shown(DUMP, Api::Messages, r#"{"messages":[],"system":"s"}"#, &[system, answer]);
    for none in ["[]", "{}"] {
        let body = format!(r#"{{"input":{none},"instructions":"s"}}"#);
        shown(DUMP, Api::Responses, &body, &[system, answer]);
    }
    let no_tools = r#"{"messages":[],"system":"s","chat_template_kwargs":{"tools":{}}}"#;
    shown(DUMP, Api::Messages, no_tools, &[system, "tools=[] effort=- answer"]);
}

#[test]
fn arguments_of_the_renderer_are_no_variables() {
    let template = "{{ namespace(a=1).a }}{{ max_length }}{{ padding }}{{ tokenize }}{{ seen }}{% if false %}{{ messages }}{% endif %}";
    let body = |kwargs: &str| {
        format!(r#"{{"messages":[{{"role":"user","content":"q"}}],"chat_template_kwargs":{{{kwargs}}}}}"#)
    };
    let given = r#""namespace":5,"max_length":6,"padding":true,"tokenize":[],"seen":7"#;
    shown(template, Api::ChatCompletions, &body(given), &["17"]);
    shown(template, Api::ChatCompletions, &body(r#""tokenize":true"#), &["1"]);
    assert_eq!(label(Api::ChatCompletions, &body(r#""tokenize":1,"max_length":5"#)), "bad_field");
}

#[test]
fn half_a_surrogate_pair_is_no_fault_where_no_prompt_shows_it() {
    let names = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools|length if tools }}{{ x }}";
    let body = |inside: &str| format!(r#"{{"messages":[{{"role":"user","content":"q"}}],{inside}}}"#);
    shown(names, Api::ChatCompletions, &body(r#""metadata":{"\ud800":1},"user":"\udc00""#), &["q"]);
    shown(names, Api::ChatCompletions, &body(r#""chat_template_kwargs":{"other":["\ud800"]}"#), &["q"]);
    for shown in [
        r#""chat_template_kwargs":{"x":"\ud800"}"#,
        r#""tools":[{"type":"function","function":{"name":"f","parameters":{"a":"\ud800"}}}]"#,
    ] {
        let request = Request::parse(Api::ChatCompletions, body(shown).as_bytes()).expect("a request");
        let error = letters(names, Settings::default()).token_ids(&request).expect_err("no prompt");
        assert_eq!(error.label(), "bad_field", "{shown}");
    }
}
