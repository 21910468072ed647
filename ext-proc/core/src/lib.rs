//! The picker without its sockets: facts and the time go in, decisions come out.
//!
//! Reading order, which is a request's: [`session`] (one exchange with Envoy), [`request`] (a body's meaning),
//! [`among`] (whom the gateway lets be picked), [`prompts`] (its token ids) or [`remote`] (those that another
//! server makes of it), [`pick`] (block names, who holds them, who is least busy), [`score`], [`reply`]
//! (what Envoy is told), [`usage`] (what its answer tells), [`outcome`] (how it was decided). What a pick stands on: [`world`], [`replicas`], [`index`] (the
//! engines' own word), [`hit`] (what of it an engine would use), [`recent`] (what was sent where),
//! [`pins`] (who keeps which response), [`busy`], [`health`], [`parity`] (whether what was expected came); [`feed`]
//! brings it in. What need not be computed twice is in a [`memo`].
#![forbid(unsafe_code)]

pub mod among;
pub mod busy;
pub mod feed;
pub mod health;
pub mod hit;
pub mod index;
pub mod memo;
pub mod outcome;
pub mod parity;
pub mod pick;
pub mod pins;
pub mod prompts;
pub mod recent;
pub mod remote;
pub mod replicas;
pub mod reply;
pub mod request;
mod runs;
pub mod score;
pub mod session;
pub mod usage;
pub mod world;

#[cfg(test)]
mod testing {
    /// Where a test's time begins.
    #[expect(clippy::disallowed_methods, reason = "tests start somewhere; all that follows is computed")]
    pub(crate) fn start() -> std::time::Instant {
        std::time::Instant::now()
    }
}
