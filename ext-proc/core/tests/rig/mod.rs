//! A world with a few replicas, and an agent's words, for the tests beside.
#![allow(dead_code, unreachable_pub, reason = "shared by test files, of which none uses all of it")]

use std::time::{Duration, Instant};

use kvpick_core::{
    feed::StreamId,
    pick::{self, Ask, Pick},
    prompts::Prompt,
    replicas::{Memory, Replica, ReplicaSpec, canonical_domain},
    score::Weights,
    world::{Ticket, World},
};
use kvpick_proto::{
    naming::{BlockKey, Domain},
    words::{
        AgentMessage, Change, Completeness, CopyChunk, Description, EngineStatus, Events, Handle, Hello,
        PROTOCOL, Place, ReplicaName, ServerMessage, Step,
    },
};

pub const BLOCK: usize = 16;

#[expect(clippy::disallowed_methods, reason = "tests start somewhere; all that follows is computed")]
pub fn start() -> Instant {
    Instant::now()
}

pub fn ms(it: u64) -> Duration {
    Duration::from_millis(it)
}

pub fn name(port: u16) -> ReplicaName {
    ReplicaName { address: ([127, 0, 0, 1], port).into(), rank: 0 }
}

pub fn spec(port: u16, node: &str, models: &[&str]) -> ReplicaSpec {
    let models = models.iter().map(|&it| it.to_owned()).collect();
    ReplicaSpec::listed(name(port), Some(node.to_owned()), models)
}

pub fn world(specs: Vec<ReplicaSpec>, now: Instant) -> World {
    World::new("server".to_owned(), specs, &Memory::default(), Weights::default(), 7, now)
}

pub fn description(port: u16, domain: Option<Domain>) -> Description {
    Description {
        name: name(port),
        incarnation: "first".to_owned(),
        events: Events::Live,
        models: Vec::new(),
        adapters: Vec::new(),
        domain,
        key_kinds: Vec::new(),
        completeness: Completeness::Complete,
        num_gpu_blocks: 1_000,
        groups: Vec::new(),
        max_model_len: 0,
        hit_blocks_dropped: 0,
        status: EngineStatus::Up,
        status_reason: String::new(),
        engine_version: "0.32.0".to_owned(),
        rank_by_header: false,
        tier_weights: Vec::new(),
    }
}

pub fn hello(node: &str, epoch: u64) -> AgentMessage {
    let (version, token) = (String::new(), String::new());
    AgentMessage::Hello(Hello { protocol: PROTOCOL, node: node.to_owned(), epoch, version, token })
}

pub fn gained(keys: &[BlockKey]) -> Step {
    Step::Gained { place: Place::GPU, parent: None, keys: keys.to_vec() }
}

pub fn lost(keys: &[BlockKey]) -> Step {
    Step::Lost { place: Place::GPU, keys: keys.to_vec() }
}

pub fn change(handle: u32, steps: Vec<Step>, applied: u64) -> AgentMessage {
    AgentMessage::Change(Handle(handle), Change { steps, applied: Some(applied) })
}

pub fn copy(handle: u32, steps: Vec<Step>, applied: Option<u64>) -> AgentMessage {
    AgentMessage::Copy(Handle(handle), CopyChunk { first: true, last: true, steps, applied })
}

/// A stream of that node, welcomed.
pub fn connect(world: &mut World, node: &str, epoch: u64, now: Instant) -> StreamId {
    let id = world.open_stream(now);
    world.on_message(id, hello(node, epoch), now).unwrap();
    let said = world.poll_stream(id, now).unwrap();
    assert!(matches!(said[..], [ServerMessage::Welcome(_)]), "{said:?}");
    id
}

/// An agent that has described a replica, by handle = port, and copied what it holds.
pub fn report(world: &mut World, stream: StreamId, port: u16, keys: &[BlockKey], now: Instant) {
    describe(world, stream, description(port, Some(canonical_domain())), now);
    world.on_message(stream, copy(port.into(), vec![gained(keys)], Some(0)), now).unwrap();
}

pub fn describe(world: &mut World, stream: StreamId, description: Description, now: Instant) {
    let handle = Handle(description.name.address.port().into());
    world.on_message(stream, AgentMessage::Describe(handle, Box::new(description)), now).unwrap();
}

pub fn replica(world: &World, port: u16) -> &Replica {
    &world.replicas[world.replicas.find(&name(port)).unwrap()]
}

/// `n` tokens, the same ones for the same `seed`.
pub fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| seed * 100_000 + i).collect()
}

pub fn keys(tokens: &[u32]) -> Vec<BlockKey> {
    let domain = canonical_domain();
    kvpick_proto::naming::Hasher::new(&domain).chain(domain.block_size, tokens, |_| Vec::new())
}

/// What a request with these prompts asks for.
pub fn ask<'a>(model: &'a str, prompts: &'a [Prompt]) -> Ask<'a> {
    Ask {
        model: Some(model),
        prompts: Ok(prompts),
        reads_cache: true,
        honours_rank: true,
        made: None,
        distrusted: false,
    }
}

/// A pick for one prompt, through all its steps.
pub fn pick(world: &mut World, model: &str, tokens: &[u32], now: Instant) -> (Pick, Option<Ticket>) {
    let plan = world.plan(Some(model));
    let prompts = [tokens.to_vec().into()];
    let chains = pick::chain(plan.namings.clone(), &prompts, None);
    let asked = ask(model, &prompts);
    world.pick(&plan, &asked, &chains, now)
}

/// The port that a pick came to.
pub fn port(world: &World, pick: &Pick) -> u16 {
    world.replicas[pick.replicas[0]].spec.name.address.port()
}
