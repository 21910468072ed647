//! What goes wrong, and when.

use super::{
    feed::STUCK,
    link::DOWN,
    sim::{Event, MS, S, Sim},
};

impl Sim {
    /// One thing goes wrong; the next one later.
    pub(crate) fn fault(&mut self) {
        self.plan_in(100..2_500, Event::Fault);
        if self.calm || !self.plan.faults {
            return;
        }
        let site = self.rng.below(self.sites.len());
        let server = self.rng.below(self.servers.len());
        match self.rng.below(20) {
            0..=2 => self.cut_subscription(site),
            3 | 4 => self.restart(site),
            5 => self.sites[site].drops = 1 + self.rng.below(5),
            6 => {
                let fails = 1 + self.rng.below(2);
                if let Some(process) = &mut self.sites[site].process {
                    process.fails = fails;
                }
            }
            7..=9 => self.reset(site),
            10 => self.sites[site].scraper.fails ^= true,
            11 | 12 => self.change_stream(server, |sim, id| sim.cut_stream(server, id)),
            13 => {
                let until = self.now + self.some(500..8_000);
                self.change_stream(server, |sim, id| {
                    let stream = sim.servers[server].streams.iter_mut().find(|it| it.id == id);
                    stream.unwrap().stuck_until = until;
                });
            }
            14 | 15 => self.change_stream(server, |sim, id| {
                let stream = sim.servers[server].streams.iter_mut().find(|it| it.id == id).unwrap();
                stream.is_slow ^= true;
            }),
            16 if self.servers[server].is_up => self.kill_server(server),
            17 if self.one_in(3) => self.restart_agent(),
            _ => (),
        }
    }

    fn cut_subscription(&mut self, site: usize) {
        let id = self.sites[site].connections.iter().find(|it| !it.is_cut).map(|it| it.id);
        if let Some(id) = id {
            self.trace.add(|| format!("{:>10} engine {site}: connection {id} is cut", self.now));
            let soon = self.one_in(2);
            self.cut(site, id, if soon { 0..50 } else { 50..6_000 });
        }
    }

    /// The process ends, and another one comes; perhaps with as many batches as the one before before it is heard.
    fn restart(&mut self, site: usize) {
        let Some(process) = &self.sites[site].process else { return };
        let batches = process.batches.len() as u64;
        if process.start + 2.0 > self.unix() {
            return;
        }
        self.kill(site);
        let passes = self.one_in(2);
        let around = batches.saturating_sub(1) + self.rng.below(3) as u64;
        self.sites[site].passes = (passes && batches < 400).then_some(around);
        self.plan_in(DOWN, Event::Boots(site));
    }

    /// Everything cached is forgotten: announced with the next step, which may come much later, or at once.
    fn reset(&mut self, index: usize) {
        let busy = self.one_in(2);
        let now = self.clocks().0;
        let Some(process) = &mut self.sites[index].process else { return };
        if busy {
            // What runs is given up first, as with `reset_running_requests`.
            (0..u64::MAX).take(process.asked()).for_each(|id| process.scheduler.abort(id));
        }
        if process.scheduler.reset_prefix_cache() {
            process.is_reset = true;
            self.trace.add(|| format!("{:>10} engine {index} is reset, busy: {busy}", self.now));
        }
        if busy && let Some(process) = &mut self.sites[index].process {
            process.ask(&mut self.rng, now);
            self.start_step(index);
        }
    }

    fn change_stream(&mut self, server: usize, change: impl FnOnce(&mut Self, u64)) {
        if let Some(id) = self.servers[server].streams.last().map(|it| it.id) {
            change(self, id);
        }
    }

    /// Its streams end with it; the engines' publishers see a subscriber go.
    fn restart_agent(&mut self) {
        self.trace.add(|| format!("{:>10} the agent starts anew", self.now));
        for server in 0..self.servers.len() {
            let ids: Vec<_> = self.servers[server].streams.iter().map(|it| it.id).collect();
            ids.into_iter().for_each(|id| self.agent_ends(server, id));
        }
        for site in &mut self.sites {
            site.connecting = false;
        }
        self.start_agent();
    }

    /// Nothing goes wrong from here on, and what did is repaired.
    pub(crate) fn calm_down(&mut self) {
        self.calm = true;
        for index in 0..self.sites.len() {
            let site = &mut self.sites[index];
            site.scraper.fails = false;
            site.drops = 0;
            if let Some(process) = &mut site.process {
                process.fails = 0;
            }
        }
        for stream in self.servers.iter_mut().flat_map(|it| &mut it.streams) {
            stream.is_slow = false;
        }
        let longest = STUCK.as_millis() as u64 * MS + 6 * S;
        self.run_for(longest);
    }
}
