//! Which replica a prompt goes to, and on what ground.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod rig;

use kvpick_core::{
    health::Failure,
    outcome::{Reason, Tier},
    pick::{Ask, Chains, chain},
    prompts::Prompt,
    replicas::canonical_domain,
    world::World,
};
use kvpick_proto::{
    naming::{Domain, ExtraKey, Hasher},
    words::{Adapter, Completeness, Description, Events},
};
use rig::{
    BLOCK, ask, connect, copy, describe, description, gained, keys, ms, name, pick, port, prompt, report,
    spec, start, world,
};

fn two(now: std::time::Instant) -> (World, kvpick_core::feed::StreamId) {
    let mut world = world(vec![spec(1, "a", &["m"]), spec(2, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    (world, stream)
}

#[test]
fn goes_to_the_holder_of_the_prefix() {
    let now = start();
    let (mut world, stream) = two(now);
    let tokens = prompt(1, 1_000);
    report(&mut world, stream, 1, &[], now);
    report(&mut world, stream, 2, &keys(&tokens)[..40], now);
    for i in 0..8 {
        let at = now + ms(10_000 * i);
        let (pick, ticket) = pick(&mut world, "m", &tokens, at);
        assert_eq!((port(&world, &pick), pick.tier, pick.reason), (2, Tier::Precise, Reason::OK));
        if i == 0 {
            assert_eq!(pick.predicted_tokens, 40 * BLOCK as u64);
        }
        assert_eq!(pick.replicas.len(), 2, "the next best comes second");
        world.finish(ticket.unwrap(), at);
    }
}

#[test]
fn predicts_by_the_engines_rule() {
    let now = start();
    // (tokens in the prompt, blocks held) -> blocks of the hit: whole ones, and one token at least is computed.
    for (n, held, want) in
        [(64, 4, 3), (65, 4, 4), (63, 4, 3), (15, 4, 0), (16, 4, 0), (17, 4, 1), (64, 2, 2)]
    {
        let (mut world, stream) = two(now);
        let blocks = keys(&prompt(1, 64));
        for port in [1, 2] {
            report(&mut world, stream, port, &blocks[..held], now);
        }
        let (pick, _) = pick(&mut world, "m", &prompt(1, n), now);
        assert_eq!(pick.predicted_tokens, want * BLOCK as u64, "{n} tokens, {held} blocks");
    }
}

#[test]
fn a_hole_ends_the_run() {
    let now = start();
    let (mut world, stream) = two(now);
    let tokens = prompt(1, 200);
    let mut blocks = keys(&tokens);
    blocks.remove(3);
    for port in [1, 2] {
        report(&mut world, stream, port, &blocks, now);
    }
    assert_eq!(pick(&mut world, "m", &tokens, now).0.predicted_tokens, 3 * BLOCK as u64);
}

#[test]
fn speculative_decoding_costs_a_block() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let domain = Some(canonical_domain());
    describe(&mut world, stream, Description { hit_blocks_dropped: 1, ..description(1, domain) }, now);
    world.on_message(stream, copy(1, vec![gained(&keys(&prompt(1, 64)))], None), now).unwrap();
    assert_eq!(pick(&mut world, "m", &prompt(1, 80), now).0.predicted_tokens, 3 * BLOCK as u64);
}

#[test]
fn two_models_with_one_tokenizer_never_share_a_hit() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"]), spec(2, "a", &["other"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let tokens = prompt(1, 500);
    report(&mut world, stream, 1, &[], now);
    report(&mut world, stream, 2, &keys(&tokens), now);
    let (pick, _) = pick(&mut world, "m", &tokens, now);
    assert_eq!((port(&world, &pick), pick.predicted_tokens), (1, 0));
    assert_eq!(pick.replicas.len(), 1, "the other model's replica is no alternative");
}

#[test]
fn an_unknown_model_is_sent_somewhere_to_be_told_so() {
    let now = start();
    let (mut world, _) = two(now);
    let (pick, ticket) = pick(&mut world, "no-such-model", &prompt(1, 100), now);
    assert_eq!((pick.tier, pick.reason), (Tier::Load, Reason::UNKNOWN_MODEL));
    assert!(ticket.is_some());
}

#[test]
fn without_replicas_there_is_no_opinion() {
    let now = start();
    let mut world = world(Vec::new(), now);
    let (pick, ticket) = pick(&mut world, "m", &prompt(1, 100), now);
    assert_eq!((pick.tier, pick.reason), (Tier::NoOpinion, Reason::NO_REPLICA));
    assert!(ticket.is_none() && pick.replicas.is_empty());
}

#[test]
fn a_busy_holder_loses_to_an_idle_replica() {
    let now = start();
    let (mut world, stream) = two(now);
    let tokens = prompt(1, 200);
    report(&mut world, stream, 1, &[], now);
    report(&mut world, stream, 2, &keys(&tokens), now);
    let mut tickets = Vec::new();
    let mut ports = Vec::new();
    for _ in 0..8 {
        let (pick, ticket) = pick(&mut world, "m", &tokens, now);
        ports.push(port(&world, &pick));
        tickets.push(ticket);
    }
    assert_eq!(ports[0], 2);
    assert!(ports.contains(&1), "{ports:?}");
}

#[test]
fn a_cold_burst_of_siblings_stays_together_until_it_costs_more() {
    let now = start();
    let (mut world, stream) = two(now);
    report(&mut world, stream, 1, &[], now);
    report(&mut world, stream, 2, &[], now);
    let shared = prompt(1, 2_000);
    let sibling = |i: u32| [shared.as_slice(), &prompt(2 + i, 40)].concat();
    let (first, _ticket) = pick(&mut world, "m", &sibling(0), now);
    let (second, _ticket) = pick(&mut world, "m", &sibling(1), now + ms(400));
    assert_eq!(first.replicas[0], second.replicas[0]);
    assert_eq!(second.predicted_tokens, 2_000, "what the first will have stored is expected");
}

#[test]
fn ties_are_spread() {
    let now = start();
    let (mut world, stream) = two(now);
    report(&mut world, stream, 1, &[], now);
    report(&mut world, stream, 2, &[], now);
    let mut count = [0; 3];
    for i in 0..64 {
        let (pick, ticket) = pick(&mut world, "m", &prompt(i, 40), now);
        count[usize::from(port(&world, &pick))] += 1;
        world.finish(ticket.unwrap(), now);
    }
    assert!(16 < count[1] && 16 < count[2], "{count:?}");
}

#[test]
fn without_an_agent_the_server_goes_by_its_own_memory() {
    let now = start();
    let (mut world, _) = two(now);
    let tokens = prompt(1, 1_000);
    let (first, ticket) = pick(&mut world, "m", &tokens, now);
    assert_eq!((first.tier, first.reason), (Tier::Approximate, Reason::NO_AGENT));
    world.finish(ticket.unwrap(), now);
    let (again, _) = pick(&mut world, "m", &tokens, now + ms(60_000));
    assert_eq!(again.replicas[0], first.replicas[0]);
    assert_eq!(again.predicted_tokens, 62 * BLOCK as u64);
    let (late, _) = pick(&mut world, "m", &tokens, now + ms(60_000 + 120_001));
    assert_eq!(late.predicted_tokens, 0, "forgotten");
}

#[test]
fn each_lack_of_knowledge_has_its_reason() {
    let now = start();
    let reason = |prepare: &dyn Fn(&mut World, kvpick_core::feed::StreamId)| {
        let mut world = world(vec![spec(1, "a", &["m"])], now);
        let stream = connect(&mut world, "a", 1, now);
        prepare(&mut world, stream);
        let (pick, _) = pick(&mut world, "m", &prompt(1, 100), now + ms(10_000));
        (pick.tier, pick.reason)
    };
    let approximate = |reason| (Tier::Approximate, reason);
    assert_eq!(reason(&|_, _| ()), approximate(Reason::NO_AGENT));
    assert_eq!(
        reason(&|world, stream| describe(world, stream, description(1, None), now)),
        approximate(Reason::AWAITING_COPY)
    );
    let live = |world: &mut World, stream, events| {
        describe(world, stream, Description { events, ..description(1, None) }, now);
        world.on_message(stream, copy(1, Vec::new(), None), now).unwrap();
    };
    assert_eq!(reason(&|world, stream| live(world, stream, Events::Off)), approximate(Reason::NO_EVENTS));
    assert_eq!(reason(&|world, stream| live(world, stream, Events::Awaited)), approximate(Reason::NO_DOMAIN));
    let silent = |world: &mut World, stream| {
        report(world, stream, 1, &keys(&prompt(1, 64)), now);
        world.close_stream(stream, now);
        world.on_time(now + ms(6_000));
    };
    assert_eq!(reason(&silent), approximate(Reason::AGENT_SILENT));
}

#[test]
fn the_reason_is_that_of_the_replica_that_is_picked() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"]), spec(2, "b", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &keys(&prompt(1, 64)), now);
    for i in 0..20 {
        let (pick, ticket) = pick(&mut world, "m", &prompt(i, 100), now);
        let want = if port(&world, &pick) == 1 {
            (Tier::Precise, Reason::OK)
        } else {
            (Tier::Approximate, Reason::NO_AGENT)
        };
        assert_eq!((pick.tier, pick.reason), want);
        world.finish(ticket.unwrap(), now);
    }
    world.close_stream(stream, now);
    let (pick, _) = pick(&mut world, "m", &prompt(1, 100), now);
    assert_eq!((port(&world, &pick), pick.tier, pick.reason), (1, Tier::Precise, Reason::STALE));
}

#[test]
fn where_events_do_not_tell_all_memory_counts_beside_them() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let partial = Completeness::PartialSince { unix_ms: 1 };
    let domain = Some(canonical_domain());
    describe(&mut world, stream, Description { completeness: partial, ..description(1, domain) }, now);
    world.on_message(stream, copy(1, Vec::new(), None), now).unwrap();
    let tokens = prompt(1, 100);
    let (_, ticket) = pick(&mut world, "m", &tokens, now);
    world.finish(ticket.unwrap(), now);
    let (again, _) = pick(&mut world, "m", &tokens, now + ms(60_000));
    assert_eq!((again.tier, again.predicted_tokens), (Tier::Precise, 6 * BLOCK as u64));
}

#[test]
fn what_events_confirm_or_take_back_is_expected_no_more() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &[], now);
    let tokens = prompt(1, 100);
    let blocks = keys(&tokens);
    let _tickets = pick(&mut world, "m", &tokens, now);
    assert_eq!(pick(&mut world, "m", &tokens, now).0.predicted_tokens, 6 * BLOCK as u64);
    let steps = vec![gained(&blocks), rig::lost(&blocks[2..])];
    world.on_message(stream, rig::change(1, steps, 1), now).unwrap();
    assert_eq!(pick(&mut world, "m", &tokens, now).0.predicted_tokens, 2 * BLOCK as u64);
}

#[test]
fn a_failed_replica_is_left_out_but_never_all_of_them() {
    let now = start();
    let (mut world, stream) = two(now);
    let tokens = prompt(1, 1_000);
    report(&mut world, stream, 1, &[], now);
    report(&mut world, stream, 2, &keys(&tokens), now);
    let ids = [1, 2].map(|it| world.replicas.find(&name(it)).unwrap());
    assert!(world.on_failure(ids[1], Failure::Connection, now));
    assert_eq!(pick(&mut world, "m", &tokens, now).0.replicas, [ids[0]]);
    assert!(world.on_failure(ids[0], Failure::Connection, now));
    assert_eq!(pick(&mut world, "m", &tokens, now).0.replicas.len(), 2, "all out is as good as none");
    assert!(world.on_answer(ids[1], now + ms(1_000)));
    assert_eq!(pick(&mut world, "m", &tokens, now + ms(1_000)).0.replicas, [ids[1]]);
}

#[test]
fn a_request_that_skips_the_cache_has_no_hit() {
    let now = start();
    let (mut world, stream) = two(now);
    let tokens = prompt(1, 100);
    for port in [1, 2] {
        report(&mut world, stream, port, &keys(&tokens), now);
    }
    let plan = world.plan(Some("m"));
    let prompts = [tokens.into()];
    let chains = chain(plan.namings.clone(), &prompts, None);
    let asked = Ask { reads_cache: false, ..ask("m", &prompts) };
    assert_eq!(world.pick(&plan, &asked, &chains, now).0.predicted_tokens, 0);
}

#[test]
fn hits_of_several_prompts_add_up() {
    let now = start();
    let (mut world, stream) = two(now);
    let prompts = [prompt(1, 100), prompt(2, 100)];
    let all = [keys(&prompts[0]), keys(&prompts[1])].concat();
    report(&mut world, stream, 1, &all, now);
    report(&mut world, stream, 2, &keys(&prompts[1]), now);
    let plan = world.plan(Some("m"));
    let prompts = prompts.map(Prompt::from);
    let chains = chain(plan.namings.clone(), &prompts, None);
    let asked = ask("m", &prompts);
    let (pick, _) = world.pick(&plan, &asked, &chains, now);
    assert_eq!((port(&world, &pick), pick.predicted_tokens), (1, 12 * BLOCK as u64));
}

#[test]
fn a_prompt_that_ends_before_a_medium_is_looked_up_as_far_as_it_goes() {
    let now = start();
    let (mut world, stream) = two(now);
    let tokens = prompt(1, 64);
    report(&mut world, stream, 1, &[], now);
    report(&mut world, stream, 2, &keys(&tokens), now);
    let plan = world.plan(Some("m"));
    let prompts = [Prompt { is_cut: true, ..tokens.into() }];
    let chains = chain(plan.namings.clone(), &prompts, None);
    let asked = ask("m", &prompts);
    let (pick, _) = world.pick(&plan, &asked, &chains, now);
    assert_eq!((pick.tier, pick.reason), (Tier::Precise, Reason::MEDIA_PREFIX));
    // More follows, so that all of its blocks may be found.
    assert_eq!((port(&world, &pick), pick.predicted_tokens), (2, 4 * BLOCK as u64));
}

#[test]
fn salts_and_adapters_keep_blocks_apart() {
    let now = start();
    let mut world = world(vec![spec(1, "a", &["m"])], now);
    let stream = connect(&mut world, "a", 1, now);
    let domain = canonical_domain();
    let tokens = prompt(1, 100);
    let adapter = ExtraKey::Adapter { name: "sql".to_owned(), path: "/adapters/sql".to_owned() };
    let named = Hasher::new(&domain).chain(domain.block_size, &tokens, |_| vec![adapter.clone()]);
    let salted = Hasher::new(&domain).chain(domain.block_size, &tokens, |i| {
        if i == 0 { vec![ExtraKey::Salt("pepper".to_owned())] } else { Vec::new() }
    });
    let adapters = vec![Adapter { name: "sql".to_owned(), path: "/adapters/sql".to_owned() }];
    describe(&mut world, stream, Description { adapters, ..description(1, Some(domain)) }, now);
    let held = [gained(&named), gained(&salted)];
    world.on_message(stream, copy(1, held.to_vec(), None), now).unwrap();

    let predicted = |model: &str, salt: Option<&str>| {
        let plan = world.plan(Some(model));
        let prompts = [tokens.clone().into()];
        let chains = chain(plan.namings.clone(), &prompts, salt);
        let asked = ask(model, &prompts);
        kvpick_core::pick::pick(
            &world.replicas,
            &plan.candidates,
            &asked,
            &chains,
            &kvpick_core::score::Weights::default(),
            1,
            now,
        )
        .predicted_tokens
    };
    assert_eq!(predicted("m", None), 0);
    assert_eq!(predicted("sql", None), 6 * BLOCK as u64);
    assert_eq!(predicted("m", Some("pepper")), 6 * BLOCK as u64);
    assert_eq!(predicted("m", Some("salt")), 0);
    assert_eq!(predicted("sql", Some("pepper")), 0);
}

#[test]
fn at_most_four_namings_are_tried() {
    let now = start();
    let specs = (1..=6).map(|port| spec(port, "a", &["m"])).collect();
    let mut world = world(specs, now);
    let stream = connect(&mut world, "a", 1, now);
    for port in 1..=6 {
        let domain = Domain { root: port.to_string(), ..canonical_domain() };
        describe(&mut world, stream, description(port, Some(domain)), now);
        world.on_message(stream, copy(port.into(), Vec::new(), None), now).unwrap();
    }
    let plan = world.plan(Some("m"));
    assert_eq!(plan.namings.len(), 4);
    let mut reasons = std::collections::BTreeSet::new();
    for i in 0..40 {
        let (pick, ticket) = pick(&mut world, "m", &prompt(i, 100), now);
        reasons.insert((pick.tier, pick.reason));
        world.finish(ticket.unwrap(), now);
    }
    let want = [(Tier::Precise, Reason::OK), (Tier::Approximate, Reason::TOO_MANY_DOMAINS)];
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), want);
    let asked = ask("m", &[]);
    let none = world.pick(&plan, &asked, &Chains::new(), now).0;
    assert_eq!((none.tier, none.reason), (Tier::Approximate, Reason::TOO_MANY_DOMAINS));
}
