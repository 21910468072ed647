//! The outside world in one binary: a simulated engine, a load generator.

use clap::{Parser, Subcommand};
use kvpick_lab::{demo, engine, load};
use kvpick_service::logs;

#[derive(Debug, Parser)]
#[command(version, about = "The outside world of kvpick, for trying and measuring")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// What is logged, to standard error: a level, or levels by target.
    #[arg(long, global = true, default_value = "info")]
    log: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one simulated engine that speaks vLLM's protocols.
    Engine(Box<engine::command::Args>),
    /// Makes something go wrong in a running engine.
    Fault(engine::faults::command::Args),
    /// Shows on a fleet behind real Envoy what routing by KV cache changes.
    Demo(demo::Args),
    /// Sends multi-turn chats to an OpenAI URL and reports hits and times.
    Load(Box<load::command::Args>),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let _logs = logs::init(&cli.log, logs::Format::Text)?;
    match cli.command {
        Command::Engine(args) => engine::command::run(*args).await,
        Command::Fault(args) => engine::faults::command::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Load(args) => load::command::run(*args).await,
    }
}
