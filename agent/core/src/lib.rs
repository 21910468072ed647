//! The agent's pure part: what comes in from an engine goes through it, and what each server has to be told comes
//! out. No I/O, no clock, no threads: time is an argument, and the same inputs give the same outputs.
//!
//! Reading order, which is the order of the flow: [`decode`] (frames to events), [`domain`] (how the engine names its
//! blocks), [`translate`] (names for blocks whose own can't be reproduced), [`sequence`] (what is missing, and whether
//! the publisher is still the same), [`mirror`] (what the engine holds), [`load`] (how busy it is), [`engine`] (these
//! together, for one engine), [`snapshot`] (what is written down of it), [`pending`] and [`peer`] (what one server has
//! still to be told), [`node`] (all engines and all servers of one agent); beside it [`recording`] (an engine's messages
//! in a file).
#![forbid(unsafe_code)]

mod bounds;
pub mod decode;

pub mod domain;

pub mod translate;

pub mod sequence;

pub mod mirror;
mod runs;

pub mod load;

pub mod engine;
pub mod snapshot;

pub mod peer;
pub mod pending;

pub mod node;

pub mod recording;
