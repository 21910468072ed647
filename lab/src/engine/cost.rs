//! How long a step of the model takes.

use std::time::Duration;

/// Time of one step = `base` + `per_prefill_token` for each prompt token + `per_decode_sequence` for each sequence that
/// generates + `per_attended_pair` for each (prompt token, token before it) + `per_context_token` for each token of
/// context that a generating sequence reads; all divided by `speed`.
///
/// The default stands for a model of 8 billion parameters in 16 bits on one mid-size data-centre GPU, which reads
/// 860 GB/s and computes 180 TFLOP/s in practice. The figures follow from the model's size; none was fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Reading the weights once: 16 GB at 860 GB/s.
    pub base: Duration,
    /// Two operations per parameter and token: 16 GFLOP at 180 TFLOP/s.
    pub per_prefill_token: Duration,
    /// As a prompt token, and sampling.
    pub per_decode_sequence: Duration,
    /// Attention during prefill, in nanoseconds: 0.5 MFLOP per pair over all layers.
    pub per_attended_pair_ns: f64,
    /// Attention during decode, in nanoseconds: 128 KiB of keys and values read per token.
    pub per_context_token_ns: f64,
    /// Divides all of it; above 1 the engine is faster. Must be above 0.
    pub speed: f64,
}

impl Default for StepCost {
    fn default() -> Self {
        Self {
            base: Duration::from_micros(18_500),
            per_prefill_token: Duration::from_micros(90),
            per_decode_sequence: Duration::from_micros(100),
            per_attended_pair_ns: 2.9,
            per_context_token_ns: 150.0,
            speed: 1.0,
        }
    }
}

/// What a step does, as far as its time depends on it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StepWork {
    prefill_tokens: u64,
    decode_sequences: u64,
    attended_pairs: u64,
    context_tokens: u64,
}

impl StepWork {
    /// Adds `count` tokens of a sequence, of which `before` were computed in earlier steps. `decode` where the sequence
    /// is past its prompt.
    pub fn add(&mut self, before: usize, count: usize, decode: bool) {
        let (before, count) = (before as u64, count as u64);
        if decode {
            self.decode_sequences += 1;
            self.context_tokens += before + count;
        } else {
            self.prefill_tokens += count;
            // Each token attends to those before it and to itself.
            self.attended_pairs += count * before + count * (count + 1) / 2;
        }
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl StepCost {
    /// How long that takes.
    #[must_use]
    pub fn duration(&self, work: StepWork) -> Duration {
        let seconds = self.base.as_secs_f64()
            + self.per_prefill_token.as_secs_f64() * work.prefill_tokens as f64
            + self.per_decode_sequence.as_secs_f64() * work.decode_sequences as f64
            + self.per_attended_pair_ns * 1e-9 * work.attended_pairs as f64
            + self.per_context_token_ns * 1e-9 * work.context_tokens as f64;
        Duration::try_from_secs_f64(seconds / self.speed).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefill(before: usize, count: usize) -> StepWork {
        let mut work = StepWork::default();
        work.add(before, count, false);
        work
    }

    #[test]
    fn a_hit_saves_most_of_a_prefill() {
        let cost = StepCost::default();
        let (cold, warm) = (cost.duration(prefill(0, 2000)), cost.duration(prefill(1900, 100)));
        assert!(warm * 5 < cold, "{warm:?} against {cold:?}");
        assert!(cost.base < warm);
    }

    #[test]
    fn pairs_do_not_depend_on_how_a_prompt_is_cut() {
        let mut cut = prefill(0, 300);
        cut.add(300, 700, false);
        assert_eq!(cut, prefill(0, 1000));
    }

    #[test]
    fn speed_scales_all_of_it() {
        let slow = StepCost::default();
        let fast = StepCost { speed: 10.0, ..slow };
        let ratio =
            slow.duration(prefill(0, 500)).as_secs_f64() / fast.duration(prefill(0, 500)).as_secs_f64();
        assert!((ratio - 10.0).abs() < 1e-3, "{ratio}");
    }
}
