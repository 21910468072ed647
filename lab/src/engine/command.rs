//! `kvpick-lab engine`: one engine as a process.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf};

use anyhow::Context as _;
use kvpick_proto::naming::{Algorithm, DEFAULT_ROOT};
use kvpick_service::{addresses, drain};

use super::{
    Config, Engine,
    cost::StepCost,
    publisher::Endpoints,
    wire::{Encoding, HashForm},
};

/// Flags of the command. Those that vLLM has too are named as there.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A name of the model that is served; may be given more than once.
    #[arg(long = "model", value_name = "NAME", required = true)]
    models: Vec<String>,
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
    /// Layout of events: of vLLM 0.32 (map) or 0.23 (array).
    #[arg(long, value_enum, default_value_t)]
    encoding: Encoding,
    /// Form of block hashes in events.
    #[arg(long, value_enum, default_value_t)]
    hashes: HashForm,
    /// How blocks are hashed: sha256_cbor, sha256, xxhash_cbor or xxhash.
    #[arg(long, value_parser = algorithm, default_value = "sha256_cbor")]
    algorithm: Algorithm,
    /// String whose hash is the parent of first blocks: PYTHONHASHSEED of an engine that has one.
    #[arg(long, default_value = DEFAULT_ROOT)]
    root: String,
    /// Tokens in a block.
    #[arg(long, default_value = "16")]
    block_size: NonZeroU32,
    /// Blocks of the cache, of which one is a placeholder.
    #[arg(long, default_value_t = 8192)]
    num_blocks: u32,
    /// Most tokens computed in one step.
    #[arg(long, default_value_t = 8192)]
    max_num_batched_tokens: usize,
    /// Most requests that run at once.
    #[arg(long, default_value_t = 256)]
    max_num_seqs: usize,
    /// Most tokens of prompt and answer [default: 40960, or what the blocks hold].
    #[arg(long)]
    max_model_len: Option<u32>,
    /// How many times as fast as one mid-size GPU with a model of 8 billion parameters.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// What answers depend on besides the prompt.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Written once everything listens: a JSON object with `http`, `events` and `replay`.
    #[arg(long, value_name = "FILE")]
    addresses_file: Option<PathBuf>,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    Algorithm::from_name(name).ok_or_else(|| "want sha256_cbor, sha256, xxhash_cbor or xxhash".to_owned())
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        Self {
            models: args.models,
            tokenizer: args.tokenizer,
            listen: args.listen,
            endpoints: Endpoints { events: args.events, replay: args.replay, topic: args.topic },
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
