//! Recordings of real engines, event by event through agent and server with no process between: before each request the
//! server must predict the very hit that the engine then had.
//!
//! The engine's own hit is told by what it stored while the request ran: all blocks of the prompt before the first that
//! is among them. Where several requests ran at once that cannot be told, and a refused request, or one to a route that
//! does not tell the prompt's tokens, has no prompt to compare.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "the other half is for tests with processes")]
mod captures;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use captures::{Capture, Recorded};
use kvpick_agent_core::{
    decode::{Batch, Event},
    engine::{Config, Engine, Models},
    load::Metrics,
};
use kvpick_core::{
    feed::StreamId,
    pick::{self, Ask, Chains},
    prompts::Prompt,
    replicas::{Memory, ReplicaSpec},
    score::Weights,
    world::World,
};
use kvpick_proto::words::{
    Adapter, AgentMessage, CopyChunk, Description, Handle, Hello, PROTOCOL, ReplicaName, Tier,
};
use serde_json::Value;

const HANDLE: Handle = Handle(1);
const NODE: &str = "node";
const UNIX_MS: u64 = 1_796_063_000_000;

/// Requests of which the recording does not tell the hit, each with the reason.
const REPORTS: (&str, &str) = (
    "chat-report-full",
    "kv_cache_report_mode=full makes 0.26 and later announce the hit itself again, which reads as no hit",
);

#[test]
fn arrays_and_bytes_of_0_16_with_adapters() {
    assert_eq!(check(&["v0.16-sha256cbor-bytes-bs16"], &[]), Exact { compared: 67, differ: 0 });
}

#[test]
fn maps_and_ints_of_0_32_with_second_copies_and_a_restart() {
    // The second goes on where the first ends.
    let names = ["v0.32-sha256cbor-int-bs16-dups", "v0.32-restart-sha256cbor-int-bs16"];
    assert_eq!(check(&names, &[REPORTS]), Exact { compared: 79, differ: 0 });
}

#[test]
fn blocks_of_32_named_by_xxhash() {
    assert_eq!(check(&["v0.32-xxhashcbor-bytes-bs32"], &[REPORTS]), Exact { compared: 63, differ: 0 });
}

#[test]
fn a_sliding_window_beside_full_attention() {
    let names = ["v0.32-hybrid-swa-llama-sha256cbor-bytes-bs16"];
    assert_eq!(check(&names, &[REPORTS]), Exact { compared: 63, differ: 0 });
}

/// How many requests were compared, exceptions among them, and how many others differ.
#[derive(Debug, Eq, PartialEq)]
struct Exact {
    compared: usize,
    differ: usize,
}

/// Replays these recordings of one engine. Exceptions must be some.
#[track_caller]
fn check(names: &[&str], exceptions: &[(&str, &str)]) -> Exact {
    let captures: Vec<_> = names.iter().map(|it| Capture::load(it).unwrap()).collect();
    let mut system = System::new(&captures[0]);
    let mut exact = Exact { compared: 0, differ: 0 };
    let mut wrong = Vec::new();
    let mut hits = 0;
    for capture in &captures {
        let mut heard = 0;
        let mut restart = restarts_after(capture);
        for request in &capture.requests {
            heard = system.hear(capture, heard, request.frames.start);
            if restart.take_if(|it| *it == heard).is_some() {
                system.restart(capture);
            }
            let alone = request.burst.is_none() && request.status == 200 && !request.prompts.is_empty();
            let predicted = system.predicted(request);
            heard = system.hear(capture, heard, request.frames.end);
            if !alone {
                continue;
            }
            let was = system.hit(capture, request);
            hits += was;
            exact.compared += 1;
            if predicted != was && !exceptions.iter().any(|it| it.0 == request.name) {
                exact.differ += 1;
                wrong.push(format!("{}: {predicted} tokens, but it was {was}", request.name));
            } else if predicted == was && exceptions.iter().any(|it| it.0 == request.name) {
                panic!("{} is no exception; remove it", request.name);
            }
        }
        system.hear(capture, heard, capture.frames.len());
        assert_eq!(restart, None, "no request came after it");
    }
    assert!(1_000 < hits, "hits of {hits} tokens in all show nothing");
    assert_eq!(wrong, [""; 0]);
    exact
}

/// An agent's view of the engine, and a server that hears of it.
struct System {
    engine: Engine,
    world: World,
    stream: StreamId,
    described: Option<Description>,
    now: Instant,
}

impl System {
    fn new(capture: &Capture) -> Self {
        let now = Instant::now();
        let name = ReplicaName { address: "10.0.0.1:8000".parse().unwrap(), rank: 0 };
        let mut engine = Engine::new(Config::new(name), now, UNIX_MS);
        engine.on_connected(now);
        engine.on_version(capture.meta["version"]["version"].as_str().unwrap().to_owned());
        engine.on_models(models(&capture.meta["models"]));
        engine.on_metrics(Metrics::parse(&capture.metrics, 0), now, now, UNIX_MS);

        let spec = ReplicaSpec::listed(name, Some(NODE.to_owned()), Vec::new());
        let mut world =
            World::new("server".to_owned(), vec![spec], &Memory::default(), Weights::default(), 1, now);
        let stream = world.open_stream(now);
        let hello = Hello {
            protocol: PROTOCOL,
            node: NODE.to_owned(),
            epoch: 1,
            version: String::new(),
            token: String::new(),
        };
        world.on_message(stream, AgentMessage::Hello(hello), now).unwrap();
        let mut system = Self { engine, world, stream, described: None, now };
        system.announce();
        let nothing = CopyChunk { first: true, last: true, ..CopyChunk::default() };
        system.say(AgentMessage::Copy(HANDLE, nothing));
        system
    }

    fn say(&mut self, message: AgentMessage) {
        self.world.on_message(self.stream, message, self.now).unwrap();
    }

    /// Frames `from..to` come, and what they change is announced. Returns how many have come.
    fn hear(&mut self, capture: &Capture, from: usize, to: usize) -> usize {
        for frame in capture.frames.iter().take(to).skip(from) {
            self.now += Duration::from_secs(1);
            self.engine.on_frames(frame.to_vec(), self.now, UNIX_MS).unwrap();
            self.announce();
        }
        from.max(to)
    }

    /// Its connection is lost, and comes back with another process behind it.
    fn restart(&mut self, capture: &Capture) {
        self.now += Duration::from_secs(1);
        self.engine.on_disconnected(self.now, UNIX_MS);
        self.engine.on_connected(self.now);
        let metrics = Metrics::parse(&capture.metrics, 0);
        self.engine.on_metrics(metrics, self.now, self.now, UNIX_MS);
        assert_eq!(self.engine.counts().resets_restarted, 1);
        self.announce();
    }

    fn announce(&mut self) {
        let change = self.engine.take_change(self.now);
        let described = self.engine.description().cloned();
        if described != self.described {
            self.described.clone_from(&described);
            self.say(AgentMessage::Describe(HANDLE, Box::new(described.unwrap())));
        }
        if let Some(change) = change {
            self.say(AgentMessage::Change(HANDLE, change));
        }
    }

    /// The tokens that the engine should have of this request. Nothing is remembered of it, so that facts alone count.
    fn predicted(&self, request: &Recorded) -> usize {
        let (model, prompts) = (request.body["model"].as_str(), request.distinct());
        let (replicas, weights) = (&self.world.replicas, Weights::default());
        let plan = self.world.plan(model);
        let ask = Ask {
            model,
            prompts: Ok(&prompts),
            reads_cache: true,
            honours_rank: true,
            made: None,
            distrusted: false,
        };
        let chains = self.chains(request);
        let pick = pick::pick(replicas, &plan.candidates, &ask, &chains, &weights, 0, self.now);
        usize::try_from(pick.predicted_tokens).unwrap()
    }

    /// The tokens that it had, once what it stored for this request was heard.
    fn hit(&self, capture: &Capture, request: &Recorded) -> usize {
        let groups = &self.described.as_ref().unwrap().groups;
        let is_whole = |group: u32| {
            groups.iter().any(|it| it.index == group && matches!(&*it.kind, "" | "full_attention"))
        };
        let mut stored = BTreeSet::new();
        for frame in &capture.frames[request.frames.clone()] {
            for event in Batch::decode(&frame[2]).unwrap().events {
                if let Event::Stored(event) = event
                    && is_whole(event.group.unwrap_or(0))
                    && event.tier.is_none_or(|it| it == Tier::Gpu)
                {
                    stored.extend(event.keys);
                }
            }
        }
        let (prompts, chains) = (request.distinct(), self.chains(request));
        let keys = chains.values().next().unwrap();
        let block_size = capture.meta["block_size"].as_u64().unwrap() as usize;
        let blocks = prompts.iter().zip(keys).map(|(prompt, keys)| {
            let again = keys.iter().position(|it| stored.contains(it));
            again.unwrap_or_else(|| prompt.reusable_blocks(block_size))
        });
        blocks.sum::<usize>() * block_size
    }

    fn chains(&self, request: &Recorded) -> Chains {
        let plan = self.world.plan(request.body["model"].as_str());
        pick::chain(plan.namings, &request.distinct(), request.body["cache_salt"].as_str())
    }
}

impl Recorded {
    /// The recording has a prompt for each answer; those of one prompt are one.
    fn distinct(&self) -> Vec<Prompt> {
        let prompts = if self.body["n"].is_u64() { &self.prompts[..1] } else { &self.prompts };
        prompts.iter().cloned().map(Prompt::from).collect()
    }
}

/// The number of frames after which the engine was started again, if it was.
fn restarts_after(capture: &Capture) -> Option<usize> {
    let marks = capture.meta["marks"].as_array().unwrap();
    let mark = marks.iter().find(|it| it["name"] == "engine-restarted")?;
    Some(mark["frames_so_far"].as_u64().unwrap() as usize)
}

fn models(list: &Value) -> Models {
    let mut models = Models::default();
    for card in list["data"].as_array().unwrap() {
        let name = card["id"].as_str().unwrap().to_owned();
        if card["parent"].is_string() {
            let path = card["root"].as_str().unwrap().to_owned();
            models.adapters.push(Adapter { name, path });
        } else {
            models.models.push(name);
        }
    }
    models
}
