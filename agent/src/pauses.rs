//! How long to wait before the next attempt at a server's address.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// Pause before a new attempt: doubling between these, less a random part, so that the agents of a whole cluster do not
/// come back to a server in one moment.
const BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Pause after a server closed a stream on purpose, soon after it was made: two agents of one node, which is a mistake,
/// take over from each other no faster.
const PUT_OFF: Duration = Duration::from_secs(4);

/// A stream that lasted this long was no failure.
const LASTING: Duration = Duration::from_secs(10);

/// The pauses at one address.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: BACKOFF }
    }
}

impl Pauses {
    /// After a stream that a server had welcomed and that `lasted` so long from then on, or that none had; `put_off`: it
    /// was closed by the server on purpose.
    pub(crate) fn after(&mut self, lasted: Option<Duration>, put_off: bool) -> Duration {
        if lasted.is_some_and(|it| !put_off || it >= LASTING) {
            self.next = BACKOFF;
        } else if put_off {
            return PUT_OFF;
        }
        let pause = self.next;
        self.next = (pause * 2).min(MAX_BACKOFF);
        pause
    }
}

/// Between half of it and all.
pub(crate) fn jittered(pause: Duration) -> Duration {
    // The standard library's hash keys are the one source of randomness that needs no further package.
    let random = RandomState::new().hash_one(0_u8) % 1_000;
    pause / 2 + pause.mul_f64(random as f64 / 2_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_a_server_welcomes() {
        let mut pauses = Pauses::default();
        let all: Vec<_> = (0..6).map(|_| pauses.after(None, false).as_millis()).collect();
        assert_eq!(all, [100, 200, 400, 800, 1_600, 2_000]);
        assert_eq!(pauses.after(Some(Duration::ZERO), false), BACKOFF);
    }

    #[test]
    fn agents_that_take_over_from_each_other_do_so_slowly() {
        let mut pauses = Pauses::default();
        // It was the only one for long, and may be so again.
        assert_eq!(pauses.after(Some(LASTING), true), BACKOFF);
        let soon = Some(Duration::from_secs(3));
        assert_eq!([pauses.after(soon, true), pauses.after(soon, true)], [PUT_OFF; 2]);
        assert_eq!(pauses.after(None, true), PUT_OFF);
    }
}
