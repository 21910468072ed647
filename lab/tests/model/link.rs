//! An engine's process and the subscription to it: batches come in order, or not at all.

use std::{collections::VecDeque, fmt, rc::Rc};

use super::{
    engine::Process,
    sim::{Event, Sim, Time},
};

/// What comes out of an engine's sockets, as in the shell.
#[derive(Debug)]
pub(crate) enum Item {
    Connected,
    Disconnected,
    Message(Vec<Vec<u8>>),
    Replay(u64, Vec<Vec<u8>>),
    ReplayFailed(u64, &'static str),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(frames) => write!(f, "batch {}", number(&frames[1])),
            Self::Replay(id, frames) => write!(f, "replay {id}: {}", number(&frames[frames.len() - 2])),
            other => write!(f, "{other:?}"),
        }
    }
}

fn number(frame: &[u8]) -> i64 {
    i64::from_be_bytes(frame.try_into().unwrap())
}

/// One connection of the subscription to one process.
pub(crate) struct Connection {
    pub(crate) id: u64,
    process: u32,
    pub(crate) is_subscribed: bool,
    /// Whether the agent was told of it.
    is_open: bool,
    /// Whether nothing passes any more, which nobody has noticed yet.
    pub(crate) is_cut: bool,
    queue: VecDeque<(Time, u64, f64, Rc<Vec<u8>>)>,
}

impl Sim {
    // === The process ===

    pub(crate) fn boot(&mut self, index: usize) {
        if self.sites[index].process.is_some() {
            return;
        }
        let jitter = self.rng.unit();
        let number = self.sites[index].processes;
        // The kernel rounds down the time of its own start, which this is counted from.
        let start = ((self.unix() - jitter) * 100.0).floor() / 100.0;
        let process = Process::new(&self.plan, number, start);
        let site = &mut self.sites[index];
        site.processes += 1;
        site.process = Some(process);
        let hidden = site.connections.iter().any(|it| it.is_open);
        let overlaps = hidden && self.plan.listens;
        site.reference.process_started(number, overlaps);
        self.trace.add(|| format!("{:>10} engine {index} is process {number}, started {start}", self.now));
        let passes = self.sites[index].passes.take();
        if let Some(batches) = passes {
            self.catch_up(index, batches);
        }
        if overlaps || passes.is_some() {
            // So that the first batch that is heard is one of the next.
            let soon = passes.is_some() || self.one_in(2);
            self.plan_in(if soon { 1..10 } else { 1..200 }, Event::Connects(index));
            self.sites[index].connecting = true;
        } else {
            self.connect_later(index);
        }
    }

    /// Publishes until it has as many batches as the process before, and some more, while nobody listens.
    fn catch_up(&mut self, index: usize, batches: u64) {
        let now = self.clocks().0;
        let time = self.unix();
        for _ in 0..2_000 {
            let process = self.sites[index].process.as_mut().unwrap();
            if process.batches.len() as u64 >= batches {
                break;
            }
            if process.scheduler.waiting() < 2 {
                process.ask(&mut self.rng, now);
            }
            if process.scheduler.start_step(now).is_some() {
                process.end_step(now, time);
            }
        }
        self.take_names(index);
        let process = self.sites[index].process.as_mut().unwrap();
        // What runs on goes on in its own time.
        if let Some(end) = process.scheduler.start_step(now) {
            process.stepping = true;
            let number = process.number;
            let end = self.time_of(end);
            self.plan_at(end, Event::StepEnds(index, number));
        }
    }

    pub(crate) fn kill(&mut self, index: usize) {
        let Some(process) = self.sites[index].process.take() else { return };
        self.trace.add(|| format!("{:>10} engine {index}: process {} ends", self.now, process.number));
        let lates: Vec<_> =
            self.sites[index].connections.iter().filter(|it| !it.is_cut).map(|it| it.id).collect();
        for id in lates {
            let soon = self.one_in(2);
            self.cut(index, id, if soon { 1..60 } else { 60..8_000 });
        }
    }

    /// What the process's batches name belongs to what a server may be asked about.
    fn take_names(&mut self, index: usize) {
        let site = &mut self.sites[index];
        for said in site.process.iter().flat_map(|it| &it.batches).flat_map(|it| &it.said) {
            said.name(&mut site.universe);
        }
    }

    pub(crate) fn ask(&mut self, index: usize) {
        if !self.calm {
            let now = self.clocks().0;
            if self.rng.below(5) > 0
                && let Some(process) = &mut self.sites[index].process
                && process.scheduler.waiting() < 4
            {
                process.ask(&mut self.rng, now);
            }
            self.start_step(index);
            let pause = if self.one_in(12) { 400..3_000 } else { 20..250 };
            self.plan_in(pause, Event::Ask(index));
        } else {
            self.plan_in(200..300, Event::Ask(index));
        }
    }

    pub(crate) fn start_step(&mut self, index: usize) {
        let now = self.clocks().0;
        let Some(process) = &mut self.sites[index].process else { return };
        if process.stepping {
            return;
        }
        if let Some(end) = process.scheduler.start_step(now) {
            process.stepping = true;
            let (number, end) = (process.number, self.time_of(end));
            self.plan_at(end, Event::StepEnds(index, number));
        }
    }

    pub(crate) fn step_ends(&mut self, index: usize, number: u32) {
        let (now, time) = (self.clocks().0, self.unix());
        let site = &mut self.sites[index];
        let Some(process) = site.process.as_mut().filter(|it| it.number == number) else { return };
        if let Some(batch) = process.end_step(now, time) {
            let it = process.batches.last().unwrap();
            let (payload, is_lost, said) = (Rc::clone(&it.payload), it.is_lost, it.said.clone());
            said.iter().for_each(|it| it.name(&mut site.universe));
            self.trace.add(|| {
                format!("{:>10} engine {index} publishes {batch}, lost: {is_lost}: {said:?}", self.now)
            });
            if !is_lost {
                self.publish(index, batch, time, &payload);
            }
        }
        self.start_step(index);
    }

    fn publish(&mut self, index: usize, batch: u64, time: f64, payload: &Rc<Vec<u8>>) {
        let number = self.sites[index].process.as_ref().unwrap().number;
        let lossy = !self.calm && self.rng.below(1_000) < self.plan.lossy;
        let site = &mut self.sites[index];
        let drops = site.drops > 0;
        site.drops = site.drops.saturating_sub(1);
        if lossy || drops {
            return self.trace.add(|| format!("{:>10} engine {index}: {batch} is dropped", self.now));
        }
        let delay = if self.calm { self.some(0..20) } else { self.some(0..150) };
        let at = self.now + delay;
        let mut arrivals = Vec::new();
        for it in &mut self.sites[index].connections {
            if it.process == number && it.is_subscribed && !it.is_cut {
                let at = it.queue.back().map_or(at, |last| at.max(last.0));
                it.queue.push_back((at, batch, time, Rc::clone(payload)));
                arrivals.push((at, Event::Arrives(index, it.id)));
            }
        }
        arrivals.into_iter().for_each(|(at, event)| self.plan_at(at, event));
    }

    // === The subscription ===

    pub(crate) fn connect_later(&mut self, index: usize) {
        if !std::mem::replace(&mut self.sites[index].connecting, true) {
            self.plan_in(5..1_000, Event::Connects(index));
        }
    }

    pub(crate) fn connect(&mut self, index: usize) {
        let site = &mut self.sites[index];
        site.connecting = false;
        let Some(process) = &site.process else { return self.connect_later(index) };
        let number = process.number;
        let has_open = site.connections.iter().any(|it| it.process == number || !self.plan.listens);
        if has_open {
            return;
        }
        self.epochs += 1;
        let id = self.epochs;
        let connection = Connection {
            id,
            process: number,
            is_subscribed: false,
            is_open: false,
            is_cut: false,
            queue: VecDeque::new(),
        };
        // With another one still there it would be told of a process that nobody can tell from that one's.
        let alone = site.connections.is_empty();
        site.connections.push(connection);
        self.trace.add(|| format!("{:>10} engine {index}: connection {id} to process {number}", self.now));
        let soon = self.calm || self.one_in(2);
        let subscribes = if soon { 1..20 } else { 1..150 };
        // A message may be quicker than the news of its connection.
        let opens = if alone && self.one_in(4) { 0..250 } else { 0..1 };
        self.plan_in(subscribes, Event::Subscribes(index, id));
        self.plan_in(opens, Event::Opens(index, id));
    }

    pub(crate) fn opens(&mut self, index: usize, id: u64) {
        let Some(it) = self.sites[index].connections.iter_mut().find(|it| it.id == id) else { return };
        it.is_open = true;
        self.hear(index, Item::Connected);
    }

    /// Nothing passes any more; that is noticed some time later, in milliseconds.
    pub(crate) fn cut(&mut self, index: usize, id: u64, noticed: std::ops::Range<u64>) {
        let arrive = self.rng.below(4);
        let Some(it) = self.sites[index].connections.iter_mut().find(|it| it.id == id) else { return };
        it.is_cut = true;
        // Of what is under way the first may still come.
        if arrive > 0 {
            it.queue.truncate(arrive - 1);
        }
        self.plan_in(noticed, Event::Closes(index, id));
    }

    pub(crate) fn closes(&mut self, index: usize, id: u64) {
        let site = &mut self.sites[index];
        let Some(at) = site.connections.iter().position(|it| it.id == id) else { return };
        if !site.connections[at].is_open {
            // The news of a connection is told before the news of its loss.
            self.opens(index, id);
        }
        // What came before belongs before.
        while let Some((_, batch, time, payload)) = self.sites[index].connections[at].queue.pop_front() {
            let process = self.sites[index].connections[at].process;
            self.message(index, process, batch, time, &payload);
        }
        let site = &mut self.sites[index];
        site.connections.remove(at);
        let others = site.connections.iter().any(|it| it.is_open);
        if !others {
            site.reference.disconnected(self.now);
            self.hear(index, Item::Disconnected);
        }
        self.connect_later(index);
    }

    pub(crate) fn arrives(&mut self, index: usize, id: u64) {
        let Some(it) = self.sites[index].connections.iter_mut().find(|it| it.id == id) else { return };
        if it.queue.front().is_none_or(|(at, ..)| *at > self.now) {
            return;
        }
        let process = it.process;
        if let Some((_, batch, time, payload)) = it.queue.pop_front() {
            self.message(index, process, batch, time, &payload);
        }
    }

    fn message(&mut self, index: usize, process: u32, batch: u64, time: f64, payload: &Rc<Vec<u8>>) {
        self.sites[index].reference.live(process, batch, time);
        let frames = vec![Vec::new(), batch.to_be_bytes().to_vec(), payload.to_vec()];
        self.hear(index, Item::Message(frames));
    }

    /// Whether the subscription is as it should be.
    pub(crate) fn is_subscribed(&self, index: usize) -> bool {
        let site = &self.sites[index];
        let Some(process) = &site.process else { return false };
        let good =
            |it: &Connection| it.is_open && it.is_subscribed && !it.is_cut && it.process == process.number;
        site.connections.len() == 1 && site.connections.iter().all(good)
    }
}

/// How long a dead process stays away: long enough for all that is quick.
pub(crate) const DOWN: std::ops::Range<u64> = 1_000..5_000;
