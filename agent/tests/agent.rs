//! A whole agent between a real ZMQ publisher, an HTTP API, and a gRPC server.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use kvpick_proto::words::{Completeness, EngineStatus, Events, Handle, InFlight, KeyState, ServerMessage};
use rig::{
    Agent,
    engine::{Api, Publisher, wire::Wire},
    server::{Manner, Server},
    subscribe,
};

const ENGINE: Handle = Handle(0);

#[tokio::test(flavor = "multi_thread")]
async fn hello_describe_copy_and_changes() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    // Before the agent is there: only replay has these.
    publisher.publish(|it| it.stored(1, 0, 5));
    publisher.publish(|it| it.removed(1, 4, 1));
    let agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    server.holds(&publisher.wire.held(), Some(1)).await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 4, 3));
    publisher.publish(|it| it.stored(2, 0, 2));
    server.holds(&publisher.wire.held(), Some(3)).await;
    {
        let view = server.view.borrow();
        assert_eq!((view.hellos.len(), view.hellos[0].node.as_str()), (1, "n"));
        let replica = &view.replicas[&ENGINE];
        assert_eq!(replica.copies, 1);
        let it = &replica.description;
        assert_eq!((it.name.address, it.name.rank), (api.address, 0));
        assert_eq!(it.completeness, Completeness::Complete);
        assert_eq!((&it.events, it.status), (&Events::Live, EngineStatus::Up));
        assert_eq!(it.models, ["m"]);
        assert_eq!((it.adapters[0].name.as_str(), it.adapters[0].path.as_str()), ("ad", "/l/ad"));
        assert_eq!((it.engine_version.as_str(), it.max_model_len), ("0.32.0", 1024));
        assert_eq!(it.incarnation, "started-1");
        assert!(!it.rank_by_header);
        // These hashes are invented, which the agent can't know yet.
        assert!(matches!(it.key_kinds[0].state, KeyState::Unverified { .. }));
    }
    assert!(agent.app.stop().await, "every task ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_may_connect_to_the_agent() {
    let (api, mut server) = (Api::start().await, Server::start());
    let agent = Agent::of(server.address, api.address, "listen: 'tcp://127.0.0.1:0'").await;
    let listens = agent.app.addresses[&format!("events/{}", api.address)];
    assert_ne!(listens.port(), 0);
    let mut publisher = Publisher::connect(format!("tcp://{listens}"), Wire::new(1).in_bytes());
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 5));
    publisher.publish(|it| it.removed(1, 3, 2));
    server.holds(&publisher.wire.held(), Some(1)).await;
    let complete = server.view.borrow().replicas[&ENGINE].description.completeness;
    assert_eq!(complete, Completeness::Complete, "heard from its first batch on");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_connects_finds_the_agent_again_after_its_restart() {
    let (api, mut server) = (Api::start().await, Server::start());
    let agent = Agent::of(server.address, api.address, "listen: 'tcp://127.0.0.1:0'").await;
    let listens = agent.app.addresses[&format!("events/{}", api.address)];
    for life in 1..=3 {
        // Its batches are from that second on, which is after its process has started.
        let mut publisher = Publisher::connect(format!("tcp://{listens}"), Wire::new(1_000 * life));
        publisher.subscribed();
        publisher.publish(|it| it.stored(life, 0, 2 + life));
        server.holds(&publisher.wire.held(), Some(0)).await;
        let next = 1_000 * life + 500;
        api.show(&format!("process_start_time_seconds {next}\nvllm:num_requests_running 0\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_gets_a_full_copy() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    publisher.publish(|it| it.stored(1, 0, 9_000));
    let _agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    publisher.subscribed();
    server.holds(&publisher.wire.held(), Some(0)).await;
    let (address, epoch) = (server.address, server.view.borrow().hellos[0].epoch);
    drop(server);
    publisher.publish(|it| it.removed(1, 8_000, 500));
    let mut server = Server::at(address);
    server.holds(&publisher.wire.held(), Some(1)).await;
    let view = server.view.borrow();
    assert_eq!(view.replicas[&ENGINE].copies, 1);
    assert!(view.hellos[0].epoch > epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_fold_while_a_server_is_slow() {
    const ROUNDS: u64 = 8;
    const BLOCKS: u64 = 4_000;
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    let agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(100, 0, 2 * BLOCKS));
    server.holds(&publisher.wire.held(), Some(0)).await;
    let before = server.view.borrow().changed_keys;
    server.manner.send_replace(Manner { reads_nothing: true, ..Manner::default() });
    for round in 0..ROUNDS {
        for is_store in [true, false] {
            publisher.publish(|it| {
                if is_store { it.stored(round, 0, BLOCKS) } else { it.removed(round, 0, BLOCKS) }
            });
            let applied = publisher.wire.last();
            let is = |status: &serde_json::Value| status["engines"][0]["applied"].as_u64() == applied;
            agent.until("the batch to be announced", is).await;
        }
    }
    server.manner.send_replace(Manner::default());
    server.holds(&publisher.wire.held(), publisher.wire.last()).await;
    let keys = server.view.borrow().changed_keys - before;
    let published = 2 * ROUNDS * BLOCKS;
    assert!((keys as u64) < published / 2, "{keys} of {published} were sent");
    assert_eq!(server.view.borrow().hellos.len(), 1, "it was one stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_until_the_server_asks_for_a_copy() {
    let (api, mut server) = (Api::start().await, Server::start());
    server.manner.send_replace(Manner { refuses: true, ..Manner::default() });
    let mut publisher = Publisher::bind(Wire::new(1));
    publisher.publish(|it| it.stored(1, 0, 3));
    let agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    let is_refused = |status: &serde_json::Value| {
        let replica = &status["servers"][0]["replicas"][0];
        replica["state"] == "refused" && replica["reason"] == "not yours"
    };
    agent.until("the refusal", is_refused).await;
    server.say(ServerMessage::Heartbeat).await;
    assert!(
        server.view.borrow().replicas[&ENGINE].load.is_none(),
        "nothing is said of a replica that is refused"
    );
    server.manner.send_replace(Manner::default());
    server.say(ServerMessage::CopyRequest(ENGINE)).await;
    server.holds(&publisher.wire.held(), Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_fills_a_gap() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    let agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 3));
    server.holds(&publisher.wire.held(), Some(0)).await;
    publisher.lose(|it| it.removed(1, 2, 1));
    publisher.lose(|it| it.stored(2, 0, 3));
    publisher.publish(|it| it.stored(3, 0, 3));
    server.holds(&publisher.wire.held(), Some(3)).await;
    assert_eq!(server.view.borrow().replicas[&ENGINE].description.completeness, Completeness::Complete);
    let metrics = agent.get("/metrics").await;
    assert!(
        metrics.contains("kvpick_agent_engine_resets_total") && !metrics.contains("why=\"lost\"} 1"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_last_message_hid_is_found_without_another() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    let _agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    publisher.subscribed();
    // As if it had been published before the subscription arrived, and the engine is idle from then on.
    publisher.lose(|it| it.stored(1, 0, 3));
    server.holds(&publisher.wire.held(), Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_engine_holds_nothing() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    let agent = Agent::of(server.address, api.address, &subscribe(&publisher)).await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 3));
    publisher.publish(|it| it.stored(2, 0, 3));
    server.holds(&publisher.wire.held(), Some(1)).await;
    publisher.restart();
    server.until("nothing to be held", |view| view.replicas[&ENGINE].held.is_empty()).await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(3, 0, 2));
    server.holds(&publisher.wire.held(), Some(0)).await;
    let metrics = agent.get("/metrics").await;
    assert!(metrics.contains("why=\"restarted\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_goes_back_is_a_restart_without_replay_too() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(1));
    let events = format!("subscribe: '{}'", publisher.endpoint());
    let _agent = Agent::of(server.address, api.address, &events).await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 3));
    publisher.publish(|it| it.stored(2, 0, 3));
    server.holds(&publisher.wire.held(), Some(1)).await;
    // The same socket, so that nothing else shows it.
    publisher.wire.restart();
    publisher.publish(|it| it.stored(3, 0, 2));
    server.holds(&publisher.wire.held(), Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_events_is_described_with_its_load() {
    let (api, mut server) = (Api::start().await, Server::start());
    // Bound to nothing that speaks ZMQ: a port that is taken and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let events = format!("subscribe: 'tcp://{}'", silent.local_addr().unwrap());
    let agent = Agent::of(server.address, api.address, &events).await;
    api.show("process_start_time_seconds 1\nvllm:num_requests_running 3\n");
    server
        .until("its load", |view| {
            view.replicas.values().any(|it| it.load.as_ref().is_some_and(|it| it.running == 3))
        })
        .await;
    server
        .until("the reason", |view| {
            let events = view.replicas.get(&ENGINE).map(|it| &it.description.events);
            matches!(events, Some(Events::Unavailable { reason, remedy })
                if reason.contains("no connection") && remedy.contains("engine-args"))
        })
        .await;
    let status = agent.status().await;
    assert_eq!(status["engines"][0]["events"]["state"], "unavailable");
    assert_eq!(status["engines"][0]["status"], "up");
    assert_eq!(server.view.borrow().replicas[&ENGINE].copies, 1, "an empty copy, so that nobody waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_costs_the_events_only() {
    let (api, mut server) = (Api::start().await, Server::start());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let events = format!("listen: 'tcp://{}'", taken.local_addr().unwrap());
    let _agent = Agent::of(server.address, api.address, &events).await;
    server
        .until("the reason", |view| {
            let events = view.replicas.get(&ENGINE).map(|it| &it.description.events);
            matches!(events, Some(Events::Unavailable { reason, .. }) if reason.contains("in use"))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_down_or_off_is_described() {
    let mut server = Server::start();
    let yaml = format!(
        "node: n\nservers: ['{}']\nadmin: 127.0.0.1:0\nengines:\n  - {{address: '127.0.0.1:1', events: off}}\n",
        server.address
    );
    let agent = Agent::start(&yaml).await;
    server
        .until("its description", |view| {
            view.replicas.get(&ENGINE).is_some_and(|it| {
                it.description.events == Events::Off
                    && it.description.status == EngineStatus::Down
                    && it.description.status_reason.contains("refused")
            })
        })
        .await;
    server.until("an empty copy", |view| view.replicas[&ENGINE].copies == 1).await;
    assert!(agent.get("/readyz").await.starts_with("ready"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_is_left_and_tried_again() {
    let (api, mut server) = (Api::start().await, Server::start());
    let agent = Agent::of(server.address, api.address, "events: off").await;
    server.until("a stream", |view| view.hellos.len() == 1).await;
    server.manner.send_replace(Manner { says_nothing: true, ..Manner::default() });
    server.until("another stream", |view| view.hellos.len() >= 2).await;
    {
        let view = server.view.borrow();
        assert!(view.hellos[1].epoch > view.hellos[0].epoch);
        assert!(
            view.heartbeats + usize::from(view.replicas[&ENGINE].load.is_some()) > 0,
            "the agent was not silent"
        );
    }
    server.manner.send_replace(Manner::default());
    agent.until("the stream", |it| it["servers"][0]["state"] == "connected").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_learn_of_each_others_requests() {
    let api = Api::start().await;
    let [mut one, mut two] = [Server::start(), Server::start()];
    let yaml = format!(
        "node: n\nservers: ['{}', 'localhost:{}']\nadmin: 127.0.0.1:0\nengines:\n  - {{address: '{}', events: off}}\n",
        one.address,
        two.address.port(),
        api.address
    );
    let _agent = Agent::start(&yaml).await;
    for server in [&mut one, &mut two] {
        server.until("a copy", |view| view.replicas.get(&ENGINE).is_some_and(|it| it.copies == 1)).await;
    }
    let in_flight = InFlight { requests: 3, uncached_prefill_tokens: 700 };
    one.say(ServerMessage::InFlight(ENGINE, in_flight)).await;
    two.until("the others", |view| view.replicas[&ENGINE].others == Some(in_flight)).await;
    drop(one);
    two.until("no others", |view| view.replicas[&ENGINE].others == Some(InFlight::default())).await;
}
