//! A whole engine in this process: HTTP in front, ZMQ behind.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod control;
mod ranks;
mod versions;
#[expect(dead_code, reason = "tests of faults need more of it")]
mod world;

use std::collections::BTreeMap;

use futures::StreamExt as _;
use kvpick_agent_core::decode::{Event, Replayed};
use kvpick_lab::{
    engine::{Config, Engine, version::Version},
    load::{client::Client, report::Report, run, workload::Workload},
};
use kvpick_proto::naming::{Algorithm, BlockKey, DEFAULT_ROOT, ExtraKeyShape, Hasher};
use serde_json::{Value, json};

use self::world::{MODEL, PATIENCE, World, cached, chat, config, long_text};

#[tokio::test]
async fn a_chat_is_answered_announced_and_found_again_on_the_next_turn() {
    let world = World::start(config()).await;
    let mut sequence = world.listen().await;
    let system = long_text(100);
    let answer =
        world.ask("/v1/chat/completions", &chat(&[("system", &system), ("user", "hello")], 40)).await;
    assert_eq!((answer["model"].as_str(), answer["object"].as_str()), (Some(MODEL), Some("chat.completion")));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!((answer["usage"]["completion_tokens"].as_u64(), cached(&answer)), (Some(40), 0));
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let said = answer["choices"][0]["message"]["content"].as_str().unwrap();

    // The next turn finds the first prompt and the answer in it, but for the answer's last token.
    let next = [("system", system.as_str()), ("user", "hello"), ("assistant", said), ("user", "and then?")];
    let body = chat(&next, 1);
    let answer = world.ask("/v1/chat/completions", &body).await;
    assert_eq!(cached(&answer), (prompt + 39) / 16 * 16);

    // Whoever tokenizes and hashes that prompt finds the blocks that were announced.
    let tokenized = world.ask("/tokenize", &body).await;
    assert_eq!(tokenized["count"], answer["usage"]["prompt_tokens"]);
    let tokens: Vec<u32> = serde_json::from_value(tokenized["tokens"].clone()).unwrap();
    let mut hasher = Hasher::with_root(Algorithm::Sha256Cbor, DEFAULT_ROOT, ExtraKeyShape::Tagged);
    let chain = hasher.chain(16.try_into().unwrap(), &tokens, |_| Vec::new());
    let mut heard: Vec<BlockKey> = Vec::new();
    while heard.len() < chain.len() {
        let (message, batch) = world.hear();
        assert_eq!(message.sequence, sequence);
        sequence += 1;
        for event in batch.events {
            match event {
                Event::Stored(stored) => heard.extend(stored.keys),
                other => panic!("nothing but stores is due, got {other:?}"),
            }
        }
    }
    assert_eq!(heard, chain);
    world.engine.stop().await;
}

#[tokio::test]
async fn a_stream_says_role_text_reason_usage_and_done() {
    let world = World::start(config()).await;
    let mut body = chat(&[("user", "hello")], 3);
    let whole = world.ask("/v1/chat/completions", &body).await;
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let text = world.http.post(world.url("/v1/chat/completions")).json(&body).send().await.unwrap();
    assert!(text.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let text = text.text().await.unwrap();
    let events: Vec<&str> =
        text.split_terminator("\n\n").map(|it| it.strip_prefix("data: ").unwrap()).collect();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert_eq!(chunks.len(), 1 + 3 + 1 + 1, "{text}");
    assert_eq!(deltas[0]["role"], "assistant");
    let said: String = deltas[1..4].iter().map(|delta| delta["content"].as_str().unwrap()).collect();
    assert_eq!(said, whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(chunks[4]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[5]["usage"]["completion_tokens"], 3);

    body["stream_options"] = json!(null);
    let text = world.http.post(world.url("/v1/chat/completions")).json(&body).send().await.unwrap();
    assert!(!text.text().await.unwrap().contains("usage"));
    world.engine.stop().await;
}

#[tokio::test]
async fn completions_take_lists_of_prompts_and_several_answers_to_each() {
    let world = World::start(config()).await;
    let ids: Vec<u32> = (1000..1040).collect();
    let body = json!({"model": "model-a-alias", "prompt": [ids, [5, 6, 7]], "n": 2, "max_tokens": 2});
    let answer = world.ask("/v1/completions", &body).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|it| it["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    let usage = &answer["usage"];
    assert_eq!((usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()), (Some(43), Some(8)));

    // Tokens and text come out as they went in; the default length is 16.
    let text = json!({"prompt": "one two three"});
    let answer = world.ask("/v1/completions", &text).await;
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let tokens = world.ask("/tokenize", &text).await;
    assert_eq!(world.ask("/detokenize", &tokens).await["prompt"], "one two three");
    world.engine.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_refused_in_the_form_of_the_api() {
    let world = World::start(config()).await;
    let chat_path = "/v1/chat/completions";
    let too_long = json!({"prompt": vec![1; 100], "max_tokens": 1_000_000});
    let cases = [
        (chat_path, json!({"model": MODEL}), 400, "messages"),
        (chat_path, json!({"model": MODEL, "messages": "hello"}), 400, "messages"),
        (chat_path, json!({"model": "other", "messages": [{"role": "user", "content": "a"}]}), 404, "other"),
        (chat_path, chat(&[("user", "a")], 0), 400, "max_tokens"),
        ("/v1/completions", json!({"model": MODEL}), 400, "prompt"),
        ("/v1/completions", too_long, 400, "maximum context length"),
        ("/v1/completions", json!({"prompt": ["a", "b"], "n": 1000}), 400, "1024"),
        ("/tokenize", json!({"prompt": 5}), 400, "prompt"),
        ("/detokenize", json!({"tokens": ["a"]}), 400, "tokens"),
    ];
    for (path, body, want, word) in cases {
        let (status, answer) = world.post(path, &body).await;
        assert_eq!(status, want, "{path} {body}: {answer}");
        let error = &answer["error"];
        assert!(error["message"].as_str().unwrap().contains(word), "{path} {body}: {answer}");
        assert_eq!(error["code"], want);
    }
    let response = world.http.post(world.url(chat_path)).body("not JSON").send().await.unwrap();
    assert_eq!(response.status(), 400);
    world.engine.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let world = World::start(config()).await;
    let mut body = chat(&[("user", "hello")], 30_000);
    for stream in [true, false] {
        body["stream"] = json!(stream);
        let (http, url, sent) = (world.http.clone(), world.url("/v1/chat/completions"), body.clone());
        let client = tokio::spawn(async move {
            let response = http.post(url).json(&sent).send().await.unwrap();
            response.bytes_stream().for_each(|_| async {}).await;
        });
        world.until_metric("vllm:num_requests_running", 1.0).await;
        client.abort();
        world.until_metric("vllm:num_requests_running", 0.0).await;
    }
    world.engine.stop().await;
}

#[tokio::test]
async fn an_engine_that_stops_breaks_its_streams_off() {
    let world = World::start(config()).await;
    let mut body = chat(&[("user", "hello")], 30_000);
    body["stream"] = json!(true);
    let response = world.http.post(world.url("/v1/chat/completions")).json(&body).send().await.unwrap();
    let mut stream = response.bytes_stream();
    assert!(stream.next().await.unwrap().is_ok());
    let reader = tokio::spawn(async move { stream.map(|it| it.is_ok()).collect::<Vec<bool>>().await });
    tokio::time::timeout(PATIENCE, world.engine.stop()).await.expect("an engine stops when told to");
    let seen = reader.await.unwrap();
    assert_eq!(seen.last(), Some(&false), "the client is told that the answer is not whole");
}

#[tokio::test]
async fn a_reset_is_announced_late_and_replay_gives_all_batches_again() {
    let world = World::start(config()).await;
    let next = world.listen().await;
    let body = json!({"prompt": long_text(40), "max_tokens": 1});
    world.ask("/v1/completions", &body).await;
    let first = world.hear();
    assert_eq!(world.ask("/reset_prefix_cache", &json!({})).await["success"], true);
    let answer = world.ask("/v1/completions", &body).await;
    assert_eq!(cached(&answer), 0);
    let second = world.hear();
    assert_eq!((first.0.sequence, second.0.sequence), (next, next + 1));
    assert_eq!((&second.1.events[0], second.1.events.len()), (&Event::Cleared, 2));

    let answers = world.replay(next);
    assert!(answers.iter().all(|frames| frames.len() == 4 && frames[0].is_empty()), "{answers:?}");
    assert_eq!((answers[0][1].as_slice(), answers[2][1].as_slice()), (b"kv@a@m".as_slice(), b"".as_slice()));
    let replayed: Vec<Replayed> =
        answers.into_iter().map(|frames| Replayed::from_frames(frames).unwrap()).collect();
    let (live, end) = ([first.0, second.0].map(Replayed::Message), Replayed::End);
    assert_eq!(replayed, [live[0].clone(), live[1].clone(), end]);
    assert_eq!(world.replay(0).len() as u64, next + 3);
    assert_eq!(world.replay(next + 2).len(), 1);
    world.engine.stop().await;
}

#[tokio::test]
async fn an_array_engine_answers_a_replay_as_its_version_did() {
    let world = World::start(Config { version: Version::V0_23, ..config() }).await;
    let next = world.listen().await;
    world.ask("/v1/completions", &json!({"prompt": long_text(40), "max_tokens": 1})).await;
    let (live, _) = world.hear();
    let answers = world.replay(next);
    assert_eq!(answers.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    assert_eq!(Replayed::from_frames(answers[0].clone()).unwrap(), Replayed::Message(live));
    assert!(world.get("/version").await.contains("0.23.0"));
    world.engine.stop().await;
}

#[tokio::test]
async fn it_shows_what_an_agent_reads() {
    let world = World::start(config()).await;
    let body = json!({"prompt": long_text(40), "max_tokens": 1});
    for _ in 0..2 {
        world.ask("/v1/completions", &body).await;
    }
    assert_eq!(world.metric("vllm:prefix_cache_queries_total").await, 2.0 * 40.0);
    assert_eq!(world.metric("vllm:prefix_cache_hits_total").await, 32.0);
    assert_eq!(world.metric("vllm:time_to_first_token_seconds_count").await, 2.0);
    assert_eq!(world.metric("vllm:num_requests_waiting").await, 0.0);
    assert_eq!(world.metric("vllm:kv_cache_usage_perc").await, 0.0);
    let text = world.get("/metrics").await;
    for part in [
        "block_size=\"16\"",
        "num_gpu_blocks=\"8192\"",
        "prefix_caching_hash_algo=\"sha256_cbor\"",
        "model_name=\"model-a\"",
        "engine=\"0\"",
        "\nprocess_start_time_seconds ",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let models: Value = serde_json::from_str(&world.get("/v1/models").await).unwrap();
    let names: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(names, [MODEL, "model-a-alias"]);
    assert_eq!(world.get("/version").await, r#"{"version":"0.32.0"}"#);
    assert_eq!(world.get("/health").await, "");
    let addresses: BTreeMap<String, _> = world.engine.addresses();
    assert_eq!(addresses.keys().collect::<Vec<_>>(), ["events", "http", "replay"]);
    assert!(addresses.values().all(|address| address.port() != 0));
    world.engine.stop().await;
}

#[tokio::test]
async fn a_workload_is_served_without_failure_and_hits_what_its_turns_share() {
    let world = World::start(config()).await;
    let workload = Workload {
        model: MODEL.to_owned(),
        groups: 2,
        system_tokens: 200,
        sessions: 6,
        turns: 3,
        question_tokens: 20,
        output_tokens: 10,
        think_ms: 1,
        seed: 5,
    };
    let client = Client::new(&world.url(""), PATIENCE).unwrap();
    let (records, duration) = run::run(&client, &workload, 3, |_| ()).await;
    let report = Report::of(&records, duration);
    assert_eq!((report.requests, report.failures), (18, 0), "{report:?}");
    assert_eq!(report.completion_tokens, 180);
    assert_eq!(report.requests_per_engine, BTreeMap::from([(world.engine.http().to_string(), 18)]));
    // All but the two first requests share at least a system prompt of more than 192 tokens.
    assert!(16 * 192 <= report.cached_tokens && report.hit_rate < 1.0, "{report:?}");
    assert!(0.0 < report.ttft_p50_ms && report.ttft_p50_ms <= report.ttft_p99_ms);
    // Later turns find the answers of earlier ones as well.
    let last_turns = records.iter().filter(|record| record.turn == 2);
    for record in last_turns {
        assert!(record.prompt_tokens < record.cached_tokens + 64, "{record:?}");
    }
    world.engine.stop().await;
}

#[tokio::test]
async fn settings_that_make_no_engine_are_named() {
    let start = |config| async { Engine::start(config).await.unwrap_err().to_string() };
    let error = start(Config { num_blocks: 1, ..config() }).await;
    assert!(error.contains("--num-blocks"), "{error}");
    let error = start(Config { num_blocks: 10, max_model_len: Some(1000), ..config() }).await;
    assert!(error.contains("--max-model-len") && error.contains("144"), "{error}");
    let error = start(Config { tokenizer: "/nowhere".into(), ..config() }).await;
    assert!(error.contains("/nowhere/tokenizer.json") && error.contains("--tokenizer"), "{error}");
    let mut wrong = config();
    wrong.endpoints.events = "nonsense".to_owned();
    let error = start(wrong).await;
    assert!(error.contains("nonsense") && error.contains("tcp://"), "{error}");
}
