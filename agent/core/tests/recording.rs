//! Recordings: their lines, and what is held after them.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod wire;

use std::time::Instant;

use kvpick_agent_core::{
    decode::DecodeError,
    recording::{Known, Line, LineError, Run},
};
use kvpick_proto::{
    naming::BlockKey,
    words::{Completeness, Place},
};
use wire::Wire;

fn line(frames: Vec<Vec<u8>>) -> Line {
    Line { i: 0, t: 1_796_063_901.25, frames, replayed: false }
}

fn run(all: impl IntoIterator<Item = Vec<Vec<u8>>>) -> Run {
    let mut run = Run::new(Known::default(), Instant::now());
    all.into_iter().for_each(|frames| run.on_line(line(frames)));
    run
}

fn held(run: &Run, rank: u32) -> Vec<(Place, BlockKey)> {
    run.engines()[&rank].mirror().held().map(|(place, key, _)| (place, key)).collect()
}

/// The same batch as another rank says it: the rank is the payload's last byte.
fn of_rank(mut frames: Vec<Vec<u8>>, rank: u8) -> Vec<Vec<u8>> {
    *frames[2].last_mut().unwrap() = rank;
    frames
}

#[test]
fn a_line_is_read_as_it_was_written() {
    for replayed in [false, true] {
        let it = Line { replayed, ..line(vec![Vec::new(), vec![0; 8], vec![0xff, 0x00]]) };
        assert_eq!(Line::parse(&it.write()), Ok(it));
    }
    let plain = r#"{"i": 7, "t": 1.5, "more": [], "frames": ["", "AAAAAAAAAAA=", "kw=="]}"#;
    let want = Line { i: 7, t: 1.5, frames: vec![Vec::new(), vec![0; 8], vec![0x93]], replayed: false };
    assert_eq!(Line::parse(plain), Ok(want));
}

#[test]
fn a_line_that_is_none_is_refused_by_field() {
    let field = |text: &str| match Line::parse(text) {
        Err(LineError::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field("{}"), "frames");
    assert_eq!(field("[]"), "frames");
    assert_eq!(field(r#"{"i": 0, "t": 0, "frames": [1]}"#), "frames[0]");
    assert_eq!(field(r#"{"i": 0, "t": 0, "frames": ["", "?"]}"#), "frames[1]");
    assert_eq!(field(r#"{"i": -1, "t": 0, "frames": []}"#), "i");
    assert_eq!(field(r#"{"i": 0, "t": "now", "frames": []}"#), "t");
    assert_eq!(field(r#"{"i": 0, "t": 0, "frames": [], "replayed": 1}"#), "replayed");
    assert!(matches!(Line::parse(""), Err(LineError::NotJson(_))));
}

#[test]
fn each_rank_is_an_engine() {
    let (mut one, mut two) = (Wire::new(1), Wire::new(2));
    let lines = [
        of_rank(one.stored(1, 0, 3), 0),
        of_rank(two.stored(2, 0, 2), 5),
        of_rank(two.removed(2, 1, 1), 5),
        of_rank(one.stored(1, 3, 1), 0),
    ];
    let run = run(lines);
    assert_eq!(run.engines().keys().copied().collect::<Vec<_>>(), [0, 5]);
    assert_eq!(held(&run, 0), one.held().into_iter().collect::<Vec<_>>());
    assert_eq!(held(&run, 5), two.held().into_iter().collect::<Vec<_>>());
}

#[test]
fn a_recording_may_begin_in_the_middle_and_go_on_with_another_publisher() {
    let mut wire = Wire::new(1);
    wire.skip(127);
    let mut lines = vec![wire.stored(1, 0, 3)];
    let middle = run(lines.clone());
    let completeness = |run: &Run| run.engines()[&0].provisional_description().completeness;
    assert_eq!(completeness(&middle), Completeness::PartialSince { unix_ms: 1_796_063_901_250 });
    wire.restart();
    lines.push(wire.stored(2, 0, 2));
    let restarted = run(lines);
    assert_eq!(completeness(&restarted), Completeness::Complete);
    assert_eq!(restarted.engines()[&0].counts().resets_restarted, 1);
    assert_eq!(held(&restarted, 0), wire.held().into_iter().collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_read_is_counted() {
    let mut wire = Wire::new(1);
    // Whose it is nobody knows yet; nor does anybody once there are two.
    let lines =
        [vec![Vec::new()], wire.stored(1, 0, 3), vec![vec![0]; 2], wire.garbage(), wire.stored(2, 0, 2)];
    let run = run(lines);
    let counts = run.engines()[&0].counts();
    assert_eq!((run.lines(), run.unplaced()), (5, 1));
    assert_eq!((counts.batches, counts.undecodable, counts.resets_lost), (3, 2, 1));
    assert_eq!(counts.unreadable, Some(DecodeError::Field { field: "batch", want: "an array" }));
    assert_eq!(held(&run, 0), wire.held().into_iter().collect::<Vec<_>>());
}

#[test]
fn a_batch_of_one_rank_that_cannot_be_read_is_missing_from_that_rank_alone() {
    let (mut one, mut two) = (Wire::new(1), Wire::new(2));
    let lines = [
        of_rank(one.stored(1, 0, 3), 0),
        of_rank(two.stored(2, 0, 2), 1),
        two.garbage(),
        of_rank(one.stored(1, 3, 1), 0),
        of_rank(two.stored(3, 0, 2), 1),
    ];
    let run = run(lines);
    assert_eq!(run.unplaced(), 1);
    assert_eq!([0, 1].map(|it| run.engines()[&it].counts().resets_lost), [0, 1]);
    assert_eq!(held(&run, 0), one.held().into_iter().collect::<Vec<_>>());
    assert_eq!(held(&run, 1), two.held().into_iter().collect::<Vec<_>>());
}

#[test]
fn times_may_be_anything() {
    let mut run = Run::new(Known::default(), Instant::now());
    let mut wire = Wire::new(1);
    for t in [1e300, -1e300, 0.0, 1.0] {
        run.on_line(Line { t, ..line(wire.stored(1, 0, 1)) });
    }
    assert_eq!(run.engines()[&0].counts().batches, 4);
}
