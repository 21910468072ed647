//! What each imitated version of vLLM shows, and what it does not.

use kvpick_agent_core::decode::{Batch, Event, Message};
use kvpick_lab::engine::{
    Config,
    version::{RenderForm, Version},
    wire::Encoding,
};
use kvpick_proto::naming::{Algorithm, ExtraKey, ExtraKeyShape, Hasher};
use serde_json::json;

use crate::world::{MODEL, World, chat, config, long_text};

/// What a version is known by.
struct Traits {
    name: &'static str,
    /// First byte of a store: the kind of container and its length.
    store: u8,
    extra_keys: ExtraKeyShape,
    /// Frames of a replayed batch.
    replay_frames: usize,
    gpu_names: bool,
    by_reason: bool,
    render: RenderForm,
    event_sources: bool,
}

const fn traits(version: Version) -> Traits {
    let old = Traits {
        name: "0.11.2",
        store: 0x97,
        extra_keys: ExtraKeyShape::Bare,
        replay_frames: 3,
        gpu_names: true,
        by_reason: false,
        render: RenderForm::Absent,
        event_sources: false,
    };
    match version {
        Version::V0_11 => old,
        Version::V0_16 => {
            Traits { name: "0.16.0", store: 0x98, gpu_names: false, render: RenderForm::Prompts, ..old }
        }
        Version::V0_23 => Traits {
            name: "0.23.0",
            store: 0x9c,
            extra_keys: ExtraKeyShape::BareWithOffset,
            by_reason: true,
            render: RenderForm::Request,
            ..traits(Version::V0_16)
        },
        Version::V0_24 => Traits { name: "0.24.0", store: 0x8b, ..traits(Version::V0_23) },
        Version::V0_32 => Traits {
            name: "0.32.0",
            extra_keys: ExtraKeyShape::Tagged,
            replay_frames: 4,
            event_sources: true,
            ..traits(Version::V0_24)
        },
    }
}

async fn check(version: Version) {
    let want = traits(version);
    let world = World::start(Config { version, root: Some("0".to_owned()), ..config() }).await;
    let next = world.listen().await;
    assert_eq!(world.get("/version").await, json!({"version": want.name}).to_string());

    // Events, and the hash of what has a salt.
    let prompt = vec![9u32; 17];
    world.ask("/v1/completions", &json!({"prompt": prompt, "cache_salt": "s", "max_tokens": 1})).await;
    let message = Message::live(world.hear_frames()).unwrap();
    // An array of three, a time of eight bytes after its mark, an array of one.
    assert_eq!((&message.payload[..2], message.payload[10]), ([0x93, 0xcb].as_slice(), 0x91));
    assert_eq!(message.payload[11], want.store, "{:x?}", message.payload);
    let batch = Batch::decode(&message.payload).unwrap();
    let [Event::Stored(stored)] = batch.events.as_slice() else { panic!("{batch:?}") };
    let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, "0", want.extra_keys);
    let salt = |_| vec![ExtraKey::Salt("s".to_owned())];
    assert_eq!(stored.keys, hasher.chain(16.try_into().unwrap(), &prompt, salt));
    let answers = world.replay(next);
    assert_eq!(answers.iter().map(Vec::len).collect::<Vec<_>>(), [want.replay_frames; 2]);

    // Metrics.
    let text = world.get("/metrics").await;
    let shows = |name: &str| text.lines().any(|line| line.starts_with(&format!("{name}{{")));
    assert!(shows("vllm:kv_cache_usage_perc") && shows("vllm:prefix_cache_hits_total"));
    for name in ["cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total"] {
        assert_eq!(shows(&format!("vllm:gpu_{name}")), want.gpu_names, "{name}");
    }
    assert_eq!(shows("vllm:num_requests_waiting_by_reason"), want.by_reason);

    // Routes.
    let sources = world.status("/kv_event_sources").await;
    assert_eq!(sources, if want.event_sources { 200 } else { 404 });
    check_render(&world, version, want.render).await;
    world.engine.stop().await;
}

async fn check_render(world: &World, version: Version, form: RenderForm) {
    let body = chat(&[("system", &long_text(30)), ("user", "hello")], 1);
    let tokens = world.ask("/tokenize", &body).await["tokens"].clone();
    let (status, rendered) = world.post("/v1/chat/completions/render", &body).await;
    match form {
        RenderForm::Absent => {
            assert_eq!((status, rendered), (404, json!({"detail": "Not Found"})));
            return;
        }
        RenderForm::Prompts => {
            assert_eq!(rendered[0], body["messages"]);
            assert_eq!(rendered[1][0]["prompt_token_ids"], tokens);
        }
        RenderForm::Request => {
            assert_eq!(rendered["token_ids"], tokens);
            assert_eq!((&rendered["model"], &rendered["features"]), (&json!(MODEL), &json!(null)));
        }
    }
    let body = json!({"prompt": [[1, 2, 3], [4]], "cache_salt": "s"});
    let rendered = world.ask("/v1/completions/render", &body).await;
    let name = if form == RenderForm::Prompts { "prompt_token_ids" } else { "token_ids" };
    assert_eq!([&rendered[0][name], &rendered[1][name]], [&json!([1, 2, 3]), &json!([4])]);
    assert_eq!(rendered[1]["cache_salt"], "s");
    let text = json!({"role": "user", "content": "hello"});
    let messages = json!({"max_tokens": 1, "messages": [text]});
    let (status, rendered) = world.post("/v1/messages/render", &messages).await;
    assert_eq!(status, if version == Version::V0_32 { 200 } else { 404 });
    if status == 200 {
        assert_eq!(
            rendered["token_ids"],
            world.ask("/tokenize", &json!({"messages": [text]})).await["tokens"]
        );
        let (status, rendered) = world.post("/v1/responses/render", &json!({"input": "hello"})).await;
        assert!(status == 200 && rendered["token_ids"].is_array(), "{rendered}");
        let goes_on = json!({"input": "hello", "previous_response_id": "resp_1"});
        assert_eq!(world.post("/v1/responses/render", &goes_on).await.0, 400);
    }
    // What is rendered is not computed.
    assert_eq!(world.metric("vllm:num_requests_running").await, 0.0);
}

#[tokio::test]
async fn vllm_0_11() {
    check(Version::V0_11).await;
}

#[tokio::test]
async fn vllm_0_16() {
    check(Version::V0_16).await;
}

#[tokio::test]
async fn vllm_0_23() {
    check(Version::V0_23).await;
}

#[tokio::test]
async fn vllm_0_24() {
    check(Version::V0_24).await;
}

#[tokio::test]
async fn vllm_0_32() {
    check(Version::V0_32).await;
}

#[tokio::test]
async fn an_old_engine_without_a_seed_names_blocks_as_nobody_can() {
    let mut keys = Vec::new();
    for _ in 0..2 {
        let world = World::start(Config { version: Version::V0_24, ..config() }).await;
        world.listen().await;
        world.ask("/v1/completions", &json!({"prompt": vec![9; 17], "max_tokens": 1})).await;
        keys.push(world.hear_store().keys);
        world.engine.stop().await;
    }
    assert_ne!(keys[0], keys[1]);
}

#[tokio::test]
async fn a_layout_can_be_chosen_apart_from_the_version() {
    let world = World::start(Config { encoding: Some(Encoding::Array), ..config() }).await;
    world.listen().await;
    world.ask("/v1/completions", &json!({"prompt": vec![9; 17], "max_tokens": 1})).await;
    assert_eq!(Message::live(world.hear_frames()).unwrap().payload[11], 0x9c);
    assert_eq!(world.get("/version").await, r#"{"version":"0.32.0"}"#);
    world.engine.stop().await;
}
