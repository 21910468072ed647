//! `kvpick-lab fault`: gives a running engine a fault.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};

use super::Fault;

/// Flags of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the engine serves HTTP.
    address: SocketAddr,
    /// The data-parallel rank that is meant; all of them without it.
    #[arg(long)]
    rank: Option<u32>,
    #[command(subcommand)]
    fault: Fault,
}

/// Sends the fault.
///
/// # Errors
///
/// An engine that can't be reached, or that refuses the fault.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let rank = args.rank.map_or_else(String::new, |rank| format!("?rank={rank}"));
    let url = format!("http://{}/lab/faults{rank}", args.address);
    let client = reqwest::Client::builder().no_proxy().build()?;
    let response = match client.post(&url).json(&args.fault).send().await {
        // Who crashes does not answer.
        Err(error) if args.fault == Fault::Crash && !error.is_connect() => return Ok(()),
        sent => sent.with_context(|| format!("no engine answers at {}", args.address))?,
    };
    if !response.status().is_success() {
        bail!("the engine refuses: {}", response.text().await?);
    }
    Ok(())
}
