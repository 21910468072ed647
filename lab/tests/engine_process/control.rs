//! Adapters, sleep, and what the server says of itself.

use std::sync::Arc;

use kvpick_agent_core::decode::{Event, ExtraItem};
use kvpick_lab::engine::{Config, announce::Adapter, version::Version};
use kvpick_proto::naming::{Algorithm, BlockKey, DEFAULT_ROOT, ExtraKey, ExtraKeyShape, Hasher};
use serde_json::{Value, json};

use crate::world::{MODEL, World, cached, chat, config};

fn with_adapters(version: Version) -> Config {
    let adapter =
        |id, name: &str| Arc::new(Adapter { id, name: name.to_owned(), path: format!("/adapters/{name}") });
    let adapters = vec![adapter(1, "lora-a"), adapter(2, "lora-b")];
    Config { adapters, version, root: Some(DEFAULT_ROOT.to_owned()), ..config() }
}

/// The keys of a prompt of two blocks for an adapter.
fn keys(prompt: &[u32], name: &str, shape: ExtraKeyShape) -> Vec<BlockKey> {
    let key = ExtraKey::Adapter { name: name.to_owned(), path: format!("/adapters/{name}") };
    let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, DEFAULT_ROOT, shape);
    hasher.chain(16.try_into().unwrap(), prompt, |_| vec![key.clone()])
}

#[tokio::test]
async fn adapters_have_cards_and_blocks_of_their_own() {
    let world = World::start(with_adapters(Version::V0_32)).await;
    world.listen().await;
    let cards: Value = serde_json::from_str(&world.get("/v1/models").await).unwrap();
    let card = &cards["data"][2];
    assert_eq!((&card["id"], &card["root"]), (&json!("lora-a"), &json!("/adapters/lora-a")));
    assert_eq!((&card["parent"], &card["max_model_len"]), (&json!(MODEL), &json!(null)));

    let prompt = vec![9u32; 33];
    let ask = async |model: &str| {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 1});
        world.ask("/v1/completions", &body).await
    };
    for name in ["lora-a", "lora-b"] {
        let answer = ask(name).await;
        assert_eq!((answer["model"].as_str(), cached(&answer)), (Some(name), 0));
        let stored = world.hear_store();
        assert_eq!(stored.keys, keys(&prompt, name, ExtraKeyShape::Tagged));
        assert_eq!(stored.lora_name.as_deref(), Some(name));
        assert_eq!(stored.extra_keys[1], (1, vec![ExtraItem::Text(name.to_owned())]), "in every block");
        assert_eq!(cached(&ask(name).await), 32);
    }
    assert_eq!(cached(&ask(MODEL).await), 0, "the plain model has none of them");
    let text = world.get("/metrics").await;
    let used =
        r#"vllm:lora_requests_info{max_lora="2",running_lora_adapters="lora-a",waiting_lora_adapters=""}"#;
    assert!(text.contains(used), "{text}");
    let (status, _) = world.post("/v1/completions", &json!({"model": "lora-c", "prompt": "a"})).await;
    assert_eq!(status, 404);
    world.engine.stop().await;
}

#[tokio::test]
async fn old_versions_hash_an_adapters_name_alone() {
    for (version, shows_name) in [(Version::V0_11, false), (Version::V0_16, true)] {
        let world = World::start(with_adapters(version)).await;
        world.listen().await;
        let prompt = vec![9u32; 33];
        world.ask("/v1/completions", &json!({"model": "lora-b", "prompt": prompt, "max_tokens": 1})).await;
        let stored = world.hear_store();
        assert_eq!(stored.keys, keys(&prompt, "lora-b", ExtraKeyShape::Bare));
        assert_eq!((stored.lora_id, stored.lora_name.is_some()), (Some(2), shows_name));
        world.engine.stop().await;
    }
}

async fn sleep_state(world: &World, state: &str) -> f64 {
    let text = world.get("/metrics").await;
    let label = format!("sleep_state=\"{state}\"");
    let line = text
        .lines()
        .find(|line| line.starts_with("vllm:engine_sleep_state{") && line.contains(&label))
        .unwrap_or_else(|| panic!("no {state} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn sleep_forgets_blocks_and_says_so_after_waking() {
    let world = World::start(config()).await;
    let mut next = world.listen().await;
    let body = json!({"prompt": vec![9; 17], "max_tokens": 1});
    for (level, state) in [(1, "weights_offloaded"), (2, "discard_all")] {
        world.ask("/v1/completions", &body).await;
        world.hear();
        assert_eq!(world.command(&format!("/sleep?level={level}")).await, (200, String::new()));
        assert_eq!(world.get("/is_sleeping").await, r#"{"is_sleeping":true}"#);
        assert_eq!((sleep_state(&world, "awake").await, sleep_state(&world, state).await), (0.0, 1.0));
        // Requests are taken, but no step begins.
        let others = async {
            for _ in 0..20 {
                world.get("/is_sleeping").await;
            }
        };
        let mut waiting = std::pin::pin!(world.ask("/v1/completions", &body));
        tokio::select! {
            biased;
            answer = &mut waiting => panic!("{answer}"),
            () = others => (),
        }
        assert!(!world.hears_something(), "a sleeping engine announces nothing");
        assert_eq!(world.command("/wake_up").await, (200, String::new()));
        assert_eq!(world.get("/is_sleeping").await, r#"{"is_sleeping":false}"#);
        assert_eq!((sleep_state(&world, "awake").await, sleep_state(&world, state).await), (1.0, 0.0));
        assert_eq!(cached(&waiting.await), 0);
        let (message, batch) = world.hear();
        assert_eq!(message.sequence, next + 1);
        assert!(matches!(batch.events.as_slice(), [Event::Cleared, Event::Stored(_)]), "{batch:?}");
        // Not to be in the way of the next round.
        world.command("/reset_prefix_cache").await;
        next += 2;
        world.ask("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).await;
        world.hear();
        next += 1;
    }
    world.engine.stop().await;
}

#[tokio::test]
async fn a_shallow_sleep_keeps_what_is_held() {
    let world = World::start(config()).await;
    let body = json!({"prompt": vec![9; 17], "max_tokens": 1});
    world.ask("/v1/completions", &body).await;
    assert_eq!(world.command("/sleep?level=0").await.0, 200);
    assert_eq!(sleep_state(&world, "awake").await, 0.0);
    assert_eq!(world.command("/wake_up").await.0, 200);
    assert_eq!(cached(&world.ask("/v1/completions", &body).await), 16);
    let (status, text) = world.command("/sleep?level=3").await;
    assert!(status == 400 && text.contains("level"), "{text}");
    world.engine.stop().await;
}

#[tokio::test]
async fn server_info_says_how_the_engine_is_set_up() {
    let world = World::start(with_adapters(Version::V0_32)).await;
    let info: Value = serde_json::from_str(&world.get("/server_info?config_format=json").await).unwrap();
    let cache = &info["vllm_config"]["cache_config"];
    assert_eq!((&cache["block_size"], &cache["num_gpu_blocks"]), (&json!(16), &json!(8192)));
    assert_eq!(cache["prefix_caching_hash_algo"], "sha256_cbor");
    assert_eq!(info["vllm_config"]["kv_events_config"]["endpoint"], world.engine.events());
    assert_eq!(info["vllm_env"]["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"], true);
    let text: Value = serde_json::from_str(&world.get("/server_info").await).unwrap();
    assert!(text["vllm_config"].is_string());
    world.engine.stop().await;

    let world = World::start(Config { version: Version::V0_11, ..config() }).await;
    let info: Value = serde_json::from_str(&world.get("/server_info?config_format=json").await).unwrap();
    assert_eq!(info.as_object().unwrap().keys().collect::<Vec<_>>(), ["vllm_config"]);
    world.engine.stop().await;
}

#[tokio::test]
async fn without_development_mode_its_routes_are_not_there() {
    let world = World::start(Config { dev_mode: false, ..config() }).await;
    for path in ["/server_info", "/is_sleeping"] {
        assert_eq!(world.status(path).await, 404, "{path}");
    }
    for path in ["/reset_prefix_cache", "/sleep", "/wake_up"] {
        assert_eq!(world.command(path).await.0, 404, "{path}");
    }
    assert_eq!(world.status("/kv_event_sources").await, 200);
    assert_eq!(world.status("/v1/completions").await, 405);
    world.engine.stop().await;
}

#[tokio::test]
async fn an_old_reset_says_nothing() {
    let world = World::start(Config { version: Version::V0_16, ..config() }).await;
    assert_eq!(world.command("/reset_prefix_cache").await, (200, String::new()));
    world.engine.stop().await;
}

#[tokio::test]
async fn a_session_is_told_and_a_full_report_repeats_the_hit() {
    let world = World::start(config()).await;
    world.listen().await;
    let mut body = chat(&[("user", "one two three four five six seven eight nine ten")], 1);
    body["vllm_xargs"] = json!({"kv_cache_report_mode": "full", "session_id": "s-1"});
    world.ask("/v1/chat/completions", &body).await;
    let frames = world.hear_frames();
    assert!(frames[2].windows(14).any(|it| it == b"session_id\xa3s-1"), "{frames:?}");
    let answer = world.ask("/v1/chat/completions", &body).await;
    assert!(0 < cached(&answer));
    let (_, batch) = world.hear();
    assert!(matches!(&batch.events[0], Event::Stored(stored) if stored.parent.is_none()), "{batch:?}");
    world.engine.stop().await;
}
