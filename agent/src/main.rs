//! `kvpick-agent`: tells kvpick servers what the engines of its node hold, and how busy they are.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Args as Arguments, Parser, Subcommand};
use kvpick_agent::{
    app::App,
    config::{Config, EventsConfig, File},
    engine_args::engine_args,
    record::{Recording, record},
    replay::replay,
};
use kvpick_agent_core::recording::Known;
use kvpick_proto::words::Adapter;
use kvpick_service::{
    command,
    config::{self, ConfigError},
    logs::LogConfig,
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
    /// Writes what an engine publishes to a file, for a bug report.
    ///
    /// With a replay socket it begins with all that the engine still has; then it goes on until there are --frames
    /// messages, --seconds have passed, or SIGINT or SIGTERM comes. BEWARE: events hold the token ids of prompts and of
    /// answers, so that whoever has the file can read what users wrote.
    Record(RecordArgs),
    /// Prints what the agent would hold after a recording, as JSON.
    ///
    /// It runs the agent's own decoder, sequence and mirror over the file, and opens no socket. `held` has each block's
    /// key with its number of copies, by rank, group and tier; `domain` is how the engine names its blocks. A key is the
    /// last 8 bytes of vLLM's hash as a decimal number; where `key_kinds` says `translated` it is the agent's own name of the
    /// block. `counts` is what was heard and what was given up (`resets_…`), `mirror` what had to be settled by a rule:
    /// `ambiguous_stores` may have been second copies or only reports, and `unknown_removals` were of blocks not held.
    /// `completeness` is whether that is all that the engine holds: a recording that begins in the middle is a part.
    Replay(ReplayArgs),
}

#[derive(Arguments, Debug)]
struct RecordArgs {
    /// Where the engine publishes, for one that binds: tcp://host:port or ipc:///path.
    #[arg(long, required_unless_present = "listen", conflicts_with = "listen")]
    subscribe: Option<String>,
    /// Where to wait for it, for one that connects: tcp://127.0.0.1:port.
    #[arg(long)]
    listen: Option<String>,
    /// The engine's replay socket: tcp://host:port or ipc:///path.
    #[arg(long)]
    replay: Option<String>,
    /// Only topics that begin so.
    #[arg(long, default_value = "")]
    topic: String,
    /// The file, which must not exist yet. Nobody but you can read it.
    #[arg(long)]
    out: PathBuf,
    /// Ends after so many messages.
    #[arg(long)]
    frames: Option<u64>,
    /// Ends after so many seconds.
    #[arg(long)]
    seconds: Option<u32>,
}

#[derive(Arguments, Debug)]
struct ReplayArgs {
    /// The recording, a JSON object a line.
    file: PathBuf,
    /// Only its first so many lines.
    #[arg(long)]
    until: Option<u64>,
    /// The engine's version, as its /version says it.
    #[arg(long)]
    version: Option<String>,
    /// An adapter and the path that it was loaded from, as /v1/models says them; may be given again.
    #[arg(long = "adapter", value_name = "NAME=PATH", value_parser = adapter)]
    adapters: Vec<Adapter>,
    /// A value of the engine's PYTHONHASHSEED to try beside the usual ones; may be given again.
    #[arg(long = "root", value_name = "SEED")]
    roots: Vec<String>,
    /// Physical blocks of the engine, a bound on the copies that are counted.
    #[arg(long)]
    num_gpu_blocks: Option<u64>,
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
        Command::Record(args) => {
            match EventsConfig::check(args.subscribe, args.listen, args.replay, args.topic) {
                Ok(events) => {
                    let time = args.seconds.map(|it| Duration::from_secs(it.into()));
                    let recording = Recording { events, out: args.out, frames: args.frames, time };
                    command::run(NAME, &LogConfig::default(), async |_| record(recording).await)
                }
                Err(mistakes) => command::answer(NAME, Err(mistakes)),
            }
        }
        Command::Replay(ReplayArgs { file, until, version, adapters, roots, num_gpu_blocks }) => {
            let known = Known { version, adapters, roots, num_gpu_blocks };
            command::answer(NAME, replay(&file, until, known, Instant::now()))
        }
    }
}

fn adapter(text: &str) -> Result<Adapter, String> {
    let (name, path) = text.split_once('=').ok_or("write NAME=PATH")?;
    Ok(Adapter { name: name.to_owned(), path: path.to_owned() })
}

fn load(path: &Path) -> Result<Config, ConfigError> {
    config::load_checked(path, File::check)
}
