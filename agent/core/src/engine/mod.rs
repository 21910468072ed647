//! One engine, or one rank of one: what it holds, how it names it, how busy it is, and whether that can be trusted.

mod checks;
mod config;
mod kept;
mod portrait;
mod ranks;
mod renaming;
mod replay;

use std::time::{Duration, Instant};

use kvpick_proto::words::{Change, Completeness, Description, Load, Step};

use checks::Checks;
pub use config::{Config, Counts, TIER_WEIGHTS};
pub use kept::{Outcome, Restored, Revision};
pub use portrait::Models;
use portrait::Portrait;
use ranks::Ranks;
use renaming::Renaming;

use crate::{
    decode::{Batch, DecodeError, Event, Message},
    domain::Fit,
    load::Metrics,
    mirror::Mirror,
    sequence::{Output, Published, ReplayRequest, Sequence, Why},
};

/// Changes are announced at most this often.
pub const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// After a quiet time a change waits this long for what comes with it.
pub const GATHER: Duration = Duration::from_millis(3);

/// How long an engine's events or answers may be missing before that is said of them.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How long a copy for a server waits for the first connection to an engine that can replay: an agent that starts
/// beside a running engine has it within milliseconds, and a copy before that would empty what servers know.
const SETTLE: Duration = Duration::from_secs(2);

/// One engine.
///
/// Inputs are the methods `on_…`; after each, [`Engine::take_replay_request`] may have something, and
/// [`Engine::due`] says when time alone is the next input.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    sequence: Sequence,
    mirror: Mirror,
    portrait: Portrait,
    renaming: Renaming,
    ranks: Ranks,
    load: Option<(Load, Instant)>,
    /// Whether the mirror has all that the engine holds, or will have once its history is through.
    is_whole: bool,
    /// When the last of its batches came.
    heard: Option<Instant>,
    /// Engine batch up to which everything is in the mirror, and what of that was announced.
    applied: Option<u64>,
    announced: Option<u64>,
    published: Published,
    /// Since when there is something to announce, and when something was.
    dirty: Option<Instant>,
    flushed: Option<Instant>,
    /// Until when to wait for a connection before what is known counts as all that can be known.
    settled_at: Option<Instant>,
    checks: Checks,
    /// Since when its events have no connection.
    unconnected: Option<Instant>,
    /// The snapshot that it goes on from.
    restored: Option<Restored>,
    counts: Counts,
}

impl Engine {
    /// An engine of which nothing is known.
    #[must_use]
    pub fn new(config: Config, now: Instant, unix_ms: u64) -> Self {
        Self {
            sequence: Sequence::new(config.replay),
            mirror: Mirror::of(config.copies),
            portrait: Portrait::new(&config, now, unix_ms),
            renaming: Renaming::default(),
            ranks: Ranks::new(&config),
            load: None,
            is_whole: false,
            heard: None,
            applied: None,
            announced: None,
            published: Published::default(),
            dirty: None,
            flushed: None,
            settled_at: (config.events && config.replay).then(|| now + SETTLE),
            checks: Checks::default(),
            unconnected: config.events.then_some(now),
            restored: None,
            counts: Counts::default(),
            config,
        }
    }

    /// How it is set up.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What is true of it apart from blocks and load; `None` before its API answered for the first time, or did not for
    /// two seconds, as then nearly all of it is unknown.
    #[must_use]
    pub fn description(&self) -> Option<&Description> {
        Some(self.portrait.description()).filter(|_| self.portrait.is_describable())
    }

    /// As [`Self::description`], however little is known.
    #[must_use]
    pub const fn provisional_description(&self) -> &Description {
        self.portrait.description()
    }

    /// Its last load, and when that was sampled.
    #[must_use]
    pub fn load(&self) -> Option<(&Load, Instant)> {
        self.load.as_ref().map(|(load, at)| (load, *at))
    }

    /// Its blocks.
    #[must_use]
    pub const fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Last engine batch that the announced changes account for.
    #[must_use]
    pub const fn announced(&self) -> Option<u64> {
        self.announced
    }

    /// What happened so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        Counts { long_texts: self.portrait.long_texts(), ..self.counts }
    }

    /// What to ask its replay socket for, once. A later request replaces an earlier one.
    #[must_use]
    pub const fn take_replay_request(&mut self) -> Option<ReplayRequest> {
        self.sequence.take_request()
    }

    /// Whether what is known is as much as can be had at once.
    #[must_use]
    pub fn is_settled(&self, now: Instant) -> bool {
        self.sequence.is_settled() && self.settled_at.is_none_or(|at| at <= now)
    }

    // === Its events ===

    /// Its events are connected.
    pub fn on_connected(&mut self, now: Instant) {
        self.unconnected = None;
        // Without a replay the next batch has to come before what was restored is proved.
        if self.config.replay || !self.sequence.is_restoring() {
            self.settled_at = None;
        }
        self.checks.on_connected(self.config.replay, now);
        self.sequence.on_connected(now);
        self.portrait.on_connected();
    }

    /// The connection to its events is lost.
    pub fn on_disconnected(&mut self, now: Instant, unix_ms: u64) {
        self.unconnected = Some(now);
        self.checks.on_disconnected();
        self.ranks.on_disconnected();
        let outputs = self.sequence.on_disconnected(now);
        self.follow(outputs, now, unix_ms);
    }

    /// Its events can't be had, for now.
    pub fn on_events_failed(&mut self, reason: String, remedy: String) {
        self.settled_at = None;
        self.portrait.on_unavailable(reason, remedy);
    }

    /// A message came by subscription.
    ///
    /// # Errors
    ///
    /// Frames that are not vLLM's, which are counted and otherwise ignored: they have no number that could be missed.
    pub fn on_frames(&mut self, frames: Vec<Vec<u8>>, now: Instant, unix_ms: u64) -> Result<(), DecodeError> {
        let message = Message::live(frames).inspect_err(|it| self.counts.undecodable(*it))?;
        // What is heard has a connection, whatever was said of others.
        self.unconnected = None;
        if self.is_stray(&message, now) {
            return Ok(());
        }
        let outputs = self.sequence.on_live(message);
        self.follow(outputs, now, unix_ms);
        Ok(())
    }

    // === Its API ===

    /// Its metrics, asked for at `asked`.
    pub fn on_metrics(&mut self, metrics: Metrics, asked: Instant, now: Instant, unix_ms: u64) {
        let is_vllm = self.portrait.on_metrics(&metrics);
        self.follow_naming(now);
        if !is_vllm {
            self.load = None;
            return;
        }
        let outputs = self.sequence.on_process_start(metrics.process_start, asked, self.published);
        self.follow(outputs, now, unix_ms);
        if let Some(blocks) = metrics.cache.num_gpu_blocks {
            self.mirror.set_num_gpu_blocks(blocks);
        }
        if metrics.asleep == Some(true) {
            self.on_asleep(asked, now);
        }
        self.load = Some((metrics.load, asked));
    }

    /// An engine drops its cache before it sleeps, and says so with its first step thereafter only. What was stored since
    /// the question is not meant: it may be awake again.
    fn on_asleep(&mut self, asked: Instant, now: Instant) {
        if self.mirror.is_empty() || self.heard.is_some_and(|it| asked <= it) {
            return;
        }
        self.counts.cleared_by_sleep += 1;
        self.mirror.clear();
        self.dirty.get_or_insert(now);
    }

    /// Its metrics can't be had; `refused` if that is because nothing listens there. Its blocks stay until there is
    /// proof that they went.
    pub fn on_scrape_failed(&mut self, reason: String, refused: bool, now: Instant) {
        if self.portrait.on_scrape_failed(reason, refused, now) {
            self.load = None;
        }
    }

    /// Its models.
    pub fn on_models(&mut self, models: Models) {
        self.portrait.on_models(models);
    }

    // === Time ===

    /// Does what is due by time alone.
    pub fn on_time(&mut self, now: Instant, unix_ms: u64) {
        self.settled_at.take_if(|at| *at <= now);
        self.portrait.on_time(now);
        self.checks.on_time(&mut self.sequence, now);
        let outputs = self.sequence.on_time(now);
        if !outputs.is_empty() {
            self.follow(outputs, now, unix_ms);
        }
        if self.unconnected.take_if(|since| *since + PATIENCE <= now).is_some() {
            self.on_events_failed(
                format!("there has been no connection for its events for {} s", PATIENCE.as_secs()),
                "check that the engine runs with the flags that `kvpick-agent engine-args` prints".to_owned(),
            );
        }
    }

    /// When something is due: an announcement, or what [`Self::on_time`] does.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let patience = self.unconnected.map(|it| it + PATIENCE);
        let others = [self.settled_at, self.checks.due(), self.portrait.due(), self.sequence.due(), patience];
        others.into_iter().chain([self.flush_due()]).flatten().min()
    }

    /// When the next announcement is due; `None` while there is nothing to announce.
    #[must_use]
    pub fn flush_due(&self) -> Option<Instant> {
        if self.holds_back() && !self.mirror.was_cleared() {
            return None;
        }
        let gathered = self.dirty? + GATHER;
        Some(self.flushed.map_or(gathered, |it| gathered.max(it + FLUSH_EVERY)))
    }

    // === What servers are told ===

    /// What changed since the last announcement. From now on that is announced.
    #[must_use = "a change that is dropped is never announced again"]
    pub fn take_change(&mut self, now: Instant) -> Option<Change> {
        if self.holds_back() {
            // That what was known went is told at once; what is known instead, once it is all there.
            if !self.mirror.take_clear() {
                return None;
            }
            (self.announced, self.flushed) = (None, Some(now));
            return Some(Change { steps: vec![Step::Cleared], applied: None });
        }
        self.dirty.take()?;
        let steps = self.mirror.take_net_change();
        // With a clear goes what servers were told as applied.
        let is_new = self.applied != self.announced || steps.contains(&Step::Cleared);
        let applied = self.applied.filter(|_| is_new);
        self.announced = self.applied;
        if steps.is_empty() && applied.is_none() {
            return None;
        }
        self.flushed = Some(now);
        Some(Change { steps, applied })
    }

    // === What its batches say ===

    fn follow(&mut self, outputs: Vec<Output>, now: Instant, unix_ms: u64) {
        for output in outputs {
            match output {
                Output::Deliver(message) => {
                    self.heard = Some(now);
                    self.deliver(&message, unix_ms);
                }
                Output::Proved => self.on_proved(),
                Output::Reset { complete, why } => {
                    self.counts.count_reset(why);
                    self.portrait.on_reset(why);
                    self.applied = None;
                    self.end_restore(Outcome::Refused(why));
                    self.reset(complete, unix_ms);
                    self.renaming.follow(self.portrait.naming(), &mut self.mirror);
                }
            }
            self.dirty.get_or_insert(now);
        }
        if self.is_whole && !self.holds_back() {
            self.portrait.set_completeness(Completeness::Complete);
        }
        self.portrait.settle();
    }

    fn deliver(&mut self, message: &Message, unix_ms: u64) {
        self.counts.batches += 1;
        match Batch::decode(&message.payload) {
            Ok(batch) => {
                self.published.add(batch.time);
                self.counts.unknown_events += u64::from(batch.unknown);
                batch.events.into_iter().for_each(|event| self.event(event));
            }
            // What was in it is lost, and may have been removals.
            Err(error) => {
                self.counts.undecodable(error);
                self.counts.resets_lost += 1;
                self.reset(false, unix_ms);
            }
        }
        self.applied = Some(message.sequence);
    }

    fn reset(&mut self, complete: bool, unix_ms: u64) {
        self.published.first = None;
        self.end_restore(Outcome::Refused(Why::Lost));
        // Where nothing was held, servers still have to be told that what they know as applied is another's.
        if self.announced.is_some() {
            self.mirror.start_anew();
        } else {
            self.mirror.clear();
        }
        if !complete {
            self.mirror.set_partial();
        }
        self.renaming.clear();
        self.is_whole = complete;
        self.portrait.set_completeness(Completeness::PartialSince { unix_ms });
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Stored(stored) => {
                self.counts.stored_events += 1;
                match self.portrait.on_stored(&stored) {
                    Fit::Misfit => self.counts.naming_misfits += 1,
                    Fit::Hidden => self.counts.hidden_keys += 1,
                    Fit::Untestable | Fit::Fits => (),
                }
                self.renaming.store(&stored, self.portrait.naming(), &mut self.mirror);
            }
            Event::Removed(removed) => {
                self.counts.removed_events += 1;
                self.renaming.remove(&removed, &mut self.mirror);
            }
            Event::Cleared => {
                self.counts.cleared_events += 1;
                self.mirror.clear();
                self.renaming.clear();
                // From here on every block that it holds is one that it announced.
                self.is_whole = true;
            }
        }
    }
}
