//! `kvpick-lab engine`: one engine as a process.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use kvpick_proto::naming::Algorithm;
use kvpick_service::{addresses, drain};

use super::{
    Config, Engine,
    announce::Adapter,
    attention::Attention,
    cost::StepCost,
    publisher::{DEFAULT_BUFFER_STEPS, Endpoints},
    version::Version,
    wire::{Encoding, HashForm},
};

/// Flags of the command. Those that vLLM has too are named as there.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A name of the model that is served; may be given more than once.
    #[arg(long = "model", value_name = "NAME", required = true)]
    models: Vec<String>,
    /// An adapter of that model and where it was loaded from; may be given more than once.
    #[arg(long = "lora", value_name = "NAME=PATH", value_parser = adapter)]
    adapters: Vec<(String, String)>,
    /// Folder with the model's tokenizer.json, tokenizer_config.json and, where it has one, chat_template.jinja.
    #[arg(long, value_name = "DIR")]
    tokenizer: PathBuf,
    /// Where HTTP is served; with port 0 the system chooses.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where events are published: bound where it contains `*` or `::` or is ipc, else connected to.
    #[arg(long, value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:*")]
    events: String,
    /// Where past batches of events can be asked for; no replay without it.
    #[arg(long, value_name = "ENDPOINT")]
    replay: Option<String>,
    /// First frame of every event message.
    #[arg(long, default_value = "")]
    topic: String,
    /// Batches of events that are kept for replay.
    #[arg(long, value_name = "BATCHES", default_value_t = DEFAULT_BUFFER_STEPS)]
    buffer_steps: usize,
    /// The version of vLLM that is imitated [default: 0.32].
    #[arg(long, value_enum)]
    vllm_version: Option<Version>,
    /// Layout of events, where it is not the version's own. Given alone it chooses the latest version with that layout.
    #[arg(long, value_enum)]
    encoding: Option<Encoding>,
    /// Form of block hashes in events.
    #[arg(long, value_enum, default_value_t)]
    hashes: HashForm,
    /// How blocks are hashed: sha256_cbor, sha256, xxhash_cbor or xxhash.
    #[arg(long, value_parser = algorithm, default_value = "sha256_cbor")]
    algorithm: Algorithm,
    /// String whose hash is the parent of first blocks: PYTHONHASHSEED of an engine that has one [default: what the
    /// version does without: vllm-none-hash in 0.32 with sha256 and sha256_cbor, else random].
    #[arg(long)]
    root: Option<String>,
    /// Tokens in a block.
    #[arg(long, default_value = "16")]
    block_size: NonZeroU32,
    /// Blocks of the cache, of which one is a placeholder.
    #[arg(long, default_value_t = 8192)]
    num_blocks: u32,
    /// Tokens that every other layer attends to, the token itself included; without it all layers attend to all.
    #[arg(long, value_name = "TOKENS")]
    sliding_window: Option<NonZeroU32>,
    /// Engines behind the one HTTP server. Rank r publishes and replays at the given ports + r.
    #[arg(long, value_name = "RANKS", default_value_t = 1)]
    data_parallel_size: u32,
    /// Leaves out the routes that vLLM has with VLLM_SERVER_DEV_MODE=1 alone.
    #[arg(long)]
    without_dev_mode: bool,
    /// Most tokens computed in one step.
    #[arg(long, default_value_t = 8192)]
    max_num_batched_tokens: usize,
    /// Most requests that run at once.
    #[arg(long, default_value_t = 256)]
    max_num_seqs: usize,
    /// Most tokens of prompt and answer [default: 40960, or what the blocks hold].
    #[arg(long)]
    max_model_len: Option<u32>,
    /// How many times as fast as one NVIDIA L40S with Llama 3.1 8B.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// What answers depend on besides the prompt.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Written once everything listens: a JSON object with `http`, `events`, `replay`, `events-1` and so on.
    #[arg(long, value_name = "FILE")]
    addresses_file: Option<PathBuf>,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    Algorithm::from_name(name).ok_or_else(|| "want sha256_cbor, sha256, xxhash_cbor or xxhash".to_owned())
}

fn adapter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.to_owned())),
        _ => Err("want NAME=PATH".to_owned()),
    }
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        let adapter = |(id, (name, path))| Arc::new(Adapter { id, name, path });
        let version =
            args.vllm_version.or_else(|| args.encoding.map(Version::of_encoding)).unwrap_or_default();
        Self {
            models: args.models,
            adapters: (1..).zip(args.adapters).map(adapter).collect(),
            version,
            ranks: args.data_parallel_size,
            dev_mode: !args.without_dev_mode,
            attention: match args.sliding_window {
                Some(window) => Attention::Hybrid { window },
                None => Attention::Full,
            },
            tokenizer: args.tokenizer,
            listen: args.listen,
            endpoints: Endpoints {
                events: args.events,
                replay: args.replay,
                topic: args.topic,
                buffer_steps: args.buffer_steps,
            },
            encoding: args.encoding,
            hashes: args.hashes,
            algorithm: args.algorithm,
            root: args.root,
            block_size: args.block_size,
            num_blocks: args.num_blocks,
            max_num_batched_tokens: args.max_num_batched_tokens,
            max_num_seqs: args.max_num_seqs,
            max_model_len: args.max_model_len,
            cost: StepCost { speed: args.speed, ..StepCost::default() },
            seed: args.seed,
        }
    }
}

/// Runs the engine until the process is told to end.
///
/// # Errors
///
/// An engine that does not start, or an addresses file that can't be written.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let file = args.addresses_file.clone();
    let engine = Engine::start(args.into()).await.context("the engine does not start")?;
    tracing::info!(http = %engine.http(), events = engine.events(), replay = engine.replay(), "engine serves");
    if let Some(file) = file {
        addresses::write(&file, &engine.addresses())
            .with_context(|| format!("--addresses-file {}", file.display()))?;
    }
    drain::terminated().await;
    engine.stop().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn config(flags: &str) -> Result<Config, clap::Error> {
        let line = format!("engine --model m --tokenizer t {flags}");
        Ok(Cli::try_parse_from(line.split_whitespace())?.args.into())
    }

    #[test]
    fn a_version_brings_its_layout_and_a_layout_its_version() {
        let of = |flags| config(flags).map(|it| (it.version, it.encoding)).unwrap();
        assert_eq!(of(""), (Version::V0_32, None));
        assert_eq!(of("--vllm-version 0.16"), (Version::V0_16, None));
        assert_eq!(of("--encoding array"), (Version::V0_23, Some(Encoding::Array)));
        assert_eq!(of("--encoding array --vllm-version 0.32"), (Version::V0_32, Some(Encoding::Array)));
        assert!(config("--vllm-version 0.10").is_err());
    }

    #[test]
    fn adapters_are_numbered_in_order() {
        let adapters = config("--lora a=/x --lora b=/y=z").unwrap().adapters;
        let shown: Vec<_> = adapters.iter().map(|it| (it.id, it.name.as_str(), it.path.as_str())).collect();
        assert_eq!(shown, [(1, "a", "/x"), (2, "b", "/y=z")]);
        assert!(config("--lora a").is_err());
    }

    #[test]
    fn settings_that_do_not_fit_are_named() {
        let error = |flags| config(flags).unwrap().limits().unwrap_err().to_string();
        assert!(error("--vllm-version 0.11 --algorithm xxhash").contains("0.11.2 has no xxhash"));
        assert!(error("--lora m=/x").contains("\"m\" names two things"));
        assert!(error("--data-parallel-size 0").contains("--data-parallel-size"));
    }
}
