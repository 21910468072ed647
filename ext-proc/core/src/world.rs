//! Everything that a server knows at one time, and what happens to it. The shell keeps it behind one lock.

mod membership;

use std::time::Instant;

use kvpick_proto::words::{AgentMessage, InFlight, KeyKind, ReplicaName, ServerMessage};

use membership::Membership;

use crate::{
    among::Among,
    feed::{Close, Feed, Note, StreamId},
    health::Failure,
    index::GPU_ONLY,
    outcome::{Reason, Refusal},
    parity::{self, Made, Model, Parity, Subject, WatchId},
    pick::{self, Ask, Chains, Naming, Pick},
    pins::{Bounds, Links, Pin, Pins, What},
    replicas::{Memory, Replica, ReplicaId, ReplicaSpec, Replicas},
    request::Api,
    score::Weights,
    session::Served,
};

/// All that a server knows.
#[derive(Debug)]
pub struct World {
    /// The replicas.
    pub replicas: Replicas,
    /// The agents' connections.
    pub feed: Feed,
    /// Who keeps which response.
    pub pins: Pins,
    /// Whether prompts are those of the engines.
    pub parity: Parity,
    membership: Membership,
    turns: usize,
    weights: Weights,
    picks: u64,
    seed: u64,
}

/// A request on its way to a replica; must be handed back when it ends.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a request that never ends keeps its replica busy for ever"]
pub struct Ticket {
    replica: ReplicaId,
    watch: Option<WatchId>,
}

impl Ticket {
    /// Whether [`World::on_success`] wants to hear of it.
    #[must_use]
    pub const fn is_watched(&self) -> bool {
        self.watch.is_some()
    }
}

/// What is to be known before a prompt is chained.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Replicas that may serve it.
    pub candidates: Vec<ReplicaId>,
    /// Whether one of them says that it serves the model.
    pub model_known: bool,
    /// How they name its blocks.
    pub namings: Vec<Naming>,
    /// Whether a gateway's list has left no replica at all.
    pub none_allowed: bool,
}

impl World {
    /// A server of that name in front of those replicas, of which nothing is known yet.
    #[must_use]
    pub fn new(
        server: String,
        replicas: Vec<ReplicaSpec>,
        memory: &Memory,
        weights: Weights,
        seed: u64,
        now: Instant,
    ) -> Self {
        Self {
            replicas: Replicas::new(replicas, memory),
            feed: Feed::new(server, now),
            pins: Pins::new(Bounds::default(), seed),
            parity: Parity::default(),
            membership: Membership::Listed,
            turns: 0,
            weights,
            picks: 0,
            seed,
        }
    }

    /// First step of a pick: who may serve the model, and how do they name blocks.
    #[must_use]
    pub fn plan(&self, model: Option<&str>) -> Plan {
        self.plan_among(model, &Among::All)
    }

    /// The same where the gateway allows these replicas only.
    #[must_use]
    pub fn plan_among(&self, model: Option<&str>, among: &Among) -> Plan {
        let (candidates, model_known) = pick::candidates(&self.replicas, model, among);
        let namings = pick::namings(&self.replicas, &candidates, model);
        let none_allowed = among.is_listed() && candidates.is_empty();
        Plan { candidates, model_known, namings, none_allowed }
    }

    /// Leaves one candidate of a plan, the next one in turn.
    pub fn take_turn(&mut self, plan: &mut Plan) {
        if let Some(id) = plan.candidates.get(self.turns % plan.candidates.len().max(1)) {
            self.turns = self.turns.wrapping_add(1);
            plan.candidates = vec![*id];
        }
    }

    /// Whether a request of that priority is to be refused, and why.
    #[must_use]
    pub fn refusal(&self, plan: &Plan, priority: i32, now: Instant) -> Option<Refusal> {
        let mut candidates = plan.candidates.iter().filter_map(|it| self.replicas.get(*it)).peekable();
        let is_none = candidates.peek().is_none();
        if plan.none_allowed || self.membership == Membership::Told && is_none {
            return Some(Refusal::NoEndpoint);
        }
        let gives_way = priority < 0 && !is_none;
        let is_saturated = |it: &Replica| it.busy.estimate(self.weights.prefill_rate, now).is_saturated();
        (gives_way && candidates.all(is_saturated)).then_some(Refusal::Saturated)
    }

    /// The base model behind a model or adapter name, as the operator calls it: the key of its tokenizer.
    #[must_use]
    pub fn base_models(&self, model: &str) -> Vec<String> {
        let serving = self.replicas.iter().find(|(_, it)| it.serves(model));
        serving.map_or_else(Vec::new, |(_, it)| it.base_models().map(str::to_owned).collect())
    }

    /// Last step of a pick: decides, and remembers what it decided. The ticket is `None` when there is no opinion.
    pub fn pick(
        &mut self,
        plan: &Plan,
        ask: &Ask<'_>,
        chains: &Chains,
        now: Instant,
    ) -> (Pick, Option<Ticket>) {
        let ask = match ask.prompts {
            Ok(_) if !plan.model_known => &Ask { prompts: Err(Reason::UNKNOWN_MODEL), ..*ask },
            Ok(_) | Err(_) => ask,
        };
        let subject = ask.made.map(|it| self.subject(plan, ask, it));
        let distrusted = ask.distrusted || subject.is_some_and(|it| !self.parity.trusts(it));
        let ask = &Ask { distrusted, ..*ask };
        self.picks += 1;
        let tie = self.seed ^ self.picks;
        // One may have gone since the plan was made.
        let candidates: Vec<_> =
            plan.candidates.iter().copied().filter(|it| self.replicas.get(*it).is_some()).collect();
        let pick = pick::pick(&self.replicas, &candidates, ask, chains, &self.weights, tie, now);
        let Some(&id) = pick.replicas.first() else { return (pick, None) };
        let replica = &mut self.replicas[id];
        let uncached = pick.prompt_tokens - pick.predicted_tokens;
        replica.busy.on_start(uncached, self.weights.prefill_rate, now);
        if pick.rank.is_none() && replica.is_by_header() {
            // Which rank will hold the blocks is the engine's choice.
            return (pick, Some(Ticket { replica: id, watch: None }));
        }
        let watch = self.watch(id, ask, subject, chains, now);
        let replica = &mut self.replicas[id];
        let keys = pick::keys_for(replica, ask.model, chains).concat();
        replica.routed.record(keys.iter().copied(), now);
        let holdings = &replica.holdings;
        let on_gpu = holdings.scale(GPU_ONLY, None);
        let missing: Vec<_> = keys.into_iter().filter(|it| on_gpu.of(holdings.places(*it)) <= 0.0).collect();
        replica.expected.record(missing, now);
        (pick, Some(Ticket { replica: id, watch }))
    }

    /// The replica itself, and no other, has begun to answer, with success.
    pub fn on_success(&mut self, ticket: &Ticket, now: Instant) {
        if let (Some(watch), Some(replica)) = (ticket.watch, self.replicas.get_mut(ticket.replica)) {
            replica.watched.on_success(watch, now);
        }
    }

    /// In place of [`Self::pick`], for a request that names a response: the replica that keeps it, and no other, as none
    /// could answer. `None` where that replica is not known, not a candidate, out, or restarted since.
    pub fn pick_pinned(&mut self, links: &Links, plan: &Plan, now: Instant) -> Option<(Pick, Ticket)> {
        let needed = links.needs.as_deref()?;
        let of_session = |pins: &mut Pins| pins.find(What::Session(links.session.as_deref()?), now);
        let pin = self.pins.find(What::Response(needed), now).or_else(|| of_session(&mut self.pins))?;
        let id = pin.replica;
        let is_same = match (pin.incarnation, self.incarnation(id)) {
            (Some(then), Some(present)) => then == present,
            _ => true,
        };
        let replica = self.replicas.get_mut(id)?;
        if !is_same || !replica.health.is_in() || !plan.candidates.contains(&id) {
            return None;
        }
        replica.busy.on_start(0, self.weights.prefill_rate, now);
        Some((Pick::pinned(id), Ticket { replica: id, watch: None }))
    }

    /// A request with links was answered by that address: what its response is pinned to, where it is kept. Its session
    /// and an id that the client chose are pinned at once. `picked` tells which rank it was, where several share the
    /// address.
    pub fn on_answered(
        &mut self,
        links: &Links,
        served: &Served,
        picked: Option<ReplicaName>,
        now: Instant,
    ) -> Option<Pin> {
        if !links.is_kept || !served.is_success() {
            return None;
        }
        // Whoever was picked may not be who answered: without Envoy's word nothing is learnt.
        let address = served.address.parse().ok()?;
        let at = self.replicas.at(address);
        let is_picked = |id: &&ReplicaId| Some(self.replicas[**id].spec.name) == picked;
        let id = *at.iter().find(is_picked).or_else(|| at.first())?;
        let pin = Pin { replica: id, incarnation: self.incarnation(id) };
        if let Some(session) = &links.session {
            self.pins.learn(What::Session(session), pin, now);
        }
        if let Some(chosen) = &links.chosen_id {
            self.pins.learn(What::Response(chosen), pin, now);
        }
        Some(pin)
    }

    fn incarnation(&self, id: ReplicaId) -> Option<u64> {
        let described = self.replicas.get(id)?.description.as_ref()?;
        // An agent that does not know it says nothing.
        let known = Some(described.incarnation.as_str()).filter(|it| !it.is_empty());
        known.map(|it| self.pins.digest(it))
    }

    /// A request has ended, however.
    pub fn finish(&mut self, ticket: Ticket, now: Instant) {
        let Ticket { replica, watch } = ticket;
        let Some(replica) = self.replicas.get_mut(replica) else { return };
        replica.busy.on_end(now);
        if let Some(watch) = watch {
            replica.watched.on_end(watch);
        }
    }

    /// Whether prompts that this server makes by the rules of that API, for that model or adapter, are thought to be the
    /// engines'. Those with a salt or with media are judged by themselves besides, see [`Parity::trusts`].
    #[must_use]
    pub fn trusts(&self, model: Option<&str>, api: Api) -> bool {
        let is_adapter =
            model.is_some_and(|it| self.replicas.iter().any(|(_, r)| r.adapter_path(it).is_some()));
        let keys = if is_adapter { KeyKind::Adapter } else { KeyKind::Plain };
        self.parity.trusts(Subject { model: self.model(model), api, keys })
    }

    /// The configured model behind the name of a model or adapter, as far as [`Self::parity`] knows it.
    #[must_use]
    pub fn model(&self, name: Option<&str>) -> Model {
        let Some(name) = name else { return self.parity.only().unwrap_or(Model::OTHER) };
        let by_base = || {
            let (_, serving) = self.replicas.iter().find(|(_, it)| it.serves(name))?;
            serving.base_models().find_map(|it| self.parity.model(it))
        };
        self.parity.model(name).or_else(by_base).unwrap_or(Model::OTHER)
    }

    fn subject(&self, plan: &Plan, ask: &Ask<'_>, made: Made) -> Subject {
        let has_media = ask.prompts.is_ok_and(|it| it.iter().any(|prompt| !prompt.media.is_empty()));
        let keys = if has_media {
            KeyKind::Media
        } else if made.salted {
            KeyKind::Salt
        } else if plan.namings.iter().any(|it| it.adapter.is_some()) {
            KeyKind::Adapter
        } else {
            KeyKind::Plain
        };
        Subject { model: self.model(ask.model), api: made.api, keys }
    }

    /// Awaits what a request should leave at its replica.
    fn watch(
        &mut self,
        id: ReplicaId,
        ask: &Ask<'_>,
        subject: Option<Subject>,
        chains: &Chains,
        now: Instant,
    ) -> Option<WatchId> {
        let (subject, made) = (subject?, ask.made?);
        let replica = &mut self.replicas[id];
        if !replica.watched.has_room() {
            return None;
        }
        let blocks = parity::awaited(replica, pick::keys_for(replica, ask.model, chains));
        replica.watched.open(subject, made.answers_early, blocks, now)
    }

    /// A replica was seen to fail. Returns whether it is out because of it, as news.
    pub fn on_failure(&mut self, id: ReplicaId, why: Failure, now: Instant) -> bool {
        self.replicas.get_mut(id).is_some_and(|it| it.on_failure(why, now))
    }

    /// A request lost its connection to a replica. Returns whether that puts it out, which is news.
    pub fn on_lost(&mut self, id: ReplicaId, now: Instant) -> bool {
        self.replicas.get_mut(id).is_some_and(|it| it.on_lost(now))
    }

    /// A replica has answered a request well.
    pub fn on_good_answer(&mut self, id: ReplicaId) {
        if let Some(replica) = self.replicas.get_mut(id) {
            replica.health.on_good_answer();
        }
    }

    /// A replica has answered a probe. Returns whether it is back because of it.
    pub fn on_answer(&mut self, id: ReplicaId, now: Instant) -> bool {
        self.replicas.get_mut(id).is_some_and(|it| !it.sleeps() && it.health.on_answer(now))
    }

    /// The replicas that are out and to be probed now, each named once per probe.
    #[must_use = "who is named here is not named again until its next turn"]
    pub fn take_probes(&mut self, now: Instant) -> Vec<ReplicaId> {
        let due =
            |(id, it): (ReplicaId, &mut Replica)| (!it.sleeps() && it.health.take_probe(now)).then_some(id);
        self.replicas.iter_mut().filter_map(due).collect()
    }

    /// See [`Feed::open`].
    pub fn open_stream(&mut self, now: Instant) -> StreamId {
        self.feed.open(now)
    }

    /// See [`Feed::on_message`].
    ///
    /// # Errors
    /// When the stream must end.
    pub fn on_message(&mut self, id: StreamId, message: AgentMessage, now: Instant) -> Result<(), Close> {
        self.feed.on_message(id, message, &mut self.replicas, now)
    }

    /// See [`Feed::poll`].
    ///
    /// # Errors
    /// When the stream must end.
    pub fn poll_stream(&mut self, id: StreamId, now: Instant) -> Result<Vec<ServerMessage>, Close> {
        let Self { replicas, weights, .. } = self;
        let in_flight = |id: ReplicaId| -> InFlight { replicas[id].busy.own(weights.prefill_rate, now) };
        self.feed.poll(id, in_flight, now)
    }

    /// See [`Feed::close`].
    pub fn close_stream(&mut self, id: StreamId, now: Instant) {
        self.feed.close(id, &mut self.replicas, now);
    }

    /// Lets time pass: empties what was stale for too long, and judges requests. Returns what happened since the last call.
    pub fn on_time(&mut self, now: Instant) -> Vec<Note> {
        self.feed.on_time(&mut self.replicas, now);
        for (_, replica) in self.replicas.iter_mut() {
            for judged in parity::judge(replica, now) {
                self.parity.on_judged(judged, now);
            }
        }
        self.parity.on_time(now);
        self.feed.take_notes()
    }

    /// What keeps this server from being ready.
    #[must_use]
    pub fn awaited(&self, now: Instant) -> Vec<String> {
        if self.membership == Membership::Awaited {
            return vec!["the pods that the replicas are".to_owned()];
        }
        self.feed.awaited(&self.replicas, now)
    }
}
