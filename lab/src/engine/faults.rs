//! Faults on command, so that tests and people see how the outside world copes.
//!
//! `POST /lab/faults` takes one as JSON, `{"fault": "drop-events", "count": 3}`; `?rank=1` means one data-parallel rank
//! where all are meant without it. `kvpick-lab fault ADDRESS drop-events 3` does the same. The route answers whatever
//! else is at fault, unless the process is gone or nothing listens. For each there is a test in `lab/tests/engine_faults`
//! whose name begins with the fault's.
//!
//! | fault | what others see |
//! |---|---|
//! | `crash` | the process ends at once, as if killed: connections are cut, ports are closed |
//! | `die` | the engine behind the HTTP server ends: open answers break off, `/health` is 503, requests fail |
//! | `hang` `http` | connections are accepted and requests not answered |
//! | `hang` `steps` | no step begins or ends: no tokens, no events; `/health` and `/metrics` answer |
//! | `hang` `events` | tokens come, but nothing is published and no replay answered until it heals |
//! | `hang` `all` | all three |
//! | `restart` | open answers break off; another engine on the same ports: empty cache, events from 0, new start time |
//! | `slow-steps` | every step takes so many times as long |
//! | `drop-events` | the next batches are not published; their numbers are used, and replay has them |
//! | `gap` | the next batches are not published, and replay has neither them nor what was before |
//! | `wrong-seed` | blocks are hashed from another root from now on |
//! | `garbage` `frames` | at once, messages with too few and too many frames, and one with a short number |
//! | `garbage` `payload` | at once, a numbered batch that is no msgpack |
//! | `garbage` `length` | at once, numbered batches that claim to hold four billion items, or bytes |
//! | `refuse` | for some seconds nothing listens: connections are refused; open ones go on or are reset |
//! | `slow-streams` | every event of a streamed answer comes so much later |
//! | `fail` | the next requests to `/v1/` get an error at once |
//! | `reset` | the next streamed answers end with a reset of the connection after so many events |
//! | `heal` | ends `hang`, `slow-steps`, `slow-streams`, and what of the others is still to come |
//!
//! After `restart` the new engine's steps, events and hashes are as they should be, also where the old one had died;
//! what is wrong with HTTP stays. With `--down-seconds` the HTTP port is closed for a time, as with a new process. Of
//! `drop-events` and `gap` the later one counts.

pub mod command;

use serde::{Deserialize, Serialize};

/// One fault; see the table above.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, clap::Subcommand)]
#[serde(tag = "fault", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Ends the process at once.
    Crash,
    /// Ends the engine behind the HTTP server.
    Die,
    /// Stops a part of the engine until it heals.
    Hang {
        /// Which part.
        #[arg(value_enum, default_value_t)]
        #[serde(default)]
        what: Part,
    },
    /// Starts another engine in the place of this one.
    Restart {
        /// Closes the HTTP port for so many seconds, as a new process does that loads its model.
        #[arg(long, default_value_t = 0.0)]
        #[serde(default)]
        down_seconds: f64,
    },
    /// Makes steps slower, or faster.
    SlowSteps {
        /// How many times as long they take; above 0.
        factor: f64,
    },
    /// Keeps the next batches of events from subscribers.
    DropEvents {
        /// How many.
        #[arg(default_value_t = 1)]
        #[serde(default = "once")]
        count: u64,
    },
    /// Loses the next batches of events, and what was before them, for good.
    Gap {
        /// How many.
        #[arg(default_value_t = 1)]
        #[serde(default = "once")]
        count: u64,
    },
    /// Hashes blocks from another root from now on.
    WrongSeed {
        /// The string whose hash is the parent of first blocks.
        root: String,
    },
    /// Publishes what no version of the protocol allows.
    Garbage {
        /// Of which kind.
        #[arg(value_enum)]
        kind: Garbage,
    },
    /// Stops listening for a time.
    Refuse {
        /// How long, in seconds.
        seconds: f64,
        /// Resets connections that are open.
        #[arg(long)]
        #[serde(default)]
        reset_open: bool,
    },
    /// Makes streamed answers slower.
    SlowStreams {
        /// Delay of each event, in milliseconds.
        millis: u64,
    },
    /// Answers the next requests with an error.
    Fail {
        /// How many.
        #[arg(default_value_t = 1)]
        #[serde(default = "once")]
        count: u64,
        /// The HTTP status, 400 to 599.
        #[arg(long, default_value_t = 500)]
        #[serde(default = "internal_error")]
        status: u16,
    },
    /// Resets the connections of the next streamed answers.
    Reset {
        /// Events that are sent before.
        #[arg(default_value_t = 1)]
        #[serde(default = "once")]
        chunks: u64,
        /// How many answers.
        #[arg(long, default_value_t = 1)]
        #[serde(default = "once")]
        count: u64,
    },
    /// Ends faults that go on.
    Heal,
}

/// A part of an engine that can hang.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// All that follow.
    #[default]
    All,
    /// The HTTP server.
    Http,
    /// The scheduler and the model.
    Steps,
    /// The publisher of events.
    Events,
}

/// What is wrong with a message of events.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Garbage {
    /// The number or length of its frames.
    Frames,
    /// Its payload is no msgpack.
    Payload,
    /// Its payload announces more than there is.
    Length,
}

impl Fault {
    /// Says what about the fault makes no sense.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::SlowSteps { factor } if !(factor.is_finite() && 0.0 < *factor) => {
                Err("factor: want a number above 0")
            }
            Self::Refuse { seconds, .. } | Self::Restart { down_seconds: seconds }
                if !(0.0..=LONGEST_REFUSAL_S).contains(seconds) =>
            {
                Err("seconds: want 0 to 3600")
            }
            Self::Fail { status, .. } if !(400..600).contains(status) => Err("status: want 400 to 599"),
            _ => Ok(()),
        }
    }
}

impl Part {
    /// Whether that part hangs where `self` does.
    pub(super) fn includes(self, part: Self) -> bool {
        self == part || self == Self::All
    }
}

const fn once() -> u64 {
    1
}

const fn internal_error() -> u16 {
    500
}

/// Nobody waits longer for an engine that comes back.
const LONGEST_REFUSAL_S: f64 = 3600.0;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(subcommand)]
        fault: Fault,
    }

    #[track_caller]
    fn check(line: &str, json: &str) {
        let fault = Cli::parse_from(format!("fault {line}").split(' ')).fault;
        assert_eq!(serde_json::from_str::<Fault>(json).unwrap(), fault);
        fault.check().unwrap();
    }

    #[test]
    fn a_line_and_json_say_the_same() {
        check("crash", r#"{"fault": "crash"}"#);
        check("restart", r#"{"fault": "restart"}"#);
        check("restart --down-seconds 2", r#"{"fault": "restart", "down_seconds": 2}"#);
        check("hang", r#"{"fault": "hang"}"#);
        check("hang events", r#"{"fault": "hang", "what": "events"}"#);
        check("slow-steps 2.5", r#"{"fault": "slow-steps", "factor": 2.5}"#);
        check("drop-events 3", r#"{"fault": "drop-events", "count": 3}"#);
        check("gap", r#"{"fault": "gap"}"#);
        check("wrong-seed 42", r#"{"fault": "wrong-seed", "root": "42"}"#);
        check("garbage length", r#"{"fault": "garbage", "kind": "length"}"#);
        check("refuse 0.5 --reset-open", r#"{"fault": "refuse", "seconds": 0.5, "reset_open": true}"#);
        check("fail 2 --status 503", r#"{"fault": "fail", "count": 2, "status": 503}"#);
        check("reset 4", r#"{"fault": "reset", "chunks": 4}"#);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let wrong = [
            r#"{"fault": "slow-steps", "factor": 0}"#,
            r#"{"fault": "refuse", "seconds": -1}"#,
            r#"{"fault": "fail", "status": 200}"#,
        ];
        for json in wrong {
            assert!(serde_json::from_str::<Fault>(json).unwrap().check().is_err(), "{json}");
        }
        assert!(serde_json::from_str::<Fault>(r#"{"fault": "gap", "cuont": 3}"#).is_err());
    }
}
