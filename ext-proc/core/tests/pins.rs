//! Requests that name a response go to the replica that keeps it.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use std::time::{Duration, Instant};

use kvpick_core::{
    health::Failure,
    outcome::{Reason, Tier},
    pins::{Bounds, Links, Pin, Pins, What},
    session::Served,
    world::World,
};
use kvpick_proto::words::ReplicaName;
use rig::{connect, describe, description, name, port, spec, start, world};

/// Two replicas of model m, one of another; nobody has spoken of them.
fn three(now: Instant) -> World {
    world(vec![spec(1, "a", &["m"]), spec(2, "a", &["m"]), spec(3, "b", &["other"])], now)
}

fn links(body: &str, session: Option<&str>) -> Links {
    Links::of("/v1/responses", body.as_bytes(), session.map(str::to_owned)).unwrap()
}

fn ok(port: u16) -> Served {
    Served { address: format!("127.0.0.1:{port}"), status: 200, ..Served::default() }
}

/// The response of that id was made there.
fn made(world: &mut World, id: &str, at: u16, now: Instant) {
    let pin = world.on_answered(&links("{}", None), &ok(at), None, now).unwrap();
    world.pins.learn(What::Response(id), pin, now);
}

/// Where a request goes that names it, if it is pinned.
fn goes(world: &mut World, links: &Links, model: &str, now: Instant) -> Option<u16> {
    let plan = world.plan(Some(model));
    let (pick, ticket) = world.pick_pinned(links, &plan, now)?;
    assert_eq!((pick.tier, pick.reason, pick.replicas.len()), (Tier::Pinned, Reason::OK, 1));
    assert_eq!(world.replicas[pick.replicas[0]].busy.own(1.0, now).requests, 1);
    let port = port(world, &pick);
    world.finish(ticket, now);
    Some(port)
}

fn naming(id: &str) -> Links {
    links(&format!(r#"{{"previous_response_id": "{id}"}}"#), None)
}

#[test]
fn a_response_is_looked_for_where_it_was_made() {
    let now = start();
    let mut world = three(now);
    for at in [1, 2] {
        made(&mut world, "r", at, now);
        assert_eq!(goes(&mut world, &naming("r"), "m", now), Some(at));
    }
    assert_eq!(goes(&mut world, &naming("elsewhere"), "m", now), None);
    assert_eq!(goes(&mut world, &naming("r"), "other", now), None, "another model can't have it");
    assert_eq!(goes(&mut world, &links("{}", None), "m", now), None);
    let path = Links::of("/v1/responses/r/cancel", b"", None).unwrap();
    let plan = world.plan(None);
    let (pick, ticket) = world.pick_pinned(&path, &plan, now).unwrap();
    assert_eq!(port(&world, &pick), 2);
    world.finish(ticket, now);
}

#[test]
fn a_chosen_id_and_a_session_are_learnt_from_who_answered() {
    let now = start();
    let mut world = three(now);
    let first = links(r#"{"request_id": "mine"}"#, Some("s"));
    // Picked was 1.
    world.on_answered(&first, &ok(2), Some(name(1)), now).unwrap();
    assert_eq!(goes(&mut world, &naming("mine"), "m", now), Some(2));
    let unknown = |session| links(r#"{"previous_response_id": "resp_unseen"}"#, session);
    assert_eq!(goes(&mut world, &unknown(Some("s")), "m", now), Some(2));
    assert_eq!(goes(&mut world, &unknown(Some("t")), "m", now), None);
    assert_eq!(goes(&mut world, &links("{}", Some("s")), "m", now), None, "free to go where its prefix is");
    // An id that is known counts more than the session.
    made(&mut world, "r", 1, now);
    assert_eq!(goes(&mut world, &links(r#"{"previous_response_id": "r"}"#, Some("s")), "m", now), Some(1));
}

#[test]
fn nothing_is_learnt_where_nothing_is_kept_or_nobody_knows_who_answered() {
    let now = start();
    let mut world = three(now);
    let asks = links(r#"{"request_id": "mine"}"#, Some("s"));
    let kept_nowhere = links(r#"{"request_id": "mine", "store": false}"#, Some("s"));
    let path = Links::of("/v1/responses/r", b"", Some("s".to_owned())).unwrap();
    for (links, served) in [
        (&kept_nowhere, ok(1)),
        (&path, ok(1)),
        (&asks, Served { status: 404, ..ok(1) }),
        (&asks, Served { status: 0, ..ok(1) }),
        (&asks, Served { address: String::new(), ..ok(1) }),
        (&asks, ok(9)),
    ] {
        assert_eq!(world.on_answered(links, &served, Some(name(1)), now), None, "{served:?}");
    }
    assert!(world.pins.is_empty());
}

#[test]
fn a_replica_that_is_out_or_has_restarted_keeps_nothing() {
    let now = start();
    let mut world = three(now);
    let stream = connect(&mut world, "a", 1, now);
    made(&mut world, "early", 1, now);
    describe(&mut world, stream, description(1, None), now);
    made(&mut world, "r", 1, now);
    assert_eq!(goes(&mut world, &naming("r"), "m", now), Some(1));
    assert_eq!(goes(&mut world, &naming("early"), "m", now), Some(1), "as far as anyone knows");

    let id = world.replicas.find(&name(1)).unwrap();
    world.on_failure(id, Failure::Connection, now);
    assert_eq!(goes(&mut world, &naming("r"), "m", now), None, "it is out");
    let later = now + Duration::from_secs(2);
    assert!(world.take_probes(later).contains(&id) && world.on_answer(id, later));
    assert_eq!(goes(&mut world, &naming("r"), "m", later), Some(1));

    let mut restarted = description(1, None);
    restarted.incarnation = "second".to_owned();
    describe(&mut world, stream, restarted, later);
    assert_eq!(goes(&mut world, &naming("r"), "m", later), None, "its memory is new");
}

#[test]
fn of_ranks_that_share_an_address_the_picked_one_is_meant() {
    let now = start();
    let rank = |rank| ReplicaName { rank, ..name(1) };
    let specs = (0..3).map(|it| {
        let mut spec = spec(1, "a", &["m"]);
        spec.name = rank(it);
        spec
    });
    let mut world = world(specs.collect(), now);
    let pin = |world: &mut World, picked| world.on_answered(&links("{}", None), &ok(1), picked, now).unwrap();
    let id = |world: &World, it| world.replicas.find(&rank(it)).unwrap();
    let want = Pin { replica: id(&world, 2), incarnation: None };
    assert_eq!(pin(&mut world, Some(rank(2))), want);
    assert_eq!(pin(&mut world, Some(name(2))).replica, id(&world, 0));
}

#[test]
fn pins_end_by_age() {
    let now = start();
    let mut world = three(now);
    world.pins = Pins::new(Bounds { most: 10, expiry: Duration::from_secs(60) }, 7);
    made(&mut world, "r", 1, now);
    assert_eq!(goes(&mut world, &naming("r"), "m", now + Duration::from_secs(60)), Some(1));
    assert_eq!(goes(&mut world, &naming("r"), "m", now + Duration::from_secs(121)), None);
}
