//! `kvpick-agent replay`: what the agent would hold after the first messages of a recording, as JSON.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    time::Instant,
};

use kvpick_agent_core::{
    engine::{self, Engine},
    mirror,
    recording::{Known, Line, LineError, Run},
};
use kvpick_proto::words::{Completeness, Place, Tier};
use serde_json::{Map, Value, json};

use crate::status;

/// Longest line that is read: more than the largest message that is recorded, in base64.
const MAX_LINE: usize = 256 << 20;

/// A recording that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file.
    #[error("can't read {}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A line of it.
    #[error("{}, line {number}: {error}", path.display())]
    Line {
        /// Of which file.
        path: PathBuf,
        /// From 1.
        number: u64,
        /// What is wrong with it.
        error: LineError,
    },
}

/// Hears the first lines of a recording, or all, and says what is held then.
///
/// # Errors
///
/// The file can't be read, or a line of it is no message.
pub fn replay(path: &Path, until: Option<u64>, known: Known, now: Instant) -> Result<String, ReplayError> {
    let in_file = |error| ReplayError::File { path: path.to_owned(), error };
    let mut file = BufReader::new(File::open(path).map_err(in_file)?);
    let mut run = Run::new(known, now);
    let mut text = Vec::new();
    for number in 1..=until.unwrap_or(u64::MAX) {
        text.clear();
        // One byte more, so that too much is noticed.
        let most = MAX_LINE as u64 + 1;
        if file.by_ref().take(most).read_until(b'\n', &mut text).map_err(in_file)? == 0 {
            break;
        }
        let in_line = |error| ReplayError::Line { path: path.to_owned(), number, error };
        run.on_line(parse(&text).map_err(in_line)?);
    }
    Ok(format!("{}\n", report(&run)))
}

fn parse(line: &[u8]) -> Result<Line, LineError> {
    if line.len() > MAX_LINE {
        return Err(LineError::NotJson(format!("it is longer than {MAX_LINE} bytes")));
    }
    let text = str::from_utf8(line).map_err(|it| LineError::NotJson(it.to_string()))?;
    Line::parse(text)
}

fn report(run: &Run) -> Value {
    let ranks: Vec<_> = run.engines().iter().map(|(rank, engine)| one(*rank, engine)).collect();
    // Ranks of one engine name their blocks alike.
    let named = ranks.iter().find(|it| !it["domain"].is_null()).or_else(|| ranks.first());
    let of = |field: &str| named.map_or(Value::Null, |it| it[field].clone());
    let is_complete = !ranks.is_empty() && ranks.iter().all(|it| it["completeness"]["complete"] == true);
    let since = ranks.iter().filter_map(|it| it["completeness"]["partial_since_ms"].as_u64()).max();
    json!({
        "lines": run.lines(),
        "unplaced": run.unplaced(),
        "domain": of("domain"),
        "key_kinds": of("key_kinds"),
        "completeness": { "complete": is_complete, "partial_since_ms": since },
        "held": run.engines().iter().flat_map(|(rank, engine)| held(*rank, engine)).collect::<Vec<_>>(),
        "counts": sum(&ranks, "counts"),
        "mirror": sum(&ranks, "mirror"),
        "ranks": ranks,
    })
}

fn one(rank: u32, engine: &Engine) -> Value {
    let it = engine.provisional_description();
    let (complete, partial_since_ms) = match it.completeness {
        Completeness::Complete => (true, None),
        Completeness::PartialSince { unix_ms } => (false, Some(unix_ms)),
    };
    json!({
        "rank": rank,
        "domain": it.domain.as_ref().map(status::domain),
        "key_kinds": it.key_kinds.iter().map(status::key_kind).collect::<Vec<_>>(),
        "completeness": { "complete": complete, "partial_since_ms": partial_since_ms },
        "blocks": engine.mirror().len(),
        "counts": counts(&engine.counts()),
        "mirror": mirror_counts(&engine.mirror().counts()),
        "unreadable": engine.counts().unreadable.map(|it| it.to_string()),
    })
}

/// The blocks of one rank: an entry for each group and tier that has any.
fn held(rank: u32, engine: &Engine) -> Vec<Value> {
    let mut places: Vec<(Place, Map<String, Value>)> = Vec::new();
    for (place, key, copies) in engine.mirror().held() {
        if places.last().is_none_or(|(last, _)| *last != place) {
            places.push((place, Map::new()));
        }
        if let Some((_, blocks)) = places.last_mut() {
            blocks.insert(key.as_u64().to_string(), copies.into());
        }
    }
    let entry = |(Place { group, tier: it }, blocks): (Place, Map<String, Value>)| json!({ "rank": rank, "group": group, "tier": tier(it), "blocks": blocks });
    places.into_iter().map(entry).collect()
}

const fn tier(it: Tier) -> &'static str {
    match it {
        Tier::Gpu => "gpu",
        Tier::Cpu => "cpu",
        Tier::Storage => "storage",
    }
}

fn counts(it: &engine::Counts) -> Value {
    json!({
        "batches": it.batches,
        "stored_events": it.stored_events,
        "removed_events": it.removed_events,
        "cleared_events": it.cleared_events,
        "unknown_events": it.unknown_events,
        "undecodable": it.undecodable,
        "resets_restarted": it.resets_restarted,
        "resets_lost": it.resets_lost,
        "resets_unproven": it.resets_unproven,
        "naming_misfits": it.naming_misfits,
        "hidden_keys": it.hidden_keys,
        "long_texts": it.long_texts,
    })
}

fn mirror_counts(it: &mirror::Counts) -> Value {
    json!({
        "ambiguous_stores": it.ambiguous_stores,
        "unknown_removals": it.unknown_removals,
        "unknown_placeholders": it.unknown_placeholders,
        "unknown_groups": it.unknown_groups,
        "cuts": it.cuts,
        "no_room": it.no_room,
    })
}

/// Numbers of all ranks together.
fn sum(ranks: &[Value], field: &str) -> Value {
    let mut all = Map::new();
    for (name, count) in ranks.iter().filter_map(|it| it[field].as_object()).flatten() {
        let so_far = all.get(name).and_then(Value::as_u64).unwrap_or(0);
        all.insert(name.clone(), (so_far + count.as_u64().unwrap_or(0)).into());
    }
    all.into()
}
