//! What the agent can know, by what it was given: the test's own account of it, which asks no code under test.
//!
//! An agent that makes no mistake knows, of the present process, all batches from some number on up to the last one.
//! Where that begins is decided by what went wrong: each of those causes allows one beginning, and nothing else does.

use std::collections::{BTreeMap, BTreeSet};

use super::engine::{Batch, Held, Said};

/// The blocks that batches leave behind, by the rules of the mirror: copies count, but a store from the start of a prompt
/// that may be a report of what is there does not raise the count of what is held. It may not if one of its blocks is
/// certain not to be there; what was before the first batch is not known, unless the first is the process's own.
pub(crate) fn fold(batches: &[Batch], from: u64) -> BTreeSet<Held> {
    let mut copies: BTreeMap<Held, u32> = BTreeMap::new();
    // Copies that there may be beside those.
    let mut more: BTreeMap<Held, u32> = BTreeMap::new();
    let mut is_part = from > 0;
    for said in batches.iter().flat_map(|it| &it.said) {
        match said {
            Said::Stored { group, is_root, keys } => {
                let blocks: Vec<Held> = keys.iter().map(|it| (*group, *it)).collect();
                let held = |it: &Held| copies.contains_key(it);
                let may_be = |it: &Held| held(it) || is_part || more.contains_key(it);
                let is_ambiguous = *is_root && blocks.iter().any(held) && blocks.iter().all(may_be);
                for block in blocks {
                    let count = copies.entry(block).or_insert(0);
                    if !is_ambiguous || *count == 0 {
                        *count += 1;
                    } else {
                        *more.entry(block).or_insert(0) += 1;
                    }
                }
            }
            Said::Removed(block) => match (copies.get_mut(block), more.get_mut(block)) {
                (Some(1), _) => {
                    copies.remove(block);
                }
                (Some(count), _) => *count -= 1,
                (None, Some(1)) => {
                    more.remove(block);
                }
                (None, Some(count)) => *count -= 1,
                (None, None) => (),
            },
            Said::Cleared => {
                copies.clear();
                more.clear();
                is_part = false;
            }
        }
    }
    copies.into_keys().collect()
}

/// One engine as the agent has heard it.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    /// The process that there is now.
    pub(crate) process: u32,
    /// Its batches that the agent was given, in whatever way.
    got: BTreeSet<u64>,
    /// Where the agent's knowledge may begin.
    pub(crate) allowed: BTreeSet<u64>,
    /// Last batch that came by subscription: process and number.
    last: Option<(u32, u64, f64)>,
    /// First of the present process's batches by subscription since the last question or lost connection.
    first_since: Option<u64>,
    asked: bool,
    trigger: Option<u64>,
    /// A lost connection that metrics may still explain: since when, and where knowledge begins if they do not.
    pending: Option<(u64, u64)>,
    /// The process whose start time the agent was told since the last lost connection.
    told: Option<(u32, f64)>,
    /// The process whose start time the agent saw last.
    seen: Option<u32>,
    /// When the connection was lost last: what was asked before proves nothing.
    lost_at: u64,
    /// Accepted, see the test's docs: a restart that nothing has shown.
    pub(crate) is_unseen: bool,
    has_replay: bool,
}

impl Reference {
    pub(crate) fn new(has_replay: bool) -> Self {
        Self { has_replay, ..Self::default() }
    }

    /// The agent begins anew, and knows nothing of the `published` batches so far.
    pub(crate) fn agent_started(&mut self, published: u64) {
        *self = Self { process: self.process, ..Self::new(self.has_replay) };
        self.allowed.insert(published);
    }

    /// Another process. `hidden`: its connection may be there before the loss of the other one is noticed.
    pub(crate) fn process_started(&mut self, process: u32, hidden: bool) {
        self.process = process;
        self.got.clear();
        self.allowed = BTreeSet::from([0]);
        (self.first_since, self.trigger, self.pending) = (None, None, None);
        let is_told = self.told.is_some_and(|(of, _)| of + 1 == process);
        self.is_unseen |= hidden && !self.has_replay && !is_told;
    }

    pub(crate) fn live(&mut self, process: u32, number: u64, time: f64) {
        let follows = self.last.is_some_and(|(_, last, _)| last + 1 == number);
        let is_other = self.last.is_none_or(|(last, ..)| last != process);
        if is_other && !follows || process != self.process {
            self.is_unseen = false;
        }
        self.last = Some((process, number, time));
        if process != self.process {
            return;
        }
        self.got.insert(number);
        if !self.has_replay && (is_other || !follows) {
            self.allowed.insert(number);
        }
        self.first_since.get_or_insert(number);
        if self.pending.is_none() && !self.asked {
            self.first_since = None;
        }
    }

    pub(crate) fn disconnected(&mut self, at: u64) {
        self.is_unseen = false;
        if self.has_replay {
            return;
        }
        self.lost_at = at;
        let explained = self.told.take();
        self.resolve(false);
        let next = self.last.filter(|it| it.0 == self.process).map_or(0, |it| it.1 + 1);
        self.first_since = None;
        self.pending = Some((at, next));
        let last = self.last;
        let provable = explained.zip(last).is_some_and(|((of, start), (process, _, time))| {
            of == process && process == self.process && start + 2.0 <= time
        });
        if !provable {
            self.resolve(false);
            // What comes next on a new connection begins it.
            self.last = None;
        }
    }

    /// Metrics were told that were asked for at `asked`: of which process, and its start time.
    pub(crate) fn told(&mut self, asked: u64, now: u64, told: Option<(u32, f64)>) {
        if let Some((of, _)) = told
            && self.seen.replace(of).is_some_and(|before| before != of)
        {
            self.forgets_by_start_time();
        }
        if asked < self.lost_at {
            return;
        }
        if let Some((since, _)) = self.pending {
            let last = self.last.map(|it| it.0);
            let proves = told.map(|it| it.0) == last && now < since + 4_900_000;
            self.resolve(proves);
        }
        if told.is_some() {
            self.told = told;
        }
    }

    /// A start time that is not the one before: what is known may be given up, whoever it was heard of.
    fn forgets_by_start_time(&mut self) {
        if !self.has_replay {
            let next = self.last.filter(|it| it.0 == self.process).map_or(0, |it| it.1 + 1);
            self.allowed.insert(next);
        }
    }

    fn resolve(&mut self, proved: bool) {
        let Some((_, next)) = self.pending.take() else { return };
        if !proved {
            self.allowed.insert(next);
            self.allowed.extend(self.first_since);
        }
        self.first_since = None;
    }

    // === Replay ===

    pub(crate) fn asks(&mut self) {
        self.asked = true;
        // The batch that is asked for may be the one that showed the gap.
        self.trigger = self.last.filter(|it| it.0 == self.process).map(|it| it.1);
        self.first_since = None;
    }

    /// A batch of an answer to a question for `from`; `is_first` of that answer.
    pub(crate) fn replayed(&mut self, process: u32, number: u64, from: u64, is_first: bool) {
        if process != self.process {
            return;
        }
        self.got.insert(number);
        if is_first && (number != from || from == 0) {
            self.allowed.insert(number);
        }
    }

    pub(crate) fn answered(&mut self) {
        self.asked = false;
        self.first_since = None;
    }

    pub(crate) fn replay_failed(&mut self) {
        self.asked = false;
        self.allowed.extend(self.trigger.into_iter().chain(self.first_since.take()));
    }

    // === At rest ===

    /// Where knowledge may begin now, given the process's batches.
    pub(crate) fn beginnings(&mut self, batches: &[Batch]) -> BTreeSet<u64> {
        self.resolve(false);
        let end = batches.len() as u64;
        let lowest = (0..end).rev().take_while(|it| self.got.contains(it)).last().unwrap_or(end);
        // After a batch that nobody could get.
        let gaps = (0..end).filter(|it| batches[usize::try_from(*it).unwrap()].is_lost).map(|it| it + 1);
        // Nothing of it was ever heard, and nothing can have been asked for.
        let nothing = (!self.has_replay && self.got.is_empty()).then_some(end);
        let allowed = self.allowed.iter().copied().chain(gaps).chain(nothing);
        allowed.filter(|it| (lowest..=end).contains(it)).collect()
    }

    /// Whether the last thing heard is the last thing published, or nothing of the process is to be heard.
    pub(crate) fn is_up_to_date(&self, batches: &[Batch]) -> bool {
        if !self.has_replay && self.got.is_empty() && self.last.is_none_or(|it| it.0 != self.process) {
            return true;
        }
        match batches.len() as u64 {
            0 => self.last.is_none_or(|it| it.0 == self.process),
            len => self.last.is_some_and(|it| (it.0, it.1 + 1) == (self.process, len)),
        }
    }

    /// As far as it says itself whether all is known from there on.
    pub(crate) fn is_complete(&self, batches: &[Batch], from: u64) -> bool {
        let known = &batches[usize::try_from(from).unwrap()..];
        let cleared = known.iter().flat_map(|it| &it.said).any(|it| matches!(it, Said::Cleared));
        cleared || from == 0 && (self.has_replay || !batches.is_empty())
    }
}
