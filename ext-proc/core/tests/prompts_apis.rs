//! What becomes of each API's body before a template sees it, shown by templates that print what they get.

mod prompts_letters;

use kvpick_core::{
    prompts::{Prompter, Settings},
    request::Api,
};
use prompts_letters::{DUMP, label, letters, letters_and, shown, texts};

#[test]
fn a_turn_of_messages_becomes_several() {
    shown(
        DUMP,
        Api::Messages,
        r#"{"system":[{"type":"text","text":"A"},{"type":"text","text":"x-anthropic-billing-header: 1"},
              {"type":"text","text":"B"}],
            "messages":[
              {"role":"assistant","content":[{"type":"thinking","thinking":"t1"},{"type":"redacted_thinking","data":"z"},
                {"type":"thinking","thinking":"t2"},{"type":"text","text":""},
                {"type":"tool_use","id":"c","name":"f","input":{"k":1.0}},{"type":"tool_use","id":"d","name":"g"}]},
              {"role":"user","content":[{"type":"text","text":"one"},
                {"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"r1"},{"type":"text","text":"r2"}]},
                {"type":"tool_result","tool_use_id":"d"},{"type":"text","text":"two"}]},
              {"role":"user","content":[{"type":"tool_result","tool_use_id":"e","content":"alone"}]},
              {"role":"assistant","content":[{"type":"tool_result","content":[{"type":"text","text":"it's"}]}]}]}"#,
        &[
            r#"{"role": "system", "content": "AB"}"#,
            concat!(
                r#"{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"arguments": "#,
                r#"{"k": 1.0}, "name": "f"}, "type": "function"}, {"id": "d", "function": {"arguments": {}, "#,
                r#""name": "g"}, "type": "function"}], "reasoning": "t1t2", "reasoning_content": "t1t2"}"#
            ),
            r#"{"role": "tool", "content": "r1\nr2", "tool_call_id": "c"}"#,
            r#"{"role": "tool", "content": "", "tool_call_id": "d"}"#,
            r#"{"role": "user", "content": "one\ntwo"}"#,
            r#"{"role": "tool", "content": "alone", "tool_call_id": "e"}"#,
            r#"{"role": "assistant", "content": "Tool result: [{'type': 'text', 'text': \"it's\"}]"}"#,
            "tools=null effort=- answer",
        ],
    );
}

#[test]
fn system_messages_in_mid_conversation_move_where_the_template_refuses_them() {
    let body = r#"{"system":"S","messages":[{"role":"user","content":"a"},{"role":"system","content":"I"}]}"#;
    let first = r#"{"role": "system", "content": "SI"}"#;
    let user = r#"{"role": "user", "content": "a"}"#;
    let end = "tools=null effort=- answer";
    let strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                  {{ raise_exception('no') }}{% endif %}{% endfor %}";
    shown(&format!("{strict}{DUMP}"), Api::Messages, body, &[first, user, end]);
    // Where vLLM tries this out, there are no functions or tags but Jinja's own.
    shown(
        &format!("{{% generation %}}{{% endgeneration %}}{DUMP}"),
        Api::Messages,
        body,
        &[first, user, end],
    );
    let inline = r#"{"role": "system", "content": "I"}"#;
    let top = r#"{"role": "system", "content": "S"}"#;
    shown(DUMP, Api::Messages, body, &[top, user, inline, end]);
}

#[test]
fn tools_of_messages_come_and_go() {
    let body = r#"{"tools":[{"name":"a","input_schema":{"x":1},"defer_loading":true},
                            {"name":"b","input_schema":{"type":"object"},"strict":true}],
        "messages":[{"role":"user","content":"q"},{"role":"system","content":[
            {"type":"tool_addition","tool":{"type":"tool_reference","name":"a"}},
            {"type":"tool_addition","tool":{"type":"tool_definition","definition":{"name":"c","input_schema":{}}}},
            {"type":"tool_removal","tool":{"type":"tool_reference","name":"b"}}]}]}"#;
    let tool = |name: &str, parameters: &str| {
        format!(
            r#"{{"type": "function", "function": {{"name": "{name}", "description": null, "parameters": {parameters}}}}}"#
        )
    };
    let (a, c) = (tool("a", r#"{"x": 1, "type": "object"}"#), tool("c", r#"{"type": "object"}"#));
    let tools = format!("tools=[{a}, {c}] effort=- answer");
    shown(DUMP, Api::Messages, body, &[r#"{"role": "user", "content": "q"}"#, &tools]);
    let none = r#"{"tools":[],"messages":[{"role":"user","content":"q"}]}"#;
    shown(DUMP, Api::Messages, none, &[r#"{"role": "user", "content": "q"}"#, "tools=[] effort=- answer"]);
}

#[test]
fn thinking_switched_off_is_an_effort_that_the_template_knows() {
    let body = r#"{"messages":[{"role":"user","content":"q"}],"output_config":{"effort":"high"},
                   "thinking":{"type":"disabled"}}"#;
    let user = r#"{"role": "user", "content": "q"}"#;
    shown(DUMP, Api::Messages, body, &[user, "tools=null effort=none answer"]);
    // To this template `none` is any effort that it does not know.
    let other = "{{ 'low' if reasoning_effort == 'low' else 'much' }}";
    shown(other, Api::Messages, body, &["low"]);
    let refusing =
        "{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}{{ reasoning_effort }}";
    shown(refusing, Api::Messages, body, &["low"]);
}

#[test]
fn items_of_a_response_become_messages() {
    shown(
        DUMP,
        Api::Responses,
        r#"{"instructions":"I","reasoning":{"effort":"low"},"input":[
              {"role":"user","content":[{"type":"input_text","text":"a","x":1},{"type":"input_text","text":"b"}]},
              {"type":"reasoning","summary":[{"type":"summary_text","text":"s"}]},
              {"type":"message","role":"assistant","content":[{"type":"output_text","text":"c"},{"type":"output_text","text":"lost"}]},
              {"type":"function_call","call_id":"1","name":"f","namespace":"n","arguments":"{\"k\":1E5}"},
              {"type":"custom_tool_call","call_id":"2","name":"g","input":"free"},
              {"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"x"},{"type":"input_text","text":"y"}]},
              {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r1"}]},
              {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r2"}]},
              {"role":"assistant","content":"d"},{"role":"assistant","content":"e"}]}"#,
        &[
            r#"{"role": "system", "content": "I"}"#,
            r#"{"role": "user", "content": "a\nb"}"#,
            concat!(
                r#"{"role": "assistant", "content": "c", "tool_calls": [{"id": "1", "function": {"name": "n__f", "#,
                r#""arguments": {"k": 100000.0}}, "type": "function"}, {"id": "2", "function": {"name": "g", "#,
                r#""arguments": {"input": "free"}}, "type": "function"}], "reasoning": "s", "reasoning_content": "s"}"#
            ),
            r#"{"role": "tool", "content": "x\ny", "tool_call_id": "1"}"#,
            r#"{"role": "assistant", "content": "", "reasoning": "r1", "reasoning_content": "r1"}"#,
            r#"{"role": "assistant", "content": "d", "reasoning": "r2", "reasoning_content": "r2"}"#,
            r#"{"role": "assistant", "content": "e"}"#,
            "tools=null effort=low answer",
        ],
    );
}

#[test]
fn tools_of_a_response_are_flattened() {
    let body = r#"{"input":"q","tools":[
        {"type":"namespace","name":"n","description":"d","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}]},
        {"type":"web_search"},{"type":"custom","name":"c","description":"free"},
        {"type":"function","name":"g","strict":true,"parameters":null}]}"#;
    let free = concat!(
        r#"{"type": "object", "properties": {"input": {"type": "string", "description": "The freeform text payload "#,
        r#"for this tool."}}, "required": ["input"], "additionalProperties": false}"#
    );
    let tools = [
        r#"{"name": "n__f", "description": null, "parameters": {"type": "object"}}"#,
        &format!(r#"{{"name": "c", "description": "free", "parameters": {free}}}"#),
        r#"{"name": "g", "description": null, "parameters": null, "strict": true}"#,
    ];
    let tools = tools.map(|it| format!(r#"{{"type": "function", "function": {it}}}"#)).join(", ");
    let user = r#"{"role": "user", "content": "q"}"#;
    shown(DUMP, Api::Responses, body, &[user, &format!("tools=[{tools}] effort=- answer")]);
    let unknown = r#"{"input":"q","tools":[{"type":"web_search"}]}"#;
    shown(DUMP, Api::Responses, unknown, &[user, "tools=[] effort=- answer"]);
}

#[test]
fn an_unfinished_item_is_gone_on_from() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}\
                    {{ '<assistant>' if add_generation_prompt }}";
    let body = |last: &str| format!(r#"{{"input":[{{"role":"user","content":"q"}},{last}]}}"#);
    let part = r#"[{"type":"output_text","text":"so far"}]"#;
    let item = |status: &str| {
        format!(r#"{{"type":"message","role":"assistant","content":{part},"status":"{status}"}}"#)
    };
    let finished = "<user>q</user><assistant>so far</assistant><assistant>";
    shown(template, Api::Responses, &body(&item("in_progress")), &["<user>q</user><assistant>so far"]);
    shown(template, Api::Responses, &body(&item("completed")), &[finished]);
    let string = r#"{"role":"assistant","content":"so far","status":"incomplete"}"#;
    shown(template, Api::Responses, &body(string), &["<user>q</user><assistant>so far"]);
    let user = r#"{"role":"user","content":"so far","status":"in_progress"}"#;
    shown(template, Api::Responses, &body(user), &["<user>q</user><user>so far"]);
}

#[test]
fn embeddings_take_texts_ids_and_chats() {
    let prompter =
        letters("{% for m in messages %}{{ m.content }};{% endfor %}{{ x }}{{ add_generation_prompt }}", {
            let defaults = serde_json::json!({"x": "default"});
            let default_chat_template_kwargs = defaults.as_object().expect("an object").clone();
            Settings { default_chat_template_kwargs, ..Settings::default() }
        });
    for api in [Api::Embeddings, Api::Pooling] {
        let shows = |body: &str, want: &[&str]| assert_eq!(texts(&prompter, api, body), want, "{body}");
        shows(r#"{"input":"abc"}"#, &["abc"]);
        shows(r#"{"input":["abc","d"]}"#, &["abc", "d"]);
        shows(r#"{"input":"abc","truncate_prompt_tokens":2}"#, &["ab"]);
        shows(r#"{"input":"abc","truncate_prompt_tokens":2,"truncation_side":"left"}"#, &["bc"]);
        let [a, b]: [u32; 2] = prompter.encode("ab", false).expect("ids").try_into().expect("two ids");
        shows(&format!(r#"{{"input":[{a},{b}]}}"#), &["ab"]);
        shows(&format!(r#"{{"input":[[{a}],[{b}]]}}"#), &["a", "b"]);
        let (m, n) = (r#"{"role":"user","content":"m"}"#, r#"{"role":"user","content":"n"}"#);
        // The server's own defaults for templates are a matter of generation.
        shows(&format!(r#"{{"messages":[{m},{n}]}}"#), &["m;n;False"]);
        shows(&format!(r#"{{"messages":[[{m}],[{n}]]}}"#), &["m;False", "n;False"]);
        shows(&format!(r#"{{"input":[{m},{n}],"add_generation_prompt":true}}"#), &["m;n;True"]);
        shows(&format!(r#"{{"input":[[{m}],[{n}]]}}"#), &["m;False", "n;False"]);
    }
    assert_eq!(label(Api::Pooling, r#"{"input":"x","padding":"max_length"}"#), "bad_field");
}

#[test]
fn what_only_an_engine_can_know_has_no_prompt() {
    assert_eq!(label(Api::Responses, r#"{"input":"x","previous_response_id":"resp_1"}"#), "stateful");
    let encrypted = r#"{"input":[{"type":"reasoning","summary":[],"encrypted_content":"A"}]}"#;
    assert_eq!(label(Api::Responses, encrypted), "bad_field");
    assert_eq!(label(Api::Responses, r#"{"input":[{"type":"web_search_call"}]}"#), "bad_field");
    let image = r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]}"#;
    assert_eq!(label(Api::Responses, image), "media");
    let image = r#"{"type":"image","source":{"type":"url","url":"u"}}"#;
    for block in [image.to_owned(), format!(r#"{{"type":"tool_result","content":[{image}]}}"#)] {
        let body = format!(r#"{{"messages":[{{"role":"user","content":[{block}]}}]}}"#);
        assert_eq!(label(Api::Messages, &body), "media");
    }
    let no_id =
        r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{}}]}]}"#;
    assert_eq!(label(Api::Messages, no_id), "bad_field");
    // The id that is made up does not matter where it isn't shown.
    let names = "{% for m in messages %}{{ m.tool_calls[0].function.name }}{% endfor %}";
    shown(names, Api::Messages, no_id, &["f"]);
}

#[test]
fn a_developer_message_is_a_system_message_where_the_template_knows_none() {
    let chat = |messages: &str| format!(r#"{{"messages":[{messages}]}}"#);
    let (empty, developer) = (r#"{"role":"system","content":""}"#, r#"{"role":"developer","content":"D"}"#);
    let (user, end) = (r#"{"role": "user", "content": "q"}"#, "tools=null effort=- answer");
    let both = [empty, user, developer, r#"{"role":"system","content":"S"}"#].join(",");
    let merged = r#"{"role": "system", "content": "D\n\nS"}"#;
    shown(DUMP, Api::ChatCompletions, &chat(&both), &[merged, user, end]);
    // Alone and in front it stays what it is, in parts where the template wants parts.
    let parts =
        format!("{DUMP}{{% for m in messages %}}{{% for c in m.content %}}{{% endfor %}}{{% endfor %}}");
    let alone = r#"{"role": "system", "content": [{"type": "text", "text": "D"}]}"#;
    let user = r#"{"role": "user", "content": [{"type": "text", "text": "q"}]}"#;
    let body = chat(&[developer, r#"{"role":"user","content":"q"}"#].join(","));
    shown(&parts, Api::ChatCompletions, &body, &[alone, user, end]);
}

#[test]
fn the_billing_header_goes_from_plain_system_texts() {
    let content = |content: &str| format!(r#"{{"input":[{{"role":"system","content":{content}}}]}}"#);
    let end = "tools=null effort=- answer";
    let plain = content(r#""x-anthropic-billing-header: 1\nS""#);
    shown(DUMP, Api::Responses, &plain, &[r#"{"role": "system", "content": "S"}"#, end]);
    let typed = content(r#"[{"type":"input_text","text":"x-anthropic-billing-header: 1\nS"}]"#);
    let kept = r#"{"role": "system", "content": "x-anthropic-billing-header: 1\nS"}"#;
    shown(DUMP, Api::Responses, &typed, &[kept, end]);
}

/// What a request says of tools and of the template in its own arguments for the template.
#[test]
fn arguments_for_the_template_may_name_tools() {
    let body = r#"{"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"tools":[{"a":1}]},
                   "tools":[{"type":"function","function":{"name":"f"}}]}"#;
    let user = r#"{"role": "user", "content": "q"}"#;
    shown(DUMP, Api::ChatCompletions, body, &[user, r#"tools=[{"a": 1}] effort=- answer"#]);
    let trusting = Settings { trust_request_chat_template: true, ..Settings::default() };
    let body =
        r#"{"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"chat_template":"mine"}}"#;
    assert_eq!(texts(&letters(DUMP, trusting.clone()), Api::ChatCompletions, body), ["mine"]);
    let servers = letters(DUMP, Settings { chat_template_is_servers: true, ..trusting });
    assert_eq!(texts(&servers, Api::ChatCompletions, body), [format!("{user}\ntools=null effort=- answer")]);
    assert_eq!(label(Api::ChatCompletions, body), "untrusted_template");
    let empty = Settings { trust_request_chat_template: true, ..Settings::default() };
    let body = r#"{"messages":[{"role":"user","content":"q"}],"chat_template":""}"#;
    let want = format!("{user}\ntools=null effort=- answer");
    assert_eq!(texts(&letters(DUMP, empty), Api::ChatCompletions, body), [want]);
}

/// Tokens that only the config has get ids behind the vocabulary, or those that the vocabulary has for them.
#[test]
fn tokens_of_the_config_are_added() {
    let config = r#"{"added_tokens_decoder":{"300":{"content":"<y>"},"299":{"content":"<x>","special":true},
                     "5":{"content":"&"}},"image_token":"<i>","add_bos_token":true,"eos_token":{"content":"<end>"},
                     "pad_token":"<x>","unk_token":null,"extra_special_tokens":{"sound":"<s>"}}"#;
    let template = "{{ eos_token }}{{ image_token }}{{ sound }}{{ unk_token is defined }}";
    let with = letters_and(Some(config), template, Settings::default());
    let user = r#"{"messages":[{"role":"user","content":"q"}]}"#;
    assert_eq!(texts(&with, Api::ChatCompletions, user), ["<end><i><s>False"]);
    assert_eq!(with.encode("<i><s>", false).expect("ids"), [259, 260]);
    let without = letters("", Settings::default());
    let ids = |prompter: &Prompter, text| prompter.encode(text, false).expect("ids");
    let letter = |letter| ids(&without, letter)[0];
    assert_eq!(ids(&with, "a<x>b"), [letter("a"), 256, letter("b")]);
    assert_eq!(ids(&with, "<y><end>&"), [257, 258, letter("&")]);
    assert_eq!(ids(&without, "<x>").len(), 3);
}
