//! What engines published, kept in a file: one message a line,
//! `{"i": 0, "t": 1796063901.1, "frames": ["", "AAAAAAAAAAA=", "k8t…"]}`, with the number of the line, the time of arrival
//! in Unix seconds, and the frames in base64. A [`Run`] hears such lines as the agent heard them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kvpick_proto::words::{Adapter, ReplicaName};
use serde_json::{Value, json};

use crate::{
    decode::{Batch, Message},
    engine::{Config, Engine, Models},
    load::{CacheConfig, Metrics},
};

/// Ranks of one recording; more than any engine has.
const MAX_RANKS: usize = 4_096;

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its number in the recording, from 0.
    pub i: u64,
    /// When it arrived, Unix time in seconds.
    pub t: f64,
    /// Topic, sequence and payload, as they came.
    pub frames: Vec<Vec<u8>>,
    /// Whether it came from the replay socket.
    pub replayed: bool,
}

/// A line that is no message.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LineError {
    /// Why.
    #[error("it is not JSON: {0}")]
    NotJson(String),
    /// A field is missing, or of another kind.
    #[error("`{field}` is not {want}")]
    Field {
        /// Which.
        field: String,
        /// What it should be.
        want: &'static str,
    },
}

impl Line {
    /// Reads a line. Fields that are not known are passed over.
    ///
    /// # Errors
    ///
    /// Anything but a message.
    pub fn parse(text: &str) -> Result<Self, LineError> {
        let error = |field: &str, want| LineError::Field { field: field.to_owned(), want };
        let line: Value = serde_json::from_str(text).map_err(|it| LineError::NotJson(it.to_string()))?;
        let frames = line["frames"].as_array().ok_or_else(|| error("frames", "an array"))?;
        let frame = |(index, it): (usize, &Value)| {
            let bytes = it.as_str().and_then(|it| BASE64_STANDARD.decode(it).ok());
            bytes.ok_or_else(|| error(&format!("frames[{index}]"), "base64"))
        };
        let replayed = match &line["replayed"] {
            Value::Null => false,
            it => it.as_bool().ok_or_else(|| error("replayed", "true or false"))?,
        };
        Ok(Self {
            i: line["i"].as_u64().ok_or_else(|| error("i", "a number from 0 on"))?,
            t: line["t"].as_f64().ok_or_else(|| error("t", "a time in Unix seconds"))?,
            frames: frames.iter().enumerate().map(frame).collect::<Result<_, _>>()?,
            replayed,
        })
    }

    /// As it is written, with no newline.
    #[must_use]
    pub fn write(&self) -> String {
        let frames: Vec<_> = self.frames.iter().map(|it| BASE64_STANDARD.encode(it)).collect();
        let mut line = json!({ "i": self.i, "t": self.t, "frames": frames });
        if self.replayed {
            line["replayed"] = true.into();
        }
        line.to_string()
    }
}

/// What the agent would know from an engine's configuration and its API.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The engine's version.
    pub version: Option<String>,
    /// Its adapters.
    pub adapters: Vec<Adapter>,
    /// Roots to try beside the usual ones: values of `PYTHONHASHSEED`.
    pub roots: Vec<String>,
    /// Physical blocks on the GPU.
    pub num_gpu_blocks: Option<u64>,
}

/// The agent's own decoder, sequence and mirror on a recording, with an engine for each rank that occurs in it.
#[derive(Debug)]
pub struct Run {
    known: Known,
    engines: BTreeMap<u32, Engine>,
    lines: u64,
    unplaced: u64,
    start: Instant,
    /// Time of arrival of the first message.
    first: f64,
}

impl Run {
    /// A run that has heard nothing.
    #[must_use]
    pub const fn new(known: Known, now: Instant) -> Self {
        Self { known, engines: BTreeMap::new(), lines: 0, unplaced: 0, start: now, first: 0.0 }
    }

    /// The engines, by rank.
    #[must_use]
    pub const fn engines(&self) -> &BTreeMap<u32, Engine> {
        &self.engines
    }

    /// Messages heard.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// Messages that can't be read, of which it is not known whose they are.
    #[must_use]
    pub const fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// The next message. What can't be read is counted, as the agent does.
    pub fn on_line(&mut self, line: Line) {
        if self.lines == 0 {
            self.first = line.t;
        }
        self.lines += 1;
        // Recordings may be put together from pieces, and time may be anything.
        let passed = Duration::try_from_secs_f64(line.t - self.first).unwrap_or_default();
        let now = self.start.checked_add(passed).unwrap_or(self.start);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let unix_ms = (line.t * 1_000.0) as u64;
        let Some(engine) = self.engine_of(&line, now, unix_ms) else {
            self.unplaced += 1;
            return;
        };
        engine.on_time(now, unix_ms);
        // It counts what it can't read.
        let _counted = engine.on_frames(line.frames, now, unix_ms);
        // Nobody is told, but the agent's mirror is one whose changes are taken.
        let _nobody = engine.take_change(now);
    }

    /// The engine whose message that is. One that can't be read is the only engine's, if there is one only.
    fn engine_of(&mut self, line: &Line, now: Instant, unix_ms: u64) -> Option<&mut Engine> {
        let batch = Message::live(line.frames.clone()).and_then(|it| Batch::decode(&it.payload));
        let Ok(batch) = batch else {
            let is_only = self.engines.len() == 1;
            return self.engines.values_mut().next().filter(|_| is_only);
        };
        let rank = batch.rank.unwrap_or(0);
        if self.engines.len() >= MAX_RANKS && !self.engines.contains_key(&rank) {
            return None;
        }
        Some(self.engines.entry(rank).or_insert_with(|| engine(&self.known, rank, now, unix_ms)))
    }
}

fn engine(known: &Known, rank: u32, now: Instant, unix_ms: u64) -> Engine {
    // Nobody sees the address.
    let name = ReplicaName { address: ([127, 0, 0, 1], 0).into(), rank };
    let config = Config { roots: known.roots.clone(), ..Config::new(name) };
    let mut engine = Engine::new(config, now, unix_ms);
    if let Some(version) = &known.version {
        engine.on_version(version.clone());
    }
    let adapters = known.adapters.clone();
    engine.on_models(Models { models: Vec::new(), adapters, max_model_len: 0 });
    if known.num_gpu_blocks.is_some() {
        let cache = CacheConfig { num_gpu_blocks: known.num_gpu_blocks, ..CacheConfig::default() };
        engine.on_metrics(Metrics { is_vllm: true, cache, ..Metrics::default() }, now, now, unix_ms);
    }
    engine.on_connected(now);
    engine
}
