//! `kvpick tokenize`, as a program.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use flate2::read::GzDecoder;
use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, Domain, ExtraKey, ExtraKeyShape, Hasher};
use serde_json::{Value, json};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A configuration for the Qwen3 tokenizer, which the build tools fetch; `more` are further models.
fn config(more: &str) -> TempDir {
    let model = root().join("target/tools/tokenizers/qwen3");
    assert!(model.is_dir(), "{}: missing; run `make tools` first", model.display());
    let folder = tempfile::tempdir().unwrap();
    let yaml = format!(
        "models:\n  - {{name: qwen3, aliases: [chat], path: {}, max_model_len: 32768}}\n{more}\
         replicas:\n  - {{address: '127.0.0.1:8000', models: [qwen3, second-name]}}\n\
         \x20 - {{address: '127.0.0.1:8001', models: [elsewhere]}}\n",
        model.display()
    );
    fs::write(folder.path().join("kvpick.yaml"), yaml).unwrap();
    folder
}

fn start(folder: &TempDir, flags: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_kvpick"))
        .args(["tokenize", "--config", folder.path().join("kvpick.yaml").to_str().unwrap()])
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Exit code, answers, and standard error.
fn run(flags: &[&str], more: &str, lines: &[String]) -> (Option<i32>, Vec<Value>, String) {
    let folder = config(more);
    let mut child = start(&folder, flags);
    let mut input = child.stdin.take().unwrap();
    let text = lines.iter().map(|it| format!("{it}\n")).collect::<String>();
    // Beside the reading: pipes hold little, and each side could wait for the other.
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let answers = output.stdout.lines().map(|it| serde_json::from_str(&it.unwrap()).unwrap()).collect();
    (output.status.code(), answers, String::from_utf8(output.stderr).unwrap())
}

/// The answers to lines that are all good.
fn answers(flags: &[&str], lines: &[Value]) -> Vec<Value> {
    let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
    let (code, answers, errors) = run(flags, "", &lines);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(answers.len(), lines.len(), "{errors}");
    answers
}

fn chat(words: &str) -> String {
    json!({"messages": [{"role": "user", "content": words}]}).to_string()
}

fn reasons(answers: &[Value]) -> Vec<&str> {
    answers.iter().map(|it| it["reason"].as_str().unwrap()).collect()
}

fn domain(algorithm: Algorithm, root: &str, block_size: u32, extra_keys: ExtraKeyShape) -> Domain {
    let block_size = NonZeroU32::new(block_size).unwrap();
    Domain { algorithm, root: root.to_owned(), block_size, extra_keys }
}

fn usual() -> Domain {
    domain(Algorithm::Sha256Cbor, DEFAULT_ROOT, 16, ExtraKeyShape::Tagged)
}

/// The blocks of an answer's own ids, chained here.
fn chained(answer: &Value, domain: &Domain, every: &[ExtraKey], first: &[ExtraKey]) -> Value {
    let prompts: Vec<Vec<u32>> = serde_json::from_value(answer["prompts"].clone()).unwrap();
    let extra = |i: usize| if i == 0 { [every, first].concat() } else { every.to_vec() };
    let chain = |ids: &Vec<u32>| -> Vec<String> {
        let keys = Hasher::new(domain).chain(domain.block_size, ids, extra);
        keys.iter().map(|it| it.as_u64().to_string()).collect()
    };
    prompts.iter().map(chain).collect()
}

/// What vLLM accepted on a server of default settings.
fn goldens() -> Vec<Value> {
    let file = fs::File::open(root().join("testdata/prompts/qwen3.jsonl.gz")).unwrap();
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let cases = text.lines().map(|it| serde_json::from_str::<Value>(it).unwrap());
    cases.filter(|it| it["server"] == "default" && it["status"] == 200).collect()
}

/// A chat's ids are recorded as one list by themselves.
fn recorded(case: &Value) -> Value {
    let ids = &case["token_ids"];
    if ids[0].is_array() { ids.clone() } else { json!([ids]) }
}

#[test]
fn ids_are_those_of_vllm_and_blocks_their_chain() {
    let goldens = goldens();
    let cases: Vec<_> = [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"]
        .into_iter()
        .flat_map(|api| goldens.iter().filter(move |it| it["api"] == api).take(16))
        .collect();
    assert_eq!(cases.len(), 64);
    let lines: Vec<_> = cases
        .iter()
        .map(|it| json!({"model": "chat", "path": it["api"], "body": it["body"], "id": it["id"]}))
        .collect();
    let mut blocks = 0;
    for (case, answer) in cases.iter().zip(answers(&[], &lines)) {
        let id = &case["id"];
        assert_eq!((&answer["source"], &answer["reason"]), (&json!("local"), &json!("ok")), "{id}");
        assert_eq!(answer["prompts"], recorded(case), "{id}");
        let body: Value = serde_json::from_str(case["body"].as_str().unwrap()).unwrap();
        let salt = body["cache_salt"].as_str().map(|it| ExtraKey::Salt(it.to_owned()));
        let salt: Vec<_> = salt.into_iter().collect();
        assert_eq!(answer["blocks"], chained(&answer, &usual(), &[], &salt), "{id}");
        blocks +=
            answer["blocks"].as_array().unwrap().iter().map(|it| it.as_array().unwrap().len()).sum::<usize>();
    }
    assert!(64 < blocks, "{blocks} blocks prove nothing");
}

#[test]
fn texts_to_embed_have_the_ids_of_completions() {
    let texts: Vec<_> = goldens()
        .into_iter()
        .filter(|it| it["api"] == "/v1/completions")
        .filter_map(|it| {
            let body: Value = serde_json::from_str(it["body"].as_str()?).ok()?;
            // Other fields, as `add_special_tokens`, would change the ids.
            let is_plain =
                body.as_object()?.keys().all(|key| ["model", "prompt", "max_tokens"].contains(&&**key));
            is_plain.then(|| (body["prompt"].clone(), recorded(&it)))
        })
        .collect();
    assert!(8 <= texts.len(), "only {}", texts.len());
    for path in ["/v1/embeddings", "/pooling"] {
        let line =
            |(text, _): &(Value, Value)| json!({"path": path, "body": json!({"input": text}).to_string()});
        let lines: Vec<_> = texts.iter().map(line).collect();
        for ((text, ids), answer) in texts.iter().zip(answers(&[], &lines)) {
            assert_eq!((&answer["reason"], &answer["prompts"]), (&json!("ok"), ids), "{path} {text}");
        }
    }
}

#[test]
fn flags_say_how_blocks_are_named() {
    let words = "The tide turns at noon, and the harbour master waits for no one. ".repeat(8);
    let body = json!({"messages": [{"role": "user", "content": words}], "cache_salt": "pepper"}).to_string();
    let salt = [ExtraKey::Salt("pepper".to_owned())];
    let adapter = [ExtraKey::Adapter { name: "sql".to_owned(), path: "/adapters/sql=2".to_owned() }];
    let line = |model: &str| json!({"model": model, "path": format!("{CHAT}?beta=true"), "body": body});
    let mut all = Vec::new();
    for (name, algorithm) in [
        ("sha256_cbor", Algorithm::Sha256Cbor),
        ("sha256", Algorithm::Sha256Pickle),
        ("xxhash_cbor", Algorithm::Xxh3Cbor),
        ("xxhash", Algorithm::Xxh3Pickle),
    ] {
        for (shape_name, shape) in [
            ("bare", ExtraKeyShape::Bare),
            ("bare-with-offset", ExtraKeyShape::BareWithOffset),
            ("bare_with_offset", ExtraKeyShape::BareWithOffset),
            ("tagged", ExtraKeyShape::Tagged),
        ] {
            let flags =
                ["--algorithm", name, "--root", "42", "--block-size", "32", "--extra-keys", shape_name];
            let flags = [&flags[..], &["--adapter", "sql=/adapters/sql=2"]].concat();
            let answers = answers(&flags, &[line("qwen3"), line("sql")]);
            let domain = domain(algorithm, "42", 32, shape);
            assert_eq!(answers[0]["prompts"], answers[1]["prompts"]);
            assert_eq!(answers[0]["blocks"], chained(&answers[0], &domain, &[], &salt), "{flags:?}");
            assert_eq!(answers[1]["blocks"], chained(&answers[1], &domain, &adapter, &salt), "{flags:?}");
            all.push(answers);
        }
    }
    let mut different: Vec<_> = all.iter().flatten().map(|it| it["blocks"].to_string()).collect();
    assert!(different.iter().all(|it| it.contains(',')), "too few blocks: {different:?}");
    different.sort();
    different.dedup();
    // The bare shapes differ in media only.
    assert_eq!(different.len(), 4 * 2 * 2);
}

#[test]
fn the_lines_model_counts_and_else_the_bodys() {
    let body = |model: &str| json!({"model": model, "prompt": "The tide turns."}).to_string();
    let line = |model: Value, body: String| json!({"model": model, "path": "/v1/completions", "body": body});
    let answers = answers(
        &["--adapter", "sql=/adapters/sql"],
        &[
            line(json!("qwen3"), body("nobody")),
            line(json!("nobody"), body("qwen3")),
            line(json!("elsewhere"), body("qwen3")),
            line(Value::Null, body("chat")),
            line(Value::Null, body("nobody")),
            line(json!(""), body("")),
            line(json!("second-name"), body("qwen3")),
            line(json!("sql"), body("qwen3")),
        ],
    );
    let want = ["ok", "unknown_model", "no_tokenizer", "ok", "unknown_model", "ok", "ok", "ok"];
    assert_eq!(reasons(&answers), want);
    for answer in &answers {
        let known = answer["reason"] == "ok";
        assert_eq!(answer["prompts"] == answers[0]["prompts"], known, "{answer}");
        assert!(known || (answer["prompts"] == json!([]) && answer["blocks"] == json!([])), "{answer}");
    }
}

#[test]
fn an_adapter_of_an_unknown_base_has_no_tokenizer() {
    let model = root().join("target/tools/tokenizers/qwen3");
    let more = format!("  - {{name: other, path: {}}}\n", model.display());
    let line = json!({"model": "sql", "path": CHAT, "body": chat("Hi")}).to_string();
    let (code, answers, errors) = run(&["--adapter", "sql=/adapters/sql"], &more, &[line]);
    assert_eq!((code, reasons(&answers)), (Some(0), vec!["no_tokenizer"]), "{errors}");
}

#[test]
fn reasons_are_those_of_decisions() {
    let line = |path: &str, body: &str| json!({"model": "qwen3", "path": path, "body": body});
    let media = json!({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]});
    let stateful = json!({"input": "And then?", "previous_response_id": "resp_1"});
    let answers = answers(
        &[],
        &[
            line("/v1/models", ""),
            line("/v1/chat/completions/render", &chat("Hi")),
            line("/v1/score?x=/v1/completions", &chat("Hi")),
            line(CHAT, ""),
            line(CHAT, "{"),
            line(CHAT, "{}"),
            line(CHAT, &media.to_string()),
            line("/v1/responses", &stateful.to_string()),
            json!({"path": CHAT, "body_hex": "7b22ff"}),
            json!({"path": "/v1/completions", "body_hex": "7B2270726f6d7074223a2248692e227d"}),
        ],
    );
    let others = ["other_path"; 3].into_iter();
    let want: Vec<_> = others
        .chain(["no_body", "not_json", "no_messages", "media", "stateful_unpinned", "not_json", "ok"])
        .collect();
    assert_eq!(reasons(&answers), want);
    // Of a chat with a picture the text before it is known: here the beginning of the message, and no block.
    let cut = &answers[6];
    assert_eq!((&cut["prompts"], &cut["blocks"]), (&json!([[151_644]]), &json!([[]])));
    let none = answers.iter().filter(|it| it["reason"] != "ok" && it["reason"] != "media");
    assert!(none.clone().all(|it| it["prompts"] == json!([]) && it["blocks"] == json!([])));
}

#[test]
fn a_body_larger_than_is_looked_at_is_not_looked_at() {
    let words = "tide ".repeat(300);
    let line = json!({"path": CHAT, "body": chat(&words)}).to_string();
    let folder = config("");
    let file = folder.path().join("kvpick.yaml");
    let yaml = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{yaml}max_body_bytes: 1024\n")).unwrap();
    let mut child = start(&folder, &[]);
    writeln!(child.stdin.take().unwrap(), "{line}").unwrap();
    let output = child.wait_with_output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["reason"], "body_too_large");
}

#[test]
fn bad_lines_are_named_and_the_others_answered() {
    let good = json!({"path": CHAT, "body": chat("Hi")}).to_string();
    let bad = [
        ("{\"path\": ", "line 2: not JSON"),
        ("[]", "line 3: want a JSON object"),
        ("{\"path\": 5, \"body\": \"{}\"}", "line 4: path: "),
        ("{\"body\": \"{}\"}", "line 5: path: missing"),
        ("{\"path\": \"/pooling\"}", "line 6: body: missing"),
        ("{\"path\": \"/pooling\", \"body\": {}}", "line 7: body: "),
        ("{\"path\": \"/pooling\", \"body\": \"\", \"model\": []}", "line 8: model: "),
        ("{\"path\": \"/pooling\", \"body_hex\": \"7\"}", "line 9: body_hex: "),
        ("{\"path\": \"/pooling\", \"body_hex\": \"+7\"}", "line 10: body_hex: "),
        ("{\"path\": \"/pooling\", \"body_hex\": \"7b\", \"body\": \"\"}", "line 11: body_hex: "),
    ];
    let mut lines = vec![good.clone()];
    lines.extend(bad.iter().map(|(line, _)| (*line).to_owned()));
    lines.extend([String::new(), good]);
    let (code, answers, errors) = run(&[], "", &lines);
    assert_eq!((code, reasons(&answers)), (Some(64), vec!["ok", "ok"]), "{errors}");
    for (_, error) in bad {
        assert_eq!(errors.lines().filter(|it| it.starts_with(error)).count(), 1, "{error} in {errors}");
    }
    assert!(errors.ends_with("kvpick: 10 of the lines are no requests\n"), "{errors}");
}

#[test]
fn each_line_is_answered_at_once_and_a_reader_may_leave() {
    let folder = config("");
    let mut child = start(&folder, &[]);
    let (mut input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let line = json!({"path": CHAT, "body": chat("Hi")}).to_string();
    for _ in 0..2 {
        writeln!(input, "{line}").unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["reason"], "ok");
    }
    drop(output);
    writeln!(input, "{line}").unwrap();
    // Its input is still open: it ends because nobody reads.
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(0), ""));
    drop(input);
}

#[test]
fn the_log_says_more_of_a_reason_and_wrong_flags_are_refused() {
    let line = json!({"model": "qwen3", "path": CHAT, "body": "{\"messages\": 5}"}).to_string();
    let (code, answers, errors) = run(&[], "", &["{}".to_owned(), line]);
    assert_eq!((code, reasons(&answers)), (Some(64), vec!["wrong_type"]));
    assert!(errors.contains("line=2") && errors.contains("messages: is an integer"), "{errors}");
    for flags in [["--adapter", "sql"], ["--block-size", "0"], ["--algorithm", "md5"], ["--extra-keys", "x"]]
    {
        let output = start(&config(""), &flags).wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(flags[0]), "{errors}");
    }
}
