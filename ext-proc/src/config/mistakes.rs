//! What is wrong with a configuration beyond types.

use std::collections::BTreeSet;

use super::{BudgetConfig, Config, replicas::MOST_RANKS};
use crate::listen::Listen;

impl Config {
    /// Every mistake that can be seen without starting, each with its field and its remedy; empty when there is none.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = self.mistakes_of_its_own();
        self.missing_files(&mut found);
        found
    }

    /// Those that are in the file itself: what it names may be missing.
    #[must_use]
    pub fn mistakes_of_its_own(&self) -> Vec<String> {
        let mut found = Vec::new();
        let knows_agents = self.kubernetes.as_ref().is_some_and(|it| it.agents.is_some());
        if !self.feed.ip().is_loopback() && !self.insecure_feed && self.feed_tls.is_none() && !knows_agents {
            found.push(format!(
                "feed: {} is not loopback, and whoever reaches it may say what a replica holds; use 127.0.0.1, give \
                 feed_tls or, in Kubernetes, kubernetes.agents, or set insecure_feed: true where the network keeps others away",
                self.feed
            ));
        }
        self.replica_mistakes(&mut found);
        self.model_mistakes(&mut found);
        self.range_mistakes(&mut found);
        self.objective_mistakes(&mut found);
        if !self.pins.is_header_plain() {
            found.push(
                "pins.session_header: is no name of a header; use small letters, digits and hyphens, or null for none"
                    .to_owned(),
            );
        }
        if self.leave_after_request {
            let shown = [("evidence_header", self.evidence_header), ("conformance", self.conformance)];
            found.extend(shown.iter().filter(|(_, is_on)| *is_on).map(|(field, _)| {
                format!("{field}: sets a header of the answer, which leave_after_request does not see; set one of them")
            }));
        }
        self.socket_mistakes(&mut found);
        let score = &self.score;
        let prices = [score.per_request, score.per_waiting, score.per_eviction, score.when_full];
        if prices.iter().any(|it| !it.is_finite() || *it < 0.0) {
            found.push("score: a price is negative or no number; all are 0 or more".to_owned());
        }
        if !score.prefill_tokens_per_second.is_finite() || score.prefill_tokens_per_second <= 0.0 {
            found.push("score.prefill_tokens_per_second: must be above 0; measure one replica".to_owned());
        }
        if !self.budget.share_of_prefill.is_finite() || self.budget.share_of_prefill < 0.0 {
            found.push("budget.share_of_prefill: must be 0 or more; the default is 0.1".to_owned());
        }
        found
    }

    fn socket_mistakes(&self, found: &mut Vec<String>) {
        let listen = match self.listen {
            Listen::Tcp(address) => Some(address),
            Listen::Unix(_) => None,
        };
        let sockets = [
            ("listen", listen),
            ("health", self.health),
            ("feed", Some(self.feed)),
            ("admin", Some(self.admin)),
        ];
        let sockets: Vec<_> = sockets.into_iter().filter_map(|(field, it)| Some((field, it?))).collect();
        for (i, (field, address)) in sockets.iter().enumerate() {
            let taken = sockets[..i].iter().find(|(_, it)| it == address && address.port() != 0);
            if let Some((other, _)) = taken {
                found.push(format!("{field}: {address} is that of {other}; give each its own port"));
            }
        }
        for (field, tls) in [("tls", &self.tls), ("feed_tls", &self.feed_tls)] {
            if let Some(tls) = tls {
                tls.mistakes(field, found);
            }
        }
        if self.feed_tls.as_ref().is_some_and(|it| !it.self_signed && it.client_ca.is_none()) {
            found.push(
                "feed_tls.client_ca: missing; give the CA that signs agents' certificates, as they prove which node is \
                 whose"
                    .to_owned(),
            );
        }
        if self.feed_tls.as_ref().is_some_and(|it| it.self_signed) {
            found.push(
                "feed_tls.self_signed: an agent could not tell it from an impostor's; give certificate, key and client_ca"
                    .to_owned(),
            );
        }
    }

    fn replica_mistakes(&self, found: &mut Vec<String>) {
        match &self.kubernetes {
            Some(kubernetes) => {
                kubernetes.mistakes(found);
                if !self.replicas.is_empty() {
                    found.push("replicas: with `kubernetes` they are pods; give one of the two".to_owned());
                }
            }
            None if self.replicas.is_empty() => {
                found.push(
                    "replicas: the list is empty; name at least one replica, or give `kubernetes`".to_owned(),
                );
            }
            None => {}
        }
        let mut seen = BTreeSet::new();
        for (i, replica) in self.replicas.iter().enumerate() {
            if replica.address.port() == 0 {
                found.push(format!("replicas[{i}].address: port 0 is no serving port; write the real one"));
            }
            if replica.ranks.is_some_and(|it| !(1..=MOST_RANKS).contains(&it)) || MOST_RANKS < replica.rank {
                found.push(format!(
                    "replicas[{i}].ranks: there are 1 to {MOST_RANKS} ranks behind an address; write how many share {}",
                    replica.address
                ));
            }
            if let Some(rank) = replica.all_ranks().find(|it| !seen.insert((replica.address, *it))) {
                let address = replica.address;
                found.push(format!("replicas[{i}]: {address} rank {rank} is listed twice; remove one"));
            }
            if replica.models.is_empty() {
                found.push(format!(
                    "replicas[{i}].models: the list is empty; name the models that {} serves",
                    replica.address
                ));
            }
        }
    }

    fn model_mistakes(&self, found: &mut Vec<String>) {
        let mut names = BTreeSet::new();
        for (i, model) in self.models.iter().enumerate() {
            for name in std::iter::once(&model.name).chain(&model.aliases) {
                if !names.insert(name) {
                    found.push(format!("models[{i}]: the name {name:?} is given twice; keep one"));
                }
            }
            if model.tokenizer_mode.as_deref() == Some("") {
                found.push(format!("models[{i}].tokenizer_mode: is empty; give what vLLM is given, or null"));
            }
            model.source_mistakes(&format!("models[{i}]"), found);
            if model.utc_offset_minutes.unsigned_abs() > 24 * 60 {
                found.push(format!(
                    "models[{i}].utc_offset_minutes: {} is more than a day; give minutes ahead of UTC",
                    model.utc_offset_minutes
                ));
            }
        }
    }

    fn missing_files(&self, found: &mut Vec<String>) {
        for (field, tls) in [("tls", &self.tls), ("feed_tls", &self.feed_tls)] {
            if let Some(tls) = tls {
                tls.missing_files(field, found);
            }
        }
        for (i, model) in self.models.iter().enumerate() {
            model.missing_files(&format!("models[{i}]"), found);
            if let Some(file) = model.chat_template.as_ref().filter(|it| !it.is_file()) {
                found.push(format!(
                    "models[{i}].chat_template: there is no {}; give the file that vLLM is given",
                    file.display()
                ));
            }
        }
    }

    fn range_mistakes(&self, found: &mut Vec<String>) {
        let mut range = |field: &str, value: u64, least: u64, most: u64| {
            if value < least || most < value {
                found.push(format!("{field}: {value} is out of range; use {least} to {most}"));
            }
        };
        range("destinations", self.destinations as u64, 1, 16);
        range("max_body_bytes", self.max_body_bytes as u64, 1_024, 1 << 30);
        range("reload_check_s", self.reload_check_s, 0, 86_400);
        range("workers", self.workers as u64, 0, 1_024);
        let BudgetConfig { base_ms, max_ms, full_duplex_ms, .. } = self.budget;
        for (field, value) in [("base_ms", base_ms), ("max_ms", max_ms), ("full_duplex_ms", full_duplex_ms)] {
            range(&format!("budget.{field}"), value, 1, 60_000);
        }
        range("memory.routed_expiry_s", self.memory.routed_expiry_s, 1, 86_400);
        range("memory.expected_expiry_s", self.memory.expected_expiry_s, 1, 86_400);
        range("pins.max", self.pins.max as u64, 1, 1 << 26);
        range("pins.expiry_s", self.pins.expiry_s, 1, 7 * 86_400);
        range("memory.blocks_per_replica", self.memory.blocks_per_replica as u64, 1, 1 << 26);
        if (1..1 << 20).contains(&self.memo.max_bytes) || 1 << 40 < self.memo.max_bytes {
            let given = self.memo.max_bytes;
            found.push(format!(
                "memo.max_bytes: {given} is out of range; use 1048576 to 1099511627776, or 0 for none"
            ));
        }
    }
}
