//! `kvpick`: an endpoint picker for Envoy.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use kvpick::{app::App, config::Config};

/// Sends each LLM request to the vLLM replica whose KV cache already holds most of its prompt.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves Envoy and agents until it is asked to stop.
    Run {
        /// The configuration, YAML.
        #[arg(long)]
        config: PathBuf,
        /// Writes the addresses that are listened on to this file, as JSON: for ports chosen by the system.
        #[arg(long)]
        addresses_file: Option<PathBuf>,
    },
    /// Checks a configuration and reports every mistake.
    CheckConfig {
        /// The configuration, YAML.
        #[arg(long)]
        config: PathBuf,
    },
    /// Prints a configuration with every field, explained.
    ConfigReference,
}

/// The exit code of a wrong configuration: `EX_USAGE` of sysexits.h.
const EX_USAGE: u8 = 64;

/// The explained configuration.
const REFERENCE: &str = include_str!("../kvpick.example.yaml");

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Run { config, addresses_file } => match load(&config) {
            Ok(config) => return ended(run(config, addresses_file.as_deref()), ExitCode::FAILURE),
            Err(error) => Err(error),
        },
        Command::CheckConfig { config } => load(&config).map(|_| say("ok\n")),
        Command::ConfigReference => {
            say(REFERENCE);
            Ok(())
        }
    };
    ended(result, ExitCode::from(EX_USAGE))
}

fn ended(result: anyhow::Result<()>, failure: ExitCode) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            failure
        }
    }
}

#[expect(clippy::print_stdout, reason = "the answer of a command")]
fn say(text: &str) {
    print!("{text}");
}

#[expect(clippy::print_stderr, reason = "logs may not be up yet")]
fn complain(text: &str) {
    eprintln!("kvpick: {text}");
}

fn load(path: &Path) -> anyhow::Result<Config> {
    let config: Config = kvpick_service::config::load(path)?;
    let mistakes = config.mistakes();
    if mistakes.is_empty() {
        return Ok(config);
    }
    anyhow::bail!("{}:\n  {}", path.display(), mistakes.join("\n  "))
}

fn run(config: Config, addresses_file: Option<&Path>) -> anyhow::Result<()> {
    let logs = kvpick_service::logs::init(&config.log.filter, config.log.format)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("can't start threads")?;
    runtime.block_on(async { App::start(config, Some(logs)).await?.run(addresses_file).await })
}
