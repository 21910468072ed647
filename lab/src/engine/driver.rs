//! Runs the scheduler in real time, on a thread of its own: requests in, tokens and batches of events out.

mod handle;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use self::handle::{Command, Shared};
pub use self::handle::{Disturbance, Handle, SubmitError, Tokens};
use super::{
    metrics::Metrics,
    publisher::Publisher,
    request::{NewRequest, Produced, Refusal, RequestId},
    scheduler::Scheduler,
};

/// Starts the engine's thread. It ends, and with it the publisher, on [`Handle::stop`] or when the last handle is
/// dropped.
#[must_use]
pub fn start(scheduler: Scheduler, publisher: Publisher, metrics: Metrics) -> (Handle, JoinHandle<()>) {
    let (commands, received) = sync_channel(MAX_COMMANDS);
    let shared = Arc::new(Shared { load: AtomicUsize::new(0), is_alive: AtomicBool::new(true) });
    let driver = Driver {
        scheduler,
        publisher,
        metrics,
        clients: BTreeMap::new(),
        shared: Arc::clone(&shared),
        sleep: None,
        hangs: false,
        slowness: 1.0,
    };
    let thread = std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || driver.run(&received))
        .expect("the system can start a thread");
    (Handle { commands, shared }, thread)
}

struct Driver {
    scheduler: Scheduler,
    publisher: Publisher,
    metrics: Metrics,
    clients: BTreeMap<RequestId, mpsc::Sender<Produced>>,
    shared: Arc<Shared>,
    /// How deep it sleeps, if it does.
    sleep: Option<u32>,
    hangs: bool,
    /// Times that a step takes as long as it should.
    slowness: f64,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Before its clients are told.
        self.shared.is_alive.store(false, Ordering::Relaxed);
    }
}

impl Driver {
    fn run(mut self, commands: &Receiver<Command>) {
        // When the current step ends.
        let mut step: Option<Instant> = None;
        loop {
            let command = match step {
                Some(end) if !self.hangs => {
                    commands.recv_timeout(end.saturating_duration_since(Instant::now()))
                }
                _ => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let first = match command {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // What arrived together is scheduled together.
            for command in first.into_iter().chain(commands.try_iter().take(MAX_COMMANDS)) {
                if self.obey(command).is_break() {
                    return;
                }
            }
            if self.hangs {
                continue;
            }
            let now = Instant::now();
            let start = match step {
                Some(end) if now < end => {
                    self.metrics.show(&self.scheduler);
                    continue;
                }
                Some(end) => {
                    self.end_step(end);
                    // A step follows the one before without the delay of waking up, but a stall is not made up for.
                    if now - end < LONGEST_CATCH_UP { end } else { now }
                }
                None => now,
            };
            self.abort_abandoned();
            step = if self.sleep.is_some() { None } else { self.start_step(start) };
            self.metrics.show(&self.scheduler);
        }
    }

    fn obey(&mut self, command: Command) -> ControlFlow<()> {
        // Whoever asked may be gone: a receiver that is closed is nobody's loss.
        match command {
            Command::Submit(requests, reply) => {
                let _ = reply.send(self.submit(requests));
            }
            Command::Reset(reply) => {
                let _ = reply.send(self.scheduler.reset_prefix_cache());
            }
            Command::Sleep { level, aborts, reply } => {
                self.fall_asleep(level, aborts);
                let _ = reply.send(());
            }
            Command::WakeUp(reply) => {
                self.sleep = None;
                self.metrics.show_sleep(None);
                let _ = reply.send(());
            }
            Command::IsSleeping(reply) => {
                let _ = reply.send(self.sleep.is_some());
            }
            Command::Disturb(Disturbance::Death) | Command::Stop => return ControlFlow::Break(()),
            Command::Disturb(disturbance) => self.suffer(disturbance),
        }
        ControlFlow::Continue(())
    }

    fn suffer(&mut self, disturbance: Disturbance) {
        match disturbance {
            // The thread has ended before this.
            Disturbance::Death => (),
            Disturbance::StepsHang(hangs) => self.hangs = hangs,
            Disturbance::EventsHang(hangs) => self.publisher.hang(hangs),
            Disturbance::Slowness(slowness) => self.slowness = slowness,
            Disturbance::EventsLost { count, forgotten } => self.publisher.lose(count, forgotten),
            Disturbance::Garbage(kind) => self.publisher.publish_garbage(kind),
            Disturbance::Seed(hasher) => self.scheduler.set_hasher(*hasher),
        }
    }

    fn fall_asleep(&mut self, level: u32, aborts: bool) {
        self.sleep = Some(level);
        if aborts {
            for (id, _) in std::mem::take(&mut self.clients) {
                self.scheduler.abort(id);
            }
            self.shared.load.store(0, Ordering::Relaxed);
        }
        if 1 <= level && !self.scheduler.reset_prefix_cache() {
            tracing::warn!("blocks are in use: the engine sleeps, but its cache is not reset");
        }
        self.metrics.show_sleep(self.sleep);
    }

    fn start_step(&mut self, start: Instant) -> Option<Instant> {
        let end = self.scheduler.start_step(start)?;
        let seconds = end.saturating_duration_since(start).as_secs_f64() * self.slowness;
        Some(start + Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_STEP).min(LONGEST_STEP))
    }

    fn submit(&mut self, requests: Vec<NewRequest>) -> Result<Vec<Tokens>, Refusal> {
        let now = Instant::now();
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            match self.scheduler.add(request, now) {
                Ok(id) => ids.push(id),
                Err(refusal) => {
                    ids.into_iter().for_each(|id| self.scheduler.abort(id));
                    return Err(refusal);
                }
            }
        }
        let tokens = ids.into_iter().map(|id| {
            // Room for every token that may come, so that a slow client never holds up the engine.
            let (sender, receiver) = mpsc::channel(self.scheduler.answer_length(id).max(1));
            self.clients.insert(id, sender);
            receiver
        });
        let tokens = tokens.collect();
        self.count_clients();
        Ok(tokens)
    }

    fn end_step(&mut self, end: Instant) {
        let outcome = self.scheduler.end_step(end);
        if !outcome.events.is_empty() {
            // Counted first: who has read the answer reads a count that includes its events.
            self.metrics.batches.inc();
            self.publisher.publish(outcome.events);
        }
        // Before the answers leave: who has an answer finds it in the metrics.
        self.metrics.observe(&outcome.produced);
        self.metrics.show(&self.scheduler);
        let ended = outcome.produced.iter().filter(|it| it.finish.is_some()).count();
        self.shared.load.store(self.clients.len().saturating_sub(ended), Ordering::Relaxed);
        for produced in outcome.produced {
            let finished = produced.finish.is_some();
            if let Some(client) = self.clients.get(&produced.request) {
                // Only a client that left is not told; its request is aborted before the next step.
                let _ = client.try_send(produced);
            }
            if finished {
                self.clients.remove(&produced.request);
            }
        }
        self.count_clients();
    }

    fn abort_abandoned(&mut self) {
        let scheduler = &mut self.scheduler;
        self.clients.retain(|id, client| {
            let gone = client.is_closed();
            if gone {
                scheduler.abort(*id);
            }
            !gone
        });
        self.count_clients();
    }

    fn count_clients(&self) {
        self.shared.load.store(self.clients.len(), Ordering::Relaxed);
    }
}

/// Requests on their way to the scheduler, which takes them within microseconds: more means that it hangs.
const MAX_COMMANDS: usize = 4096;

/// A step never takes longer, however slow the engine is told to be.
const LONGEST_STEP: Duration = Duration::from_secs(3600);

/// A step that ended this long ago is followed by one that starts now.
const LONGEST_CATCH_UP: Duration = Duration::from_millis(20);
