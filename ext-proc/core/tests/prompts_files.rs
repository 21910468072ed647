//! Which of a model's files count, and which models are left to the engine.

mod prompts_common;
mod prompts_letters;

use kvpick_core::{
    prompts::{LoadError, ModelFiles, Prompter, Settings},
    request::{Api, Request},
};
use prompts_letters::letters_with;
use serde_json::json;

const NONE: ModelFiles<'_> = ModelFiles {
    tokenizer_json: b"",
    tokenizer_config_json: None,
    config_json: None,
    chat_template: None,
    additional_chat_templates: &[],
    chat_template_json: None,
    processor_config_json: None,
    special_tokens_map_json: None,
    added_tokens_json: None,
    sentence_config_json: None,
    names: &[],
};

fn text(prompter: &Prompter, api: Api, body: &str) -> Result<String, &'static str> {
    let request = Request::parse(api, body.as_bytes()).expect("a request");
    let prompts = prompter.token_ids(&request).map_err(|error| error.label())?;
    Ok(prompter.decode(&prompts[0]))
}

/// What a chat becomes without tools, and with.
fn plain_and_with_tools(files: ModelFiles<'_>) -> [Result<String, &'static str>; 2] {
    let prompter = letters_with(files, &[], Settings::default()).expect("the files load");
    let plain = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    let tools = r#"{"messages":[{"role":"user","content":"x"}],
                    "tools":[{"type":"function","function":{"name":"f"}}]}"#;
    [plain, tools].map(|body| text(&prompter, Api::ChatCompletions, body))
}

#[test]
fn templates_go_before_one_another() {
    let named = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let both = |text: &'static str| [Ok(text.to_owned()), Ok(text.to_owned())];
    let apart = |plain: &'static str, tools: &'static str| [Ok(plain.to_owned()), Ok(tools.to_owned())];
    let config = Some(br#"{"chat_template":"config"}"#.as_slice());
    let list =
        br#"{"chat_template":[{"name":"default","template":"list"},{"name":"tool_use","template":"list+"}]}"#;
    let more = [named("tool_use", "more+"), named("rag", "rag")];
    let legacy = Some(br#"{"chat_template":"legacy"}"#.as_slice());
    let jinja = Some("jinja");

    let files = ModelFiles { tokenizer_config_json: config, ..NONE };
    assert_eq!(plain_and_with_tools(files), both("config"));
    let files = ModelFiles { tokenizer_config_json: Some(list), ..NONE };
    assert_eq!(plain_and_with_tools(files), apart("list", "list+"));
    let files = ModelFiles { tokenizer_config_json: Some(list), chat_template: jinja, ..NONE };
    assert_eq!(plain_and_with_tools(files), both("jinja"));
    let files = ModelFiles {
        tokenizer_config_json: config,
        chat_template: jinja,
        additional_chat_templates: &more,
        ..NONE
    };
    assert_eq!(plain_and_with_tools(files), apart("jinja", "more+"));
    // Files push out all of the config's.
    let files = ModelFiles { tokenizer_config_json: config, additional_chat_templates: &more, ..NONE };
    assert_eq!(plain_and_with_tools(files), [Err("no_template"), Ok("more+".to_owned())]);
    let default = [named("default", "more")];
    let files = ModelFiles { chat_template: jinja, additional_chat_templates: &default, ..NONE };
    assert_eq!(plain_and_with_tools(files), both("more"));
    // A processor's own is for chats without tools.
    let files = ModelFiles { tokenizer_config_json: config, chat_template_json: legacy, ..NONE };
    assert_eq!(plain_and_with_tools(files), apart("legacy", "config"));
    let files = ModelFiles { chat_template: jinja, chat_template_json: legacy, ..NONE };
    assert_eq!(plain_and_with_tools(files), apart("legacy", "jinja"));
    let files = ModelFiles { chat_template_json: legacy, ..NONE };
    assert_eq!(plain_and_with_tools(files), [Ok("legacy".to_owned()), Err("no_template")]);
    let files = ModelFiles {
        chat_template: jinja,
        chat_template_json: legacy,
        additional_chat_templates: &more,
        ..NONE
    };
    assert_eq!(plain_and_with_tools(files), apart("jinja", "more+"));
    let processor = Some(br#"{"chat_template":"processor"}"#.as_slice());
    let files = ModelFiles {
        chat_template: jinja,
        chat_template_json: legacy,
        processor_config_json: processor,
        ..NONE
    };
    assert_eq!(plain_and_with_tools(files), apart("processor", "jinja"));
}

#[test]
fn older_files_of_tokens_count_where_the_config_numbers_none() {
    let map = br#"{"bos_token":{"content":"<b>","lstrip":false},"eos_token":"<e>","additional_special_tokens":["<a>"]}"#;
    let shown = |config: &str, special: &[&str]| {
        let files = ModelFiles {
            tokenizer_config_json: Some(config.as_bytes()),
            special_tokens_map_json: Some(map),
            added_tokens_json: Some(br#"{"<n>": 259, "<e>": 258}"#),
            chat_template: Some("{{ bos_token }}|{{ eos_token }}"),
            ..NONE
        };
        let prompter = letters_with(files, special, Settings::default()).expect("the files load");
        let text = text(&prompter, Api::ChatCompletions, r#"{"messages":[{"role":"user"}]}"#).expect("text");
        (text, prompter.encode("<n><a>", false).expect("text"))
    };
    let apart: Vec<u32> = "<a>".bytes().map(|byte| u32::from(byte - b'!')).collect();
    let (text, ids) = shown(r#"{"bos_token":"<s>"}"#, &["<b>"]);
    assert_eq!((text.as_str(), ids[0], &ids[1..]), ("<b>|<e>", 258, apart.as_slice()));
    let (text, ids) = shown(r#"{"bos_token":"<s>","added_tokens_decoder":{}}"#, &["<s>"]);
    assert_eq!((text.as_str(), ids.len()), ("<s>|", 6));
}

#[test]
fn prompts_that_the_engine_writes_itself_are_left_to_it() {
    let load = |config: serde_json::Value, mode: Option<&str>, names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let config = config.to_string();
        let files = ModelFiles {
            config_json: Some(config.as_bytes()),
            chat_template: Some("chat"),
            names: &names,
            ..NONE
        };
        letters_with(files, &[], Settings { tokenizer_mode: mode.map(str::to_owned), ..Settings::default() })
    };
    let own = |mode: &str| LoadError::OwnCode { mode: mode.to_owned() };
    let none = json!({});
    let consolidated = ["consolidated.safetensors", "tekken.json", "tokenizer.json"];
    assert_eq!(load(none.clone(), None, &consolidated).expect_err("Mistral's"), own("mistral"));
    assert_eq!(load(none.clone(), Some("Auto"), &consolidated).expect_err("Mistral's"), own("mistral"));
    assert_eq!(load(none.clone(), Some("mistral"), &[]).expect_err("Mistral's"), own("mistral"));
    assert_eq!(load(none.clone(), Some("slow"), &[]).expect_err("not known"), own("slow"));
    let kimi = json!({"architectures": ["MoonshotKimiaForCausalLM"]});
    assert_eq!(load(kimi, None, &[]).expect_err("Python code"), own("kimi_audio"));
    let chat = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    let completion = r#"{"prompt":"x"}"#;
    for (prompter, want) in [
        (load(none.clone(), Some("hf"), &consolidated), Ok("chat".to_owned())),
        (load(none, None, &["consolidated.safetensors", "tokenizer.json"]), Ok("chat".to_owned())),
        (load(json!({"architectures": ["DeepseekV32ForCausalLM"]}), None, &[]), Err("own_code")),
        (load(json!({"architectures": ["DeepseekV32ForCausalLM"]}), Some("hf"), &[]), Ok("chat".to_owned())),
        (load(json!({"architectures": ["DeepseekV3ForCausalLM"]}), None, &[]), Ok("chat".to_owned())),
        (load(json!({}), Some("Cohere"), &[]), Err("own_code")),
    ] {
        let prompter = prompter.expect("the files load");
        assert_eq!(text(&prompter, Api::ChatCompletions, chat), want);
        assert_eq!(text(&prompter, Api::Completions, completion), Ok("x".to_owned()));
    }
}

#[test]
fn tokenizers_that_are_no_tokenizer_json_are_left_to_the_engine() {
    let load = |config: serde_json::Value, model: &str| {
        let (config, model) = (config.to_string(), json!({"model_type": model}).to_string());
        let files = ModelFiles {
            tokenizer_config_json: Some(config.as_bytes()),
            config_json: Some(model.as_bytes()),
            ..NONE
        };
        letters_with(files, &[], Settings::default()).map(|_| ())
    };
    let hf = Settings { tokenizer_mode: Some("hf".to_owned()), ..Settings::default() };
    let config = br#"{"auto_map":{"AutoTokenizer":"a.A"}}"#.as_slice();
    assert!(letters_with(ModelFiles { tokenizer_config_json: Some(config), ..NONE }, &[], hf).is_ok());
    let python = |class: &str| Err(LoadError::PythonTokenizer { class: class.to_owned() });
    let map = json!({"auto_map": {"AutoTokenizer": ["tokenization_x.XTokenizer", null]}});
    assert_eq!(load(map.clone(), "x"), python("tokenization_x.XTokenizer"));
    assert_eq!(load(map, "internlm2"), Ok(()));
    assert_eq!(load(json!({"auto_map": ["a.A", "a.AFast"]}), "x"), python("a.AFast"));
    assert_eq!(load(json!({"auto_map": {"AutoModel": "m.M"}}), "x"), Ok(()));
    assert_eq!(load(json!({"tokenizer_class": "ByT5Tokenizer"}), "x"), python("ByT5Tokenizer"));
    assert_eq!(load(json!({"tokenizer_class": "PreTrainedTokenizerFast"}), "x"), Ok(()));
    let other = load(json!({"tokenizer_class": "Qwen2Tokenizer"}), "x");
    assert_eq!(other, Err(LoadError::OtherClass { class: "Qwen2Tokenizer" }));
}

#[test]
fn text_that_is_made_lower_case_is_left_to_the_engine() {
    let load = |config: &str| {
        let files = ModelFiles { sentence_config_json: Some(config.as_bytes()), ..NONE };
        letters_with(files, &[], Settings::default()).map(|_| ())
    };
    let error = load(r#"{"max_seq_length":512,"do_lower_case":true}"#).expect_err("lower case");
    assert!(error.to_string().contains("do_lower_case"), "{error}");
    assert_eq!(load(r#"{"max_seq_length":512,"do_lower_case":false}"#), Ok(()));
    assert_eq!(load(r#"{"do_lower_case":true}"#), Ok(()));
}

#[test]
fn a_folder_without_a_tokenizer_json_is_named_by_what_it_has() {
    for (names, want) in [
        (&["tekken.json", "params.json"][..], "mistral"),
        (&["tokenizer.model.v3"], "mistral"),
        (&["qwen.tiktoken", "vocab.json"], "*.tiktoken"),
        (&["tiktoken.model"], "*.tiktoken"),
        (&["tokenizer.model"], "tokenizer.model"),
        (&["spiece.model"], "*.model"),
        (&["merges.txt", "vocab.json"], "merges.txt"),
        (&["vocab.txt"], "vocab.txt"),
        (&["vocab.json", "config.json"], "copy it"),
    ] {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let error = LoadError::without_tokenizer_json(&names).to_string();
        assert!(error.contains(want), "{names:?}: {error}");
    }
}

/// vLLM was found to take these as they are.
#[test]
fn the_goldens_models_are_taken_as_they_were_served() {
    for model in ["qwen3", "llama3_1", "gemma3", "deepseek_v3", "gpt_oss"] {
        let loaded = prompts_common::load_as_served(model);
        assert!(loaded.is_ok(), "{model}: {:?}", loaded.err());
    }
}
