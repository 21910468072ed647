//! An agent that ends, and one that starts at its place with what it left: what a server hears of the engine.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use std::{net::SocketAddr, path::Path};

use kvpick_proto::words::{Completeness, Handle};
use rig::{
    Agent,
    engine::{Api, Publisher, wire::Wire},
    server::Server,
    subscribe,
};
use tokio::runtime::Runtime;

const ENGINE: Handle = Handle(0);

async fn agent(folder: &Path, server: SocketAddr, engine: SocketAddr, events: &str) -> Agent {
    Agent::start(&format!(
        "node: n\nservers: ['{server}']\nadmin: 127.0.0.1:0\nstate: {}\nengines:\n  - {{address: '{engine}', {events}}}\n",
        folder.display()
    ))
    .await
}

fn outcome(status: &serde_json::Value) -> &str {
    status["engines"][0]["state_file"]["restored"].as_str().unwrap_or_default()
}

/// Blocks in four batches, of which two are removals, known to an agent that has ended in order. `replay` says whether
/// the engine has one.
struct Before {
    folder: tempfile::TempDir,
    api: Api,
    publisher: Publisher,
    events: String,
}

impl Before {
    async fn with(replay: bool) -> Self {
        let (api, mut server) = (Api::start().await, Server::start());
        let mut publisher = Publisher::bind(Wire::new(2));
        let folder = tempfile::tempdir().unwrap();
        let events =
            if replay { subscribe(&publisher) } else { format!("subscribe: '{}'", publisher.endpoint()) };
        let agent = agent(&folder.path().join("made"), server.address, api.address, &events).await;
        publisher.subscribed();
        publisher.publish(|it| it.stored(1, 0, 500));
        publisher.publish(|it| it.removed(1, 490, 10));
        publisher.publish(|it| it.stored(2, 0, 5));
        publisher.publish(|it| it.removed(2, 3, 1));
        server.holds(&publisher.wire.held(), Some(3)).await;
        assert!(agent.app.stop().await, "every task ends");
        publisher.unsubscribed();
        // Nothing but what the agent has left tells of these any more.
        publisher.forget(3);
        Self { folder, api, publisher, events }
    }

    async fn agent(&self, server: &Server) -> Agent {
        agent(&self.folder.path().join("made"), server.address, self.api.address, &self.events).await
    }
}

fn completeness(server: &Server) -> Completeness {
    server.view.borrow().replicas[&ENGINE].description.completeness
}

#[tokio::test(flavor = "multi_thread")]
async fn with_replay_all_is_known_again_at_once() {
    let (mut before, mut server) = (Before::with(true).await, Server::start());
    before.publisher.publish(|it| it.stored(3, 0, 7));
    before.publisher.publish(|it| it.removed(1, 0, 1));
    let agent = before.agent(&server).await;
    server.holds(&before.publisher.wire.held(), Some(5)).await;
    server
        .until("all of it", |it| it.replicas[&ENGINE].description.completeness == Completeness::Complete)
        .await;
    // Its first copy had all, so that a server that knew the engine never forgot it.
    assert_eq!((server.view.borrow().replicas[&ENGINE].copies, server.view.borrow().changed_keys), (1, 0));
    assert_eq!(outcome(&agent.status().await), "proved");
    let metrics = agent.get("/metrics").await;
    let name = before.api.address;
    assert!(
        metrics.contains(&format!("kvpick_agent_engine_restored_blocks{{engine=\"{name}\"}} 494")),
        "{metrics}"
    );
    assert!(metrics.contains("result=\"proved\"} 1"), "{metrics}");
    before.publisher.subscribed();
    before.publisher.publish(|it| it.stored(4, 0, 2));
    server.holds(&before.publisher.wire.held(), Some(6)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_replay_all_is_known_again_with_the_next_batch() {
    let (mut before, mut server) = (Before::with(false).await, Server::start());
    let agent = before.agent(&server).await;
    before.publisher.subscribed();
    before.publisher.publish(|it| it.stored(3, 0, 7));
    server.holds(&before.publisher.wire.held(), Some(4)).await;
    server
        .until("all of it", |it| it.replicas[&ENGINE].description.completeness == Completeness::Complete)
        .await;
    assert_eq!(outcome(&agent.status().await), "proved");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_replay_a_missed_batch_costs_what_was_known() {
    let (mut before, mut server) = (Before::with(false).await, Server::start());
    before.publisher.lose(|it| it.removed(1, 0, 1));
    let agent = before.agent(&server).await;
    before.publisher.subscribed();
    before.publisher.publish(|it| it.stored(3, 0, 7));
    let held = before.publisher.wire.held();
    server.until("the batch", |it| it.replicas.values().any(|it| it.applied == Some(5))).await;
    assert_eq!(server.view.borrow().replicas[&ENGINE].held.len(), 7);
    assert!(server.view.borrow().replicas[&ENGINE].held.is_subset(&held));
    assert!(matches!(completeness(&server), Completeness::PartialSince { .. }));
    assert_eq!(outcome(&agent.status().await), "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_told_of_an_engine_that_says_nothing() {
    let (before, mut server) = (Before::with(false).await, Server::start());
    let agent = before.agent(&server).await;
    server.until("an empty copy", |it| it.replicas.values().any(|it| it.copies == 1)).await;
    assert!(server.view.borrow().replicas[&ENGINE].held.is_empty());
    assert!(matches!(completeness(&server), Completeness::PartialSince { .. }));
    let status = agent.status().await;
    assert_eq!((outcome(&status), &status["engines"][0]["blocks"]), ("awaited", &0.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_inherits_nothing() {
    for replay in [true, false] {
        let (mut before, mut server) = (Before::with(replay).await, Server::start());
        before.publisher.restart();
        before.api.show("process_start_time_seconds 2\nvllm:num_requests_running 0\n");
        let agent = before.agent(&server).await;
        before.publisher.subscribed();
        // As many as the process before had published, and one.
        for chain in 0..5 {
            before.publisher.publish(|it| it.stored(10 + chain, 0, 2));
        }
        server.holds(&before.publisher.wire.held(), Some(4)).await;
        assert_eq!(outcome(&agent.status().await), "restarted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_killed_goes_on_from_its_last_file() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(2));
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let (path, address, events) = (folder.path().to_owned(), server.address, subscribe(&publisher));
    let engine = api.address;
    let first = runtime.spawn(async move { agent(&path, address, engine, &events).await }).await.unwrap();
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 500));
    server.holds(&publisher.wire.held(), Some(0)).await;
    first.until("the file", |it| it["engines"][0]["state_file"]["age_ms"].is_number()).await;
    publisher.publish(|it| it.removed(1, 400, 100));
    server.holds(&publisher.wire.held(), Some(1)).await;
    runtime.shutdown_background();
    publisher.unsubscribed();
    publisher.publish(|it| it.stored(1, 400, 50));
    let mut server = Server::start();
    let second = agent(folder.path(), server.address, api.address, &subscribe(&publisher)).await;
    server.holds(&publisher.wire.held(), Some(2)).await;
    assert_eq!(outcome(&second.status().await), "proved");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_torn_is_as_none_and_is_written_again() {
    let (before, mut server) = (Before::with(true).await, Server::start());
    let name = before.api.address.to_string().replace(':', "_");
    let file = before.folder.path().join("made").join(format!("{name}.state"));
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let agent = before.agent(&server).await;
    // The buffer has the last batch only.
    server.until("the last batch", |it| it.replicas.values().any(|it| it.applied == Some(3))).await;
    assert!(matches!(completeness(&server), Completeness::PartialSince { .. }));
    let status = agent.status().await;
    assert!(
        status["engines"][0]["state_file"]["unreadable"].as_str().unwrap().contains("checksum"),
        "{status}"
    );
    let metrics = agent.get("/metrics").await;
    assert!(metrics.contains("result=\"unreadable\"} 1"), "{metrics}");
    assert!(agent.app.stop().await);
    assert_ne!(std::fs::read(&file).unwrap(), whole[..whole.len() - 1]);
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_be_written_costs_nothing_else() {
    let (api, mut server) = (Api::start().await, Server::start());
    let mut publisher = Publisher::bind(Wire::new(2));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let agent = agent(&file.join("state"), server.address, api.address, &subscribe(&publisher)).await;
    publisher.subscribed();
    publisher.publish(|it| it.stored(1, 0, 5));
    server.holds(&publisher.wire.held(), Some(0)).await;
    agent.until("the failure", |it| it["engines"][0]["state_file"]["error"].is_string()).await;
    publisher.publish(|it| it.stored(2, 0, 5));
    server.holds(&publisher.wire.held(), Some(1)).await;
    let metrics = agent.get("/metrics").await;
    assert!(metrics.contains("state_writes_total") && metrics.contains("result=\"failed\"} 1"), "{metrics}");
    assert!(agent.app.stop().await);
}
