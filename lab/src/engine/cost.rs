//! How long a step of the model takes.
//!
//! The figures stand for one NVIDIA L40S that serves Llama 3.1 8B in 16 bits, and follow from what is published of
//! both; none was fitted. A step reads all weights once, whatever it computes:
//!
//! | part of a step | arithmetic | time |
//! |---|---|---|
//! | the step itself | 2 bytes x 8.03 G parameters / 864 GB/s | 18.6 ms |
//! | a prompt token | 2 operations x 8.03 G parameters / 181 TFLOP/s | 89 us |
//! | a prompt token and one before it | 4 operations x 4,096 wide x 32 layers / 181 TFLOP/s | 2.9 ns |
//! | a generating sequence | as a prompt token, and 10 us for sampling | 99 us |
//! | a token of its context | 2 x 2 bytes x 1,024 wide x 32 layers / 864 GB/s | 152 ns |
//!
//! Reading is taken at the published bandwidth, and computing at half of the published 362 TFLOP/s; reading and
//! computing do not overlap, and a sliding window saves no time. No engine was measured for this. What routing depends
//! on is there: how prefill compares with decode, how both grow with context and batch, and what a hit saves.

use std::time::Duration;

/// What is published of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// As it is sold.
    pub name: &'static str,
    /// Bytes per second that its memory can be read with.
    pub memory_bandwidth: f64,
    /// Floating-point operations per second on dense matrices in 16 bits.
    pub flops: f64,
}

/// What is published of a model whose layers all have full attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// As it is published.
    pub name: &'static str,
    /// Weights.
    pub parameters: f64,
    /// Layers.
    pub layers: f64,
    /// Query heads times their size.
    pub query_width: f64,
    /// Key heads times their size; values are as wide.
    pub key_width: f64,
}

/// NVIDIA's data sheet of the L40S: 48 GB of GDDR6, bfloat16 on tensor cores without sparsity.
pub const L40S: Gpu = Gpu { name: "NVIDIA L40S", memory_bandwidth: 864e9, flops: 362.05e12 };

/// Its `config.json`: 32 layers, 32 query heads and 8 key heads of 128.
pub const LLAMA_3_1_8B: Model =
    Model { name: "Llama 3.1 8B", parameters: 8.03e9, layers: 32.0, query_width: 4096.0, key_width: 1024.0 };

/// Time of one step = `base` + `per_prefill_token` for each prompt token + `per_decode_sequence` for each sequence that
/// generates + `per_attended_pair` for each (prompt token, token before it) + `per_context_token` for each token of
/// context that a generating sequence reads; all divided by `speed`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Reading the weights once.
    pub base: Duration,
    /// Computing with all weights for one token.
    pub per_prefill_token: Duration,
    /// As a prompt token, and sampling.
    pub per_decode_sequence: Duration,
    /// Attention during prefill, in nanoseconds: scores and weighted sums over all layers.
    pub per_attended_pair_ns: f64,
    /// Attention during decode, in nanoseconds: reading one token's keys and values.
    pub per_context_token_ns: f64,
    /// Divides all of it; above 1 the engine is faster. Must be above 0.
    pub speed: f64,
}

impl Default for StepCost {
    fn default() -> Self {
        Self::of(&L40S, &LLAMA_3_1_8B)
    }
}

impl StepCost {
    /// The times of a model on a GPU, both in 16 bits. The figures must be above 0.
    #[must_use]
    pub fn of(gpu: &Gpu, model: &Model) -> Self {
        let flops = gpu.flops * USED_FLOPS;
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        // A multiplication and an addition with each weight.
        let per_token = seconds(2.0 * model.parameters / flops);
        Self {
            base: seconds(BYTES_PER_NUMBER * model.parameters / gpu.memory_bandwidth),
            per_prefill_token: per_token,
            per_decode_sequence: per_token + SAMPLING,
            // Both with the keys and with the values.
            per_attended_pair_ns: 1e9 * 2.0 * 2.0 * model.query_width * model.layers / flops,
            per_context_token_ns: 1e9 * BYTES_PER_NUMBER * 2.0 * model.key_width * model.layers
                / gpu.memory_bandwidth,
            speed: 1.0,
        }
    }

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

/// Weights, keys and values are in 16 bits.
const BYTES_PER_NUMBER: f64 = 2.0;

/// Share of the published operations per second that large matrix products are taken to reach.
const USED_FLOPS: f64 = 0.5;

/// Choosing one sequence's next token.
const SAMPLING: Duration = Duration::from_micros(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn prefill(before: usize, count: usize) -> StepWork {
        let mut work = StepWork::default();
        work.add(before, count, false);
        work
    }

    #[test]
    fn the_table_above_is_what_follows_from_the_published_figures() {
        let cost = StepCost::default();
        assert_eq!(cost.base.as_micros() / 100, 185);
        assert_eq!(cost.per_prefill_token.as_micros(), 88);
        assert_eq!(cost.per_decode_sequence.as_micros(), 98);
        assert!((cost.per_attended_pair_ns - 2.9).abs() < 0.01, "{}", cost.per_attended_pair_ns);
        assert!((cost.per_context_token_ns - 151.7).abs() < 0.1, "{}", cost.per_context_token_ns);
    }

    #[test]
    fn one_request_generates_at_the_pace_of_memory_and_many_together_cost_little_more() {
        let cost = StepCost::default();
        let decode = |sequences| {
            let mut work = StepWork::default();
            (0..sequences).for_each(|_| work.add(1000, 1, true));
            cost.duration(work)
        };
        assert_eq!(decode(1).as_millis(), 18);
        assert!(decode(32) < decode(1) * 3 / 2, "{:?}", decode(32));
        assert!(decode(1) * 2 < decode(256), "{:?}", decode(256));
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
