//! What answers tell as they pass: whether their replica failed, and what came of what was foreseen.

use kvpick_core::{
    outcome::Tier,
    reply::Decision,
    session::{Answer, Served},
    usage::Usage,
};
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry, core::Collector};

/// Envoy's response flags (`source/common/stream_info`, the bit set of the `response.flags` attribute): no connection could
/// be made.
const NO_CONNECTION: u64 = 0x20;

/// The same: the upstream reset the request, or its connection ended.
const LOST: u64 = 0x10 | 0x40;

/// What Envoy's word on an answer means for the replica that was picked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Meaning {
    /// It answered, with success.
    Good,
    /// It answered otherwise, or nothing is known of it.
    Nothing,
    /// A connection was lost, or another replica answered in its place. Its process may have died; or it closed on one bad
    /// request, which any client can bring about.
    Lost,
    /// Nobody can connect to it.
    Unreachable,
}

/// What `served` means for the replica at `picked` (`ip:port`).
#[must_use]
pub fn meaning(served: &Served, picked: &str) -> Meaning {
    let by_picked = served.address == picked;
    if by_picked && served.is_success() {
        return Meaning::Good;
    }
    let elsewhere = !served.address.is_empty() && !by_picked;
    let has_failed = if elsewhere {
        // Named first and not the one that answered: Envoy tried it in vain, or another's retry policy left it for an answer
        // that it did not like.
        1 < served.attempts
    } else {
        500 <= served.status
    };
    match served.flags {
        flags if has_failed && flags & NO_CONNECTION != 0 => Meaning::Unreachable,
        flags if has_failed && (elsewhere || flags & LOST != 0) => Meaning::Lost,
        _ => Meaning::Nothing,
    }
}

/// Counters of answers.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Answers by `code` (`2xx`, `none` where no headers came) and `end`.
    pub answers: IntCounterVec,
    /// Seconds from a request's first byte to its answer's end.
    pub seconds: Histogram,
    /// Seconds from a request's first byte to its answer's first event.
    pub first_event_seconds: Histogram,
    /// Tokens by `kind`, as engines told them in answers.
    tokens: IntCounterVec,
    /// Predictions by `tier` and `result`.
    predictions: IntCounterVec,
    /// Prompts made here by `result`.
    prompts: IntCounterVec,
}

impl Answers {
    /// Registers all of them.
    ///
    /// # Errors
    /// When a name is taken already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        // From a first token of a short prompt to an answer of minutes, a factor of 2 apart.
        let buckets = prometheus::exponential_buckets(0.005, 2.0, 17)?;
        let counters = |name, help, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let seconds = |name, help| {
            let options = HistogramOpts::new(name, help).buckets(buckets.clone());
            registered(registry, Histogram::with_opts(options)?)
        };
        Ok(Self {
            answers: counters(
                "kvpick_answers_total",
                "Answers to decided requests, by status class and how they were seen to end.",
                &["code", "end"],
            )?,
            seconds: seconds("kvpick_answer_seconds", "From a request's first byte to its answer's end.")?,
            first_event_seconds: seconds(
                "kvpick_first_event_seconds",
                "From a request's first byte to its answer's first event, where answers' bodies are shown.",
            )?,
            tokens: counters(
                "kvpick_usage_tokens_total",
                "Tokens that engines told in answers, where answers' bodies are shown.",
                &["kind"],
            )?,
            predictions: counters(
                "kvpick_predictions_total",
                "Predicted cached tokens beside those that the answer told.",
                &["tier", "result"],
            )?,
            prompts: counters(
                "kvpick_prompts_told_total",
                "Prompt tokens made here beside those that the answer told.",
                &["result"],
            )?,
        })
    }

    /// An answer has ended. `by_picked`: whether the picked replica gave it.
    pub fn on_end(&self, answer: &Answer, decision: &Decision, by_picked: bool) {
        let code = match answer.status {
            0 => "none",
            200..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            500..600 => "5xx",
            _ => "other",
        };
        self.answers.with_label_values(&[code, answer.end.label()]).inc();
        let Usage { prompt, cached, output } = answer.usage;
        for (kind, tokens) in [("prompt", prompt), ("cached", cached), ("output", output)] {
            self.tokens.with_label_values(&[kind]).inc_by(tokens.unwrap_or(0));
        }
        if let Some(told) = prompt.filter(|_| decision.prompt_tokens != 0) {
            let result = if told == decision.prompt_tokens { "equal" } else { "differs" };
            self.prompts.with_label_values(&[result]).inc();
        }
        let is_foreseen = matches!(decision.tier, Tier::Precise | Tier::Approximate);
        if let Some(told) = cached.filter(|_| is_foreseen) {
            let result = match told.cmp(&decision.predicted_tokens) {
                _ if !by_picked => "elsewhere",
                std::cmp::Ordering::Equal => "equal",
                std::cmp::Ordering::Less => "fewer",
                std::cmp::Ordering::Greater => "more",
            };
            self.predictions.with_label_values(&[decision.tier.label(), result]).inc();
        }
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, it: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(it.clone()))?;
    Ok(it)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICKED: &str = "10.0.0.1:8000";

    fn served(address: &str, status: u32, attempts: u64, flags: u64) -> Served {
        Served { address: address.to_owned(), status, attempts, flags, ..Served::default() }
    }

    #[test]
    fn only_what_can_not_be_connected_to_is_unreachable() {
        for (served, meant) in [
            (served(PICKED, 200, 1, 0), Meaning::Good),
            (served(PICKED, 204, 3, 0), Meaning::Good),
            (served(PICKED, 500, 1, 0), Meaning::Nothing),
            (served(PICKED, 404, 1, 0), Meaning::Nothing),
            // A client's own end shows flags too.
            (served(PICKED, 400, 1, LOST), Meaning::Nothing),
            (served(PICKED, 503, 1, 0x10), Meaning::Lost),
            (served(PICKED, 503, 1, 0x40), Meaning::Lost),
            (served(PICKED, 503, 1, 0x20), Meaning::Unreachable),
            (served("", 503, 1, 0x20), Meaning::Unreachable),
            (served("", 503, 0, 0), Meaning::Nothing),
            (served("10.0.0.2:8000", 200, 2, 0x20), Meaning::Unreachable),
            (served("10.0.0.2:8000", 200, 2, 0), Meaning::Lost),
            (served("10.0.0.2:8000", 503, 2, 0x10), Meaning::Lost),
            // Envoy did not know the picked one, or went by something else.
            (served("10.0.0.2:8000", 200, 1, 0), Meaning::Nothing),
        ] {
            assert_eq!(meaning(&served, PICKED), meant, "{served:?}");
        }
    }
}
