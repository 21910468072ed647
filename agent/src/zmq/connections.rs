//! Which connections a socket has, from what its monitor says.

use std::collections::BTreeMap;

use zmq::SocketEvent;

use super::Heard;

/// The connections of one socket, by file descriptor.
///
/// The monitor names the descriptor when a connection is made and when it is lost, but not when its handshake is done,
/// so that with several in their handshake it is not known whose it was.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// Whether the handshake is known to be done.
    open: BTreeMap<i32, bool>,
    /// Handshakes done by some of those of which it is not known.
    unplaced: usize,
    /// Whether the last event was a handshake that failed: the loss of that connection comes next.
    failed: bool,
}

impl Connections {
    /// What the monitor has to tell.
    pub(super) fn events() -> i32 {
        let all = [
            SocketEvent::CONNECTED,
            SocketEvent::ACCEPTED,
            SocketEvent::HANDSHAKE_SUCCEEDED,
            SocketEvent::HANDSHAKE_FAILED_NO_DETAIL,
            SocketEvent::HANDSHAKE_FAILED_PROTOCOL,
            SocketEvent::HANDSHAKE_FAILED_AUTH,
            SocketEvent::DISCONNECTED,
        ];
        all.iter().fold(0, |sum, it| sum | i32::from(it.to_raw()))
    }

    /// Whether no connection is through its handshake.
    pub(super) fn is_empty(&self) -> bool {
        self.unplaced == 0 && !self.open.values().any(|it| *it)
    }

    /// What follows from one message of the monitor, whose first frame is the event in 16 bits and a value in 32.
    /// A connection counts from its handshake on, and only the loss of the last one counts as a loss.
    pub(super) fn on_event(&mut self, frames: &[Vec<u8>]) -> Option<Heard> {
        let (event, value) = frames.first()?.split_first_chunk()?;
        let event = SocketEvent::from_raw(u16::from_ne_bytes(*event));
        let value = i32::from_ne_bytes(*value.first_chunk()?);
        self.on(event, value)
    }

    fn on(&mut self, event: SocketEvent, value: i32) -> Option<Heard> {
        let failed = std::mem::take(&mut self.failed);
        match event {
            SocketEvent::CONNECTED | SocketEvent::ACCEPTED => {
                self.open.insert(value, false);
                None
            }
            SocketEvent::HANDSHAKE_SUCCEEDED => {
                self.unplaced += 1;
                self.place();
                Some(Heard::Connected)
            }
            SocketEvent::DISCONNECTED => {
                let was_through = self.open.remove(&value)?;
                if !was_through {
                    // Where it is not known, it is safe to say that it was.
                    let may_be = !failed && self.unplaced > 0;
                    self.unplaced -= usize::from(may_be);
                    self.place();
                    return (may_be && self.is_empty()).then_some(Heard::Disconnected);
                }
                self.is_empty().then_some(Heard::Disconnected)
            }
            // The other events that are asked for.
            _ => {
                self.failed = true;
                None
            }
        }
    }

    /// Where as many handshakes are done as there are connections of which it is not known, it is known.
    fn place(&mut self) {
        if self.open.values().filter(|it| !**it).count() <= self.unplaced {
            self.open.values_mut().for_each(|it| *it = true);
            self.unplaced = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MADE: SocketEvent = SocketEvent::ACCEPTED;
    const DONE: SocketEvent = SocketEvent::HANDSHAKE_SUCCEEDED;
    const FAILED: SocketEvent = SocketEvent::HANDSHAKE_FAILED_NO_DETAIL;
    const LOST: SocketEvent = SocketEvent::DISCONNECTED;

    /// What is heard, event by event.
    fn heard(events: &[(SocketEvent, i32)]) -> String {
        let mut connections = Connections::default();
        let one = |(event, value): &(SocketEvent, i32)| match connections.on(*event, *value) {
            Some(Heard::Connected) => '+',
            Some(Heard::Disconnected) => '-',
            _ => '.',
        };
        events.iter().map(one).collect()
    }

    #[test]
    fn a_connection_counts_from_its_handshake_on() {
        assert_eq!(heard(&[(MADE, 7), (DONE, 0), (LOST, 7), (MADE, 7), (DONE, 0)]), ".+-.+");
    }

    #[test]
    fn one_that_never_shook_hands_is_no_loss() {
        let engine = [(MADE, 7), (DONE, 0)];
        let strangers = [(MADE, 8), (FAILED, 0), (LOST, 8), (MADE, 8), (LOST, 8)];
        assert_eq!(heard(&[&engine[..], &strangers[..]].concat()), ".+.....");
        assert_eq!(heard(&[&strangers[..], &engine[..], &[(LOST, 7)]].concat()), "......+-");
    }

    #[test]
    fn only_the_last_one_is_a_loss() {
        let both = [(MADE, 7), (DONE, 0), (MADE, 8), (DONE, 0), (LOST, 7), (LOST, 8)];
        assert_eq!(heard(&both), ".+.+.-");
    }

    #[test]
    fn handshakes_at_a_time() {
        // Nobody knows whose handshake was done, until the other's fails.
        assert_eq!(heard(&[(MADE, 7), (MADE, 8), (DONE, 0), (FAILED, 0), (LOST, 8), (LOST, 7)]), "..+..-");
        assert_eq!(heard(&[(MADE, 7), (MADE, 8), (DONE, 0), (DONE, 0), (LOST, 8), (LOST, 7)]), "..++.-");
        // Without a failure it may have been the one that counted.
        assert_eq!(heard(&[(MADE, 7), (MADE, 8), (DONE, 0), (LOST, 8)]), "..+-");
    }
}
