//! Which requests are judged by the blocks that they leave, and what becomes of prompts that leave others than expected.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod judged;
#[path = "../rig/mod.rs"]
mod rig;
mod trust;

use std::time::{Duration, Instant};

use kvpick_core::{
    feed::StreamId,
    outcome::{Reason, Tier},
    parity::{Made, News, Parity, Totals},
    pick::{self, Ask, Pick},
    prompts::{Medium, Prompt},
    replicas::canonical_domain,
    request::Api,
    world::{Ticket, World},
};
use kvpick_proto::{
    naming::BlockKey,
    words::{
        Adapter, AgentMessage, Change, Completeness, CopyChunk, Description, Events, Group, Handle, KeyKind,
        KeyKindStatus, KeyState, Load, Place, Step, Tier as Store,
    },
};
use rig::{
    change, connect, copy, describe, description, gained, keys, lost, ms, prompt, report, spec, start,
};

/// From a computed prompt to its judgement, where blocks are missing.
const PATIENCE: Duration = Duration::from_secs(5);

const CHAT: Made = Made { api: Api::ChatCompletions, salted: false, answers_early: false };

/// One replica of model `m`, in step with its agent.
struct Rig {
    world: World,
    stream: StreamId,
    now: Instant,
    /// A number for what is new.
    news: u32,
}

/// A request for one prompt.
#[derive(Clone)]
struct Sent {
    model: &'static str,
    made: Option<Made>,
    prompt: Prompt,
    honours_rank: bool,
}

impl Sent {
    fn of(tokens: Vec<u32>) -> Self {
        Self { model: "m", made: Some(CHAT), prompt: tokens.into(), honours_rank: true }
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(|it| it)
    }

    fn with(describes: impl Fn(Description) -> Description) -> Self {
        let now = start();
        let mut world = rig::world(vec![spec(1, "a", &["m"])], now);
        world.parity = Parity::new([("m".to_owned(), vec!["alias".to_owned()])]);
        let stream = connect(&mut world, "a", 1, now);
        describe(&mut world, stream, describes(description(1, Some(canonical_domain()))), now);
        world.on_message(stream, copy(1, Vec::new(), Some(0)), now).unwrap();
        Self { world, stream, now, news: 1_000 }
    }

    fn send(&mut self, sent: &Sent) -> (Pick, Ticket) {
        let Sent { model, made, prompt, honours_rank } = sent;
        let plan = self.world.plan(Some(model));
        let prompts = [prompt.clone()];
        let salt = made.filter(|it| it.salted).map(|_| "salt");
        let chains = pick::chain(plan.namings.clone(), &prompts, salt);
        let ask = Ask {
            model: Some(model),
            prompts: Ok(&prompts),
            reads_cache: true,
            honours_rank: *honours_rank,
            made: *made,
            distrusted: false,
        };
        let (pick, ticket) = self.world.pick(&plan, &ask, &chains, self.now);
        (pick, ticket.unwrap())
    }

    /// Sends it, and it is answered with success and ends.
    fn serve(&mut self, sent: &Sent) -> Pick {
        let (pick, ticket) = self.send(sent);
        self.world.on_success(&ticket, self.now);
        self.world.finish(ticket, self.now);
        pick
    }

    /// A prompt that nobody had before.
    fn fresh(&mut self, tokens: u32) -> Vec<u32> {
        self.news += 1;
        prompt(self.news, tokens)
    }

    fn say(&mut self, message: AgentMessage) {
        self.world.on_message(self.stream, message, self.now).unwrap();
    }

    fn store(&mut self, blocks: &[BlockKey]) {
        self.say(change(1, vec![gained(blocks)], 1));
    }

    /// The engine stores something that nobody here asked for.
    fn store_other(&mut self) {
        let other = self.fresh(16);
        self.store(&keys(&other));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.world.on_time(self.now);
    }

    /// Requests judged, blocks that came, blocks that did not.
    fn totals(&self) -> (u64, u64, u64) {
        let add = |sum: (u64, u64, u64), it: Totals| {
            (sum.0 + it.requests, sum.1 + it.confirmed, sum.2 + it.missing)
        };
        self.world.parity.tallies().map(|(_, it)| it.totals()).fold((0, 0, 0), add)
    }

    /// `n` requests of one kind, whose engine stores blocks of its own in place of those expected, or these.
    fn traffic(&mut self, n: usize, like: &Sent, right: bool) -> Vec<Pick> {
        let mut picks = Vec::new();
        for _ in 0..n {
            let tokens = self.fresh(200);
            let sent = Sent { prompt: tokens.into(), ..like.clone() };
            let namings = self.world.plan(Some(sent.model)).namings;
            let salt = sent.made.filter(|it| it.salted).map(|_| "salt");
            let chains = pick::chain(namings, std::slice::from_ref(&sent.prompt), salt);
            picks.push(self.serve(&sent));
            match right {
                true => chains.values().for_each(|it| self.store(&it.concat())),
                false => self.store_other(),
            }
            self.pass(PATIENCE);
        }
        picks
    }
}
