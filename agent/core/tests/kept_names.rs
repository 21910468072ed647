//! What is written down of an engine whose blocks were given names, and of one that went to sleep.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod private;

use std::time::Instant;

use kvpick_agent_core::{
    decode::Stored,
    engine::{Config, Engine},
    load::Metrics,
};
use kvpick_proto::words::ReplicaName;
use private::stored;

fn engine() -> Engine {
    let name = ReplicaName { address: "10.0.0.1:8000".parse().unwrap(), rank: 0 };
    let mut engine = Engine::new(Config { replay: true, ..Config::new(name) }, Instant::now(), 0);
    // Nothing was published yet.
    engine.on_connected(Instant::now());
    let id = engine.take_replay_request().unwrap().id;
    engine.on_replay(id, vec![vec![], vec![], vec![0xff; 8], vec![]], Instant::now(), 0).unwrap();
    engine
}

fn publish(engine: &mut Engine, number: u64, it: &Stored) {
    let mut payload = b"\x93\x00\x91\x96\xabBlockStored".to_vec();
    rmp::encode::write_array_len(&mut payload, it.keys.len() as u32).unwrap();
    for key in &it.keys {
        rmp::encode::write_uint(&mut payload, key.as_u64()).unwrap();
    }
    rmp::encode::write_nil(&mut payload).unwrap();
    rmp::encode::write_array_len(&mut payload, it.tokens.len() as u32).unwrap();
    for token in &it.tokens {
        rmp::encode::write_uint(&mut payload, u64::from(*token)).unwrap();
    }
    rmp::encode::write_uint(&mut payload, it.block_size.into()).unwrap();
    payload.extend_from_slice(b"\xc0\x00");
    engine.on_frames(vec![vec![], number.to_be_bytes().to_vec(), payload], Instant::now(), 0).unwrap();
}

#[test]
fn names_that_were_given_are_never_taken_for_the_engines_own() {
    let mut engine = engine();
    for number in 0..8 {
        publish(&mut engine, number, &stored(&[number as u8, 1], 0));
        assert_eq!(engine.snapshot(Vec::new()).is_some(), number < 7, "at the eighth misfit all are renamed");
    }
    assert_eq!((engine.mirror().len(), engine.position(), engine.revision()), (16, None, None));
}

#[test]
fn an_engine_that_went_to_sleep_is_written_down_anew() {
    let mut engine = engine();
    publish(&mut engine, 0, &stored(&[1, 1], 0));
    let before = engine.revision();
    assert!(before.is_some() && engine.revision() == before);
    let text = "process_start_time_seconds 1\nvllm:engine_sleep_state{sleep_state=\"awake\"} 0\n";
    let now = Instant::now();
    engine.on_metrics(Metrics::parse(text, 0), now, now, 0);
    assert!(engine.revision().is_some() && engine.revision() != before);
    assert_eq!(engine.snapshot(Vec::new()).unwrap().blocks, []);
}
