//! `kvpick-agent`: tells kvpick servers what the engines of its node hold, and how busy they are.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use kvpick_agent::{
    app::App,
    config::{Config, File},
    engine_args::engine_args,
};

/// Mirrors the KV blocks of each vLLM engine of its node, and streams the net change to every kvpick server.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs until it is asked to stop.
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
    /// Prints what each engine of a configuration has to be started with: environment and flags of vLLM.
    EngineArgs {
        /// The configuration, YAML.
        #[arg(long)]
        config: PathBuf,
        /// Only the engine with this address.
        #[arg(long)]
        engine: Option<String>,
    },
    /// Prints a configuration with every field, explained.
    ConfigReference,
}

/// The exit code of a wrong configuration: `EX_USAGE` of sysexits.h.
const EX_USAGE: u8 = 64;

/// The explained configuration.
const REFERENCE: &str = include_str!("../kvpick-agent.example.yaml");

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Run { config, addresses_file } => match load(&config) {
            Ok(config) => return ended(run(config, addresses_file.as_deref()), ExitCode::FAILURE),
            Err(error) => Err(error),
        },
        Command::CheckConfig { config } => load(&config).map(|_| say("ok\n")),
        Command::EngineArgs { config, engine } => load(&config).and_then(|config| {
            engine_args(&config, engine.as_deref()).map(|text| say(&text)).map_err(anyhow::Error::msg)
        }),
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
    eprintln!("kvpick-agent: {text}");
}

fn load(path: &Path) -> anyhow::Result<Config> {
    let file: File = kvpick_service::config::load(path)?;
    file.check().map_err(|mistakes| {
        let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}:\n  {}", path.display(), lines.join("\n  "))
    })
}

fn run(config: Config, addresses_file: Option<&Path>) -> anyhow::Result<()> {
    let log = &config.file.log;
    let logs = kvpick_service::logs::init(&log.filter, log.format)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("can't start threads")?;
    runtime.block_on(async { App::start(config, Some(logs)).await?.run(addresses_file).await })
}
