//! Whether prompts are made here as the engines make them, seen by confirmation: of the blocks that a request should
//! have left on the replica it went to, the share that the engine's events confirm. It costs the engine nothing, and
//! sees a wrong template, salt, adapter or way of naming blocks alike.
//!
//! A false alarm would cost a healthy model its hits, so what proves nothing does not count: see [`Watched`] for the
//! requests that are judged, and [`Tally`] for what their judgements come to.

mod tally;
mod watched;

use std::{collections::BTreeMap, time::Instant};

use kvpick_proto::words::KeyKind;

pub use tally::{Evidence, Tally, Totals, Trust};
pub use watched::{Judged, WatchId, Watched};
pub(crate) use watched::{awaited, judge};

use crate::request::Api;

/// How prompts were made here, as far as it decides whose parity they tell of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Made {
    /// By the rules of which API.
    pub api: Api,
    /// Whether their blocks carry a salt.
    pub salted: bool,
    /// Whether the answer may begin before the prompts are computed: one in pieces (vLLM sends its headers at once), or
    /// one to be fetched later.
    pub answers_early: bool,
}

/// A configured model, or [`Self::OTHER`].
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Model(usize);

impl Model {
    /// All that are not configured.
    pub const OTHER: Self = Self(usize::MAX);
}

/// Whose parity: prompts of one model, made by one API's rules, whose blocks have one kind of key. Kept apart, as a wrong
/// rule for salts says nothing about plain prompts.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Subject {
    /// The model.
    pub model: Model,
    /// The API.
    pub api: Api,
    /// What besides tokens is in the blocks' names; of several the one that is rarest.
    pub keys: KeyKind,
}

impl Subject {
    /// Label of the kind of key.
    #[must_use]
    pub const fn keys_label(&self) -> &'static str {
        match self.keys {
            KeyKind::Plain => "plain",
            KeyKind::Adapter => "adapter",
            KeyKind::Salt => "salt",
            KeyKind::Media => "media",
            KeyKind::Embeds => "embeds",
        }
    }
}

/// Something to be told to operators.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum News {
    /// Almost nothing that is expected comes.
    Lost(Subject, Evidence),
    /// It was lost for long enough to be tried again.
    Tried(Subject),
    /// What is expected comes again.
    Back(Subject, Evidence),
}

/// What is known of the parity of all prompts.
#[derive(Debug, Default)]
pub struct Parity {
    names: Vec<String>,
    by_name: BTreeMap<String, Model>,
    /// At most one for each model, API and kind of key.
    tallies: BTreeMap<Subject, Tally>,
    news: Vec<News>,
}

impl Parity {
    /// Parity of the models of these names, each with its further names. What is known of earlier ones is forgotten.
    #[must_use]
    pub fn new(models: impl IntoIterator<Item = (String, Vec<String>)>) -> Self {
        let mut parity = Self::default();
        for (name, aliases) in models {
            let model = Model(parity.names.len());
            for alias in aliases.into_iter().chain([name.clone()]) {
                parity.by_name.insert(alias, model);
            }
            parity.names.push(name);
        }
        parity
    }

    /// A configured model, by any of its names.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<Model> {
        self.by_name.get(name).copied()
    }

    /// The only configured model, for requests that name none.
    #[must_use]
    pub fn only(&self) -> Option<Model> {
        (self.names.len() == 1).then_some(Model(0))
    }

    /// A model's label.
    #[must_use]
    pub fn name(&self, model: Model) -> &str {
        self.names.get(model.0).map_or("other", String::as_str)
    }

    /// Whether prompts of this kind are thought to be those of the engines. As long as a kind of key has too little
    /// evidence of its own it goes by the plain ones.
    #[must_use]
    pub fn trusts(&self, subject: Subject) -> bool {
        let plain = Subject { keys: KeyKind::Plain, ..subject };
        let own = self.tallies.get(&subject).filter(|it| !it.trust().is_good() || it.is_proven());
        own.or_else(|| self.tallies.get(&plain)).is_none_or(|it| it.trust().is_good())
    }

    /// Everything that was judged, in a fixed order.
    pub fn tallies(&self) -> impl Iterator<Item = (Subject, &Tally)> {
        self.tallies.iter().map(|(subject, tally)| (*subject, tally))
    }

    /// The prompts of the model of that name are made in another way from now on: what was known of them holds no longer,
    /// nor do requests count that were sent before.
    pub fn reset(&mut self, name: &str, now: Instant) {
        let Some(model) = self.model(name) else { return };
        for (_, tally) in self.tallies.iter_mut().filter(|(it, _)| it.model == model) {
            tally.begin(Trust::Given, now);
        }
    }

    /// A request was judged.
    pub fn on_judged(&mut self, judged: Judged, now: Instant) {
        let tally = self.tallies.entry(judged.subject).or_default();
        let before = tally.trust();
        tally.on_judged(&judged, now);
        let (subject, evidence) = (judged.subject, tally.evidence());
        match (before.is_good(), tally.trust()) {
            (true, Trust::Lost { .. }) => self.news.push(News::Lost(subject, evidence)),
            (_, Trust::Given) if before != Trust::Given => self.news.push(News::Back(subject, evidence)),
            _ => (),
        }
    }

    /// Lets time pass.
    pub fn on_time(&mut self, now: Instant) {
        let tried = self.tallies.iter_mut().filter_map(|(it, tally)| tally.on_time(now).then_some(*it));
        self.news.extend(tried.map(News::Tried));
    }

    /// What happened since the last call.
    #[must_use = "news are logged"]
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }
}
