//! Requests against the token ids that vLLM made of them.

mod prompts_common;
mod prompts_memo;

use std::{
    fs,
    io::Read,
    sync::{Arc, atomic::Ordering},
};

use flate2::read::GzDecoder;
use kvpick_core::{
    prompts::{ContentFormat, LocalTime, Prompter, Settings},
    request::{Api, Request},
};
use prompts_common::{answer, prompter, prompter_with, root};
use prompts_memo::Map;
use serde_json::Value;

#[track_caller]
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[track_caller]
fn goldens(name: &str) -> Vec<Value> {
    let path = root().join("testdata/prompts").join(name);
    let file = fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).expect("gzip of UTF-8");
    lines(&text)
}

fn body_of(case: &Value) -> Vec<u8> {
    match (case["body"].as_str(), case["body_hex"].as_str()) {
        (Some(body), _) => body.as_bytes().to_vec(),
        (None, Some(hex)) => {
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
            (0..hex.len()).step_by(2).map(byte).collect()
        }
        (None, None) => panic!("{}: no body", case["id"]),
    }
}

/// Recorded ids, one list per prompt: a chat's are one list by themselves.
fn recorded(ids: &Value) -> Vec<Vec<u32>> {
    let list = |ids: &Value| serde_json::from_value(ids.clone()).expect("token ids");
    match ids.as_array().expect("a list").first() {
        Some(Value::Array(_)) => list(ids),
        _ => vec![serde_json::from_value(ids.clone()).expect("token ids")],
    }
}

fn difference(got: &Result<Vec<Vec<u32>>, String>, want: &[Vec<u32>], prompter: &Prompter) -> Option<String> {
    match got {
        Ok(got) if got == want => None,
        Ok(got) => {
            let tail = |lists: &[Vec<u32>]| -> Vec<String> {
                lists.iter().map(|ids| prompter.decode(ids)).collect()
            };
            Some(format!("\n  got  {:?}\n  want {:?}", tail(got), tail(want)))
        }
        Err(error) => Some(error.clone()),
    }
}

/// Runs every request of a file through the prompter of its server, without a memo and with one that has not seen the
/// request and then has. Returns how many vLLM accepted.
#[track_caller]
fn run(file: &str, servers: &[(&str, &Prompter)], except: &[(&str, &str)]) -> usize {
    let mut accepted = 0;
    let mut wrong = Vec::new();
    let memo = Arc::new(Map::default());
    let remembering: Vec<Prompter> =
        servers.iter().map(|(_, prompter)| (*prompter).clone().with_memo(memo.clone())).collect();
    for case in goldens(file) {
        let id = case["id"].as_str().expect("an id");
        let api = Api::of_path(case["api"].as_str().expect("an API")).expect("one of ours");
        let server = case["server"].as_str().expect("a server");
        let at = servers.iter().position(|(name, _)| *name == server);
        let at = at.unwrap_or_else(|| panic!("{id}: no server {server}"));
        let (_, prompter) = servers[at];
        let got = answer(prompter, api, &body_of(&case));
        for _ in ["cold", "warm"] {
            assert_eq!(answer(&remembering[at], api, &body_of(&case)), got, "{id}: by the memo");
        }
        // What vLLM refused is the engine's to refuse; it only must not end the process.
        if case["status"] != 200 {
            continue;
        }
        accepted += 1;
        let difference = difference(&got, &recorded(&case["token_ids"]), prompter);
        match (difference, except.iter().find(|(name, _)| *name == id)) {
            (Some(difference), None) => wrong.push(format!("{id}: {difference}")),
            (None, Some((name, reason))) => {
                wrong.push(format!("{name} is right now, yet excepted: {reason}"))
            }
            _ => {}
        }
    }
    assert!(0 < memo.hits.load(Ordering::Relaxed), "{file}: nothing was found in the memo");
    assert!(wrong.is_empty(), "{} of {accepted} wrong in {file}:\n{}", wrong.len(), wrong.join("\n"));
    accepted
}

fn render_settings() -> Settings {
    Settings {
        max_model_len: Some(32_768),
        clock: Some(Arc::new(|| LocalTime {
            year: 2026,
            month: 11,
            day: 30,
            hour: 12,
            minute: 0,
            second: 0,
        })),
        ..Settings::default()
    }
}

#[test]
fn qwen3_prompts_are_those_of_vllm() {
    let plain = prompter("qwen3", render_settings());
    let opts = prompter(
        "qwen3",
        Settings {
            exclude_tools_when_tool_choice_none: true,
            default_chat_template_kwargs: [("enable_thinking".to_owned(), Value::Bool(false))]
                .into_iter()
                .collect(),
            ..render_settings()
        },
    );
    let accepted = run("qwen3.jsonl.gz", &[("default", &plain), ("plain", &plain), ("opts", &opts)], &[]);
    assert_eq!(accepted, 193);
}

#[test]
fn llama3_1_prompts_are_those_of_vllm() {
    let path = root().join("testdata/prompts/harbour_tools.jinja");
    let template = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let plain = prompter("llama3_1", render_settings());
    let file = prompter_with("llama3_1", Some(&template), render_settings());
    let accepted = run("llama3_1.jsonl.gz", &[("default", &plain), ("file", &file)], &[]);
    assert_eq!(accepted, 285);
}

#[test]
fn deepseek_v3_prompts_are_those_of_vllm() {
    let plain = prompter("deepseek_v3", render_settings());
    let accepted = run("deepseek_v3.jsonl.gz", &[("default", &plain)], &[]);
    assert_eq!(accepted, 169);
}

#[test]
fn gemma3_prompts_are_those_of_vllm() {
    let plain = prompter("gemma3", render_settings());
    let string = Settings { content_format: ContentFormat::String, ..render_settings() };
    let string = prompter("gemma3", string);
    let accepted = run("gemma3.jsonl.gz", &[("default", &plain), ("fmt-string", &string)], &[]);
    assert_eq!(accepted, 157);
}

#[test]
fn prompts_of_random_requests_are_those_of_vllm() {
    let template = |name: &str| {
        let path = root().join("testdata/prompts").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let plain = |model: &str| prompter(model, render_settings());
    let thinks_not = [("enable_thinking".to_owned(), Value::Bool(false))].into_iter().collect();
    let opts = Settings {
        exclude_tools_when_tool_choice_none: true,
        default_chat_template_kwargs: thinks_not,
        ..render_settings()
    };
    let dated = Settings { start_date: Some("2026-01-15".into()), ..render_settings() };
    let file = Settings { chat_template_is_servers: true, ..render_settings() };
    let dump = Settings { trust_request_chat_template: true, ..file.clone() };
    let in_parts = Settings { content_format: ContentFormat::OpenAi, ..dump.clone() };
    let in_one = Settings { content_format: ContentFormat::String, ..render_settings() };
    let in_system = Settings { harmony_system_instructions: true, ..dated.clone() };
    let servers = [
        ("qwen3/default", &plain("qwen3")),
        ("qwen3/opts", &prompter("qwen3", opts)),
        ("qwen3/dump", &prompter_with("qwen3", Some(&template("dump.jinja")), dump)),
        ("qwen3/dump-openai", &prompter_with("qwen3", Some(&template("dump.jinja")), in_parts)),
        ("llama3_1/default", &plain("llama3_1")),
        ("llama3_1/file", &prompter_with("llama3_1", Some(&template("harbour_tools.jinja")), file)),
        ("deepseek_v3/default", &plain("deepseek_v3")),
        ("gemma3/default", &plain("gemma3")),
        ("gemma3/fmt-string", &prompter("gemma3", in_one)),
        ("gpt_oss/default", &prompter("gpt_oss", dated)),
        ("gpt_oss/sysinst", &prompter("gpt_oss", in_system)),
    ];
    assert_eq!(run("random.jsonl.gz", &servers, &[]), 800);
}

#[test]
fn gpt_oss_prompts_are_those_of_vllm() {
    let settings = Settings { start_date: Some("2026-01-15".into()), ..render_settings() };
    let plain = prompter("gpt_oss", settings.clone());
    let in_system = prompter("gpt_oss", Settings { harmony_system_instructions: true, ..settings });
    let servers = [("default", &plain), ("sysinst", &in_system)];
    let accepted = run("gpt_oss.jsonl.gz", &servers, &[]);
    assert_eq!(accepted, 182);
    assert_eq!(run("gpt_oss_random.jsonl.gz", &servers, &[]), 583);
}

/// Functions with schemas of any shape, in the words that the renderer of vLLM has for them.
#[test]
fn gpt_oss_functions_are_described_as_by_its_renderer() {
    let prompter =
        prompter("gpt_oss", Settings { start_date: Some("2026-01-15".into()), ..render_settings() });
    let mut wrong = Vec::new();
    for case in goldens("harmony_tools.jsonl.gz") {
        let tools: Vec<Value> = (case["tools"].as_array().expect("tools").iter())
            .map(|function| serde_json::json!({"type": "function", "function": function}))
            .collect();
        let mut messages = vec![serde_json::json!({"role": "user", "content": "x"})];
        if !case["instructions"].is_null() {
            messages.insert(0, serde_json::json!({"role": "system", "content": case["instructions"]}));
        }
        let body = serde_json::json!({"messages": messages, "tools": tools}).to_string();
        let got =
            answer(&prompter, Api::ChatCompletions, body.as_bytes()).map(|ids| prompter.decode(&ids[0]));
        let want = case["text"].as_str().expect("a text");
        let whole = format!("<|start|>developer<|message|>{want}<|end|><|start|>user<|message|>x<|end|>");
        if !got.as_ref().is_ok_and(|got| got.contains(&whole)) {
            wrong.push(format!("{}\n  got  {got:?}\n  want {want:?}", case["tools"]));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

/// Small templates that each use one corner of Jinja or of Python.
#[test]
fn templates_of_requests_render_as_in_python() {
    let trusting = prompter("qwen3", Settings { trust_request_chat_template: true, ..render_settings() });
    assert_eq!(run("templates.jsonl.gz", &[("trust", &trusting)], &[]), 75);
}

/// Every chat and completion that the recorded engines answered, with adapters and salts as well: neither changes ids.
#[test]
fn captured_prompts_are_those_of_the_engines() {
    for (capture, old, count) in
        [("v0.16-sha256cbor-bytes-bs16", true, 82), ("v0.32-sha256cbor-int-bs16-dups", false, 78)]
    {
        let settings =
            Settings { max_model_len: Some(1024), keeps_developer_role: old, ..Settings::default() };
        let prompter = prompter("qwen3", settings);
        let path = root().join("testdata/captures").join(capture).join("requests.jsonl");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut checked = 0;
        for line in lines(&text) {
            let Some(api) = Api::of_path(line["endpoint"].as_str().expect("an endpoint")) else { continue };
            if line["status"] != 200 {
                continue;
            }
            let got = answer(&prompter, api, line["request"].to_string().as_bytes());
            let mut want = recorded(&line["server_prompt_token_ids"]);
            if want.iter().all(Vec::is_empty) {
                // A response does not tell the ids of its prompt.
                continue;
            }
            // The engine repeats a prompt for each of its answers.
            want.dedup();
            let difference = difference(&got, &want, &prompter);
            assert_eq!(difference, None, "{capture}: {}", line["name"]);
            checked += 1;
        }
        assert_eq!(checked, count, "{capture}: requests that were answered");
    }
}

fn chat(content: &str) -> Vec<u8> {
    serde_json::json!({"messages": [{"role": "user", "content": content}]}).to_string().into_bytes()
}

/// What a user types that looks like a special token is one to vLLM, in a chat and in a completion, and cuts the text
/// around it: nothing is merged over it.
#[test]
fn special_tokens_typed_by_a_user_are_special() {
    let prompter = prompter("qwen3", Settings::default());
    let id = |text: &str| match prompter.encode(text, false).as_deref() {
        Ok([id]) => *id,
        other => panic!("{text} is {other:?}, not one token"),
    };
    let (start, end, tool) = (id("<|im_start|>"), id("<|im_end|>"), id("<tool_call>"));
    let typed = "a <|im_end|>\n<|im_start|>system\nb<tool_call>c <|im_ end|> <|IM_END|>";
    let bodies = [
        (Api::ChatCompletions, chat(typed)),
        (Api::Completions, format!("{{\"prompt\":{}}}", Value::from(typed)).into_bytes()),
    ];
    for (api, body) in bodies {
        let ids = answer(&prompter, api, &body).expect("a prompt").remove(0);
        let count = |special: u32| ids.iter().filter(|id| **id == special).count();
        let own = usize::from(api == Api::ChatCompletions);
        assert_eq!((count(start), count(end), count(tool)), (1 + 2 * own, 1 + own, 1), "{api:?}");
        // The pieces between special tokens, encoded apart, give the same.
        let text = prompter.decode(&ids);
        let mut apart = Vec::new();
        let mut rest = text.as_str();
        while let Some((at, special)) = ["<|im_start|>", "<|im_end|>", "<tool_call>"]
            .into_iter()
            .filter_map(|special| Some((rest.find(special)?, special)))
            .min()
        {
            apart.extend(prompter.encode(&rest[..at], false).expect("text"));
            apart.push(id(special));
            rest = &rest[at + special.len()..];
        }
        apart.extend(prompter.encode(rest, false).expect("text"));
        assert_eq!(ids, apart, "{api:?}");
    }
}

#[test]
fn media_and_foreign_templates_are_left_to_others() {
    let prompter = prompter("qwen3", Settings::default());
    let label = |body: &str| {
        let request = Request::parse(Api::ChatCompletions, body.as_bytes()).expect("a chat");
        prompter.token_ids(&request).expect_err("no prompt").label()
    };
    let image = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#;
    assert_eq!(label(image), "media");
    assert_eq!(label(r#"{"messages":[{"role":"user"}],"chat_template":"x"}"#), "untrusted_template");
    assert_eq!(
        label(r#"{"messages":[{"role":"user"}],"chat_template_kwargs":{"chat_template":"x"}}"#),
        "untrusted_template"
    );
    assert_eq!(label(r#"{"messages":[{"role":"user"}],"tools":[1]}"#), "bad_field");
    assert_eq!(label(r#"{"messages":[{"role":"user"}],"truncate_prompt_tokens":0}"#), "bad_field");
}
