//! Sources in configurations, and at reloads.

use std::sync::Arc;

use kvpick::{config::Config, models::Models};

#[test]
fn mistakes_in_sources_name_field_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tekken.json"), "{}").unwrap();
    let path = folder.path().display();
    let mistake = |model: &str| {
        let yaml =
            format!("models: [{{name: m, {model}}}]\nreplicas: [{{address: '127.0.0.1:1', models: [m]}}]");
        let config: Config = kvpick_service::config::parse(&yaml).unwrap();
        config.mistakes().join("\n")
    };
    for (model, field, remedy) in [
        ("source: local", "models[0].path: missing", "set source: remote"),
        (&format!("path: {path}"), "models[0].path: /", "source: remote"),
        ("source: remote", "models[0].remote: missing", "vllm launch render"),
        ("source: remote, remote: {}", "models[0].remote.urls: the list is empty", "from: replicas"),
        ("source: remote, remote: {urls: ['http://a'], from: replicas}", "remote.from", "keep one"),
        ("source: remote, remote: {urls: ['https://a']}", "remote.urls[0]", "write http://"),
        ("source: remote, remote: {urls: ['a:1']}", "remote.urls[0]", "http://host:port"),
        ("source: remote, remote: {urls: ['http://u:p@a']}", "remote.urls[0]", "api_key_file"),
        (
            "source: remote, remote: {urls: ['http://a/v1/completions/']}",
            "remote.urls[0]",
            "http://host:port",
        ),
        ("source: remote, remote: {from: replicas, timeout_ms: 0}", "remote.timeout_ms", "use 1 to"),
        ("source: remote, remote: {from: replicas, max_in_flight: 0}", "remote.max_in_flight", "use 1 to"),
        (
            "source: remote, remote: {from: replicas, api_key_file: /none}",
            "remote.api_key_file",
            "can be read",
        ),
        (&format!("path: {path}, remote: {{from: replicas}}"), "is not asked", "local-then-remote"),
    ] {
        let found = mistake(model);
        assert!(found.contains(field) && found.contains(remedy), "{model}: {found}");
    }
    assert_eq!(mistake("source: remote, remote: {urls: ['http://a:1/base/']}"), "");
    let config: Config =
        kvpick_service::config::parse(&format!("models: [{{name: m, path: {path}}}]\nreplicas: []")).unwrap();
    let models = Models::load(&config.models);
    assert!(models.get("m").unwrap().error.as_ref().unwrap().contains("source: remote"), "at a reload too");
}

#[test]
fn a_reload_keeps_a_source_that_has_not_changed() {
    let models = |model: &str, batch: Option<&Models>| {
        let yaml = format!("models: [{{name: m, source: remote, {model}}}]\nreplicas: []");
        let config: Config = kvpick_service::config::parse(&yaml).unwrap();
        let none = Models::default();
        let batch = kvpick::models::Batch::new(batch.unwrap_or(&none));
        Models::new(config.models.into_iter().map(|it| Arc::new(batch.load(it))).collect())
    };
    let remote = |it: &Models| it.get("m").unwrap().remote.clone().unwrap();
    let first = models("remote: {urls: ['http://a']}", None);
    assert_eq!(first.get("m").unwrap().state(), "ready");
    let same = models("remote: {urls: ['http://a']}", Some(&first));
    assert!(Arc::ptr_eq(&remote(&first), &remote(&same)));
    let other = models("remote: {urls: ['http://a'], timeout_ms: 9}", Some(&first));
    assert!(!Arc::ptr_eq(&remote(&first), &remote(&other)));
}
