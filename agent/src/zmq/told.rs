//! A subscription that is told where to go while it runs, by whoever asks the engine's API.
//!
//! It goes there once: whoever listens at a port after the connection is lost may be another engine, as the system gives
//! a port to the next who asks for one.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use zmq::Context;

use super::{BIND_AGAIN, End, Gone, Heard, Into, LOOK, Manner, hear, subscribe};
use crate::config::{EventsConfig, Source};

const REMEDY: &str = "check what the engine answers at /kv_event_sources, or write `subscribe` and `replay` in the agent's \
                      configuration";

/// Where an engine's events are had.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Endpoints {
    pub(crate) events: String,
    pub(crate) replay: Option<String>,
    pub(crate) topic: String,
}

/// Where a subscription goes; shared by its thread and by whoever finds that out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Target(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    endpoints: Option<Endpoints>,
    /// Counts the changes.
    version: u64,
}

/// What an answer has to be newer than.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Version(u64);

impl Target {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is known where to go.
    pub(crate) fn is_known(&self) -> bool {
        self.state().endpoints.is_some()
    }

    pub(crate) fn version(&self) -> Version {
        Version(self.state().version)
    }

    /// Where to go, as asked for at that version. Of no effect where something has changed since: that answer may be of
    /// an engine that is gone.
    pub(crate) fn set(&self, asked_at: Version, endpoints: Endpoints) {
        let mut state = self.state();
        if Version(state.version) == asked_at && state.endpoints.as_ref() != Some(&endpoints) {
            state.endpoints = Some(endpoints);
            state.version += 1;
        }
    }

    /// Where its earlier events can be had again.
    pub(super) fn replay(&self) -> Option<String> {
        self.state().endpoints.as_ref()?.replay.clone()
    }

    fn current(&self) -> Option<(Endpoints, Version)> {
        let state = self.state();
        Some((state.endpoints.clone()?, Version(state.version)))
    }

    /// That was not the place, or is not any more.
    fn forget(&self, version: Version) {
        let mut state = self.state();
        if Version(state.version) == version {
            state.endpoints = None;
            state.version += 1;
        }
    }
}

/// Goes where it is told, each time anew.
pub(super) fn listen(target: &Target, into: &Into, stop: &AtomicBool) -> Result<(), Gone> {
    while !stop.load(Ordering::Relaxed) {
        let Some((endpoints, version)) = target.current() else {
            std::thread::sleep(LOOK);
            continue;
        };
        into.send(Heard::Found { replay: endpoints.replay.is_some() })?;
        let Endpoints { events, replay, topic } = endpoints;
        let events = EventsConfig { source: Source::Subscribe(events), replay, topic };
        let context = Context::new();
        let end = match subscribe(&context, &events) {
            Ok((socket, monitor)) => hear(&socket, &monitor, Manner::Told(target, version), stop, into)?,
            Err(error) => End::Failed(error),
        };
        match end {
            End::Stopped => return Ok(()),
            End::Failed(error) => {
                into.send(Heard::Failed(error.to_string(), REMEDY))?;
                pause(BIND_AGAIN, stop);
            }
            End::Alone => (),
        }
        target.forget(version);
    }
    Ok(())
}

/// Sleeps, though not beyond a stop.
pub(super) fn pause(time: Duration, stop: &AtomicBool) {
    let looks = time.as_millis() / LOOK.as_millis();
    (0..looks).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|_| std::thread::sleep(LOOK));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(events: &str) -> Endpoints {
        Endpoints { events: events.to_owned(), replay: None, topic: String::new() }
    }

    #[test]
    fn an_answer_from_before_a_loss_is_of_no_effect() {
        let target = Target::default();
        let before = target.version();
        target.set(before, at("tcp://127.0.0.1:1"));
        let (endpoints, version) = target.current().unwrap();
        assert_eq!(endpoints, at("tcp://127.0.0.1:1"));
        target.forget(version);
        assert!(!target.is_known());
        target.set(before, at("tcp://127.0.0.1:1"));
        target.set(version, at("tcp://127.0.0.1:1"));
        assert!(!target.is_known(), "both were asked for before the loss");
        target.set(target.version(), at("tcp://127.0.0.1:2"));
        assert_eq!(target.current().unwrap().0, at("tcp://127.0.0.1:2"));
    }

    #[test]
    fn the_same_answer_changes_nothing_and_another_one_stays_when_the_old_is_given_up() {
        let target = Target::default();
        target.set(target.version(), at("tcp://127.0.0.1:1"));
        let version = target.version();
        target.set(version, at("tcp://127.0.0.1:1"));
        assert_eq!(target.version(), version);
        target.set(version, at("tcp://127.0.0.1:2"));
        target.forget(version);
        assert_eq!(target.current().unwrap().0, at("tcp://127.0.0.1:2"));
    }
}
