//! Publishers of which it is found out later whether they have a replay socket.

use super::{Output, Sequence, Why};

impl Sequence {
    /// It is known by now whether the publisher has a replay socket. Goes before [`Sequence::on_connected`].
    pub fn set_replay(&mut self, replay: bool) -> Vec<Output> {
        if self.replay == replay {
            return Vec::new();
        }
        self.replay = replay;
        if replay {
            // The replay upon the connection proves more than a start time.
            self.doubt = None;
            return Vec::new();
        }
        self.request = None;
        self.asking = None;
        if self.next.is_none() {
            return Vec::new();
        }
        // The replay that was to prove that it is the same publisher never comes.
        vec![self.forget(Why::Unproven)]
    }
}
