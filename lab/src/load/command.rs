//! `kvpick-lab load`: a workload against any OpenAI URL.

use std::{
    io::Write as _,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::Context as _;

use super::{client::Client, report::Report, run, workload::Workload};

/// Flags of the command. Lengths of text are in words, which are about as many tokens.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Server to ask, as http://127.0.0.1:8080.
    #[arg(long)]
    url: String,
    /// Model to ask for.
    #[arg(long)]
    model: String,
    /// System prompts that sessions share.
    #[arg(long, default_value_t = 4)]
    groups: u32,
    /// Tokens in a system prompt.
    #[arg(long, default_value_t = 1024)]
    system_tokens: u32,
    /// Chats.
    #[arg(long, default_value_t = 32)]
    sessions: u32,
    /// Questions in a chat.
    #[arg(long, default_value_t = 4)]
    turns: u32,
    /// Tokens in a question.
    #[arg(long, default_value_t = 64)]
    question_tokens: u32,
    /// Tokens in an answer.
    #[arg(long, default_value_t = 64)]
    output_tokens: u32,
    /// Mean time before a question, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    think_ms: u64,
    /// Most requests under way at once.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// What all texts and think times follow from.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Longest that one request may take, in seconds.
    #[arg(long, default_value_t = 120)]
    timeout_s: u64,
    /// Written at the end: one JSON object per request and line.
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

/// Runs the workload and prints the report as JSON.
///
/// # Errors
///
/// A client that can't be made, output that can't be written. Failed requests are part of the report.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let workload = Workload {
        model: args.model,
        groups: args.groups,
        system_tokens: args.system_tokens,
        sessions: args.sessions,
        turns: args.turns,
        question_tokens: args.question_tokens,
        output_tokens: args.output_tokens,
        think_ms: args.think_ms,
        seed: args.seed,
    };
    let client = Client::new(&args.url, Duration::from_secs(args.timeout_s)).context("no HTTP client")?;
    let (done, all) = (AtomicU64::new(0), workload.requests());
    tracing::info!(requests = all, seed = workload.seed, "load starts");
    let (records, duration_s) = run::run(&client, &workload, args.concurrency, move |_| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        // Ten lines in all.
        if done * 10 / all != (done - 1) * 10 / all {
            tracing::info!(done, all, "requests ended");
        }
    })
    .await;
    if let Some(path) = args.records {
        let lines = records.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        std::fs::write(&path, lines.join("\n") + "\n")
            .with_context(|| format!("--records {}", path.display()))?;
    }
    let report = serde_json::to_string_pretty(&Report::of(&records, duration_s))?;
    writeln!(std::io::stdout(), "{report}").context("standard output")
}
