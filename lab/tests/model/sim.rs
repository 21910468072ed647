//! Virtual time: what is due next happens next, and nothing else moves the clock.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    time::{Duration, Instant},
};

use kvpick_agent_core::{
    engine::{Config, Models},
    node::Node,
};
use kvpick_lab::seeded::Seeded;
use kvpick_proto::words::{Handle, ReplicaName};

use super::{
    engine::{Held, Process},
    feed::Server,
    link::{Connection, Item},
    plan::{Plan, Replay},
    reference::Reference,
    replay::{Job, Scraper},
};

/// Microseconds since the run began.
pub(crate) type Time = u64;

pub(crate) const MS: Time = 1_000;
pub(crate) const S: Time = 1_000_000;

/// Unix time at which every run begins, in seconds.
const UNIX: u64 = 1_800_000_000;

/// Steps of a run that a failure shows.
const SHOWN: usize = 300;

/// Things that may happen at one moment: more can only be a loop.
const AT_ONCE: usize = 20_000;

/// The last steps, for people; only filled where a run is shown.
#[derive(Clone, Default)]
pub(crate) struct Trace(Option<Rc<RefCell<VecDeque<String>>>>);

impl Trace {
    pub(crate) fn shown() -> Self {
        Self(Some(Rc::default()))
    }

    pub(crate) fn add(&self, line: impl FnOnce() -> String) {
        let Some(lines) = &self.0 else { return };
        let mut lines = lines.borrow_mut();
        if lines.len() == SHOWN {
            lines.pop_front();
        }
        lines.push_back(line());
    }

    pub(crate) fn text(&self) -> String {
        self.0
            .as_ref()
            .map(|it| it.borrow().iter().cloned().collect::<Vec<_>>().join("\n"))
            .unwrap_or_default()
    }
}

/// What is due at some time. The numbers are a site or a server, and what it was when that was planned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Requests come.
    Ask(usize),
    StepEnds(usize, u32),
    Boots(usize),
    Connects(usize),
    /// The publisher learns of a subscription.
    Subscribes(usize, u64),
    /// The connection is told of.
    Opens(usize, u64),
    /// The loss of a connection is noticed.
    Closes(usize, u64),
    /// The next message of a connection is there.
    Arrives(usize, u64),
    /// The question reaches the replay socket.
    Asked(usize, u64),
    /// The next of a replay's messages is there.
    Replays(usize, u64),
    /// An answer of the metrics.
    Scraped(usize, u64),
    StreamConnects(usize),
    ToServer(usize, u64),
    ToAgent(usize, u64),
    /// One end of a stream ends.
    AgentEnds(usize, u64),
    ServerEnds(usize, u64),
    StreamTick(usize, u64),
    WorldTick(usize),
    ServerBoots(usize),
    Fault,
}

/// One engine's place, and the agent's sockets to it.
pub(crate) struct Site {
    pub(crate) handle: Handle,
    pub(crate) name: ReplicaName,
    pub(crate) process: Option<Process>,
    pub(crate) processes: u32,
    /// Blocks that any process ever named.
    pub(crate) universe: BTreeSet<Held>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) connecting: bool,
    pub(crate) job: Option<Job>,
    pub(crate) failures: u32,
    pub(crate) scraper: Scraper,
    pub(crate) reference: Reference,
    /// Batches that will be dropped for subscribers.
    pub(crate) drops: usize,
    /// How many batches beyond the agent's last one the next process publishes before anybody hears it.
    pub(crate) passes: Option<u64>,
    pub(crate) batches_given: u64,
}

/// All of a run.
pub(crate) struct Sim {
    pub(crate) plan: Plan,
    pub(crate) rng: Seeded,
    pub(crate) now: Time,
    base: Instant,
    queue: BTreeMap<(Time, u64), Event>,
    planned: u64,
    pub(crate) trace: Trace,
    pub(crate) node: Node,
    pub(crate) sites: Vec<Site>,
    pub(crate) servers: Vec<Server>,
    /// Whether nothing goes wrong now, and nobody asks anything.
    pub(crate) calm: bool,
    pub(crate) epochs: u64,
    pub(crate) accepted: u64,
}

impl Sim {
    pub(crate) fn new(
        mut rng: Seeded,
        replay: fn(&mut Seeded) -> Replay,
        base: Instant,
        trace: Trace,
    ) -> Self {
        let plan = Plan::of(&mut rng, replay);
        trace.add(|| format!("{plan:?}"));
        let sites: Vec<_> = (0..plan.engines)
            .map(|index| Site {
                handle: Handle(u32::try_from(index).unwrap()),
                name: ReplicaName { address: ([10, 0, 0, 1], 8000 + index as u16).into(), rank: 0 },
                process: None,
                processes: 0,
                universe: BTreeSet::new(),
                connections: Vec::new(),
                connecting: false,
                job: None,
                failures: 0,
                scraper: Scraper::default(),
                reference: Reference::new(plan.replay != Replay::Off),
                drops: 0,
                passes: None,
                batches_given: 0,
            })
            .collect();
        let mut it = Self {
            node: Node::new(plan.max_keys),
            plan,
            rng,
            now: 0,
            base,
            queue: BTreeMap::new(),
            planned: 0,
            trace,
            sites,
            servers: Vec::new(),
            calm: false,
            epochs: 0,
            accepted: 0,
        };
        it.servers = (0..2).map(|_| Server::new(it.world())).collect();
        it.start_agent();
        for site in 0..it.sites.len() {
            let at = it.rng.below(3_000) as Time * MS;
            it.plan_at(at, Event::Boots(site));
            it.plan_at(at + MS, Event::Ask(site));
        }
        for server in 0..2 {
            it.plan_at(0, Event::WorldTick(server));
        }
        it.plan_at(S, Event::Fault);
        it
    }

    /// A fresh agent. What an agent keeps over its end, if it ever keeps something, would be handed over here.
    pub(crate) fn start_agent(&mut self) {
        self.node = Node::new(self.plan.max_keys);
        let (now, unix_ms) = self.clocks();
        for index in 0..self.sites.len() {
            let replay = self.plan.replay != Replay::Off;
            let config = Config { replay, ..Config::new(self.sites[index].name) };
            self.node.add_engine(config, now, unix_ms);
            let scrape_at = self.now + self.rng.below(2_000) as Time * MS;
            let site = &mut self.sites[index];
            site.connections.clear();
            (site.job, site.failures, site.batches_given) = (None, 0, 0);
            site.scraper = Scraper::new(scrape_at);
            let published = site.process.as_ref().map_or(0, |it| it.batches.len() as u64);
            site.reference.agent_started(published);
            self.connect_later(index);
        }
        for server in 0..self.servers.len() {
            self.plan_in(0..400, Event::StreamConnects(server));
        }
    }

    pub(crate) fn clocks(&self) -> (Instant, u64) {
        (self.base + Duration::from_micros(self.now), UNIX * 1_000 + self.now / MS)
    }

    pub(crate) fn instant(&self, at: Time) -> Instant {
        self.base + Duration::from_micros(at)
    }

    /// Unix time in seconds.
    pub(crate) fn unix(&self) -> f64 {
        UNIX as f64 + self.now as f64 / S as f64
    }

    pub(crate) fn time_of(&self, at: Instant) -> Time {
        Time::try_from(at.saturating_duration_since(self.base).as_nanos().div_ceil(1_000)).unwrap()
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.rng.below(n) == 0
    }

    /// Some time, in milliseconds.
    pub(crate) fn some(&mut self, range: std::ops::Range<u64>) -> Time {
        let width = usize::try_from((range.end - range.start) * MS).unwrap();
        range.start * MS + self.rng.below(width) as Time
    }

    pub(crate) fn plan_at(&mut self, at: Time, event: Event) {
        self.planned += 1;
        self.queue.insert((at.max(self.now), self.planned), event);
    }

    /// After some time in that range, in milliseconds.
    pub(crate) fn plan_in(&mut self, range: std::ops::Range<u64>, event: Event) {
        let at = self.now + self.some(range);
        self.plan_at(at, event);
    }

    pub(crate) fn run_for(&mut self, time: Time) {
        let end = self.now + time;
        let mut at_once = 0;
        while let Some(next) = self.next().filter(|it| *it <= end) {
            at_once = if next > self.now { 0 } else { at_once + 1 };
            assert!(at_once < AT_ONCE, "something is due again and again at one moment");
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    fn next(&self) -> Option<Time> {
        let planned = self.queue.first_key_value().map(|((at, _), _)| *at);
        let engines = self.node.engines().values().filter_map(|it| it.due()).map(|it| self.time_of(it));
        let scrapes = self.sites.iter().filter_map(|it| it.scraper.next);
        let jobs = self.sites.iter().filter_map(|it| Some(it.job.as_ref()?.patience));
        let streams = self.servers.iter().flat_map(|it| &it.streams).filter_map(|it| it.due);
        planned.into_iter().chain(engines).chain(scrapes).chain(jobs).chain(streams).min()
    }

    /// Does one thing that is due.
    fn step(&mut self) {
        if let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= self.now
        {
            let event = entry.remove();
            return self.on(event);
        }
        for site in 0..self.sites.len() {
            if self.sites[site].scraper.next.is_some_and(|at| at <= self.now) {
                return self.scrape(site);
            }
            if self.sites[site].job.as_ref().is_some_and(|it| it.patience <= self.now) {
                return self.replay_times_out(site);
            }
            let due = self.node.engines()[&self.sites[site].handle].due();
            if due.is_some_and(|at| self.time_of(at) <= self.now) {
                return self.after_heard(site);
            }
        }
        for server in 0..self.servers.len() {
            let due = self.servers[server].streams.iter().find(|it| it.due.is_some_and(|at| at <= self.now));
            if let Some(id) = due.map(|it| it.id) {
                return self.stream_due(server, id);
            }
        }
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Ask(site) => self.ask(site),
            Event::StepEnds(site, process) => self.step_ends(site, process),
            Event::Boots(site) => self.boot(site),
            Event::Connects(site) => self.connect(site),
            Event::Subscribes(site, id) => {
                if let Some(it) = self.sites[site].connections.iter_mut().find(|it| it.id == id) {
                    it.is_subscribed = true;
                }
            }
            Event::Opens(site, id) => self.opens(site, id),
            Event::Closes(site, id) => self.closes(site, id),
            Event::Arrives(site, id) => self.arrives(site, id),
            Event::Asked(site, id) => self.asked(site, id),
            Event::Replays(site, id) => self.replays(site, id),
            Event::Scraped(site, id) => self.scraped(site, id),
            Event::StreamConnects(server) => self.stream_connects(server),
            Event::ToServer(server, id) => self.server_hears(server, id),
            Event::ToAgent(server, id) => self.agent_hears(server, id),
            Event::AgentEnds(server, id) => self.agent_ends(server, id),
            Event::ServerEnds(server, id) => self.server_ends(server, id),
            Event::StreamTick(server, id) => self.stream_tick(server, id),
            Event::WorldTick(server) => self.world_tick(server),
            Event::ServerBoots(server) => self.server_boots(server),
            Event::Fault => self.fault(),
        }
    }

    /// The agent's task of an engine was woken: as the shell does, time first, then what is to be asked.
    pub(crate) fn after_heard(&mut self, site: usize) {
        let (now, unix_ms) = self.clocks();
        let handle = self.sites[site].handle;
        self.node.on_time(handle, now, unix_ms);
        let engine = self.node.engine(handle).unwrap();
        if let Some(request) = engine.take_replay_request() {
            self.start_replay(site, request);
        }
        self.pump_all();
    }

    /// Something came out of an engine's sockets.
    pub(crate) fn hear(&mut self, site: usize, item: Item) {
        let (now, unix_ms) = self.clocks();
        self.trace.add(|| format!("{:>10} engine {site} heard {item}", self.now));
        let engine = self.node.engine(self.sites[site].handle).unwrap();
        match item {
            Item::Connected => engine.on_connected(now),
            Item::Disconnected => engine.on_disconnected(now, unix_ms),
            Item::Message(frames) => engine.on_frames(frames, now, unix_ms).unwrap(),
            Item::Replay(id, frames) => engine.on_replay(id, frames, now, unix_ms).unwrap(),
            Item::ReplayFailed(id, reason) => engine.on_replay_failed(id, reason, now, unix_ms),
        }
        self.sites[site].scraper.wake(self.now);
        self.after_heard(site);
    }

    pub(crate) fn models() -> Models {
        Models { models: vec!["m".to_owned()], ..Models::default() }
    }
}
