//! What is varied, and the rows that are tried of it.

use std::collections::BTreeSet;

/// How a body goes through the picker. The answers' modes have no `BUFFERED_PARTIAL`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Mode {
    None,
    Streamed,
    Buffered,
    BufferedPartial,
    FullDuplex,
}

impl Mode {
    /// Envoy's name of it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Streamed => "STREAMED",
            Self::Buffered => "BUFFERED",
            Self::BufferedPartial => "BUFFERED_PARTIAL",
            Self::FullDuplex => "FULL_DUPLEX_STREAMED",
        }
    }

    /// Whether the picker sees the body before it has to know the replica.
    pub(crate) fn shows_body(self) -> bool {
        matches!(self, Self::Buffered | Self::BufferedPartial | Self::FullDuplex)
    }
}

/// How the client tells where its body ends.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Framing {
    Length,
    /// Chunks, or HTTP/2 data without a length.
    Chunked,
    /// With a length, and `Expect: 100-continue`.
    Expect,
    /// Chunks, and trailers behind them.
    Trailers,
}

/// What the engine answers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Answer {
    Json,
    /// Events, a chunk each.
    Events,
    /// 204, with no body.
    Empty,
    /// 404 with a body.
    NotFound,
    /// A body with trailers behind it.
    Trailers,
    /// A body of some megabytes.
    Large,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Failure {
    Nothing,
    /// The replica that is picked is not there; Envoy's retry finds another.
    Dead,
    /// The client goes away in the middle of its body.
    AbortsBody,
    /// The client goes away in the middle of the answer.
    AbortsAnswer,
    /// The engine goes away in the middle of the answer.
    Resets,
}

/// One request, and all that is varied of it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Row {
    pub(crate) request_mode: Mode,
    pub(crate) response_mode: Mode,
    pub(crate) http2: bool,
    pub(crate) size: usize,
    pub(crate) framing: Framing,
    pub(crate) gzip: bool,
    pub(crate) answer: Answer,
    pub(crate) failure: Failure,
}

const REQUEST_MODES: [Mode; 5] =
    [Mode::Buffered, Mode::FullDuplex, Mode::BufferedPartial, Mode::Streamed, Mode::None];
const RESPONSE_MODES: [Mode; 4] = [Mode::None, Mode::Streamed, Mode::FullDuplex, Mode::Buffered];
const SIZES: [usize; 8] = [0, 1, 2 << 10, 62_000, (64 << 10) + 1, 100 << 10, 1 << 20, 5 << 20];
const FRAMINGS: [Framing; 4] = [Framing::Length, Framing::Chunked, Framing::Expect, Framing::Trailers];
const ANSWERS: [Answer; 6] =
    [Answer::Json, Answer::Events, Answer::Empty, Answer::NotFound, Answer::Trailers, Answer::Large];
const FAILURES: [Failure; 5] =
    [Failure::Nothing, Failure::Dead, Failure::AbortsBody, Failure::AbortsAnswer, Failure::Resets];
const LARGEST: usize = 32 << 20;

/// How many values each factor has.
const LEVELS: [usize; 8] = [
    REQUEST_MODES.len(),
    RESPONSE_MODES.len(),
    2,
    SIZES.len(),
    FRAMINGS.len(),
    2,
    ANSWERS.len(),
    FAILURES.len(),
];

impl Row {
    fn of(levels: [usize; 8]) -> Self {
        let [request, response, http2, size, framing, gzip, answer, failure] = levels;
        Self {
            request_mode: REQUEST_MODES[request],
            response_mode: RESPONSE_MODES[response],
            http2: http2 == 1,
            size: SIZES[size],
            framing: FRAMINGS[framing],
            gzip: gzip == 1,
            answer: ANSWERS[answer],
            failure: FAILURES[failure],
        }
    }

    /// Whether what it asks for can be.
    fn is_possible(self) -> bool {
        let goes_on = matches!(self.answer, Answer::Events | Answer::Trailers | Answer::Large);
        match self.failure {
            Failure::Nothing | Failure::Dead => true,
            // There must be a half of it.
            Failure::AbortsBody => 1 < self.size,
            // Envoy holds such an answer back as a whole, so nothing of it comes to go away from.
            Failure::AbortsAnswer => goes_on && self.response_mode != Mode::Buffered,
            Failure::Resets => goes_on,
        }
    }
}

/// All rows: every pair of values of two factors, every combination of some for the modes that matter most, and a large
/// body for each mode.
pub(crate) fn all() -> Vec<Row> {
    let mut rows: BTreeSet<Row> =
        pairs(LEVELS, |levels| Row::of(levels).is_possible()).into_iter().map(Row::of).collect();
    // Their levels in the order of a row's fields.
    let full = [2, 3, 2, 3, 2, 1, 2, FAILURES.len()];
    let full = product(full).map(|[request, response, http2, size, framing, gzip, answer, failure]| {
        let size = SIZES.iter().position(|it| *it == [0, 2 << 10, 100 << 10][size]).unwrap_or_default();
        // With a length, or trailers behind it.
        Row::of([request, response, http2, size, [0, 3][framing], gzip, answer, failure])
    });
    rows.extend(full.filter(|row| row.is_possible()));
    for request_mode in REQUEST_MODES {
        rows.insert(Row {
            request_mode,
            response_mode: Mode::None,
            http2: request_mode == Mode::FullDuplex,
            size: LARGEST,
            framing: Framing::Length,
            gzip: false,
            answer: Answer::Json,
            failure: Failure::Nothing,
        });
    }
    rows.into_iter().collect()
}

/// All combinations of one value for each factor.
fn product<const N: usize>(levels: [usize; N]) -> impl Iterator<Item = [usize; N]> {
    (0..levels.iter().product()).map(move |mut number: usize| {
        levels.map(|of| {
            let level = number % of;
            number /= of;
            level
        })
    })
}

/// Combinations of one value for each factor, such that each pair of values of any two factors is in one if any
/// combination that is possible has it: greedily, the one of a few that has the most new pairs.
fn pairs<const N: usize>(levels: [usize; N], is_possible: impl Fn([usize; N]) -> bool) -> Vec<[usize; N]> {
    const TRIES: usize = 400;
    let mut missing = BTreeSet::new();
    for (i, j) in (0..N).flat_map(|i| (i + 1..N).map(move |j| (i, j))) {
        missing.extend((0..levels[i]).flat_map(|a| (0..levels[j]).map(move |b| (i, a, j, b))));
    }
    let mut rows = Vec::new();
    let mut seed = 1_u64;
    while let Some(pair @ (i, a, j, b)) = missing.pop_first() {
        let mut best = None;
        for _ in 0..TRIES {
            let mut row = levels.map(|of| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as usize % of
            });
            (row[i], row[j]) = (a, b);
            let new = 1 + covered(&row).filter(|it| *it != pair && missing.contains(it)).count();
            if is_possible(row) && best.is_none_or(|(most, _)| most < new) {
                best = Some((new, row));
            }
        }
        if let Some((_, row)) = best {
            covered(&row).for_each(|it| _ = missing.remove(&it));
            rows.push(row);
        }
    }
    rows
}

fn covered<const N: usize>(row: &[usize; N]) -> impl Iterator<Item = (usize, usize, usize, usize)> + '_ {
    (0..N).flat_map(move |i| (i + 1..N).map(move |j| (i, row[i], j, row[j])))
}

#[test]
fn every_pair_that_can_be_is_in_a_row() {
    let is_possible = |levels| Row::of(levels).is_possible();
    let rows = pairs(LEVELS, is_possible);
    assert!(rows.iter().all(|row| is_possible(*row)));
    let tried: BTreeSet<_> = rows.iter().flat_map(covered).collect();
    // By all that there is, not by what the rows are made from.
    let can_be: BTreeSet<_> = product(LEVELS)
        .filter(|row| is_possible(*row))
        .flat_map(|row| covered(&row).collect::<Vec<_>>())
        .collect();
    assert_eq!(tried, can_be);
    // Not much more than the two largest factors need together.
    assert!(rows.len() < 100, "{}", rows.len());
}
