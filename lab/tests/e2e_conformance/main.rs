//! What the Gateway API Inference Extension's conformance suite (1.5) asks of a gateway with an endpoint picker, by a client of
//! our own: kvpick in the place of the suite's picker, and the gateway as Istio configures Envoy.
//!
//! The suite's tests of statuses that a gateway writes into resources have no part for a picker and are not here.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod echo;
mod gateway;

use std::collections::{BTreeMap, BTreeSet};

use echo::Pods;
use futures::StreamExt as _;
use gateway::{Backend, Pool};
use kvpick_lab::rig::{envoy::Envoy, scratch::Scratch, wait};
use serde_json::{Value, json};

const SELECTION: &str = "test-epp-endpoint-selection";
const SERVED: &str = "x-conformance-test-served-endpoint";

/// An answer of an echo server, or of the gateway in its place.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    told: Value,
}

impl Answer {
    fn ip(&self) -> String {
        self.told["ip"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }

    fn endpoint(&self) -> String {
        format!("{}:{}", self.ip(), self.told["port"])
    }
}

/// A model that nobody serves: it is to be routed all the same.
fn body() -> String {
    json!({"model": "conformance-fake-model", "prompt": "What speaks for it, and what against?"}).to_string()
}

async fn post(gateway: &Envoy, path: &str, selection: &str) -> Answer {
    let http = reqwest::Client::builder().no_proxy().timeout(wait::LONG).build().unwrap();
    let request = http.post(format!("http://{}{path}", gateway.listener())).header(SELECTION, selection);
    let answer = request.header("content-type", "application/json").body(body()).send().await.unwrap();
    let text = |it: &reqwest::header::HeaderValue| it.to_str().unwrap().to_owned();
    let headers = answer.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let status = answer.status().as_u16();
    Answer {
        status,
        headers,
        told: serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default(),
    }
}

/// Many at a time, each of which has to be answered by an echo server that got all of it.
async fn posts(gateway: &Envoy, path: &str, selection: &str, count: usize) -> Vec<Answer> {
    let answers = futures::stream::iter(0..count).map(|_| post(gateway, path, selection));
    let answers: Vec<Answer> = answers.buffer_unordered(10).collect().await;
    for answer in &answers {
        assert_eq!((answer.status, answer.told["body"].as_str()), (200, Some(body().as_str())), "{answer:?}");
        let headers = answer.told["headers"].as_array().unwrap();
        assert!(!headers.contains(&json!(SELECTION)), "the word to the picker went on: {answer:?}");
    }
    answers
}

fn set<T: Ord>(it: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    it.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_follows_the_picker() {
    for oldest in [false, true] {
        let scratch = Scratch::new("conformance-follows").unwrap();
        let pool = Pool::start("primary", scratch.path(), Pods::start("1.0", 1).await).await;
        let gateway = gateway::start(scratch.path(), oldest, &[("/", Backend::Pool(&pool))]).await;
        let ips = &pool.pods.ips;
        for ip in ips {
            assert_eq!(post(&gateway, "/primary", ip).await.ip(), *ip);
        }
        for wanted in [&ips[2..], &ips[..2], &ips[..]] {
            let answers = posts(&gateway, "/primary", &wanted.join(","), 100).await;
            assert_eq!(set(answers.iter().map(Answer::ip)), set(wanted.iter().cloned()), "oldest: {oldest}");
        }
        // Nobody is left to go to, and the gateway does not choose in the picker's place.
        let none = post(&gateway, "/primary", "10.9.9.9").await;
        let reason = none.headers.get("x-llm-d-request-dropped-reason").map(String::as_str);
        assert_eq!((none.status, reason), (503, Some("rejected-no-endpoints")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_have_ports_of_their_own() {
    let scratch = Scratch::new("conformance-ranks").unwrap();
    let pool = Pool::start("ranks", scratch.path(), Pods::start("1.1", 3).await).await;
    let gateway = gateway::start(scratch.path(), false, &[("/", Backend::Pool(&pool))]).await;
    let (ips, ports) = (&pool.pods.ips, &pool.pods.ports);
    let all = |ip: &str| ports.iter().map(|port| format!("{ip}:{port}")).collect::<Vec<_>>();
    let one = |ip: &str, rank: usize| format!("{ip}:{}", ports[rank]);
    for (selection, wanted) in [
        (ips[1].clone(), all(&ips[1])),
        (format!("{},{}", ips[0], one(&ips[2], 1)), [all(&ips[0]), vec![one(&ips[2], 1)]].concat()),
        (
            [&ips[0], &one(&ips[1], 0), &one(&ips[1], 2), &ips[2]].map(String::as_str).join(","),
            [all(&ips[0]), vec![one(&ips[1], 0), one(&ips[1], 2)], all(&ips[2])].concat(),
        ),
    ] {
        let answers = posts(&gateway, "/ranks", &selection, 100).await;
        assert_eq!(set(answers.iter().map(Answer::endpoint)), set(wanted), "{selection}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_says_who_served() {
    let scratch = Scratch::new("conformance-served").unwrap();
    let pool = Pool::start("served", scratch.path(), Pods::start("1.2", 1).await).await;
    let gateway = gateway::start(scratch.path(), false, &[("/", Backend::Pool(&pool))]).await;
    for endpoint in pool.pods.endpoints() {
        let answer = post(&gateway, "/served", &endpoint.ip().to_string()).await;
        assert_eq!(
            (answer.endpoint(), &answer.headers[SERVED]),
            (endpoint.to_string(), &endpoint.to_string())
        );
    }
    // One that does not, as Istio before 1.30: what the echo server said of itself does not stand.
    let scratch = Scratch::new("conformance-unserved").unwrap();
    let gateway = gateway::start(scratch.path(), true, &[("/", Backend::Pool(&pool))]).await;
    let answer = post(&gateway, "/served", &pool.pods.ips[0]).await;
    assert_eq!(answer.headers[SERVED], "fail: missing destination endpoint served metadata");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_picker_the_gateway_goes_on() {
    let scratch = Scratch::new("conformance-open").unwrap();
    let pool = Pool::start("open", scratch.path(), Pods::start("1.3", 1).await).await;
    let rules = [("/lost", Backend::Orphan(&pool)), ("/", Backend::Pool(&pool))];
    let gateway = gateway::start(scratch.path(), false, &rules).await;
    let target = &pool.pods.ips[0];
    assert_eq!(post(&gateway, "/open", target).await.ip(), *target);
    let answers = posts(&gateway, "/open", target, 20).await;
    assert_eq!(set(answers.iter().map(Answer::ip)), set([target.clone()]));
    // Its Service has no endpoints any more.
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/lost", gateway.listener());
    let mut ips = BTreeSet::new();
    for _ in 0..20 {
        let answer = http.post(&url).header(SELECTION, target).body(body()).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let told: Value = answer.json().await.unwrap();
        assert_eq!(told["body"], json!(body()), "not a byte is lost");
        ips.insert(told["ip"].as_str().unwrap().to_owned());
    }
    assert!(1 < ips.len(), "the gateway itself chooses: {ips:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_do_not_mix() {
    let scratch = Scratch::new("conformance-pools").unwrap();
    let primary = Pool::start("primary", scratch.path(), Pods::start("1.4", 1).await).await;
    let secondary = Pool::start("secondary", scratch.path(), Pods::start("1.5", 1).await).await;
    let shares = [(&primary, 70), (&secondary, 30)];
    let rules = [
        ("/primary", Backend::Pool(&primary)),
        ("/secondary", Backend::Pool(&secondary)),
        ("/both", Backend::Split(&shares)),
    ];
    let gateway = gateway::start(scratch.path(), false, &rules).await;
    // Each picker is told of the pods of both, and knows its own alone.
    let all = [primary.pods.ips.clone(), secondary.pods.ips.clone()].concat().join(",");
    for pool in [&primary, &secondary] {
        let answers = posts(&gateway, &format!("/{}", pool.name), &all, 30).await;
        assert_eq!(set(answers.iter().map(Answer::ip)), set(pool.pods.ips.clone()));
    }
    let answers = posts(&gateway, "/both", &all, 200).await;
    let of_primary = answers.iter().filter(|it| primary.pods.ips.contains(&it.ip())).count();
    // The suite's own tolerance: ten points of a hundred, about three standard deviations.
    assert!((120..=160).contains(&of_primary), "{of_primary} of 200");
    for pool in [&primary, &secondary] {
        let metrics = pool.picker.metrics().await.unwrap();
        assert_eq!(metrics.sum("kvpick_ext_proc_errors_total", &[]), 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_may_speak_http_2() {
    let scratch = Scratch::new("conformance-h2c").unwrap();
    let mut pool = Pool::start("h2c", scratch.path(), Pods::start("1.6", 1).await).await;
    pool.h2c = true;
    let gateway = gateway::start(scratch.path(), false, &[("/", Backend::Pool(&pool))]).await;
    for answer in posts(&gateway, "/h2c", &pool.pods.ips[1], 20).await {
        assert_eq!(
            (answer.told["version"].as_str(), answer.ip()),
            (Some("HTTP/2.0"), pool.pods.ips[1].clone())
        );
    }
}
