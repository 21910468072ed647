//! What becomes of prompts that leave other blocks than expected.

use super::*;

#[test]
fn prompts_that_never_fit_are_not_looked_up_any_more() {
    let mut rig = Rig::new();
    let like = Sent::of(Vec::new());
    let picks = rig.traffic(32, &like, false);
    assert!(picks.iter().all(|it| (it.tier, it.reason) == (Tier::Precise, Reason::OK)));
    assert!(!rig.world.trusts(Some("m"), Api::ChatCompletions));
    assert!(
        !rig.world.trusts(Some("alias"), Api::ChatCompletions)
            && !rig.world.trusts(None, Api::ChatCompletions)
    );
    assert!(
        rig.world.trusts(Some("m"), Api::Completions) && rig.world.trusts(Some("n"), Api::ChatCompletions)
    );
    let [News::Lost(subject, evidence)] = rig.world.parity.take_news()[..] else { panic!("one word of it") };
    assert_eq!((rig.world.parity.name(subject.model), subject.keys_label()), ("m", "plain"));
    assert_eq!((evidence.requests, evidence.share()), (32, Some(0.0)));

    let sent = Sent::of(prompt(1, 200));
    let first = rig.serve(&sent);
    assert_eq!((first.tier, first.reason), (Tier::Approximate, Reason::PARITY_LOST));
    rig.pass(PATIENCE * 2);
    let second = rig.serve(&sent);
    assert_eq!(second.predicted_tokens, 192, "by what this server sent there");

    // They are judged all the same.
    let picks = rig.traffic(64, &like, true);
    assert_eq!(picks[0].reason, Reason::PARITY_LOST);
    assert_eq!(picks[63].reason, Reason::OK);
    assert!(matches!(rig.world.parity.take_news()[..], [News::Back(..)]));
}

#[test]
fn kinds_of_keys_are_judged_apart() {
    let lora = Adapter { name: "lora".to_owned(), path: "/lora".to_owned() };
    let mut rig = Rig::with(|it| Description { adapters: vec![lora.clone()], ..it });
    let plain = Sent::of(Vec::new());
    let salted = Sent { made: Some(Made { salted: true, ..CHAT }), ..plain.clone() };
    let adapter = Sent { model: "lora", ..plain.clone() };
    let reason = |rig: &mut Rig, like: &Sent| rig.traffic(1, like, true)[0].reason;

    rig.traffic(32, &salted, false);
    let reasons = [&plain, &salted, &adapter].map(|it| reason(&mut rig, it));
    assert_eq!(reasons, [Reason::OK, Reason::PARITY_LOST, Reason::OK]);
    assert!(rig.world.trusts(Some("m"), Api::ChatCompletions));

    // What has too little evidence of its own goes by the plain ones.
    rig.traffic(80, &plain, false);
    assert_eq!(reason(&mut rig, &adapter), Reason::PARITY_LOST);
    assert!(!rig.world.trusts(Some("lora"), Api::ChatCompletions));
    rig.traffic(32, &adapter, true);
    assert_eq!(reason(&mut rig, &adapter), Reason::OK);
    assert!(rig.world.trusts(Some("lora"), Api::ChatCompletions));

    let medium = Medium { identifier: "x".to_owned(), offset: 0, length: 4 };
    let media = Prompt { media: vec![medium], ..prompt(1, 200).into() };
    rig.serve(&Sent { prompt: media, ..plain });
    rig.store_other();
    rig.pass(PATIENCE);
    let labels: Vec<_> = rig.world.parity.tallies().map(|(it, _)| it.keys_label()).collect();
    assert_eq!(labels, ["plain", "adapter", "salt", "media"]);
    assert!(rig.world.parity.tallies().all(|(it, _)| rig.world.parity.name(it.model) == "m"));
}

#[test]
fn a_lost_model_is_tried_again_after_a_reload_or_in_time() {
    let mut rig = Rig::new();
    let like = Sent::of(Vec::new());
    rig.traffic(32, &like, false);
    rig.serve(&Sent::of(prompt(1, 200)));
    rig.store_other();
    rig.world.parity.reset("alias", rig.now + ms(1));
    assert!(rig.world.trusts(Some("m"), Api::ChatCompletions));
    rig.pass(PATIENCE);
    assert_eq!(rig.totals().0, 32, "what was sent before does not count");

    rig.traffic(32, &like, false);
    assert!(!rig.world.trusts(Some("m"), Api::ChatCompletions));
    drop(rig.world.parity.take_news());
    rig.pass(ms(600_000));
    assert!(rig.world.trusts(Some("m"), Api::ChatCompletions));
    assert!(matches!(rig.world.parity.take_news()[..], [News::Tried(_)]));
}

#[test]
fn models_that_are_not_configured_share_a_name() {
    let now = start();
    let mut world = rig::world(vec![spec(1, "a", &["m"]), spec(2, "a", &["n"])], now);
    world.parity = Parity::new([("n".to_owned(), Vec::new()), ("o".to_owned(), Vec::new())]);
    let stream = connect(&mut world, "a", 1, now);
    report(&mut world, stream, 1, &[], now);
    let name = |it| world.parity.name(world.model(it)).to_owned();
    assert_eq!([Some("m"), Some("n"), Some("x"), None].map(name), ["other", "n", "other", "other"]);
}
