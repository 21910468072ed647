//! One task per engine: hands what its sockets say to the core, and announces in time.

use std::sync::Arc;

use kvpick_agent_core::engine::{Engine, Outcome};
use kvpick_proto::words::{Events, Handle};
use kvpick_service::drain::Drain;
use tokio::time::sleep_until;

use crate::{
    shared::{Shared, now},
    zmq::{Heard, Item, Sockets},
};

/// Messages handed to the core at once: some milliseconds' worth, as others wait for the lock meanwhile.
const AT_ONCE: usize = 64;

/// Drives an engine until the drain starts, or until its sockets' thread ends. `events` is `None` where its events are
/// off.
pub(crate) async fn drive(shared: Arc<Shared>, handle: Handle, mut events: Option<Sockets>, drain: Drain) {
    let mut all = Vec::with_capacity(AT_ONCE);
    let mut told = Told::default();
    loop {
        let due = shared.lock().node.engines().get(&handle).and_then(Engine::due);
        tokio::select! {
            biased;
            () = drain.started() => return,
            // Before the events, or a busy engine would never be announced.
            () = sleep_until(due.unwrap_or_else(|| now().0).into()), if due.is_some() => (),
            () = shared.driver_woken(handle) => (),
            count = receive(&mut events, &mut all) => if count == 0 {
                tracing::error!("the thread that hears an engine's events has ended");
                return;
            },
        }
        let (is_news, request) = {
            let mut state = shared.lock();
            let (now, unix_ms) = now();
            let mut is_news = false;
            if let Some(engine) = state.node.engine(handle) {
                for (heard, _taken) in all.drain(..) {
                    if matches!(heard, Heard::Message(_) | Heard::Connected | Heard::Disconnected) {
                        shared.wake_scraper(handle);
                    }
                    is_news |= !matches!(heard, Heard::Message(_));
                    hear(engine, heard, now, unix_ms);
                }
            }
            is_news |= state.node.on_time(handle, now, unix_ms);
            let request = state.node.engine(handle).and_then(|engine| {
                is_news |= told.log(engine);
                engine.take_replay_request()
            });
            (is_news, request)
        };
        if let (Some(request), Some(sockets)) = (request, &events)
            && let Err(error) = sockets.replay(request)
        {
            let (mut state, (now, unix_ms)) = (shared.lock(), now());
            if let Some(engine) = state.node.engine(handle) {
                hear(engine, Heard::ReplayFailed(request.id, error.to_string()), now, unix_ms);
            }
        }
        if is_news {
            shared.ring();
        }
    }
}

async fn receive(events: &mut Option<Sockets>, into: &mut Vec<Item>) -> usize {
    match events {
        Some(sockets) => sockets.receive(into, AT_ONCE).await,
        None => std::future::pending().await,
    }
}

fn hear(engine: &mut Engine, heard: Heard, now: std::time::Instant, unix_ms: u64) {
    let name = engine.config().name;
    let decoded = match heard {
        Heard::Connected => {
            tracing::info!(engine = %name, "events connected");
            engine.on_connected(now);
            Ok(())
        }
        Heard::Disconnected => {
            tracing::info!(engine = %name, "events disconnected");
            engine.on_disconnected(now, unix_ms);
            Ok(())
        }
        Heard::Found { replay } => {
            engine.set_replay(replay, now, unix_ms);
            Ok(())
        }
        Heard::Failed(reason, remedy) => {
            let reason = format!("the socket for its events can't be had: {reason}");
            engine.on_events_failed(reason, remedy.to_owned());
            Ok(())
        }
        Heard::Message(frames) => engine.on_frames(frames, now, unix_ms),
        Heard::Replay(id, frames) => engine.on_replay(id, frames, now, unix_ms),
        Heard::ReplayFailed(id, reason) => {
            tracing::warn!(engine = %name, reason, "no replay");
            engine.on_replay_failed(id, &reason, now, unix_ms);
            Ok(())
        }
    };
    if let Err(error) = decoded {
        // One line each would let a broken publisher fill the logs; the count is a metric.
        tracing::debug!(engine = %name, %error, "a message that is not vLLM's");
    }
}

/// What was logged of an engine, so that a state is logged once.
#[derive(Default)]
struct Told {
    events: Option<Events>,
    resets: u64,
    undecodable: u64,
    long_texts: u64,
    naming: Option<String>,
    restored: Option<Outcome>,
}

impl Told {
    /// Logs what is new; returns whether anything is.
    fn log(&mut self, engine: &Engine) -> bool {
        let (name, description) = (engine.config().name, engine.provisional_description());
        let mut is_news = false;
        if self.events.as_ref() != Some(&description.events) {
            is_news = true;
            match &description.events {
                Events::Unavailable { reason, remedy } => {
                    tracing::warn!(engine = %name, reason, remedy, "its events can't be had; it is served all the same");
                }
                Events::Live => tracing::info!(engine = %name, "its events are heard"),
                Events::Awaited => tracing::info!(engine = %name, "its events are awaited"),
                Events::Off => tracing::info!(engine = %name, "its events are off"),
            }
            self.events = Some(description.events.clone());
        }
        let counts = engine.counts();
        let resets = counts.resets_restarted + counts.resets_lost + counts.resets_unproven;
        if resets != self.resets {
            is_news = true;
            self.resets = resets;
            tracing::warn!(
                engine = %name,
                restarted = counts.resets_restarted,
                lost = counts.resets_lost,
                unproven = counts.resets_unproven,
                "what was known of it is given up"
            );
        }
        let restored = engine.restored().filter(|it| Some(it.outcome) != self.restored);
        if let Some(restored) = restored {
            is_news = true;
            self.restored = Some(restored.outcome);
            match restored.outcome {
                Outcome::Awaited => (),
                Outcome::Proved => {
                    tracing::info!(engine = %name, blocks = restored.blocks, "what an earlier run knew still holds");
                }
                Outcome::Refused(why) => {
                    tracing::warn!(engine = %name, ?why, "what an earlier run knew is not gone on from");
                }
            }
        }
        // The first, and then each time that there are ten times as many.
        if counts.undecodable > self.undecodable.saturating_mul(10) {
            self.undecodable = counts.undecodable;
            let last = counts.unreadable.map(tracing::field::display);
            tracing::warn!(engine = %name, messages = counts.undecodable, last, "messages that can't be read");
        }
        if counts.long_texts > self.long_texts.saturating_mul(10) {
            self.long_texts = counts.long_texts;
            tracing::warn!(
                engine = %name,
                "names or lists of its API or events are too long, and are left out: more than 256 bytes, or more than \
                 1024 of them"
            );
        }
        let naming = format!("{:?} {:?}", description.domain, description.key_kinds.first());
        if self.naming.as_ref() != Some(&naming) {
            is_news = true;
            tracing::info!(engine = %name, domain = ?description.domain, plain = ?description.key_kinds.first(), "naming of blocks");
            self.naming = Some(naming);
        }
        is_news
    }
}
