//! A whole agent among engines, strangers and servers that do what they should not.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use std::{
    io::Read as _,
    net::{Shutdown, TcpStream},
    sync::atomic::Ordering,
};

use kvpick_proto::words::Handle;
use rig::{
    Agent,
    engine::{Api, Publisher, wire::Wire},
    server::{Server, View},
    subscribe,
    twins::Twins,
};

const ENGINE: Handle = Handle(0);

#[tokio::test(flavor = "multi_thread")]
async fn an_oversize_frame_does_not_end_the_events() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    let _agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 3));
    server.holds(&publisher.wire.held(), Some(0)).await;
    // libzmq drops the connection for it, and makes no other by itself.
    publisher.send(&[Vec::new(), vec![0; 8], vec![0; 17 << 20]]);
    publisher.publish(|it| it.stored(2, 0, 3));
    server.holds(&publisher.wire.held(), Some(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_at_the_port_is_no_loss_of_the_engines_connection() {
    let (api, mut server) = (Api::start().await, Server::start());
    // Without replay and start time a lost connection costs everything.
    api.show("vllm:num_requests_running 0\n");
    let agent = Agent::of(server.address, api.address, "listen: 'tcp://127.0.0.1:0'").await;
    let listens = agent.app.addresses[&format!("events/{}", api.address)];
    let mut publisher = Publisher::connect(format!("tcp://{listens}"), Wire::new(1));
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 5));
    server.holds(&publisher.wire.held(), Some(0)).await;
    let mut stranger = TcpStream::connect(listens).unwrap();
    // It was accepted, and its end is noticed before the next batch.
    stranger.read_exact(&mut [0]).unwrap();
    stranger.shutdown(Shutdown::Write).unwrap();
    stranger.read_to_end(&mut Vec::new()).unwrap();
    publisher.publish(|it| it.stored(2, 0, 2));
    server.holds(&publisher.wire.held(), Some(1)).await;
    let metrics = agent.get("/metrics").await;
    assert!(metrics.contains("why=\"unproven\"} 0"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_out_of_all_bounds_end_nothing() {
    let (api, mut server) = (Api::start().await, Server::start());
    let counters = ["num_requests_running", "num_requests_waiting", "prefix_cache_queries_total"];
    let huge = |name: &str| format!("vllm:{name}{{a=\"1\"}} 1e300\nvllm:{name}{{a=\"2\"}} 1e300\n");
    api.show(&counters.map(huge).concat());
    let agent = Agent::of(server.address, api.address, "events: off").await;
    let load = |view: &View| view.replicas.get(&ENGINE).and_then(|it| it.load.clone());
    server.until("all that can be", |view| load(view).is_some_and(|it| it.running == u32::MAX)).await;
    api.show("vllm:num_requests_running 3\n");
    server.until("another sample", |view| load(view).is_some_and(|it| it.running == 3)).await;
    assert!(agent.app.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_stops_halfway_leaves_no_phantoms() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    publisher.publish(|it| it.stored(1, 0, 3));
    publisher.publish(|it| it.removed(1, 0, 3));
    publisher.answers.store(1, Ordering::Relaxed);
    let agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    let is_partial = |it: &serde_json::Value| {
        it["engines"][0]["events"]["reason"].as_str().is_some_and(|it| it.contains("nothing new"))
    };
    let status = agent.until("the failure", is_partial).await;
    assert_eq!(
        (&status["engines"][0]["blocks"], &status["engines"][0]["complete"]),
        (&0.into(), &false.into())
    );
    // And it asks again.
    publisher.answers.store(usize::MAX, Ordering::Relaxed);
    server.holds(&publisher.wire.held(), Some(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_at_two_addresses_gets_one_stream() {
    let (api, twins) = (Api::start().await, Twins::start().await);
    let [one, two] = twins.addresses;
    let yaml = format!(
        "node: n\nservers: ['{one}', '{two}']\nadmin: 127.0.0.1:0\nengines:\n  - {{address: '{}', events: off}}\n",
        api.address
    );
    let agent = Agent::start(&yaml).await;
    let is_settled = |it: &serde_json::Value| {
        let mut states: Vec<_> =
            it["servers"].as_array().unwrap().iter().map(|it| it["state"].as_str().unwrap()).collect();
        states.sort_unstable();
        states == ["connected", "the same server as at another address"]
    };
    agent.until("one stream and one that waits", is_settled).await;
    assert!(twins.welcomes() <= 3, "{}", twins.welcomes());
}
