//! Every fault of the engine, as others see it: over HTTP, over TCP, and in its events.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod http;
mod process;
#[path = "../engine_process/world.rs"]
#[expect(dead_code, reason = "these tests need a part of it")]
mod world;

use futures::StreamExt as _;
use kvpick_agent_core::decode::{Batch, DecodeError, Message, Replayed};
use kvpick_lab::engine::Config;
use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT, ExtraKeyShape, Hasher};
use serde_json::{Value, json};

use self::world::{PATIENCE, World, cached, config, long_text};

/// Announces a batch: a prompt of two blocks that nobody sent before.
async fn announce(world: &World, number: u32) {
    world.ask("/v1/completions", &json!({"prompt": vec![1000 + number; 33], "max_tokens": 1})).await;
}

fn sequences(answers: Vec<Vec<Vec<u8>>>) -> Vec<Option<u64>> {
    let of = |frames| match Replayed::from_frames(frames).unwrap() {
        Replayed::Message(message) => Some(message.sequence),
        Replayed::End => None,
    };
    answers.into_iter().map(of).collect()
}

#[tokio::test]
async fn drop_events_leaves_a_gap_that_a_replay_fills() {
    let world = World::start(config()).await;
    let next = world.listen().await;
    world.fault(&json!({"fault": "drop-events", "count": 2})).await;
    for number in 0..3 {
        announce(&world, number).await;
    }
    assert_eq!(world.hear().0.sequence, next + 2, "two batches were not published");
    let replayed = sequences(world.replay(next));
    assert_eq!(replayed, [Some(next), Some(next + 1), Some(next + 2), None]);
    world.engine.stop().await;
}

#[tokio::test]
async fn gap_leaves_one_that_no_replay_fills() {
    let world = World::start(config()).await;
    let next = world.listen().await;
    world.fault(&json!({"fault": "gap", "count": 2})).await;
    for number in 0..3 {
        announce(&world, number).await;
    }
    assert_eq!(world.hear().0.sequence, next + 2);
    assert_eq!(sequences(world.replay(0)), [Some(next + 2), None], "what was before is forgotten too");
    world.engine.stop().await;
}

#[tokio::test]
async fn gap_also_opens_when_more_is_published_than_is_kept() {
    let mut config = config();
    config.endpoints.buffer_steps = 2;
    let world = World::start(config).await;
    let next = world.listen().await;
    for number in 0..3 {
        announce(&world, number).await;
    }
    assert_eq!(sequences(world.replay(next)), [Some(next + 1), Some(next + 2), None]);
    world.engine.stop().await;
}

#[tokio::test]
async fn hang_events_holds_them_back_until_it_heals() {
    let world = World::start(config()).await;
    let next = world.listen().await;
    world.fault(&json!({"fault": "hang", "what": "events"})).await;
    // The engine itself goes on.
    for number in 0..3 {
        announce(&world, number).await;
    }
    assert!(!world.hears_something());
    assert_eq!(world.metric("lab:event_batches_total").await, (next + 3) as f64, "nothing was lost");
    world.fault(&json!({"fault": "heal"})).await;
    for number in 0..3 {
        assert_eq!(world.hear().0.sequence, next + number);
    }
    world.engine.stop().await;
}

#[tokio::test]
async fn hang_events_does_not_keep_an_engine_from_stopping() {
    let world = World::start(config()).await;
    world.fault(&json!({"fault": "hang", "what": "events"})).await;
    announce(&world, 0).await;
    tokio::time::timeout(PATIENCE, world.engine.stop()).await.expect("it stops");
}

#[tokio::test]
async fn wrong_seed_names_the_same_prompt_otherwise() {
    let world = World::start(config()).await;
    world.listen().await;
    let prompt = vec![7u32; 17];
    let body = json!({"prompt": prompt, "max_tokens": 1});
    let key = |root| {
        let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, root, ExtraKeyShape::Tagged);
        hasher.chain(16.try_into().unwrap(), &prompt, |_| Vec::new())
    };
    world.ask("/v1/completions", &body).await;
    assert_eq!(world.hear_store().keys, key(DEFAULT_ROOT));
    world.fault(&json!({"fault": "wrong-seed", "root": "42"})).await;
    assert_eq!(cached(&world.ask("/v1/completions", &body).await), 0);
    assert_eq!(world.hear_store().keys, key("42"));
    world.engine.stop().await;
}

#[tokio::test]
async fn garbage_frames_are_no_messages_and_use_no_number() {
    let world = World::start(config()).await;
    let next = world.listen().await;
    world.fault(&json!({"fault": "garbage", "kind": "frames"})).await;
    let errors: Vec<DecodeError> =
        (0..4).map(|_| Message::live(world.hear_frames()).expect_err("no message")).collect();
    let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(text.iter().collect::<std::collections::BTreeSet<_>>().len() >= 2, "{text:?}");
    announce(&world, 0).await;
    assert_eq!(world.hear().0.sequence, next);
    world.engine.stop().await;
}

#[tokio::test]
async fn garbage_payload_and_length_are_numbered_and_can_not_be_read() {
    let world = World::start(config()).await;
    let next = world.listen().await;
    world.fault(&json!({"fault": "garbage", "kind": "payload"})).await;
    world.fault(&json!({"fault": "garbage", "kind": "length"})).await;
    for number in 0..3 {
        let message = Message::live(world.hear_frames()).unwrap();
        assert_eq!(message.sequence, next + number);
        Batch::decode(&message.payload).expect_err("no batch");
    }
    announce(&world, 0).await;
    assert_eq!(world.hear().0.sequence, next + 3);
    // A replay says what was said.
    assert_eq!(world.replay(next).len(), 5);
    world.engine.stop().await;
}

#[tokio::test]
async fn restart_begins_again_on_the_same_ports_with_nothing_held() {
    let world = World::start(config()).await;
    world.listen().await;
    let (replay, started) = (world.engine.replay().unwrap().to_owned(), start_time(&world).await);
    let body = json!({"prompt": long_text(40), "max_tokens": 1});
    world.ask("/v1/completions", &body).await;
    world.hear();
    let mut open = json!({"prompt": "hello", "max_tokens": 30_000, "stream": true});
    let mut stream = stream(&world, &open).await;
    stream.next().await.unwrap().unwrap();
    world.fault(&json!({"fault": "restart"})).await;
    let last = stream.fold(None, async |_, it| Some(it.is_ok())).await;
    assert_eq!(last, Some(false), "open answers break off");

    assert_eq!(world.metric("lab:event_batches_total").await, 0.0);
    assert!(started < start_time(&world).await);
    assert_eq!(cached(&world.ask("/v1/completions", &body).await), 0, "the cache is empty");
    assert_eq!(sequences(world.replay(0)), [Some(0), None], "the new engine has published one batch");
    assert_eq!(world.engine.replay(), Some(replay.as_str()));
    open["max_tokens"] = json!(1);
    assert!(self::stream(&world, &open).await.all(async |it| it.is_ok()).await);
    // Its subscriber hears it again, from 0 as far as it was connected by then.
    let mut number = 1;
    while !world.hears_something() {
        announce(&world, number).await;
        number += 1;
        assert!(number < 1000, "the new engine is not heard");
    }
    assert!(world.hear().0.sequence < u64::from(number));
    world.engine.stop().await;
}

async fn stream(
    world: &World,
    body: &Value,
) -> impl futures::Stream<Item = reqwest::Result<bytes::Bytes>> + Unpin + use<> {
    let response = world.http.post(world.url("/v1/completions")).json(body).send().await.unwrap();
    response.bytes_stream().boxed()
}

async fn start_time(world: &World) -> f64 {
    let text = world.get("/metrics").await;
    let line = text.lines().find(|line| line.starts_with("process_start_time_seconds")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn die_of_one_rank_leaves_the_others() {
    let world = World::start(Config { ranks: 2, ..config() }).await;
    let fault = json!({"fault": "die"});
    let (status, answer) = world.post("/lab/faults?rank=2", &fault).await;
    assert_eq!(status, 400, "{answer}");
    let (status, _) = world.post("/lab/faults?rank=1", &fault).await;
    assert_eq!(status, 200);
    let dies = async { while world.status("/health").await == 200 {} };
    tokio::time::timeout(PATIENCE, dies).await.expect("a dead rank shows in health");
    let ask = |rank: &'static str| {
        let body: Value = json!({"prompt": "hello", "max_tokens": 1});
        world.http.post(world.url("/v1/completions")).header("X-data-parallel-rank", rank).json(&body).send()
    };
    assert_eq!(ask("0").await.unwrap().status(), 200);
    assert_eq!(ask("1").await.unwrap().status(), 503);
    world.engine.stop().await;
}

#[tokio::test]
async fn heal_takes_back_what_is_still_to_come() {
    let world = World::start(config()).await;
    let next = world.listen().await;
    for fault in [
        json!({"fault": "fail", "count": 9}),
        json!({"fault": "reset", "chunks": 0, "count": 9}),
        json!({"fault": "gap", "count": 9}),
        json!({"fault": "slow-steps", "factor": 1e9}),
        json!({"fault": "slow-streams", "millis": 3_600_000}),
        json!({"fault": "hang"}),
        json!({"fault": "heal"}),
    ] {
        world.fault(&fault).await;
    }
    let body = json!({"prompt": vec![9; 17], "max_tokens": 1, "stream": true});
    assert!(stream(&world, &body).await.all(async |it| it.is_ok()).await);
    assert_eq!(world.hear().0.sequence, next);
    world.engine.stop().await;
}
