//! `kvpick-agent record`: writes what an engine publishes to a file, for a bug report.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{File, OpenOptions},
    future::Future,
    hash::{DefaultHasher, Hasher as _},
    io::{BufWriter, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use kvpick_agent_core::{decode::is_replay_end, recording::Line, sequence::ReplayRequest};
use kvpick_service::drain;
use tokio::time::sleep;

use crate::{
    config::EventsConfig,
    zmq::{Heard, Opened, Sockets},
};

/// Live messages that wait for the end of a replay, and their bytes; past either bound they are left out.
const HELD: usize = 65_536;
const HELD_BYTES: usize = 64 << 20;

/// Replayed messages that are remembered to tell a live one that was replayed already.
const REMEMBERED: usize = 1 << 20;

/// Messages taken from the sockets at once.
const AT_ONCE: usize = 64;

/// The one question to the replay socket, for everything.
const ALL: ReplayRequest = ReplayRequest { id: 1, from: 0 };

/// What to record, and how long.
#[derive(Debug)]
pub struct Recording {
    /// How the engine's events are had.
    pub events: EventsConfig,
    /// A file that does not exist yet.
    pub out: PathBuf,
    /// Ends after so many messages.
    pub frames: Option<u64>,
    /// Ends after this time.
    pub time: Option<Duration>,
}

/// How much was written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Written {
    /// Messages from the replay socket.
    pub replayed: u64,
    /// Messages that came by subscription.
    pub live: u64,
    /// Live messages that were left out as they had come by replay already.
    pub twice: u64,
    /// Live messages that were left out as too many came during the replay.
    pub left_out: u64,
}

/// Records until there is enough, or a signal asks to stop.
///
/// # Errors
///
/// The file exists already or can't be written, or the sockets' thread has ended.
pub async fn record(recording: Recording) -> anyhow::Result<()> {
    let out = recording.out.display().to_string();
    let written = record_until(recording, drain::terminated()).await?;
    let Written { replayed, live, twice, left_out } = written;
    tracing::info!(out, frames = replayed + live, replayed, live, twice, left_out, "recorded");
    Ok(())
}

/// As [`record`], until `stop` at the latest.
///
/// # Errors
///
/// See there.
pub async fn record_until(recording: Recording, stop: impl Future<Output = ()>) -> anyhow::Result<Written> {
    let path = recording.out.display().to_string();
    // It holds what users wrote.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&recording.out);
    let file =
        file.with_context(|| format!("--out: can't create {path}; name a file that does not exist"))?;
    let mut recorder = Recorder::new(file, &recording);
    let mut opened = Opened::open(&recording.events);
    if let Some(address) = opened.listens_at() {
        tracing::info!(address, "waits for the engine");
    }
    let mut sockets = opened.run().context("a thread for the engine's events")?;
    let mut all = Vec::with_capacity(AT_ONCE);
    let (mut stop, mut end) =
        (std::pin::pin!(stop), std::pin::pin!(sleep(recording.time.unwrap_or_default())));
    while !recorder.is_full() {
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = &mut end, if recording.time.is_some() => break,
            count = sockets.receive(&mut all, AT_ONCE) =>
                anyhow::ensure!(count > 0, "the thread that hears the engine's events has ended; the log says why"),
        }
        for (heard, _room) in all.drain(..) {
            recorder.hear(heard, &sockets).with_context(|| format!("--out: can't write {path}"))?;
        }
        // Whoever looks into the file meanwhile sees what came.
        recorder.file.flush().with_context(|| format!("--out: can't write {path}"))?;
    }
    recorder.finish().with_context(|| format!("--out: can't write {path}"))
}

/// Where the replay is.
#[derive(Debug, Eq, PartialEq)]
enum Replay {
    /// There is none, or it is over.
    Over,
    /// It is asked for upon the first connection.
    Due,
    /// Live messages wait for its end.
    Asked,
}

struct Recorder {
    file: BufWriter<File>,
    most: u64,
    replay: Replay,
    /// Numbers of the replayed messages and digests of their payloads.
    known: BTreeMap<u64, u64>,
    held: VecDeque<(f64, Vec<Vec<u8>>)>,
    held_bytes: usize,
    written: Written,
}

impl Recorder {
    fn new(file: File, recording: &Recording) -> Self {
        Self {
            file: BufWriter::new(file),
            most: recording.frames.unwrap_or(u64::MAX),
            replay: if recording.events.replay.is_some() { Replay::Due } else { Replay::Over },
            known: BTreeMap::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            written: Written::default(),
        }
    }

    const fn is_full(&self) -> bool {
        self.written.replayed + self.written.live >= self.most
    }

    fn hear(&mut self, heard: Heard, sockets: &Sockets) -> std::io::Result<()> {
        match heard {
            Heard::Connected => {
                tracing::info!("connected");
                if self.replay == Replay::Due {
                    sockets.replay(ALL)?;
                    self.replay = Replay::Asked;
                }
                Ok(())
            }
            Heard::Disconnected => {
                tracing::info!("disconnected");
                Ok(())
            }
            // Said of endpoints that an engine's API tells, of which there are none here.
            Heard::Found { .. } => Ok(()),
            Heard::Failed(reason, remedy) => {
                tracing::warn!(reason, remedy, "the socket for its events can't be had");
                Ok(())
            }
            Heard::Message(frames) => self.live(unix_seconds(), frames),
            Heard::Replay(_, frames) if is_replay_end(&frames) => self.replay_over(),
            Heard::Replay(_, frames) => self.replayed(frames),
            Heard::ReplayFailed(_, reason) => {
                tracing::warn!(reason, "no replay, or not to its end");
                self.replay_over()
            }
        }
    }

    /// An answer of the replay socket, read from its end: an empty frame, a topic since vLLM 0.26, sequence, payload.
    fn replayed(&mut self, mut frames: Vec<Vec<u8>>) -> std::io::Result<()> {
        if frames.len() < 4 {
            frames.insert(0, Vec::new());
        }
        let frames = frames.split_off(frames.len().saturating_sub(3));
        if let [_, number, payload] = &frames[..]
            && let Ok(number) = number[..].try_into()
            && self.known.len() < REMEMBERED
        {
            self.known.insert(u64::from_be_bytes(number), digest(payload));
        }
        self.write(unix_seconds(), frames, true)
    }

    fn replay_over(&mut self) -> std::io::Result<()> {
        self.replay = Replay::Over;
        self.held_bytes = 0;
        std::mem::take(&mut self.held).into_iter().try_for_each(|(t, frames)| self.live(t, frames))
    }

    fn live(&mut self, t: f64, frames: Vec<Vec<u8>>) -> std::io::Result<()> {
        if self.replay != Replay::Over {
            let bytes = self.held_bytes + frames.iter().map(Vec::len).sum::<usize>();
            if self.held.len() < HELD && bytes <= HELD_BYTES {
                self.held_bytes = bytes;
                self.held.push_back((t, frames));
            } else {
                self.written.left_out += 1;
            }
            return Ok(());
        }
        if let [_, number, payload] = &frames[..]
            && let Ok(number) = number[..].try_into()
            && self.known.get(&u64::from_be_bytes(number)) == Some(&digest(payload))
        {
            self.written.twice += 1;
            return Ok(());
        }
        self.write(t, frames, false)
    }

    fn write(&mut self, t: f64, frames: Vec<Vec<u8>>, replayed: bool) -> std::io::Result<()> {
        if self.is_full() {
            return Ok(());
        }
        let i = self.written.replayed + self.written.live;
        let line = Line { i, t, frames, replayed };
        writeln!(self.file, "{}", line.write())?;
        *(if replayed { &mut self.written.replayed } else { &mut self.written.live }) += 1;
        Ok(())
    }

    /// What waits for a replay that was not answered in time is written too.
    fn finish(mut self) -> std::io::Result<Written> {
        self.replay_over()?;
        self.file.flush()?;
        Ok(self.written)
    }
}

fn digest(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_secs_f64())
}
