//! The requests whose blocks are awaited at one replica.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kvpick_proto::{
    naming::BlockKey,
    words::{Completeness, Description},
};

use super::Subject;
use crate::{
    busy::Busy,
    hit::Rule,
    index::BlockMap,
    replicas::{Knowledge, Replica},
};

/// Most requests watched at one replica at a time; the others are not judged.
const MOST_REQUESTS: usize = 64;

/// Most blocks awaited of one request: the first ones that are new. Names are chained, so that the others tell the same,
/// and these are computed in the first step. It also keeps a few long prompts from deciding for many short ones.
const MOST_BLOCKS: usize = 32;

/// From a computed prompt to the judgement, if blocks are missing. Agents tell changes at most every 250 ms, and one that
/// stands still for 3 s loses its stream.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same where the replica has told of no block at all since the request was sent.
const MOST_PATIENCE: Duration = Duration::from_secs(30);

/// Age at which a request that an engine has taken is waiting in its queue for sure, and counted there, if it was not
/// begun: engines count once a step.
const QUEUED_BY: Duration = Duration::from_secs(2);

/// A watched request of one replica.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct WatchId(u64);

/// What became of a request's blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Judged {
    /// Whose parity it tells of.
    pub subject: Subject,
    /// When the request was sent.
    pub sent: Instant,
    /// Blocks that came.
    pub confirmed: u32,
    /// Blocks that did not.
    pub missing: u32,
}

/// The requests whose blocks are awaited at one replica.
///
/// Awaited are blocks of whole prompts that the replica did not hold when it was picked, where its agent tells all and in
/// the engine's own names. A store confirms them, whoever caused it and whether the block is evicted again or not.
/// A request is judged once all have come, or a while after its prompt was computed for sure; until then anything
/// that may have hidden a store takes the request out of the count.
#[derive(Debug, Default)]
pub struct Watched {
    requests: BTreeMap<WatchId, Request>,
    next: u64,
    awaited: BlockMap<Awaited>,
    /// Stores told so far. It is the clock by which a store came before or after a request.
    stores: u64,
    /// Evictions told so far.
    evictions: u64,
}

#[derive(Debug)]
struct Request {
    subject: Subject,
    sent: Instant,
    answers_early: bool,
    state: State,
    blocks: Vec<BlockKey>,
    /// The replica's clock when it was sent.
    stores: u64,
    evictions: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was heard of it.
    Sent,
    /// The answer has begun, which says nothing of the prompt.
    Taken { at: Instant },
    /// The prompt is computed.
    Computed { at: Instant },
}

#[derive(Debug, Default)]
struct Awaited {
    /// Blocks of requests that are this one.
    by: usize,
    /// The replica's clock when it was last told of; 0 for never.
    told: u64,
}

impl Watched {
    /// Whether one more request can be watched.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.requests.len() < MOST_REQUESTS
    }

    /// A request is sent that should leave these blocks, none of which is held; `None` where it is not watched.
    pub fn open(
        &mut self,
        subject: Subject,
        answers_early: bool,
        blocks: Vec<BlockKey>,
        now: Instant,
    ) -> Option<WatchId> {
        if blocks.is_empty() || !self.has_room() {
            return None;
        }
        let id = WatchId(self.next);
        self.next += 1;
        for block in &blocks {
            self.awaited.entry(*block).or_default().by += 1;
        }
        let (stores, evictions) = (self.stores, self.evictions);
        let state = State::Sent;
        self.requests
            .insert(id, Request { subject, sent: now, answers_early, state, blocks, stores, evictions });
        Some(id)
    }

    /// The replica itself has answered the request with success.
    pub fn on_success(&mut self, id: WatchId, now: Instant) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.state =
            if request.answers_early { State::Taken { at: now } } else { State::Computed { at: now } };
    }

    /// The request has ended, however. One whose client may have left before its prompt was computed tells nothing.
    pub fn on_end(&mut self, id: WatchId) {
        if self.requests.get(&id).is_some_and(|it| !matches!(it.state, State::Computed { .. })) {
            self.close(id);
        }
    }

    /// The replica has stored this block.
    pub fn on_store(&mut self, key: BlockKey) {
        self.stores += 1;
        if let Some(awaited) = self.awaited.get_mut(&key) {
            awaited.told = self.stores;
        }
    }

    /// The replica has evicted a block.
    pub fn on_eviction(&mut self) {
        self.evictions += 1;
    }

    /// Stores may have been missed, or all is forgotten: nothing tells anything of the requests so far.
    pub fn void(&mut self) {
        self.requests.clear();
        self.awaited.clear();
    }

    /// Number of requests that are watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn close(&mut self, id: WatchId) {
        for block in self.requests.remove(&id).iter().flat_map(|it| &it.blocks) {
            if let Some(awaited) = self.awaited.get_mut(block) {
                awaited.by -= 1;
                if awaited.by == 0 {
                    self.awaited.remove(block);
                }
            }
        }
    }

    /// Judges what is due. `cache`: how many blocks the replica's cache has; 0 where not known.
    fn judge(&mut self, busy: &Busy, cache: u64, now: Instant) -> Vec<Judged> {
        let mut closed = Vec::new();
        let mut judged = Vec::new();
        for (id, request) in &mut self.requests {
            if let State::Taken { at } = request.state
                && busy.none_waited_since(at + QUEUED_BY, now)
            {
                request.state = State::Computed { at: now };
            }
            let State::Computed { at } = request.state else { continue };
            let came =
                |it: &&BlockKey| self.awaited.get(*it).is_some_and(|awaited| request.stores < awaited.told);
            let confirmed = request.blocks.iter().filter(came).count();
            let missing = request.blocks.len() - confirmed;
            if 0 < missing {
                let is_silent = self.stores == request.stores;
                if now < at + if is_silent { MOST_PATIENCE } else { PATIENCE } {
                    continue;
                }
                // Blocks may have come and gone within what an agent sums up.
                let is_turned_over = 0 < cache && cache / 2 < self.evictions - request.evictions;
                if is_silent || is_turned_over {
                    closed.push(*id);
                    continue;
                }
            }
            let Request { subject, sent, .. } = *request;
            judged.push(Judged { subject, sent, confirmed: confirmed as u32, missing: missing as u32 });
            closed.push(*id);
        }
        closed.into_iter().for_each(|it| self.close(it));
        judged
    }
}

/// The blocks that a request should leave at a replica, at most as many as are watched; none where its agent's words
/// would not tell. `chains`: the blocks of the request's prompts.
pub(crate) fn awaited(replica: &Replica, chains: &[Vec<BlockKey>]) -> Vec<BlockKey> {
    let Some((every, step)) = describes_all(replica).and_then(kept) else { return Vec::new() };
    let kept = |keys: &'_ Vec<BlockKey>| {
        let end = keys.len() - keys.len() % step;
        keys[..end].iter().copied().skip(every - 1).step_by(every).collect::<Vec<_>>()
    };
    let blocks = chains.iter().flat_map(kept);
    blocks.filter(|it| !replica.holdings.holds(*it)).take(MOST_BLOCKS).collect()
}

/// Judges what is due at a replica.
pub(crate) fn judge(replica: &mut Replica, now: Instant) -> Vec<Judged> {
    if replica.watched.is_empty() {
        return Vec::new();
    }
    let Some(description) = describes_all(replica) else {
        replica.watched.void();
        return Vec::new();
    };
    let cache = description.num_gpu_blocks;
    replica.watched.judge(&replica.busy, cache, now)
}

/// The description of a replica whose every store is told, in the engine's own names.
fn describes_all(replica: &Replica) -> Option<&Description> {
    let in_step = replica.knowledge == Knowledge::Live && !replica.holdings.is_copying();
    let description = replica.description.as_ref().filter(|_| in_step && replica.facts().is_ok())?;
    let is_complete = description.completeness == Completeness::Complete;
    (is_complete && !description.is_translated()).then_some(description)
}

/// Which of a prompt's blocks every engine with these groups stores under their names: of each `.0` the last, as far as
/// `.1` divides their number. `None` where all groups leave blocks out, or do not say what they do.
fn kept(description: &Description) -> Option<(usize, usize)> {
    let block_size = description.domain.as_ref()?.block_size;
    let groups = &description.groups;
    let unsaid =
        groups.iter().any(|it| it.kind.is_empty() && it.block_size != 0 && it.block_size != block_size.get());
    if unsaid { None } else { Rule::of(groups, block_size, |_| ()).kept() }
}
