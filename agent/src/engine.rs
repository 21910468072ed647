//! One task per engine: hands what its sockets say to the core, and announces in time.

use std::sync::Arc;

use kvpick_agent_core::engine::{Counts, Engine, Outcome};
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

/// How often what was known was given up.
const fn resets(it: &Counts) -> u64 {
    it.resets_restarted + it.resets_lost + it.resets_unproven
}

/// Whether knowledge was given up for more than batches that can't be read. Those have a line of their own, which does
/// not come with each of them: a broken publisher must not fill the logs.
const fn gave_up(before: &Counts, now: &Counts) -> bool {
    let lost = now.resets_lost - before.resets_lost;
    resets(now) - resets(before) > lost || lost > now.undecodable - before.undecodable
}

/// What was logged of an engine, so that a state is logged once.
#[derive(Default)]
struct Told {
    events: Option<Events>,
    /// As of the last look.
    counts: Counts,
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
        let before = std::mem::replace(&mut self.counts, counts);
        is_news |= resets(&before) != resets(&counts);
        if gave_up(&before, &counts) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_cannot_be_read_is_not_told_twice() {
        let before = Counts { resets_lost: 3, resets_restarted: 1, undecodable: 2, ..Counts::default() };
        let more = |lost, restarted, undecodable| Counts {
            resets_lost: before.resets_lost + lost,
            resets_restarted: before.resets_restarted + restarted,
            undecodable: before.undecodable + undecodable,
            ..before
        };
        assert!(!gave_up(&before, &before));
        assert!(!gave_up(&before, &more(5, 0, 5)));
        // Frames that are no message at all give nothing up.
        assert!(!gave_up(&before, &more(0, 0, 5)));
        assert!(gave_up(&before, &more(1, 0, 0)) && gave_up(&before, &more(6, 0, 5)));
        // A restart is told, whatever else came with it.
        assert!(gave_up(&before, &more(0, 1, 5)));
    }
}
