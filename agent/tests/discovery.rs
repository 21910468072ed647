//! An agent that asks an engine where it publishes its events, and one of several data-parallel ranks.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use kvpick_proto::words::Handle;
use rig::{
    Agent,
    engine::{Api, METRICS, Publisher, wire::Wire},
    server::Server,
};
use serde_json::{Value, json};

const ENGINE: Handle = Handle(0);

/// The state of the events of an engine in the status, and why.
fn events(status: &Value, engine: usize) -> (&str, &str) {
    let it = &status["engines"][engine]["events"];
    (it["state"].as_str().unwrap(), it["reason"].as_str().unwrap_or_default())
}

/// What another process has for metrics.
fn started(at: u32) -> String {
    METRICS.replace("process_start_time_seconds 1", &format!("process_start_time_seconds {at}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_followed_to_its_new_ports() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    publisher.publish(|it| it.stored(1, 0, 5));
    let agent = Agent::of(server.address, api.address, "subscribe: discover").await;
    let absent =
        |it: &Value| events(it, 0).0 == "unavailable" && events(it, 0).1.contains("/kv_event_sources");
    let status = agent.until("the route to be missed", absent).await;
    let remedy = status["engines"][0]["events"]["remedy"].as_str().unwrap();
    assert!(remedy.contains("`subscribe` and `replay`"), "{remedy}");
    assert_eq!(status["engines"][0]["discovered"], Value::Null);

    api.publishes_at(&[&publisher]);
    // What was published before is there by the replay that was found too.
    server.holds(&publisher.wire.held(), Some(0)).await;
    publisher.subscribed();
    publisher.publish(|it| it.removed(1, 4, 1));
    server.holds(&publisher.wire.held(), Some(1)).await;
    let status = agent.status().await;
    let found = &status["engines"][0]["discovered"];
    assert_eq!(
        (&found["endpoint"], &found["replay_endpoint"], &found["topic"], &found["ranks"], &found["note"]),
        (
            &publisher.endpoint().into(),
            &publisher.replay.clone().into(),
            &"topic".into(),
            &1.into(),
            &Value::Null
        )
    );

    // Another process: other ports, and nothing of what the old one held.
    let mut next = Publisher::bind(Wire::new(2));
    api.publishes_at(&[&next]);
    api.show(&started(2));
    drop(publisher);
    next.publish(|it| it.stored(7, 0, 3));
    server.holds(&next.wire.held(), Some(0)).await;
    next.subscribed();
    next.publish(|it| it.stored(7, 3, 2));
    server.holds(&next.wire.held(), Some(1)).await;
    assert_eq!(server.view.borrow().hellos.len(), 1);
    assert!(agent.app.stop().await, "every task ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_process_is_followed_though_the_old_connection_lives() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut old = Publisher::bind(Wire::new(1));
    api.publishes_at(&[&old]);
    let _agent = Agent::of(server.address, api.address, "subscribe: discover").await;
    old.subscribed();
    old.publish(|it| it.stored(1, 0, 5));
    server.holds(&old.wire.held(), Some(0)).await;
    let mut new = Publisher::bind(Wire::new(2));
    new.publish(|it| it.stored(2, 0, 3));
    api.publishes_at(&[&new]);
    api.show(&started(2));
    server.holds(&new.wire.held(), Some(0)).await;
    old.publish(|it| it.stored(1, 5, 1));
    new.subscribed();
    new.publish(|it| it.stored(2, 3, 1));
    server.holds(&new.wire.held(), Some(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_at_a_port_that_is_no_longer_the_engines() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    api.publishes_at(&[&publisher]);
    let agent = Agent::of(server.address, api.address, "subscribe: discover").await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 5));
    server.holds(&publisher.wire.held(), Some(0)).await;
    *api.sources.lock().unwrap() = Some(json!({}));
    // Whoever has the port now is another engine; it is not gone to.
    publisher.restart();
    publisher.publish(|it| it.stored(9, 0, 2));
    let silent = |it: &Value| events(it, 0) == ("unavailable", "it says that it publishes no events");
    agent.until("the engine to say that it publishes nothing", silent).await;
    assert_eq!(agent.status().await["engines"][0]["applied"], 0);
    api.publishes_at(&[&publisher]);
    server.holds(&publisher.wire.held(), Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_does_not_send_the_agent_elsewhere() {
    let (api, server) = (Api::start().await, Server::start());
    *api.sources.lock().unwrap() =
        Some(json!({"0": {"publisher": "zmq", "endpoint": "tcp://192.0.2.1:5557", "topic": ""}}));
    let agent = Agent::of(server.address, api.address, "subscribe: discover").await;
    let refused = |it: &Value| events(it, 0).1.contains("not its own host");
    agent.until("the refusal", refused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_behind_one_address_are_found_and_kept_apart() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publishers = [0, 1].map(|rank: u8| Publisher::bind(Wire::new(rank.into()).of_rank(rank)));
    let [zero, one] = &publishers;
    api.publishes_at(&[zero, one]);
    let agent = Agent::of(server.address, api.address, "subscribe: discover, ranks: 3").await;
    publishers.iter().for_each(Publisher::subscribed);
    publishers[0].publish(|it| it.stored(1, 0, 5));
    publishers[1].publish(|it| it.stored(2, 0, 2));
    let held = |it: &Value| {
        let blocks = |rank: usize| it["engines"][rank]["blocks"].as_u64();
        (blocks(0), blocks(1)) == (Some(5), Some(2)) && events(it, 2).1.contains("nothing of rank 2")
    };
    let status = agent.until("the blocks of two ranks, and no third", held).await;
    assert_eq!(
        (&status["engines"][1]["address"], &status["engines"][1]["rank"]),
        (&api.address.to_string().into(), &1.into())
    );
    let note = status["engines"][0]["discovered"]["note"].as_str().unwrap();
    assert!(note.contains("has 2 ranks and 3"), "{note}");
    server.until("all of them", |view| view.replicas.len() == 3).await;
    assert!(server.view.borrow().replicas[&ENGINE].description.rank_by_header);

    // Who mixes them up is not believed: the replay upon the connection shows it.
    let [zero, one] = &publishers;
    api.publishes_at(&[one, zero]);
    api.show(&started(2));
    let strays = |it: &Value| events(it, 0).1.contains("of rank 1");
    let status = agent.until("the mistake to be seen", strays).await;
    assert_eq!(status["engines"][0]["blocks"], 0, "of the new process nothing is known");
    let metrics = agent.get("/metrics").await;
    assert!(metrics.contains("engine_stray_batches_total"), "{metrics}");
}
