//! Models that are broken, and models and configurations that change while the server runs.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use kvpick::{
    app::App,
    config::Config,
    models::{Batch, Model, Models},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait for anything; on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder for models and a configuration.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A model of a few words, with a template that prints `before` before the last message.
    fn model(&self, name: &str, before: &str) {
        let words = ["[UNK]", "hello", "there", "one", "two"];
        let vocabulary: serde_json::Map<_, _> =
            words.iter().zip(0..).map(|(it, id)| ((*it).into(), json!(id))).collect();
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
            "truncation": null, "padding": null, "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
        });
        self.file(&format!("{name}/tokenizer.json"), &tokenizer.to_string());
        self.template(name, before);
    }

    fn template(&self, name: &str, before: &str) {
        let template = format!("{before} {{{{ messages[-1].content }}}}");
        self.file(&format!("{name}/chat_template.jinja"), &template);
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Whole at once, as whoever looks at it may look at any time.
        fs::write(path.with_extension("new"), text).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    }

    /// Writes the configuration: models are lines of YAML without their path, each in the folder of its name.
    fn config(&self, models: &[(&str, &str)], more: &str) -> PathBuf {
        let models: String = models
            .iter()
            .map(|(name, more)| format!("  - {{name: {name}, path: {}{more}}}\n", self.path(name).display()))
            .collect();
        let yaml = format!(
            "listen: 127.0.0.1:0\nfeed: 127.0.0.1:0\nadmin: 127.0.0.1:0\nmodels:\n{models}\
             replicas: [{{address: '127.0.0.1:8000', models: [good, bad, gone, new]}}]\n{more}"
        );
        self.file("kvpick.yaml", &yaml);
        self.path("kvpick.yaml")
    }
}

/// A server in this process.
struct Server {
    app: App,
}

impl Server {
    async fn start(file: &Path) -> Self {
        let config = Config::load(file).unwrap();
        Self { app: App::start_from(config, Some(file.to_owned().into()), None).await.unwrap() }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.app.addresses["admin"])
    }

    async fn ready(file: &Path) -> Self {
        let server = Self::start(file).await;
        let url = server.url("/readyz");
        until(async || reqwest::get(&url).await.unwrap().status() == 200).await;
        server
    }

    async fn status(&self) -> Value {
        reqwest::get(self.url("/status")).await.unwrap().json().await.unwrap()
    }

    async fn model(&self, name: &str) -> Value {
        let status = self.status().await;
        status["models"].as_array().unwrap().iter().find(|it| it["name"] == name).cloned().unwrap_or_default()
    }

    async fn metrics(&self) -> String {
        reqwest::get(self.url("/metrics")).await.unwrap().text().await.unwrap()
    }

    async fn reload(&self) -> (u16, Value) {
        let answer = reqwest::Client::new().post(self.url("/reload")).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }
}

async fn until(reached: impl AsyncFn() -> bool) {
    let wait = async {
        while !reached().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("not in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_model_leaves_the_others_alone() {
    let place = Place::new();
    place.model("good", "one");
    place.file("bad/tokenizer.json", "{");
    let file = place.config(&[("bad", ""), ("good", ", aliases: [fine]"), ("gone", "")], "");
    let server = Server::ready(&file).await;

    let good = server.model("good").await;
    assert_eq!(
        (&good["state"], &good["error"], &good["aliases"]),
        (&json!("ready"), &Value::Null, &json!(["fine"]))
    );
    assert_eq!(good["path"], json!(place.path("good")));
    assert_eq!(good["fingerprint"].as_str().map(str::len), Some(32));
    for (name, file) in [("bad", "tokenizer.json"), ("gone", "gone")] {
        let model = server.model(name).await;
        assert_eq!((&model["state"], &model["fingerprint"]), (&json!("failed"), &Value::Null));
        assert!(model["error"].as_str().unwrap().contains(file), "{model}");
    }
    let metrics = server.metrics().await;
    for line in ["{model=\"good\"} 1", "{model=\"bad\"} 0", "{model=\"gone\"} 0"] {
        assert!(metrics.contains(&format!("kvpick_model_ready{line}")), "{line}: {metrics}");
    }
    assert!(Config::load(&file).is_ok());
    let mistakes = Config::load(&file).unwrap().mistakes();
    assert!(
        mistakes.len() == 1 && mistakes[0].starts_with("models[2].path"),
        "said before it runs: {mistakes:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_takes_over_what_changed_and_only_that() {
    let place = Place::new();
    for name in ["good", "bad", "gone"] {
        place.model(name, "one");
    }
    let server = Server::ready(&place.config(&[("good", ""), ("bad", ""), ("gone", "")], "")).await;
    let (good, bad) = (server.model("good").await, server.model("bad").await);

    place.model("new", "two");
    place.template("bad", "two");
    place.config(
        &[("new", ""), ("good", ""), ("bad", "")],
        "evidence_header: true\nscore: {per_request: 50}\n",
    );
    let report = json!({
        "added": ["new"], "changed": ["bad"], "unchanged": ["good"], "removed": ["gone"], "failed": [],
        "needs_restart": ["evidence_header", "score.per_request"],
    });
    assert_eq!(server.reload().await, (200, report.clone()));
    assert_eq!(server.model("good").await, good, "what did not change was loaded again");
    assert_ne!(server.model("bad").await["fingerprint"], bad["fingerprint"]);
    assert_eq!(server.model("gone").await, Value::Null);
    assert_eq!(server.status().await["last_reload"], report);
    let metrics = server.metrics().await;
    assert!(
        metrics.contains("kvpick_model_ready{model=\"new\"} 1")
            && !metrics.contains("kvpick_model_ready{model=\"gone\"}"),
        "{metrics}"
    );
    assert!(metrics.contains("kvpick_reloads_total{result=\"ok\"} 1"), "{metrics}");
    let config: Value = reqwest::get(server.url("/config")).await.unwrap().json().await.unwrap();
    assert_eq!((&config["models"][0]["name"], &config["evidence_header"]), (&json!("new"), &json!(false)));

    // A setting that changes prompts, and another name.
    place.config(&[("new", ", max_model_len: 5"), ("good", ", aliases: [fine]"), ("bad", "")], "");
    let (code, report) = server.reload().await;
    assert_eq!(
        (code, &report["changed"], &report["unchanged"]),
        (200, &json!(["new", "good"]), &json!(["bad"]))
    );
    assert_eq!(server.model("good").await["loaded_at"], good["loaded_at"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_reload_keeps_what_was_in_force() {
    let place = Place::new();
    place.model("good", "one");
    let file = place.config(&[("good", "")], "");
    let server = Server::ready(&file).await;
    let before = server.model("good").await;

    place.file("good/tokenizer.json", "[]");
    let (code, report) = server.reload().await;
    assert_eq!((code, &report["failed"][0]["model"]), (422, &json!("good")));
    assert_eq!(report["failed"][0]["keeps_earlier"], true);
    let after = server.model("good").await;
    assert_eq!((&after["state"], &after["fingerprint"]), (&before["state"], &before["fingerprint"]));
    assert!(after["error"].as_str().unwrap().contains("tokenizer.json"), "{after}");
    assert!(server.metrics().await.contains("kvpick_model_ready{model=\"good\"} 1"));

    // A configuration with a mistake changes nothing at all.
    place.config(&[("good", ""), ("good", "")], "");
    let (code, report) = server.reload().await;
    assert_eq!(code, 422);
    assert!(report["error"].as_str().unwrap().contains("models[1]"), "{report}");
    assert_eq!(server.model("good").await, after);

    place.model("good", "one");
    place.config(&[("good", "")], "");
    assert_eq!(server.reload().await.0, 200);
    assert_eq!(server.model("good").await["error"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_is_noticed_where_that_is_asked_for() {
    let place = Place::new();
    place.model("good", "one");
    let server = Server::ready(&place.config(&[("good", "")], "reload_check_s: 1\n")).await;
    let before = server.model("good").await["fingerprint"].clone();
    place.template("good", "two of another length");
    until(async || server.model("good").await["fingerprint"] != before).await;
    assert_eq!(server.status().await["last_reload"]["changed"], json!(["good"]));
}

/// A program that is killed when the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reloads() {
    let place = Place::new();
    place.model("good", "one");
    let file = place.config(&[("good", "")], "");
    let addresses = place.path("addresses.json");
    let child = Command::new(env!("CARGO_BIN_EXE_kvpick"))
        .args(["run", "--config", file.to_str().unwrap(), "--addresses-file", addresses.to_str().unwrap()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = Killed(child);
    until(async || addresses.is_file()).await;
    let found: Value = serde_json::from_slice(&fs::read(&addresses).unwrap()).unwrap();
    let url = format!("http://{}/status", found["admin"].as_str().unwrap());
    let status = async || -> Value { reqwest::get(&url).await.unwrap().json().await.unwrap() };
    until(async || status().await["ready"] == true).await;
    place.model("new", "two");
    place.config(&[("good", ""), ("new", "")], "");
    let sent = Command::new("kill").args(["-HUP", &child.0.id().to_string()]).status().unwrap();
    assert!(sent.success());
    until(async || status().await["last_reload"]["added"] == json!(["new"])).await;
}

#[test]
fn models_of_the_same_bytes_share_a_tokenizer() {
    let place = Place::new();
    place.model("good", "one");
    place.model("new", "two");
    let config = Config::load(&place.config(&[("good", ""), ("new", "")], "")).unwrap();
    let first = Models::load(&config.models);
    let prompter = |models: &Models, name| Arc::clone(models.find(Some(name)).unwrap());
    assert!(prompter(&first, "good").shares_tokenizer_with(&prompter(&first, "new")));

    // A later batch shares with what is in force, and takes over whole what has not changed.
    place.template("new", "one two");
    let batch = Batch::new(&first);
    let models: Vec<Arc<Model>> = config.models.iter().map(|it| Arc::new(batch.load(it.clone()))).collect();
    let second = Models::new(models);
    assert!(Arc::ptr_eq(&prompter(&first, "good"), &prompter(&second, "good")));
    assert!(!Arc::ptr_eq(&prompter(&first, "new"), &prompter(&second, "new")));
    assert!(prompter(&first, "good").shares_tokenizer_with(&prompter(&second, "new")));
    let chat = br#"{"messages": [{"role": "user", "content": "hello"}]}"#;
    let request =
        kvpick_core::request::Request::parse(kvpick_core::request::Api::ChatCompletions, chat).unwrap();
    assert_eq!(prompter(&first, "new").token_ids(&request).unwrap(), [vec![4, 1]]);
    assert_eq!(prompter(&second, "new").token_ids(&request).unwrap(), [vec![3, 4, 1]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_name_only_an_only_model_is_meant_loaded_or_not() {
    let place = Place::new();
    place.model("good", "one");
    let config = Config::load(&place.config(&[("good", ", aliases: [a, b]"), ("bad", "")], "")).unwrap();
    assert!(Models::load(&config.models[..1]).find(None).is_some());
    let both = Models::load(&config.models);
    assert!(both.find(None).is_none() && both.find(Some("bad")).is_none());
    assert!(both.find(Some("b")).is_some());
}
