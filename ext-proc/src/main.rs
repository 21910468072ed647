//! `kvpick`: an endpoint picker for Envoy.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use kvpick::{app::App, config::Config};
use kvpick_service::{
    command,
    config::{self, ConfigError},
};

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

/// The program's name in its complaints.
const NAME: &str = "kvpick";

/// The explained configuration.
const REFERENCE: &str = include_str!("../kvpick.example.yaml");

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run { config, addresses_file } => match load(&config) {
            Ok(config) => command::run(NAME, &config.log.clone(), async |logs| {
                App::start(config, Some(logs)).await?.run(addresses_file.as_deref()).await
            }),
            Err(error) => command::answer(NAME, Err(error)),
        },
        Command::CheckConfig { config } => command::answer(NAME, load(&config).map(|_| "ok\n".to_owned())),
        Command::ConfigReference => command::answer::<Infallible>(NAME, Ok(REFERENCE.to_owned())),
    }
}

fn load(path: &Path) -> Result<Config, ConfigError> {
    config::load_checked(path, |config: Config| match config.mistakes() {
        mistakes if mistakes.is_empty() => Ok(config),
        mistakes => Err(mistakes),
    })
}
