//! What goes wrong with an API server, one thing at a time.

use kvpick_lab::kube::{Cluster, Faults, Kind, Refusal};
use serde_json::json;

use super::{of_pool, selector, shown, started, until, until_problem, until_with, vllm, with};

/// A cluster with one pod, followed.
async fn followed(watch_s: u32) -> (Cluster, tokio::sync::watch::Receiver<kvpick_kube::State>) {
    let cluster = Cluster::start().await.unwrap();
    cluster.apply(Kind::Pod, vllm("a", "10.0.0.1"));
    let mut heard = started(&cluster, selector(), None, watch_s);
    until(&mut heard, &["a@10.0.0.1:8000"]).await;
    (cluster, heard)
}

/// Something happens, and is told in spite of all; the first pod is there at all times.
async fn goes_on(cluster: &Cluster, heard: &mut tokio::sync::watch::Receiver<kvpick_kube::State>) {
    cluster.apply(Kind::Pod, vllm("b", "10.0.0.2"));
    let both = ["a@10.0.0.1:8000", "b@10.0.0.2:8000"];
    until_with(heard, &both, |it| assert!(shown(it).unwrap().contains(both[0]), "{it:?}")).await;
    cluster.delete(Kind::Pod, "inference", "b");
    until_with(heard, &both[..1], |it| assert!(shown(it).unwrap().contains(both[0]), "{it:?}")).await;
    until_problem(heard, None).await;
}

#[tokio::test]
async fn an_error_in_mid_watch_says_that_history_is_gone() {
    let (cluster, mut heard) = followed(30).await;
    cluster.set_faults(Faults { gone_once: true, ..Faults::default() });
    goes_on(&cluster, &mut heard).await;
    assert!(2 <= cluster.requests().0, "it was listed anew");
}

#[tokio::test]
async fn history_is_lost_between_two_watches() {
    let (cluster, mut heard) = followed(30).await;
    cluster.set_faults(Faults { no_bookmarks: true, ..Faults::default() });
    cluster.restart();
    goes_on(&cluster, &mut heard).await;
    assert!(2 <= cluster.requests().0);
}

#[tokio::test]
async fn another_process_serves_and_a_pod_went_meanwhile() {
    let (cluster, mut heard) = followed(30).await;
    cluster.apply(Kind::Pod, vllm("b", "10.0.0.2"));
    until(&mut heard, &["a@10.0.0.1:8000", "b@10.0.0.2:8000"]).await;
    cluster.set_faults(Faults { silent: true, ..Faults::default() });
    cluster.delete(Kind::Pod, "inference", "a");
    cluster.restart();
    cluster.set_faults(Faults::default());
    until(&mut heard, &["b@10.0.0.2:8000"]).await;
}

#[tokio::test]
async fn events_come_twice() {
    let (cluster, mut heard) = followed(30).await;
    cluster.set_faults(Faults { twice: true, ..Faults::default() });
    goes_on(&cluster, &mut heard).await;
}

#[tokio::test]
async fn a_line_is_cut() {
    let (cluster, mut heard) = followed(30).await;
    cluster.set_faults(Faults { cut_once: true, ..Faults::default() });
    goes_on(&cluster, &mut heard).await;
}

#[tokio::test]
async fn lines_come_in_small_pieces() {
    let (cluster, mut heard) = followed(30).await;
    cluster.set_faults(Faults { trickle: Some(40), ..Faults::default() });
    goes_on(&cluster, &mut heard).await;
}

#[tokio::test]
async fn a_watch_is_ended_by_the_server_every_second() {
    let (cluster, mut heard) = followed(1).await;
    while cluster.requests().1 < 3 {
        goes_on(&cluster, &mut heard).await;
    }
    assert_eq!(cluster.requests().0, 1, "the next one goes on where it was");
}

#[tokio::test]
async fn a_watch_that_has_died_without_a_word_is_noticed() {
    let (cluster, mut heard) = followed(1).await;
    cluster.set_faults(Faults { silent: true, ..Faults::default() });
    let watches = cluster.requests().1;
    cluster.apply(Kind::Pod, vllm("b", "10.0.0.2"));
    let begun =
        async || if watches + 1 < cluster.requests().1 { Ok(()) } else { Err("no new watch".to_owned()) };
    kvpick_lab::rig::wait::until("a new watch", kvpick_lab::rig::wait::LONG, begun).await.unwrap();
    assert_eq!(shown(&heard.borrow()).unwrap().len(), 1, "what is known stands");
    cluster.set_faults(Faults::default());
    until(&mut heard, &["a@10.0.0.1:8000", "b@10.0.0.2:8000"]).await;
}

#[tokio::test]
async fn a_server_that_refuses_is_asked_again_and_what_is_known_stands() {
    for (refusal, word) in [
        (Refusal::Forbidden, "give it a Role with the verbs get, list and watch"),
        (Refusal::TooMany, "pods can't be followed"),
        (Refusal::Internal, "pods can't be followed"),
        (Refusal::Timeout, "pods can't be followed"),
    ] {
        let (cluster, mut heard) = followed(30).await;
        cluster.set_faults(Faults { refuse: Some(refusal), ..Faults::default() });
        cluster.restart();
        cluster.apply(Kind::Pod, with(vllm("a", "10.0.0.1"), "/status/conditions/0/status", json!("False")));
        let state = until_problem(&mut heard, Some(word)).await;
        assert_eq!(shown(&state).unwrap().into_iter().collect::<Vec<_>>(), ["a@10.0.0.1:8000"]);
        cluster.set_faults(Faults::default());
        until(&mut heard, &["-a@10.0.0.1:8000"]).await;
        until_problem(&mut heard, None).await;
    }
}

#[tokio::test]
async fn a_problem_that_is_over_is_told_though_nothing_happens() {
    let (cluster, mut heard) = followed(30).await;
    cluster.set_faults(Faults { refuse: Some(Refusal::Internal), ..Faults::default() });
    cluster.restart();
    until_problem(&mut heard, Some("pods can't be followed")).await;
    // Asked again and again, it stays: it does not come and go.
    let refused = cluster.refused();
    let again = async || if refused + 2 < cluster.refused() { Ok(()) } else { Err("asked again".to_owned()) };
    tokio::select! {
        asked = kvpick_lab::rig::wait::until("it to be asked again", kvpick_lab::rig::wait::LONG, again) => asked.unwrap(),
        _ = heard.wait_for(|it| it.problem.is_none()) => panic!("it is told to be well, and is not"),
    }
    cluster.set_faults(Faults::default());
    until_problem(&mut heard, None).await;
    assert_eq!(shown(&heard.borrow()).unwrap().len(), 1);
}

#[tokio::test]
async fn a_pool_that_makes_no_sense_is_not_told_to_be_missing() {
    let cluster = Cluster::start().await.unwrap();
    cluster.apply(Kind::Pool, kvpick_lab::kube::pool("inference", "engines", &json!({}), &[8000]));
    let mut heard = started(&cluster, of_pool(), None, 30);
    until_problem(&mut heard, Some("matchLabels")).await;
    // Listed anew it is told again.
    cluster.restart();
    let lists = cluster.requests().0;
    let listed = async || if lists < cluster.requests().0 { Ok(()) } else { Err("no new list".to_owned()) };
    kvpick_lab::rig::wait::until("a new list", kvpick_lab::rig::wait::LONG, listed).await.unwrap();
    until_problem(&mut heard, Some("matchLabels")).await;
}

#[tokio::test]
async fn without_the_crd_it_is_said_what_to_do() {
    let cluster = Cluster::start().await.unwrap();
    cluster.set_faults(Faults { refuse: Some(Refusal::NotFound), ..Faults::default() });
    let mut heard = started(&cluster, of_pool(), None, 30);
    let state = until_problem(&mut heard, Some("install the CRDs")).await;
    assert_eq!(state.members, None);
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_waited_for() {
    let port = kvpick_lab::rig::ports::free().unwrap();
    let client = kvpick_kube::client::client_of(&format!("http://{port}"), "inference").unwrap();
    let (told, mut heard) = tokio::sync::watch::channel(kvpick_kube::State::default());
    let source = kvpick_kube::Source { namespace: None, which: selector(), node: None, watch_s: 30 };
    let follower = tokio::spawn(kvpick_kube::follow(client, source, told));
    until_problem(&mut heard, Some("pods can't be followed")).await;
    drop(heard);
    // Nobody listens any more.
    follower.await.unwrap();
}
