//! The endpoint picker's shell: sockets, files, clocks and threads around `kvpick-core`.
//!
//! Reading order: [`config`] and [`flags`], [`app`] (what is started, in which order, and stopped), [`listen`] (sockets and
//! TLS), then a request's way: [`messages`] (gRPC), [`ext_proc`] (one stream per HTTP request), [`wire`] (Envoy's messages to
//! plain values and back), [`decide`] (from a body to a decision, off the I/O threads and within a budget), [`look`] (what a
//! body says, and what is changed in it), [`decompress`], [`prepare`] (from a body to its prompts and their blocks),
//! [`models`] (tokenizers and templates), [`memo`] (what is kept of earlier requests) and [`reload`] (of them, while requests
//! go on), [`shared`] (the world behind its lock), [`answers`] (what comes of it). Beside it: [`feeds`] (agents), [`members`] (replicas that are pods), [`probe`] (replicas that are out),
//! [`metrics`], [`parity`] (what is shown of it), [`status`]; and [`tokenize`], which shows what `prepare` makes of bodies.

pub mod answers;
pub mod app;
mod clock;
pub mod config;
pub mod decide;
pub mod decompress;
pub mod ext_proc;
pub mod feeds;
pub mod flags;
pub mod listen;
pub mod look;
pub mod members;
pub mod memo;
pub mod messages;
pub mod metrics;
pub mod models;
pub mod parity;
pub mod prepare;
pub mod probe;
pub mod reload;
pub mod remote;
pub mod shared;
pub mod status;
pub mod tokenize;
pub mod wire;
