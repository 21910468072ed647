//! Who may be picked, by the gateway's word, and who is refused.
#![expect(clippy::disallowed_methods, reason = "tests start somewhere; all that follows is computed")]

use std::time::Instant;

use kvpick_core::{
    among::Among,
    outcome::{Reason, Refusal, Tier},
    pick::{Ask, Chains, Pick},
    replicas::{Memory, ReplicaSpec},
    reply::Decision,
    score::Weights,
    world::World,
};
use kvpick_proto::words::{Load, ReplicaName};

fn name(port: u16, rank: u32) -> ReplicaName {
    ReplicaName { address: ([10, 0, 0, 1], port).into(), rank }
}

/// Two ranks at port 1, one replica at port 2, and one of another model at port 3.
fn world(now: Instant) -> World {
    let spec = |port, rank, model: &str| ReplicaSpec::listed(name(port, rank), None, vec![model.to_owned()]);
    let specs = vec![spec(1, 0, "m"), spec(1, 1, "m"), spec(2, 0, "m"), spec(3, 0, "other")];
    World::new("test".to_owned(), specs, &Memory::default(), Weights::default(), 7, now)
}

fn ports(world: &World, model: &str, among: &Among) -> Vec<(u16, u32)> {
    let plan = world.plan_among(Some(model), among);
    assert_eq!(plan.none_allowed, plan.candidates.is_empty());
    let of = |it: &ReplicaName| (it.address.port(), it.rank);
    plan.candidates.iter().map(|it| of(&world.replicas[*it].spec.name)).collect()
}

#[test]
fn candidates_are_those_of_the_list_ranks_included() {
    let world = world(Instant::now());
    let hinted = |hint| Among::hinted([hint]);
    assert_eq!(ports(&world, "m", &Among::All), [(1, 0), (1, 1), (2, 0)]);
    assert_eq!(ports(&world, "m", &hinted("10.0.0.1:1")), [(1, 0), (1, 1)]);
    assert_eq!(ports(&world, "m", &hinted("10.0.0.1:2,10.0.0.1:9,10.0.0.9:1")), [(2, 0)]);
    assert_eq!(ports(&world, "m", &hinted("10.0.0.1")), []);
    assert_eq!(ports(&world, "m", &hinted("")), []);
    assert_eq!(ports(&world, "m", &Among::selected("10.0.0.1")), [(1, 0), (1, 1), (2, 0)]);
    assert_eq!(
        ports(&world, "m", &hinted("10.0.0.1:3")),
        [(3, 0)],
        "which will say that it knows no such model"
    );
    assert!(!world.plan_among(Some("m"), &hinted("10.0.0.1:3")).model_known);
}

#[test]
fn what_leaves_nobody_is_refused() {
    let now = Instant::now();
    let world = world(now);
    let refusal = |world: &World, among| world.refusal(&world.plan_among(Some("m"), &among), 0, now);
    assert_eq!(refusal(&world, Among::hinted([])), Some(Refusal::NoEndpoint));
    assert_eq!(refusal(&world, Among::hinted(["10.0.0.1:2"])), None);
    assert_eq!(refusal(&world, Among::All), None);
    let empty = World::new("e".to_owned(), Vec::new(), &Memory::default(), Weights::default(), 7, now);
    assert_eq!(refusal(&empty, Among::All), None, "Envoy may know more");
    let decision = Decision::new(&Pick::refused(Refusal::NoEndpoint), Vec::new());
    assert_eq!((decision.tier, decision.reason), (Tier::Refused, Reason::NO_ENDPOINT));
    assert_eq!(decision.refusal, Some(Refusal::NoEndpoint));
}

#[test]
fn what_gives_way_is_refused_while_all_are_saturated() {
    let now = Instant::now();
    let mut world = world(now);
    let ids = world.plan(Some("m")).candidates;
    let refusal = |world: &World, priority| world.refusal(&world.plan(Some("m")), priority, now);
    assert_eq!(refusal(&world, -1), None, "no agent speaks of them");
    for (i, id) in ids.iter().enumerate() {
        let busy = if i == 0 {
            Load { cache_use: 0.9, ..Load::default() }
        } else {
            Load { waiting: 5, ..Load::default() }
        };
        assert_eq!(refusal(&world, -1), None, "one has room");
        world.replicas[*id].busy.on_sample(busy, now);
    }
    assert_eq!(refusal(&world, -1), Some(Refusal::Saturated));
    assert_eq!((refusal(&world, 0), refusal(&world, i32::MAX)), (None, None));
    let only_one = world.plan_among(Some("m"), &Among::hinted(["10.0.0.1:2"]));
    assert_eq!(world.refusal(&only_one, -5, now), Some(Refusal::Saturated));
    world.replicas[ids[2]].busy.on_sample(Load { waiting: 4, cache_use: 0.7, ..Load::default() }, now);
    assert_eq!(refusal(&world, i32::MIN), None);
    let other = world.plan(Some("other"));
    assert_eq!(world.refusal(&other, -1, now), None, "another model's replica");
}

#[test]
fn a_turn_leaves_one_and_the_pick_keeps_to_it() {
    let now = Instant::now();
    let mut world = world(now);
    let mut seen = Vec::new();
    for _ in 0..6 {
        let mut plan = world.plan_among(Some("m"), &Among::selected("10.0.0.1"));
        world.take_turn(&mut plan);
        let ask = Ask {
            model: Some("m"),
            prompts: Err(Reason::NO_TOKENIZER),
            reads_cache: false,
            honours_rank: true,
            made: None,
            distrusted: false,
        };
        let (pick, ticket) = world.pick(&plan, &ask, &Chains::new(), now);
        world.finish(ticket.unwrap(), now);
        let [id] = pick.replicas[..] else { panic!("{pick:?}") };
        seen.push(world.replicas[id].spec.name);
    }
    assert_eq!(seen[..3], [name(1, 0), name(1, 1), name(2, 0)]);
    assert_eq!(seen[..3], seen[3..]);
    let mut none = world.plan_among(None, &Among::hinted([]));
    world.take_turn(&mut none);
    assert!(none.candidates.is_empty());
}
