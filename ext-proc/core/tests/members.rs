//! Replicas that come and go: who is picked, and whose knowledge is whose.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use std::{collections::BTreeMap, time::Instant};

use kvpick_core::{
    feed::StreamId,
    outcome::{Refusal, Tier},
    replicas::{Knowledge, ReplicaSpec, canonical_domain},
    world::{Ticket, World},
};
use kvpick_proto::words::{AgentMessage, Description, Handle, ServerMessage};
use proptest::prelude::*;
use rig::{
    connect, copy, describe, description, gained, keys, ms, name, pick, prompt, replica, report, spec, start,
};

fn member(port: u16, uid: &str) -> ReplicaSpec {
    ReplicaSpec { uid: uid.to_owned(), ..spec(port, "a", &["m"]) }
}

fn away(port: u16, uid: &str) -> ReplicaSpec {
    ReplicaSpec { is_away: true, ..member(port, uid) }
}

fn pool(members: Vec<ReplicaSpec>, now: Instant) -> World {
    let mut world = rig::world(Vec::new(), now);
    world.set_members(members, now);
    world
}

fn process(port: u16, incarnation: &str) -> Description {
    Description { incarnation: incarnation.to_owned(), ..description(port, Some(canonical_domain())) }
}

#[test]
fn who_is_not_ready_keeps_what_is_known_and_is_not_picked() {
    let now = start();
    let mut world = pool(vec![member(1, "u1"), member(2, "u2")], now);
    let stream = connect(&mut world, "a", 1, now);
    let tokens = prompt(1, 64);
    report(&mut world, stream, 1, &keys(&tokens), now);
    let ports = |world: &mut World| {
        let (pick, ticket) = pick(world, "m", &tokens, now);
        ticket.into_iter().for_each(|it| world.finish(it, now));
        pick.replicas.iter().map(|it| world.replicas[*it].spec.name.address.port()).collect::<Vec<_>>()
    };
    assert_eq!(ports(&mut world)[0], 1);
    assert_eq!(world.set_members(vec![away(1, "u1"), member(2, "u2")], now), []);
    assert_eq!(ports(&mut world), [2]);
    assert_eq!(replica(&world, 1).holdings.len(), 4);
    world.set_members(vec![member(1, "u1"), member(2, "u2")], now);
    assert!(ports(&mut world).contains(&1));
}

#[test]
fn with_nobody_ready_requests_are_refused() {
    let now = start();
    let mut world = rig::world(Vec::new(), now);
    let refusal = |world: &World| world.refusal(&world.plan(Some("m")), 0, now);
    world.expect_members();
    assert_eq!((refusal(&world), world.awaited(now).len()), (None, 1), "nothing was said of members");
    world.set_members(Vec::new(), now);
    assert_eq!(refusal(&world), Some(Refusal::NoEndpoint));
    world.set_members(vec![away(1, "u1")], now);
    assert_eq!(refusal(&world), Some(Refusal::NoEndpoint));
    world.set_members(vec![member(1, "u1")], now);
    assert_eq!(refusal(&world), None);
    // The last one goes between the two steps of a pick.
    let plan = world.plan(Some("m"));
    world.set_members(Vec::new(), now);
    assert_eq!(world.refusal(&plan, 0, now), Some(Refusal::NoEndpoint));
    let ask = rig::ask("m", &[]);
    let (pick, ticket) = world.pick(&plan, &ask, &BTreeMap::new(), now);
    assert!(pick.replicas.is_empty() && pick.tier == Tier::NoOpinion && ticket.is_none());
}

#[test]
fn a_ticket_of_one_that_is_gone_ends_for_nobody() {
    let now = start();
    let mut world = pool(vec![member(1, "u1")], now);
    let (_, ticket) = pick(&mut world, "m", &prompt(1, 64), now);
    world.set_members(vec![member(1, "u2")], now);
    let (_, second) = pick(&mut world, "m", &prompt(1, 64), now);
    let running = |world: &World| replica(world, 1).busy.estimate(1_000.0, now).requests;
    assert_eq!(running(&world), 1);
    world.on_success(ticket.as_ref().unwrap(), now);
    world.finish(ticket.unwrap(), now);
    assert_eq!(running(&world), 1, "another's request");
    world.finish(second.unwrap(), now);
    assert_eq!(running(&world), 0);
}

#[test]
fn what_was_refused_is_taken_when_the_replica_comes() {
    let now = start();
    let mut world = pool(Vec::new(), now);
    let stream = connect(&mut world, "a", 1, now);
    describe(&mut world, stream, process(1, "p1"), now);
    let said = world.poll_stream(stream, now).unwrap();
    assert!(matches!(&said[..], [ServerMessage::Refused(Handle(1), _)]), "{said:?}");
    world.set_members(vec![ReplicaSpec { node: None, ..member(1, "u1") }], now);
    assert_eq!(world.poll_stream(stream, now).unwrap(), [], "whose it is, is not known yet");
    world.set_members(vec![member(1, "u1")], now);
    let said = world.poll_stream(stream, now).unwrap();
    assert!(said.contains(&ServerMessage::Accepted(Handle(1))), "{said:?}");
    assert_eq!(replica(&world, 1).knowledge, Knowledge::AwaitingCopy);
    world.on_message(stream, copy(1, vec![gained(&keys(&prompt(1, 64)))], Some(0)), now).unwrap();
    assert_eq!(replica(&world, 1).knowledge, Knowledge::Live);
}

#[test]
fn an_address_that_is_used_again_inherits_nothing() {
    let now = start();
    let mut world = pool(vec![member(1, "u1")], now);
    let stream = connect(&mut world, "a", 1, now);
    let blocks = keys(&prompt(1, 64));
    describe(&mut world, stream, process(1, "p1"), now);
    world.on_message(stream, copy(1, vec![gained(&blocks)], Some(0)), now).unwrap();
    assert_eq!(world.set_members(vec![member(1, "u2")], now), [], "its name is still in use");
    assert_eq!((replica(&world, 1).holdings.len(), &replica(&world, 1).description), (0, &None));
    let said = world.poll_stream(stream, now).unwrap();
    assert!(matches!(&said[..], [.., ServerMessage::Refused(Handle(1), _)]), "{said:?}");
    // The agent has not noticed: it goes on with the process before.
    describe(&mut world, stream, Description { max_model_len: 9, ..process(1, "p1") }, now);
    world.on_message(stream, copy(1, vec![gained(&blocks)], Some(1)), now).unwrap();
    world.on_time(now + ms(9_000));
    assert_eq!((replica(&world, 1).holdings.len(), &replica(&world, 1).description), (0, &None));
    // Now it has.
    describe(&mut world, stream, process(1, "p2"), now);
    assert_eq!(replica(&world, 1).description.as_ref().unwrap().incarnation, "p2");
}

#[test]
fn the_same_process_under_another_uid_counts_after_a_while() {
    let now = start();
    let mut world = pool(vec![member(1, "u1")], now);
    let stream = connect(&mut world, "a", 1, now);
    describe(&mut world, stream, process(1, ""), now);
    world.set_members(vec![member(1, "u2")], now);
    assert_eq!(world.poll_stream(stream, now).unwrap().len(), 2);
    let mut later = now;
    while later < now + ms(9_900) {
        later += ms(100);
        world.on_message(stream, AgentMessage::Heartbeat, later).unwrap();
        world.on_time(later);
    }
    assert!(replica(&world, 1).description.is_none());
    world.on_time(now + ms(10_000));
    assert!(replica(&world, 1).description.is_some());
}

#[derive(Clone, Debug)]
enum Event {
    /// The pods that there are now, by port: which one, and whether it is away.
    Members(Vec<(u16, u32, bool)>),
    /// The agent has noticed the pod that is at that port now, or says again what it last said.
    Describe(u16, bool),
    Copy(u16),
    Pick,
    /// A request ends: the one that has run for the longest time.
    End,
    Reconnect,
    Time(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let pods = prop::collection::vec((1..4_u16, 0..3_u32, any::<bool>()), 0..4);
    prop_oneof![
        3 => pods.prop_map(Event::Members),
        3 => (1..4_u16, any::<bool>()).prop_map(|(port, new)| Event::Describe(port, new)),
        3 => (1..4_u16).prop_map(Event::Copy),
        2 => Just(Event::Pick),
        1 => Just(Event::End),
        1 => Just(Event::Reconnect),
        1 => (1..4_000_u16).prop_map(Event::Time),
    ]
}

/// Blocks that only that process holds.
fn own_blocks(process: &str) -> Vec<kvpick_proto::naming::BlockKey> {
    let seed =
        process.bytes().fold(7_u32, |sum, it| sum.wrapping_mul(31).wrapping_add(u32::from(it))) % 10_000;
    keys(&prompt(seed, 64))
}

struct Run {
    world: World,
    stream: StreamId,
    epoch: u64,
    now: Instant,
    /// The pod at each port, as the cluster has it.
    pods: BTreeMap<u16, String>,
    /// What the agent last said of each port: of which pod.
    said: BTreeMap<u16, String>,
    tickets: Vec<Ticket>,
}

impl Run {
    fn take(&mut self, event: Event) {
        match event {
            Event::Members(pods) => {
                let specs: Vec<_> = pods
                    .iter()
                    .map(|(port, pod, is_away)| ReplicaSpec {
                        is_away: *is_away,
                        ..member(*port, &format!("{port}-{pod}"))
                    })
                    .collect();
                self.pods.clear();
                for spec in &specs {
                    self.pods.entry(spec.name.address.port()).or_insert_with(|| spec.uid.clone());
                }
                self.world.set_members(specs, self.now);
            }
            Event::Describe(port, notices) => {
                let present = self.pods.get(&port).filter(|_| notices).cloned();
                let Some(process_of) = present.or_else(|| self.said.get(&port).cloned()) else { return };
                self.said.insert(port, process_of.clone());
                describe(&mut self.world, self.stream, process(port, &process_of), self.now);
            }
            Event::Copy(port) => {
                let Some(of) = self.said.get(&port) else { return };
                let blocks = own_blocks(of);
                self.world
                    .on_message(self.stream, copy(port.into(), vec![gained(&blocks)], Some(0)), self.now)
                    .unwrap();
            }
            Event::Pick => {
                let (_, ticket) = pick(&mut self.world, "m", &prompt(1, 64), self.now);
                self.tickets.extend(ticket);
            }
            Event::End => {
                if !self.tickets.is_empty() {
                    let ticket = self.tickets.remove(0);
                    self.world.finish(ticket, self.now);
                }
            }
            Event::Reconnect => {
                self.world.close_stream(self.stream, self.now);
                self.epoch += 1;
                self.stream = connect(&mut self.world, "a", self.epoch, self.now);
                self.said.clear();
            }
            Event::Time(after) => {
                // An agent that is there says so every second.
                let until = self.now + ms(u64::from(after));
                while self.now < until {
                    self.now = (self.now + ms(500)).min(until);
                    self.world.on_message(self.stream, AgentMessage::Heartbeat, self.now).unwrap();
                    self.world.on_time(self.now);
                }
            }
        }
        drop(self.world.poll_stream(self.stream, self.now).unwrap());
    }

    /// No replica has the word of another pod's process, unless that was repeated for longer than any agent needs.
    fn check(&self, since: &BTreeMap<u16, Instant>) {
        for (_, replica) in self.world.replicas.iter() {
            let port = replica.spec.name.address.port();
            prop_assert_ok(self.pods.get(&port) == Some(&replica.spec.uid), "the table is the cluster's");
            let Some(described) = &replica.description else {
                prop_assert_ok(replica.holdings.is_empty(), "blocks with no word on whose");
                continue;
            };
            let is_old = since.get(&port).is_some_and(|it| *it + ms(10_000) <= self.now);
            prop_assert_ok(is_old || described.incarnation == replica.spec.uid, "the word of a former pod");
            let others = replica.holdings.len();
            let own = own_blocks(&described.incarnation);
            prop_assert_ok(others == 0 || others == own.len(), "blocks of several");
        }
    }
}

fn prop_assert_ok(holds: bool, what: &str) {
    assert!(holds, "{what}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 256 } else { 2_000 }))]

    #[test]
    fn nothing_is_ever_anothers(events in prop::collection::vec(event(), 1..40)) {
        let now = start();
        let mut world = pool(Vec::new(), now);
        let stream = connect(&mut world, "a", 1, now);
        let mut run = Run {
            world, stream, epoch: 1, now, pods: BTreeMap::new(), said: BTreeMap::new(), tickets: Vec::new(),
        };
        // Since when the pod at a port is the one that it is.
        let mut since: BTreeMap<u16, Instant> = BTreeMap::new();
        for event in events {
            let before = run.pods.clone();
            run.take(event);
            for (port, pod) in &run.pods {
                if before.get(port) != Some(pod) {
                    since.insert(*port, run.now);
                }
            }
            run.check(&since);
        }
        // Whatever was under way ends, and nothing is left of it.
        for ticket in std::mem::take(&mut run.tickets) {
            run.world.finish(ticket, run.now);
        }
        for (_, replica) in run.world.replicas.iter() {
            assert!(replica.busy.estimate(1_000.0, run.now).requests == 0);
        }
    }
}

#[test]
fn names_of_those_that_are_gone_are_told() {
    let now = start();
    let mut world = pool(vec![member(1, "u1"), member(2, "u2")], now);
    assert_eq!(world.set_members(vec![member(2, "u3")], now), [name(1)]);
}
