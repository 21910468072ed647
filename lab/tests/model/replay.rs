//! The replay socket, and the engine's metrics: what an agent asks for.

use std::collections::VecDeque;

use kvpick_agent_core::{
    load::{CacheConfig, Metrics},
    sequence::ReplayRequest,
};
use kvpick_proto::words::Load;

use super::{
    link::Item,
    sim::{Event, MS, S, Sim, Time},
};

/// The shell's patience with a replay that brings nothing new.
const PATIENCE: Time = 5 * S;

/// One question and its answer.
pub(crate) struct Job {
    id: u64,
    from: u64,
    /// When it is given up, unless something new comes.
    pub(crate) patience: Time,
    /// The process that answers, and what it has still to say; the end is `None`.
    answer: Option<(u32, VecDeque<Option<u64>>)>,
    given: u64,
}

/// Asks an engine's metrics, time and again.
#[derive(Default)]
pub(crate) struct Scraper {
    pub(crate) next: Option<Time>,
    last: Time,
    asked: Time,
    id: u64,
    /// What the answer will be.
    answer: Option<Answer>,
    pub(crate) fails: bool,
    /// Answers with a start time that the agent was given of the present process.
    pub(crate) good: u64,
}

#[derive(Clone, Copy)]
struct Answer {
    process: u32,
    start: f64,
    num_blocks: u64,
}

impl Scraper {
    pub(crate) fn new(at: Time) -> Self {
        Self { next: Some(at), ..Self::default() }
    }

    /// Something happened: it asks sooner.
    pub(crate) fn wake(&mut self, now: Time) {
        let soon = now.max(self.last + 250 * MS);
        if let Some(next) = &mut self.next {
            *next = soon.min(*next);
        }
    }
}

impl Sim {
    pub(crate) fn start_replay(&mut self, index: usize, request: ReplayRequest) {
        self.trace.add(|| format!("{:>10} engine {index} is asked for replay {request:?}", self.now));
        if let Some(job) = self.sites[index].job.take() {
            assert!(job.id < request.id, "questions are numbered");
            self.answers_too_late(index, job);
        }
        let site = &mut self.sites[index];
        site.reference.asks();
        site.job = Some(Job {
            id: request.id,
            from: request.from,
            patience: self.now + PATIENCE,
            answer: None,
            given: 0,
        });
        self.plan_in(0..120, Event::Asked(index, request.id));
    }

    /// What a question that is given up had still to say may be in the shell's channel already.
    fn answers_too_late(&mut self, index: usize, job: Job) {
        let Some((process, rest)) = job.answer else { return };
        for number in rest.into_iter().take(2) {
            let (now, unix_ms) = self.clocks();
            let Some(frames) = self.replay_frames(index, process, number) else { return };
            let engine = self.node.engine(self.sites[index].handle).unwrap();
            let before = engine.counts().batches;
            engine.on_replay(job.id, frames, now, unix_ms).unwrap();
            assert_eq!(engine.counts().batches, before, "an answer to an old question changed something");
        }
    }

    pub(crate) fn asked(&mut self, index: usize, id: u64) {
        let silent = !self.calm && self.one_in(12);
        let cut = !self.calm && self.one_in(8);
        let keep = self.rng.below(6);
        let site = &mut self.sites[index];
        let Some(job) = site.job.as_mut().filter(|it| it.id == id) else { return };
        let Some(process) = &site.process else {
            // The socket connects once somebody listens.
            return self.plan_in(90..110, Event::Asked(index, id));
        };
        if silent && self.plan.faults {
            return;
        }
        let mut rest: VecDeque<_> = process.replay(job.from).into_iter().map(Some).collect();
        rest.push_back(None);
        if cut && self.plan.faults {
            rest.truncate(keep);
        }
        job.answer = Some((process.number, rest));
        self.plan_in(0..100, Event::Replays(index, id));
    }

    pub(crate) fn replays(&mut self, index: usize, id: u64) {
        let slow = !self.calm && self.plan.faults && self.one_in(25);
        let at_once = 1 + self.rng.below(12);
        for _ in 0..at_once {
            let site = &mut self.sites[index];
            let Some(job) = site.job.as_mut().filter(|it| it.id == id) else { return };
            let Some((process, rest)) = &mut job.answer else { return };
            let process = *process;
            // A process that ended says no more.
            if site.process.as_ref().is_none_or(|it| it.number != process) {
                return;
            }
            let Some(number) = rest.pop_front() else { return };
            let (is_first, from) = (job.given == 0, job.from);
            job.given += 1;
            job.patience = self.now + PATIENCE;
            match number {
                Some(number) => site.reference.replayed(process, number, from, is_first),
                None => {
                    site.reference.answered();
                    (site.job, site.failures) = (None, 0);
                }
            }
            let Some(frames) = self.replay_frames(index, process, number) else { return };
            self.hear(index, Item::Replay(id, frames));
        }
        self.plan_in(if slow { 1_000..6_000 } else { 0..40 }, Event::Replays(index, id));
    }

    fn replay_frames(&self, index: usize, process: u32, number: Option<u64>) -> Option<Vec<Vec<u8>>> {
        let of = self.sites[index].process.as_ref().filter(|it| it.number == process)?;
        let (number, payload) = match number {
            Some(number) => (number, of.batches[usize::try_from(number).unwrap()].payload.to_vec()),
            None => (u64::MAX, Vec::new()),
        };
        let mut frames = vec![Vec::new()];
        frames.extend(self.plan.version.replays_topic().then(Vec::new));
        frames.extend([number.to_be_bytes().to_vec(), payload]);
        Some(frames)
    }

    pub(crate) fn replay_times_out(&mut self, index: usize) {
        let site = &mut self.sites[index];
        let Some(job) = site.job.take() else { return };
        site.failures += 1;
        site.reference.replay_failed();
        self.hear(index, Item::ReplayFailed(job.id, "nothing new for 5 s"));
    }

    // === Metrics ===

    pub(crate) fn scrape(&mut self, index: usize) {
        let blocks = u64::from(self.plan.num_blocks);
        let late = !self.calm && self.plan.faults && self.one_in(6);
        let fails = !self.calm && self.sites[index].scraper.fails;
        let takes = if late { self.some(200..1_900) } else { self.some(1..60) };
        // The answer is made at some time in between; what matters is the earliest.
        let site = &mut self.sites[index];
        let answer = site.process.as_ref().filter(|_| !fails);
        let scraper = &mut site.scraper;
        scraper.id += 1;
        scraper.next = None;
        scraper.asked = self.now;
        scraper.answer = answer.map(|it| Answer { process: it.number, start: it.start, num_blocks: blocks });
        let id = scraper.id;
        self.plan_at(self.now + takes, Event::Scraped(index, id));
    }

    pub(crate) fn scraped(&mut self, index: usize, id: u64) {
        let (now, unix_ms) = self.clocks();
        let asked = self.instant(self.sites[index].scraper.asked);
        let site = &mut self.sites[index];
        let scraper = &mut site.scraper;
        if scraper.id != id || scraper.next.is_some() {
            return;
        }
        scraper.last = self.now;
        let engine = self.node.engine(site.handle).unwrap();
        match scraper.answer.take() {
            Some(it) => {
                scraper.next = Some(self.now + 2 * S);
                let start = self.plan.start_times.then_some(it.start);
                let told = start.map(|start| (it.process, start));
                site.reference.told(scraper.asked, self.now, told);
                if site.process.as_ref().is_some_and(|now| now.number == it.process) {
                    scraper.good += 1;
                }
                let cache = CacheConfig { num_gpu_blocks: Some(it.num_blocks), ..CacheConfig::default() };
                let metrics = Metrics {
                    load: Load::default(),
                    is_vllm: true,
                    asleep: None,
                    cache,
                    process_start: start,
                };
                engine.on_models(Self::models());
                engine.on_metrics(metrics, asked, now, unix_ms);
                self.trace.add(|| {
                    format!("{:>10} engine {index}'s metrics: process {}, {start:?}", self.now, it.process)
                });
            }
            None => {
                scraper.next = Some(self.now + 500 * MS);
                engine.on_scrape_failed("refused".to_owned(), site.process.is_none(), now);
                self.trace.add(|| format!("{:>10} engine {index}'s metrics fail", self.now));
            }
        }
        self.after_heard(index);
    }
}
