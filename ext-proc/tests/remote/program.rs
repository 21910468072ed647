//! `kvpick tokenize` with prompts that another server makes.

use serde_json::{Value, json};

use super::{
    CHAT, HELLO, PATIENT, PICTURE,
    fake::{Fake, json, rendered},
};

/// The program's answer to a line.
async fn tokenized(yaml: &str, flags: Vec<String>, line: Value) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvpick.yaml");
    std::fs::write(&file, yaml).unwrap();
    let run = move || {
        use std::io::Write as _;
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_kvpick"))
            .args(["tokenize", "--config", file.to_str().unwrap()])
            .args(flags)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{line}").unwrap();
        let output = child.wait_with_output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let answer = tokio::task::spawn_blocking(run).await.unwrap();
    drop(folder);
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_with_media_are_named_as_vllm_names_them() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/hashes/golden_hashes.json");
    let goldens: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases: Vec<_> =
        goldens["cases"].as_array().unwrap().iter().filter(|it| it["mm"].is_array()).collect();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let media = case["mm"].as_array().unwrap();
        let features = json!({
            "mm_hashes": {"image": media.iter().map(|it| &it["identifier"]).collect::<Vec<_>>()},
            "mm_placeholders": {"image": media},
        });
        let ids: Vec<u32> = serde_json::from_value(case["token_ids"].clone()).unwrap();
        let fake = Fake::start(move |_| json(&rendered(&ids, &features))).await;
        let yaml = format!(
            "models: [{{name: m, source: remote, remote: {{urls: ['{}']{PATIENT}}}}}]\n\
             replicas: [{{address: '127.0.0.1:1', models: [m]}}]\n",
            fake.url()
        );
        let text = |it: &Value| it.as_str().unwrap().to_owned();
        let mut flags = vec!["--algorithm".to_owned(), text(&case["algo"])];
        flags.extend(["--root".to_owned(), text(&case["effective_seed"])]);
        flags.extend(["--block-size".to_owned(), case["block_size"].to_string()]);
        let lora = &case["lora"];
        let is_adapter = lora.is_object();
        if is_adapter {
            flags
                .extend(["--adapter".to_owned(), format!("{}={}", text(&lora["name"]), text(&lora["path"]))]);
        }
        let mut body: Value = serde_json::from_str(PICTURE).unwrap();
        body["cache_salt"] = case["cache_salt"].clone();
        let model = if is_adapter { text(&lora["name"]) } else { "m".to_owned() };
        let line = json!({"model": model, "path": CHAT, "body": body.to_string()});
        let answer = tokenized(&yaml, flags, line).await;
        assert_eq!((&answer["source"], &answer["reason"]), (&json!("remote"), &json!("ok")), "{answer}");
        assert_eq!(answer["blocks"], json!([case["block_hashes_u64"]]), "{}", case["name"]);
        let sent: Value = serde_json::from_slice(&fake.seen()[0].body).unwrap();
        assert_eq!((&sent["model"], &sent["mm_payload"]), (&json!(model), &json!("none")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_who_failed_to_make_a_prompt() {
    let yaml = "models: [{name: m, source: remote, remote: {urls: ['http://127.0.0.1:1']}}]\n\
                replicas: [{address: '127.0.0.1:1', models: [m]}]\n";
    let line = json!({"path": CHAT, "body": HELLO});
    let want = json!({"source": "remote", "reason": "remote_down", "prompts": [], "blocks": []});
    assert_eq!(tokenized(yaml, Vec::new(), line).await, want);
}
