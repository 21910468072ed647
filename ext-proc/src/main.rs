//! `kvpick`: an endpoint picker for Envoy.

use std::{
    convert::Infallible,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use kvpick::{
    app::App,
    config::{Config, Origin},
    flags::{self, Flags},
    models::Models,
    tokenize::{self, NamingArgs},
};
use kvpick_service::{
    command,
    config::{self, ConfigError},
    logs,
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
        /// The configuration, YAML. May be left out where flags say which pods the replicas are.
        #[arg(long, required_unless_present_any = ["pool_name", "endpoint_selector"])]
        config: Option<PathBuf>,
        /// Writes the addresses that are listened on to this file, as JSON: for ports chosen by the system.
        #[arg(long)]
        addresses_file: Option<PathBuf>,
        #[command(flatten)]
        flags: Flags,
    },
    /// Checks a configuration and reports every mistake.
    CheckConfig {
        /// The configuration, YAML.
        #[arg(long)]
        config: PathBuf,
    },
    /// Prints a configuration with every field, explained.
    ConfigReference,
    /// Shows the token ids and the blocks of requests, made as for a decision: for who asks why there was no hit.
    ///
    /// Reads JSON lines `{"model", "path", "body"}`, each a string, from standard input. `model` is a model, alias or
    /// adapter; it stands for the one that the body names, which counts where `model` is absent. `path` is that of the
    /// request, as /v1/chat/completions, and may carry a query string. `body_hex` in place of `body` is for bytes that
    /// are not UTF-8. Other fields are passed over.
    ///
    /// Writes a JSON line for each, in order: `source` (`local`, or `remote`: another server), `reason` (`ok`, or why there are no ids, as in
    /// metrics), `prompts` (token ids of each prompt), `blocks` (keys of the full blocks of each prompt, decimal, with
    /// the body's cache_salt). The log, on standard error, says more on each reason.
    ///
    /// A line that can't be read is named on standard error and has no answer; the exit code is then 64. Agents are not
    /// asked: how blocks are named is said by flags, and names of models are those of the configuration.
    Tokenize {
        /// The configuration, YAML.
        #[arg(long)]
        config: PathBuf,
        #[command(flatten)]
        naming: NamingArgs,
    },
}

/// The program's name in its complaints.
const NAME: &str = "kvpick";

/// The explained configuration.
const REFERENCE: &str = include_str!("../kvpick.example.yaml");

fn main() -> ExitCode {
    match Args::parse_from(flags::with_command(std::env::args_os())).command {
        Command::Run { config, addresses_file, flags } => {
            let origin = Origin { file: config, flags };
            match origin.load() {
                Ok(config) => command::run(NAME, &config.log.clone(), async |logs| {
                    let app = App::start_from(config, Some(origin), Some(logs)).await?;
                    app.run(addresses_file.as_deref()).await
                }),
                Err(error) => command::answer(NAME, Err(error)),
            }
        }
        Command::CheckConfig { config } => command::answer(NAME, load(&config).map(|_| "ok\n".to_owned())),
        Command::ConfigReference => command::answer::<Infallible>(NAME, Ok(REFERENCE.to_owned())),
        Command::Tokenize { config, naming } => match Config::load(&config) {
            Ok(config) => show_tokens(&config, naming),
            Err(error) => command::answer(NAME, Err(error)),
        },
    }
}

fn show_tokens(config: &Config, naming: NamingArgs) -> ExitCode {
    if let Err(error) = logs::init(&config.log.filter, config.log.format) {
        return command::answer(NAME, Err(error));
    }
    let models = Models::load(&config.models);
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    match tokenize::run(config, &models, naming, input, output, io::stderr()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(refused) => command::answer(NAME, Err(format!("{refused} of the lines are no requests"))),
        Err(error) => {
            tracing::error!(%error, "can't go on");
            ExitCode::FAILURE
        }
    }
}

fn load(path: &Path) -> Result<Config, ConfigError> {
    config::load_checked(path, |config: Config| match config.mistakes() {
        mistakes if mistakes.is_empty() => Ok(config),
        mistakes => Err(mistakes),
    })
}
