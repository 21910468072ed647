//! How fast the agent reads one engine's events, beside the least that anybody would have to do: receive them by ZMQ
//! and decode them. Both in turn in one run, since a machine's speed changes from minute to minute; what to look at is
//! the ratio.
//!
//! A thread publishes real batches (`testdata/captures`, over and over, with numbers of their own) over loopback as
//! fast as it can. Where it is the slowest part, the clock shows that and not the reader; the processors' time does not.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench may panic, and prints its result")]

use std::{
    thread::JoinHandle,
    time::{Duration, Instant},
};

use kvpick_agent::{bench::hear, config::EventsConfig};
use kvpick_agent_core::{
    decode::{Batch, Message},
    recording::Line,
};

/// A real engine's batches; its cache is reset at their end, so that they may begin again.
const CAPTURE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/captures/v0.32-sha256cbor-int-bs16-dups/frames.jsonl");

const TIMES: u64 = 400;
const ROUNDS: usize = 9;

fn payloads() -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(CAPTURE).unwrap();
    text.lines().map(|it| Line::parse(it).unwrap().frames.swap_remove(2)).collect()
}

/// Publishes to the first who subscribes; gives the time of the first batch.
fn publish(payloads: Vec<Vec<u8>>) -> (String, JoinHandle<Instant>) {
    let context = zmq::Context::new();
    let socket = context.socket(zmq::XPUB).unwrap();
    // Nothing is dropped: the bench would never end.
    socket.set_sndhwm(0).unwrap();
    socket.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = socket.get_last_endpoint().unwrap().unwrap();
    let thread = std::thread::spawn(move || {
        socket.recv_bytes(0).unwrap();
        let start = Instant::now();
        let all = (0..TIMES).flat_map(|_| &payloads);
        for (number, payload) in (0_u64..).zip(all) {
            socket.send_multipart([&b""[..], &number.to_be_bytes(), payload], 0).unwrap();
        }
        start
    });
    (endpoint, thread)
}

/// The least: receive and decode.
fn bare(payloads: &[Vec<u8>]) -> Duration {
    let (endpoint, thread) = publish(payloads.to_vec());
    let socket = zmq::Context::new().socket(zmq::SUB).unwrap();
    socket.set_rcvhwm(0).unwrap();
    socket.connect(&endpoint).unwrap();
    socket.set_subscribe(b"").unwrap();
    let mut events = 0;
    for _ in 0..TIMES * payloads.len() as u64 {
        let message = Message::live(socket.recv_multipart(0).unwrap()).unwrap();
        events += Batch::decode(&message.payload).unwrap().events.len();
    }
    let end = Instant::now();
    assert!(events > 0);
    end - thread.join().unwrap()
}

/// The agent's own thread, channel, task, lock, naming and mirror.
fn agent(payloads: &[Vec<u8>], runtime: &tokio::runtime::Runtime) -> Duration {
    let (endpoint, thread) = publish(payloads.to_vec());
    let events = EventsConfig::check(Some(endpoint), None, None, String::new()).unwrap();
    let batches = TIMES * payloads.len() as u64;
    let (end, counts) = runtime.block_on(hear(&events, batches)).unwrap();
    assert_eq!((counts.batches, counts.resets_lost, counts.undecodable), (batches, 0, 0));
    end - thread.join().unwrap()
}

/// One reading: by the clock, and by what the process took of the processors.
#[derive(Clone, Copy)]
struct Cost {
    clock: Duration,
    /// The publisher's share is the same in both.
    processor: Duration,
}

impl Cost {
    fn of(what: impl FnOnce() -> Duration) -> Self {
        let before = processor();
        Self { clock: what(), processor: processor().saturating_sub(before) }
    }
}

/// What this process has taken so far, by Linux's clock of 100 ticks a second.
fn processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which is in brackets and may hold anything.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

fn median<T: Copy>(all: &[T], by: impl Fn(&T) -> f64) -> f64 {
    let mut all: Vec<_> = all.iter().map(by).collect();
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let payloads = payloads();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut rounds = Vec::new();
    for round in 0..=ROUNDS {
        let least = || Cost::of(|| bare(&payloads));
        let whole = || Cost::of(|| agent(&payloads, &runtime));
        let both = if round % 2 == 0 {
            let it = least();
            (it, whole())
        } else {
            let it = whole();
            (least(), it)
        };
        // The first warms up.
        if round > 0 {
            rounds.push(both);
        }
    }
    let batches = TIMES * payloads.len() as u64;
    let bytes: usize = payloads.iter().map(Vec::len).sum();
    println!(
        "{ROUNDS} rounds of {batches} batches, {} bytes each; medians, publisher included",
        bytes / payloads.len()
    );
    let line = |name: &str, of: fn(&(Cost, Cost)) -> Cost| {
        let each = |it: Duration| it.as_secs_f64() / batches as f64 * 1e6;
        let clock = median(&rounds, |it| each(of(it).clock));
        let processor = median(&rounds, |it| each(of(it).processor));
        println!(
            "{name:20} {clock:8.2} us a batch, {:8.0} batches/s; {processor:8.2} us of processors",
            1e6 / clock
        );
    };
    line("receive and decode", |it| it.0);
    line("the agent", |it| it.1);
    let clock = median(&rounds, |(least, whole)| whole.clock.div_duration_f64(least.clock));
    let processor =
        median(&rounds, |(least, whole)| whole.processor.as_secs_f64() / least.processor.as_secs_f64());
    println!("ratio                {clock:8.2} by the clock, {processor:.2} of processors");
}
