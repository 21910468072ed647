//! Real processes for the demo and the end-to-end tests: Envoy, kvpick, its agents and simulated engines.
//!
//! Reading order:
//!
//! - [`tools`]: where the programs and the fetched tools are.
//! - [`wait`]: waiting for a state, never for a time.
//! - [`ports`], [`process`], [`scratch`]: a port, a child process, a folder for its files.
//! - [`metrics`], [`program`]: one of our programs, its configuration, and what it says of itself.
//! - [`envoy`]: the configs of `envoy/standalone/` with other addresses in them.
//! - [`fleet`]: all of it together.
//!
//! Everything listens on loopback and ends with the value that holds it.

pub mod tools;
pub mod wait;

pub mod ports;
pub mod process;
pub mod scratch;

pub mod metrics;
pub mod program;

pub mod envoy;

pub mod fleet;

use std::time::Duration;

use anyhow::Context as _;

/// An HTTP client for admin pages on loopback, whatever proxy the environment names. An answer takes at most
/// 5 s: a process may be frozen on purpose.
pub fn http() -> anyhow::Result<reqwest::Client> {
    let builder = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5));
    builder.build().context("cannot set up an HTTP client")
}
