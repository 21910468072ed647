//! `kvpick-agent`: tells kvpick servers what the engines of its node hold, and how busy they are.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use kvpick_agent::{
    app::App,
    config::{Config, File},
    engine_args::engine_args,
};
use kvpick_service::{
    command,
    config::{self, ConfigError},
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

/// The program's name in its complaints.
const NAME: &str = "kvpick-agent";

/// The explained configuration.
const REFERENCE: &str = include_str!("../kvpick-agent.example.yaml");

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run { config, addresses_file } => match load(&config) {
            Ok(config) => command::run(NAME, &config.file.log.clone(), async |logs| {
                App::start(config, Some(logs)).await?.run(addresses_file.as_deref()).await
            }),
            Err(error) => command::answer(NAME, Err(error)),
        },
        Command::CheckConfig { config } => command::answer(NAME, load(&config).map(|_| "ok\n".to_owned())),
        Command::EngineArgs { config, engine } => {
            let text = load(&config).map_err(|it| it.to_string());
            command::answer(NAME, text.and_then(|config| engine_args(&config, engine.as_deref())))
        }
        Command::ConfigReference => command::answer::<Infallible>(NAME, Ok(REFERENCE.to_owned())),
    }
}

fn load(path: &Path) -> Result<Config, ConfigError> {
    config::load_checked(path, File::check)
}
