//! Moments at which everything has been delivered, and what has to hold then.

use std::collections::BTreeSet;

use kvpick_core::replicas::Knowledge;
use kvpick_proto::words::Completeness;

use super::{
    engine::Held,
    plan::Replay,
    reference::fold,
    sim::{S, Sim},
};

impl Sim {
    /// Some time in which things go wrong, then a rest, and so on.
    pub(crate) fn run(&mut self) {
        let rounds = 1 + self.rng.below(4);
        for _ in 0..rounds {
            self.calm = false;
            let busy = self.some(1_500..12_000);
            self.run_for(busy);
            self.rest();
        }
    }

    fn rest(&mut self) {
        self.trace.add(|| format!("{:>10} rest begins", self.now));
        self.calm_down();
        for _ in 0..40 {
            if self.is_linked() {
                break;
            }
            self.run_for(S);
        }
        assert!(self.is_linked(), "links come back");
        // As long as the agent waits before it asks again.
        if self.plan.replay != Replay::Off {
            let failures = self.sites.iter().map(|it| it.failures).max().unwrap_or(0);
            self.run_for(if failures > 0 { 5 * S * (1 << (failures - 1).min(7)) + 8 * S } else { 0 });
        }
        let wait = self.plan.replay != Replay::Off && self.one_in(3);
        if wait {
            // The look for what went lost with no later batch to show it.
            self.run_for(32 * S);
        }
        for index in 0..self.sites.len() {
            let site = &self.sites[index];
            let process = site.process.as_ref().unwrap();
            let last_is_lost = process.batches.last().is_some_and(|it| it.is_lost);
            let is_clean = site.reference.is_up_to_date(&process.batches) || wait && !last_is_lost;
            if is_clean && !site.reference.is_unseen && self.rng.below(3) > 0 {
                continue;
            }
            let now = self.clocks().0;
            let nonce = self.now;
            self.sites[index].process.as_mut().unwrap().ask_new(nonce, now);
            self.start_step(index);
        }
        // A scrape, a replay, a flush, a copy.
        self.run_for(6 * S);
        assert!(self.is_linked(), "links stay");
        self.check();
    }

    fn is_linked(&self) -> bool {
        let is_idle = |at: usize| self.sites[at].process.as_ref().is_some_and(|it| it.is_idle());
        self.are_streams_up() && (0..self.sites.len()).all(|at| self.is_subscribed(at) && is_idle(at))
    }

    fn check(&mut self) {
        for index in 0..self.sites.len() {
            if self.sites[index].reference.is_unseen {
                self.accepted += 1;
                continue;
            }
            self.check_site(index);
        }
    }

    fn check_site(&mut self, index: usize) {
        let groups = self.plan.attention.groups().len();
        let site = &mut self.sites[index];
        let process = site.process.as_ref().unwrap();
        let held = process.held(groups);
        let beginnings = site.reference.beginnings(&process.batches);
        let batches = &process.batches;
        let tail = |from: u64| &batches[usize::try_from(from).unwrap()..];
        let from = |from: u64| (from, fold(tail(from), from), site.reference.is_complete(batches, from));
        let mut fit: Vec<(u64, BTreeSet<Held>, bool)> = beginnings.iter().map(|it| from(*it)).collect();
        if self.plan.replay != Replay::Off && process.keeps_all() {
            // (2): whatever went wrong, all of it can be had.
            fit = vec![from(0)];
        }
        let last = (batches.len() as u64).checked_sub(1);
        for (at, server) in self.servers.iter().enumerate() {
            let who = format!("server {at} of engine {index}");
            server.check_whole_shadow(index, &site.universe);
            let (_, replica) = server.world.replicas.iter().nth(index).unwrap();
            assert_eq!(replica.knowledge, Knowledge::Live, "{who}");
            let view: BTreeSet<Held> =
                site.universe.iter().copied().filter(|it| server.has(index, *it)).collect();
            let keys: BTreeSet<_> = view.iter().map(|it| it.1).collect();
            assert_eq!(replica.holdings.len(), keys.len(), "{who}: blocks that no engine ever had");
            // (1)
            if !process.is_reset {
                let phantoms: Vec<_> = view.difference(&held).collect();
                assert!(phantoms.is_empty(), "{who}: blocks that the engine does not hold: {phantoms:?}");
            }
            // (2) and (3)
            let is_complete = replica.description.as_ref().unwrap().completeness == Completeness::Complete;
            let before = fit.clone();
            fit.retain(|(_, blocks, complete)| (blocks, complete) == (&view, &is_complete));
            let show = || {
                let differ = |(begin, blocks, complete): &(u64, BTreeSet<Held>, bool)| {
                    let (more, less) = (view.difference(blocks).count(), blocks.difference(&view).count());
                    format!("from {begin}: complete {complete}, {more} too many, {less} missing")
                };
                before.iter().map(differ).collect::<Vec<_>>()
            };
            assert!(
                !fit.is_empty(),
                "{who}: {} blocks, complete: {is_complete}; may be {:?}; last {last:?}",
                view.len(),
                show()
            );
            if fit.iter().all(|it| Some(it.0) <= last) {
                assert_eq!(replica.applied, last, "{who}: applied");
            }
        }
        // Which of them it is shows in the end.
        let known: BTreeSet<u64> = fit.iter().map(|it| it.0).collect();
        self.sites[index].reference.allowed = known;
    }
}
