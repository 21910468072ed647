//! Room for messages, in bytes: channels count messages only.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Bytes that may be taken at a time.
#[derive(Clone, Debug)]
pub(super) struct Room {
    taken: Arc<(Mutex<usize>, Condvar)>,
    most: usize,
}

/// Some of a room, until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    room: Room,
    bytes: usize,
}

impl Room {
    pub(super) fn new(most: usize) -> Self {
        Self { taken: Arc::default(), most }
    }

    /// Waits until there is room. What is larger than all of it has room alone.
    pub(super) fn take(&self, bytes: usize) -> Taken {
        let (taken, fewer) = &*self.taken;
        let is_full = |taken: &mut usize| *taken > 0 && taken.saturating_add(bytes) > self.most;
        // Nothing panics under this lock.
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = fewer.wait_while(taken, is_full).unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_add(bytes);
        Taken { room: self.clone(), bytes }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let (taken, fewer) = &*self.room.taken;
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_sub(self.bytes);
        fewer.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_wants_too_much_waits_for_others() {
        let room = Room::new(10);
        let (six, four) = (room.take(6), room.take(4));
        let (sender, got) = mpsc::channel();
        let waits = std::thread::spawn({
            let room = room.clone();
            // More than there will ever be.
            move || sender.send(room.take(11).bytes)
        });
        drop(six);
        assert!(got.try_recv().is_err(), "four are taken");
        drop(four);
        assert_eq!(got.recv(), Ok(11));
        waits.join().unwrap().unwrap();
        assert_eq!(room.take(10).bytes, 10, "all was given back");
    }
}
