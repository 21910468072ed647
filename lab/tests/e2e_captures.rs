//! Real engines' recordings, through the whole system: their frames over ZMQ to an agent, their requests through
//! Envoy to kvpick, which must predict for each request the hit that the engine had.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod captures;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
};

use anyhow::{Context as _, bail, ensure};
use captures::{Capture, Publish, Publisher, Recorded};
use kvpick_agent_core::decode::{Batch, Event};
use kvpick_lab::rig::{
    envoy::{Addresses, Envoy, Mode},
    ports,
    program::{AgentConfig, EngineConfig, ModelConfig, Program, ReplicaConfig, ServerConfig},
    scratch::Scratch,
    tools, wait,
};
use kvpick_proto::naming::{Algorithm, BlockKey, Domain, ExtraKeyShape, Hasher};
use serde_json::{Map, Value, json};

/// Requests for which the recording itself does not tell the hit, each with the reason. The resets of an idle engine,
/// which show with its next step only, are none: what they cleared was evicted before, or is not asked for again.
const EXCEPTIONS: [(&str, &str); 1] = [(
    "chat-report-full",
    "kv_cache_report_mode=full makes 0.26 and later announce the hit itself again, which reads as no hit",
)];

#[tokio::test(flavor = "multi_thread")]
async fn arrays_and_bytes_of_0_16() {
    replay("v0.16-sha256cbor-bytes-bs16", Mode::Buffered, &[]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn maps_and_ints_of_0_32() {
    replay("v0.32-sha256cbor-int-bs16-dups", Mode::FullDuplex, &["chat-report-full"]).await.unwrap();
}

async fn replay(name: &str, mode: Mode, exceptions: &[&str]) -> anyhow::Result<()> {
    let capture = Capture::load(name)?;
    let scratch = Scratch::new(name)?;
    let recorded = Recording::start(&capture, mode, scratch.path()).await?;
    let mut wrong = BTreeMap::new();
    let mut sent = 0;
    let mut i = 0;
    while i < capture.requests.len() {
        let together = &capture.requests[i..];
        let n = together
            .iter()
            .take_while(|it| it.burst.is_some() && it.burst == together[0].burst)
            .count()
            .max(1);
        let together = &together[..n];
        i += n;
        for request in together.iter().filter(|it| is_ours(it)) {
            let evidence = recorded.send(request).await.with_context(|| request.name.clone())?;
            sent += 1;
            let prompts =
                if request.body["n"].is_u64() { &request.prompts[..1] } else { &request.prompts[..] };
            let tokens: usize = prompts.iter().map(Vec::len).sum();
            ensure!(evidence["prompt_tokens"] == tokens.to_string(), "{}: {evidence:?}", request.name);
            if n == 1 {
                let want = capture.hit(prompts, request.frames.clone())?;
                let got: usize = evidence["predicted_tokens"].parse()?;
                if got != want * capture.block_size() {
                    wrong.insert(request.name.clone(), format!("want {want} blocks, {evidence:?}"));
                }
            }
        }
        recorded.publish(together[0].frames.clone()).await.with_context(|| together[0].name.clone())?;
    }
    // Of 85 and 81, those that go to other routes, to adapters, carry a salt, or were refused, are not sent.
    ensure!(60 < sent, "only {sent} requests were sent");
    let unexplained: Vec<_> = wrong.iter().filter(|(it, _)| !exceptions.contains(&it.as_str())).collect();
    ensure!(unexplained.is_empty(), "{name}: {unexplained:#?}");
    for exception in exceptions {
        ensure!(EXCEPTIONS.iter().any(|(it, _)| it == exception), "{exception} has no reason");
        ensure!(wrong.contains_key(*exception), "{exception} is no exception; remove it");
    }
    recorded.check().await
}

/// Chat and completions, answered by the engine, with neither adapter nor salt.
fn is_ours(request: &Recorded) -> bool {
    let known = ["/v1/chat/completions", "/v1/completions"].contains(&request.endpoint.as_str());
    known
        && request.status == 200
        && request.body.get("cache_salt").is_none()
        && request.body["model"] == "qwen3-tiny"
}

impl Capture {
    fn block_size(&self) -> usize {
        self.meta["block_size"].as_u64().unwrap() as usize
    }

    /// The engine's own hit, in blocks: all before the first prompt block that it stored while the request ran; where
    /// it stored none, as many as a hit can have.
    fn hit(&self, prompts: &[Vec<u32>], frames: std::ops::Range<usize>) -> anyhow::Result<usize> {
        let mut stored = BTreeSet::new();
        for frame in &self.frames[frames] {
            for event in Batch::decode(&frame[2])?.events {
                if let Event::Stored(event) = event {
                    stored.extend(event.keys);
                }
            }
        }
        let hit = |prompt: &Vec<u32>| {
            let keys = self.keys(prompt);
            keys.iter()
                .position(|it| stored.contains(it))
                .unwrap_or_else(|| (prompt.len() - 1) / self.block_size())
        };
        Ok(prompts.iter().map(hit).sum())
    }

    fn keys(&self, prompt: &[u32]) -> Vec<BlockKey> {
        let domain = Domain {
            algorithm: Algorithm::from_name(self.meta["algo"].as_str().unwrap()).unwrap(),
            root: self.meta["pythonhashseed"].as_str().unwrap().to_owned(),
            block_size: NonZeroU32::new(self.block_size() as u32).unwrap(),
            extra_keys: ExtraKeyShape::Bare,
        };
        Hasher::new(&domain).chain(domain.block_size, prompt, |_| Vec::new())
    }
}

/// The recorded engine with everything around it.
struct Recording<'a> {
    capture: &'a Capture,
    publisher: Publisher,
    server: Program,
    agent: Program,
    envoy: Envoy,
    http: reqwest::Client,
}

impl<'a> Recording<'a> {
    async fn start(capture: &'a Capture, mode: Mode, folder: &std::path::Path) -> anyhow::Result<Self> {
        let address = capture.serve().await?;
        let is_old = capture.meta["vllm"].as_str().unwrap().starts_with("0.16");
        // One recording goes each way: the engine connects to its agent, or the agent to the engine.
        let listen = format!("tcp://{}", ports::free()?);
        let way = if is_old { Publish::Bound } else { Publish::To(listen.clone()) };
        let publisher = Publisher::start(&way, !is_old)?;
        let models = vec![ModelConfig {
            name: "qwen3-tiny".to_owned(),
            aliases: Vec::new(),
            path: tools::tokenizer()?,
            keeps_developer_role: is_old,
            more: Map::new(),
        }];
        let replica = ReplicaConfig {
            address,
            rank: 0,
            node: "node".to_owned(),
            models: vec!["qwen3-tiny".to_owned()],
        };
        let mut server = Program::server(
            "kvpick",
            folder,
            &ServerConfig {
                listen: ports::free()?,
                feed: ports::free()?,
                admin: ports::free()?,
                models,
                replicas: vec![replica],
                evidence_header: true,
                // The machine that tests may be busy with other things; what is tested is not the time.
                more: Map::from_iter([("budget".to_owned(), json!({"base_ms": 450, "max_ms": 450}))]),
            },
        )?;
        server.start().await?;
        let engine = EngineConfig {
            address,
            rank: 0,
            events: "on".to_owned(),
            subscribe: is_old.then(|| publisher.events.clone()),
            listen: (!is_old).then_some(listen),
            replay: Some(publisher.replay.clone()),
        };
        let config = AgentConfig {
            node: "node".to_owned(),
            servers: vec![server.address("feed")?.to_string()],
            admin: ports::free()?,
            engines: vec![engine],
            more: Map::new(),
        };
        let mut agent = Program::agent("agent", folder, &config)?;
        agent.start().await?;
        server.ready().await?;
        let subscribed = async || publisher.is_subscribed().then_some(()).ok_or_else(|| "not yet".to_owned());
        wait::until("the agent's subscription", wait::LONG, subscribed).await?;
        let addresses = Addresses {
            listener: ports::free()?,
            admin: ports::free()?,
            picker: server.address("ext_proc")?,
            engines: vec![address],
            patient: true,
            response_body_mode: None,
        };
        let envoy = Envoy::start("envoy", folder, mode, &addresses).await?;
        Ok(Self { capture, publisher, server, agent, envoy, http: kvpick_lab::rig::http()? })
    }

    /// Sends a recorded request through Envoy; returns what kvpick says of it.
    async fn send(&self, request: &Recorded) -> anyhow::Result<BTreeMap<String, String>> {
        let url = format!("http://{}{}", self.envoy.listener(), request.endpoint);
        let answer = self.http.post(url).json(&request.body).send().await?;
        let status = answer.status();
        ensure!(status.is_success(), "{status}");
        let header =
            answer.headers().get("x-kvpick-evidence").context("no evidence: Envoy went on by itself")?;
        let pairs = header.to_str()?.split("; ").map(|it| it.split_once('=').context(it.to_owned()));
        let evidence: BTreeMap<_, _> =
            pairs.map(|it| it.map(|(k, v)| (k.to_owned(), v.to_owned()))).collect::<anyhow::Result<_>>()?;
        if evidence["tier"] == "load" {
            bail!("no prompt was made: {evidence:?}");
        }
        Ok(evidence)
    }

    /// Publishes recorded frames and waits until the server has applied them.
    async fn publish(&self, frames: std::ops::Range<usize>) -> anyhow::Result<()> {
        let frames = &self.capture.frames[frames];
        let Some(last) = frames.last() else { return Ok(()) };
        let sequence = u64::from_be_bytes(last[1].as_slice().try_into()?);
        self.publisher.publish(frames)?;
        let look = async || {
            let status = self.server.status().await.map_err(|it| format!("{it:#}"))?;
            let replica = &status["replicas"][0];
            let applied = replica["applied"].as_u64().is_some_and(|it| sequence <= it);
            applied.then_some(()).ok_or_else(|| replica.to_string())
        };
        wait::until(&format!("sequence {sequence} to be applied"), wait::LONG, look).await
    }

    /// What must hold after the whole recording.
    async fn check(&self) -> anyhow::Result<()> {
        let status: Value = self.agent.status().await?;
        let engine = &status["engines"][0];
        ensure!(engine["complete"] == true, "{engine}");
        ensure!(engine["domain"]["root"] == self.capture.meta["pythonhashseed"], "{engine}");
        let plain =
            engine["key_kinds"].as_array().context("key_kinds")?.iter().find(|it| it["kind"] == "plain");
        ensure!(plain.is_some_and(|it| it["state"] == "verified"), "{engine}");
        for stat in ["rejected_header_mutations", "failure_mode_allowed", "spurious_msgs_received"] {
            ensure!(self.envoy.picker_stat(stat).await? == 0, "{stat}");
        }
        Ok(())
    }
}
