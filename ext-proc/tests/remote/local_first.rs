//! Models whose prompts are made here, and elsewhere where that can't be.

use kvpick::prepare::Maker;
use serde_json::{Value, json};

use super::{
    CHAT, HELLO, PATIENT, PICTURE, Server,
    fake::{self, Act, Fake, json, rendered},
};

/// A model of a few words in a folder, and another server for what can't be made of it.
fn local_then_remote(url: &str, template: Option<&str>) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    fake::write_model(folder.path(), template);
    let model = format!(
        "path: {}, source: local-then-remote, remote: {{urls: ['{url}']{PATIENT}}}",
        folder.path().display()
    );
    let server = Server::new(&model, &["127.0.0.1:8000".parse().unwrap()]);
    (folder, server)
}

const TEMPLATE: &str = "one {{ messages[-1].content }}";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_here_needs_no_other_server() {
    let fake = Fake::start(|_| Act::Answer(500, String::new())).await;
    let (_folder, server) = local_then_remote(&fake.url(), Some(TEMPLATE));
    let prepared = server.prepared(HELLO).await;
    assert_eq!((prepared.maker, prepared.prompts.unwrap()[0].ids.len()), (Maker::Local, 2));
    // What no engine takes, the other server would not take either.
    assert_eq!(
        server
            .decide("/v1/completions", r#"{"model": "m", "prompt": "x", "truncate_prompt_tokens": 0}"#)
            .await
            .0,
        "bad_field"
    );
    assert_eq!(fake.seen().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_server_makes_what_can_not_be_made_here() {
    let features = json!({
        "mm_hashes": {"image": ["i"]}, "mm_placeholders": {"image": [{"offset": 2, "length": 30}]},
    });
    let fake = Fake::start(move |_| json(&rendered(&[9; 40], &features))).await;
    let (_folder, server) = local_then_remote(&fake.url(), Some(TEMPLATE));
    let prepared = server.prepared(PICTURE).await;
    let prompts = prepared.prompts.unwrap();
    assert_eq!((prepared.maker, prepared.asked), (Maker::Remote, Some("ok")));
    assert_eq!((prompts[0].ids.len(), prompts[0].media[0].length, prompts[0].is_cut), (40, 30, false));
    assert_eq!(fake.seen().len(), 1);

    // No template, or one that does not render.
    let text = Fake::start(|_| json(&rendered(&[1, 2, 3], &Value::Null))).await;
    for template in [None, Some("{{ raise_exception('no') }}")] {
        let (_folder, server) = local_then_remote(&text.url(), template);
        assert_eq!(server.decide(CHAT, HELLO).await, ("no_agent", 3), "{template:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_other_server_does_not_help_what_was_made_here_stands() {
    for (act, reason, result) in [
        (Act::Answer(500, String::new()), "remote_down", "down"),
        (Act::Answer(400, String::new()), "engine_refuses", "refused"),
        // It was not asked in the end; what stood in the way here says more.
        (Act::Answer(404, String::new()), "no_template", "no_route"),
    ] {
        let fake = Fake::start(move |_| act.clone()).await;
        let (_folder, server) = local_then_remote(&fake.url(), None);
        assert_eq!(server.decide(CHAT, HELLO).await, (reason, 0));
        assert_eq!(server.results(result), 1, "{reason}");
    }
}
