//! The demo: what routing by KV cache changes, on real Envoy, against round robin.
//!
//! `phases` runs the three parts, `report` keeps and prints their figures.

mod phases;
mod report;

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use kvpick_service::drain;

use crate::{load::workload::Workload, rig::fleet::Plan};

/// Engines, spread over two nodes.
const ENGINES: usize = 4;
const NODES: usize = 2;

/// Tokens in a block, vLLM's default.
const BLOCK_SIZE: u32 = 16;

/// Share of the fleet's blocks that the workload's distinct blocks would fill: enough that no engine can hold all of
/// it, little enough that the fleet can.
const DEMAND: f64 = 0.7;

/// Tokens that a chat template adds to a message; the demo only needs to be about right.
const TEMPLATE_TOKENS: u32 = 5;

/// How long programs have to end by themselves.
const GOODBYE: Duration = Duration::from_secs(10);

/// Flags of the command.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Leaves everything running at the end, and prints where.
    #[arg(long)]
    keep: bool,
    /// What all texts, answers and think times follow from.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Folder for the report, logs and configurations.
    #[arg(long, default_value = "target/demo")]
    out: PathBuf,
}

/// Everything that decides what is run.
#[derive(Clone, Debug)]
struct Setup {
    plan: Plan,
    /// One question at a time.
    serial: Workload,
    /// All sessions at once.
    concurrent: Workload,
    /// Most requests under way at once.
    concurrency: usize,
}

impl Setup {
    fn new(seed: u64) -> Self {
        let concurrent = Workload {
            model: "qwen3".to_owned(),
            groups: 48,
            system_tokens: 1_500,
            sessions: 96,
            turns: 5,
            question_tokens: 120,
            output_tokens: 32,
            think_ms: 3_000,
            seed,
        };
        // Few sessions, many turns: the cache grows with each, and nothing else runs.
        let serial = Workload {
            groups: 4,
            sessions: 8,
            turns: 26,
            system_tokens: 400,
            question_tokens: 24,
            output_tokens: 12,
            think_ms: 0,
            ..concurrent.clone()
        };
        let blocks = f64::from(distinct_blocks(&concurrent)) / DEMAND / ENGINES as f64;
        let mut plan = Plan::even(ENGINES, NODES);
        for engine in &mut plan.engines {
            engine.block_size = BLOCK_SIZE;
            engine.num_blocks = blocks.ceil() as u32;
            engine.speed = SPEED;
            engine.seed = seed;
            // One node each way.
            engine.direction = crate::rig::fleet::Direction::ALL[engine.node % 2];
        }
        // The configuration as anybody would run it.
        plan.patient = false;
        plan.server = phases::server_settings();
        Self { plan, serial, concurrent, concurrency: 64 }
    }

    /// Distinct blocks of the concurrent workload by all blocks of the fleet.
    fn demand(&self) -> f64 {
        let have: u32 = self.plan.engines.iter().map(|it| it.num_blocks).sum();
        f64::from(distinct_blocks(&self.concurrent)) / f64::from(have)
    }
}

/// Speed of the engines, an NVIDIA L40S being 1.
const SPEED: f64 = 1.0;

/// Blocks that a workload fills when each is kept once.
fn distinct_blocks(workload: &Workload) -> u32 {
    let turn = workload.question_tokens + workload.output_tokens + 2 * TEMPLATE_TOKENS;
    let tokens = workload.groups * workload.system_tokens + workload.sessions * workload.turns * turn;
    tokens.div_ceil(BLOCK_SIZE)
}

/// Runs the demo.
///
/// # Errors
///
/// A program that does not start, or a report that can't be written. What was started is ended all the same.
pub async fn run(args: Args) -> anyhow::Result<()> {
    tokio::select! {
        result = demo(&args) => result,
        // Dropping the other branch ends what it has started.
        () = drain::terminated() => anyhow::bail!("interrupted; everything that was started has ended"),
    }
}

async fn demo(args: &Args) -> anyhow::Result<()> {
    let setup = Setup::new(args.seed);
    let folder = args.out.join("run");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("can't empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let folder = folder.canonicalize().context("the demo's folder")?;
    report::say(&format!(
        "{ENGINES} engines with {} blocks of {BLOCK_SIZE} tokens on {NODES} nodes; seed {}; KV demand {:.0} % of the \
         fleet's blocks; logs in {}",
        setup.plan.engines[0].num_blocks,
        args.seed,
        100.0 * setup.demand(),
        folder.display()
    ));

    let serial = phases::serial(&setup, &folder).await.context("serial phase")?;
    let round_robin = phases::round_robin(&setup, &folder).await.context("round robin")?;
    let (kvpick, fleet) = phases::kvpick(&setup, &folder).await.context("kvpick")?;
    let report = report::Report { seed: args.seed, demand: setup.demand(), serial, round_robin, kvpick };
    let file = args.out.join("report.json");
    let json = serde_json::to_vec_pretty(&report).context("report")?;
    std::fs::write(&file, json).with_context(|| format!("can't write {}", file.display()))?;
    report::say(&report.table());
    report::say(&format!("written to {}", file.display()));
    if args.keep {
        let url = fleet.url();
        report::say(&format!("left running; try: curl {url}/v1/models"));
        for (what, address) in fleet.leave() {
            report::say(&format!("  {what:<22} {address}"));
        }
        report::say("end it with: pkill -f target/demo/run");
        return Ok(());
    }
    fleet.finish(GOODBYE).await
}
