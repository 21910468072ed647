//! Readiness as a set of named things that are still awaited.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a program still waits for before it may be used. Ready when nothing is held. Clones are the same set.
///
/// ```
/// # use kvpick_service::ready::Ready;
/// let ready = Ready::default();
/// let models = ready.hold("models to be loaded");
/// assert_eq!(ready.awaited(), ["models to be loaded"]);
/// drop(models);
/// assert!(ready.is_ready());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ready {
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    what: BTreeMap<u64, String>,
}

/// One awaited thing; dropping it says that it has come.
#[derive(Debug)]
#[must_use = "dropped at once, it is awaited by nobody"]
pub struct Hold {
    ready: Ready,
    number: u64,
}

impl Ready {
    /// Adds `what` to the awaited things, in words for the person who asks why it is not ready. The same
    /// words twice are two things.
    pub fn hold(&self, what: impl Into<String>) -> Hold {
        let mut held = self.lock();
        held.next += 1;
        let number = held.next;
        held.what.insert(number, what.into());
        Hold { ready: self.clone(), number }
    }

    /// Whether nothing is awaited.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lock().what.is_empty()
    }

    /// What is awaited, in the order in which it was held.
    #[must_use]
    pub fn awaited(&self) -> Vec<String> {
        self.lock().what.values().cloned().collect()
    }

    // Nothing panics while the lock is held, so a poisoned lock still guards good data.
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.ready.lock().what.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_all_holds_are_dropped() {
        let ready = Ready::default();
        assert!(ready.is_ready());
        let first = ready.hold("z");
        let second = ready.clone().hold("a");
        let again = ready.hold("z");
        assert_eq!(ready.awaited(), ["z", "a", "z"]);
        drop(first);
        assert_eq!(ready.awaited(), ["a", "z"]);
        drop(second);
        assert!(!ready.is_ready());
        drop(again);
        assert!(ready.is_ready());
        let late = ready.hold("late");
        assert!(!ready.is_ready(), "readiness can be lost again");
        drop(late);
    }
}
