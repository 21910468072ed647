//! The thread that owns the sockets.

use std::{
    collections::VecDeque,
    sync::{
        atomic::{AtomicU8, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use super::{Encoder, Event, Garbage, RankEndpoints};

/// What the thread is told to do, in order.
#[derive(Debug)]
pub(super) enum Order {
    Batch(Batch),
    Lose { count: u64, forgotten: bool },
    Garbage(Garbage),
}

#[derive(Debug)]
pub(super) struct Batch {
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) events: Vec<Event>,
}

/// Whether orders pass. Apart from their queue, because what hangs does not read it.
#[derive(Debug, Default)]
pub(super) struct Gate(AtomicU8);

const OPEN: u8 = 0;
const HANGS: u8 = 1;
const CLOSED: u8 = 2;

impl Gate {
    pub(super) fn hang(&self, hangs: bool) {
        let (from, to) = if hangs { (OPEN, HANGS) } else { (HANGS, OPEN) };
        let _ = self.0.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Waits while it hangs; `false` where the thread is to end.
    fn pass(&self) -> bool {
        loop {
            match self.0.load(Ordering::Relaxed) {
                OPEN => return true,
                HANGS => std::thread::sleep(REPLAY_POLL),
                _ => return false,
            }
        }
    }

    /// Lets a thread that hangs end; one that does not publishes what is queued first.
    pub(super) fn close(&self) {
        let _ = self.0.compare_exchange(HANGS, CLOSED, Ordering::Relaxed, Ordering::Relaxed);
    }
}

pub(super) struct Worker {
    encoder: Encoder,
    replays_topic: bool,
    topic: Vec<u8>,
    live: zmq::Socket,
    replay: Option<zmq::Socket>,
    sequence: u64,
    kept: VecDeque<(u64, Vec<u8>)>,
    most_kept: usize,
    /// Batches that are still to be lost, and whether replay loses them too.
    to_lose: (u64, bool),
}

impl Worker {
    pub(super) fn new(
        encoder: Encoder,
        replays_topic: bool,
        endpoints: &RankEndpoints,
        live: zmq::Socket,
        replay: Option<zmq::Socket>,
    ) -> Self {
        Self {
            encoder,
            replays_topic,
            topic: endpoints.topic.clone().into_bytes(),
            live,
            replay,
            sequence: 0,
            kept: VecDeque::new(),
            most_kept: endpoints.buffer_steps,
            to_lose: (0, false),
        }
    }

    pub(super) fn run(mut self, orders: &Receiver<Order>, gate: &Gate) {
        loop {
            let order = orders.recv_timeout(REPLAY_POLL);
            if !gate.pass() {
                return;
            }
            match order {
                Ok(Order::Batch(batch)) => {
                    let payload = self.encoder.batch(batch.time, &batch.events);
                    self.publish(payload);
                }
                Ok(Order::Lose { count, forgotten }) => self.to_lose = (count, forgotten),
                Ok(Order::Garbage(kind)) => self.publish_garbage(kind),
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(replay) = &self.replay
                && let Ok(request) = replay.recv_multipart(zmq::DONTWAIT)
            {
                self.answer(replay, &request);
            }
        }
    }

    fn publish(&mut self, payload: Vec<u8>) {
        let (left, forgotten) = self.to_lose;
        let is_lost = 0 < left;
        self.to_lose.0 = left.saturating_sub(1);
        if !is_lost {
            self.send(&[&self.topic, &self.sequence.to_be_bytes(), &payload]);
        }
        if is_lost && forgotten {
            self.kept.clear();
        } else {
            self.kept.push_back((self.sequence, payload));
            if self.most_kept < self.kept.len() {
                self.kept.pop_front();
            }
        }
        self.sequence += 1;
    }

    fn send(&self, frames: &[&[u8]]) {
        // PUB drops for slow subscribers and never waits.
        if let Err(error) = self.live.send_multipart(frames, 0) {
            tracing::warn!(%error, sequence = self.sequence, "a batch of events was not published");
        }
    }

    fn publish_garbage(&mut self, kind: Garbage) {
        match kind {
            Garbage::Frames => {
                let (topic, number) = (self.topic.as_slice(), self.sequence.to_be_bytes());
                let payload = self.encoder.batch(0.0, &[]);
                self.send(&[topic]);
                self.send(&[topic, &payload]);
                self.send(&[topic, &number, &payload, b""]);
                self.send(&[topic, &number[5..], &payload]);
            }
            Garbage::Payload => self.publish(NOT_MSGPACK.to_vec()),
            Garbage::Length => {
                self.publish(MANY_EVENTS.to_vec());
                self.publish(MANY_BYTES.to_vec());
            }
        }
    }

    /// Sends every kept batch from the asked sequence on, then the end marker.
    fn answer(&self, replay: &zmq::Socket, request: &[Vec<u8>]) {
        let [peer, delimiter, from] = request else {
            tracing::warn!(
                frames = request.len(),
                "a replay request is [peer, empty, sequence]; not answered"
            );
            return;
        };
        // Any width is taken, as Python's int.from_bytes does; what is more than 64 bits is beyond every sequence.
        let from = from.iter().try_fold(0u64, |n, byte| n.checked_mul(256).map(|n| n + u64::from(*byte)));
        let from = from.unwrap_or(u64::MAX);
        let send = |topic: &[u8], sequence: &[u8], payload: &[u8]| {
            let mut frames = vec![peer.as_slice(), delimiter.as_slice()];
            if self.replays_topic {
                frames.push(topic);
            }
            frames.extend([sequence, payload]);
            replay.send_multipart(frames, 0)
        };
        for (sequence, payload) in self.kept.iter().filter(|(sequence, _)| from <= *sequence) {
            if let Err(error) = send(&self.topic, &sequence.to_be_bytes(), payload) {
                return tracing::debug!(%error, "whoever asked for a replay is gone");
            }
        }
        if let Err(error) = send(b"", &END_OF_REPLAY, b"") {
            tracing::debug!(%error, "whoever asked for a replay is gone");
        }
    }
}

/// How long a replay request may wait for an idle publisher to look.
const REPLAY_POLL: Duration = Duration::from_millis(20);

/// Sequence -1: no more batches.
const END_OF_REPLAY: [u8; 8] = [0xff; 8];

/// Begins as a batch; the time is cut short, and what follows is a code that msgpack never uses.
const NOT_MSGPACK: &[u8] = &[0x93, 0xcb, 0x41, 0xd9, 0xc1, 0xc1];

/// A batch at time 0 with 4294967295 events, none of which follows.
const MANY_EVENTS: &[u8] = &[0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff];

/// A batch at time 0 with one event, whose tag is a string of 4294967295 bytes, none of which follows.
const MANY_BYTES: &[u8] = &[0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x9c, 0xdb, 0xff, 0xff, 0xff, 0xff];
