//! `kvpick-agent`: one per node. It mirrors the KV blocks of each local engine, and streams the net change, with each
//! engine's load, to every kvpick server.
//!
//! The rules are in `kvpick_agent_core`; here are sockets, clocks and tasks. Reading order: [`config`],
//! [`engine_args`], [`app`] (what is started), `engines` (starts and ends what follows one), `pods` (engines that
//! come and go), `zmq` (an engine's sockets), `engine` (drives an engine), `scrape`
//! (its HTTP API), `names` (of servers), `pauses` (between attempts at one), `publish`
//! (streams to them), `shared`, `state` (what is kept for the next run), `status`, `metrics`, `tasks`; and beside the
//! agent itself [`record`] and [`replay`], for bug reports.

pub mod config;
mod discover;
pub mod engine_args;

pub mod app;

pub mod record;
pub mod replay;

mod engine;
mod engines;
mod names;
mod pauses;
mod pods;
mod publish;
mod scrape;
mod zmq;

mod metrics;
mod shared;
mod state;
mod status;
mod tasks;
mod tls;

#[doc(hidden)]
pub mod bench;
