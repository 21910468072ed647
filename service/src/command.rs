//! What the commands of a program have in common: an answer on standard output, a complaint on standard error, an exit
//! code, and a run that ends by itself when it is asked to.

use std::{fmt::Display, future::Future, process::ExitCode, time::Duration};

use crate::logs::{self, LogConfig, Logs};

/// The exit code of a wrong configuration or command: `EX_USAGE` of sysexits.h. A run that fails ends with 1.
const EX_USAGE: u8 = 64;

/// Prints what a command has to say.
#[expect(clippy::print_stdout, reason = "the answer of a command")]
pub fn answer<E: Display>(program: &str, text: Result<String, E>) -> ExitCode {
    match text {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(program, &error);
            ExitCode::from(EX_USAGE)
        }
    }
}

/// How long a thread for long work outlasts it. Tokenizers keep caches of their own for each thread, which a new one would
/// have to fill again.
const THREADS_LAST: Duration = Duration::from_secs(3_600);

/// Sets up logs and threads, and runs the program to its end.
pub fn run<E, F>(program: &str, log: &LogConfig, main: impl FnOnce(Logs) -> F) -> ExitCode
where
    E: Display,
    F: Future<Output = Result<(), E>>,
{
    let logs = match logs::init(&log.filter, log.format) {
        Ok(logs) => logs,
        Err(error) => return answer(program, Err(error)),
    };
    let threads =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_keep_alive(THREADS_LAST).build();
    let failure = match threads {
        Ok(threads) => match threads.block_on(main(logs)) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => format!("{error:#}"),
        },
        Err(error) => format!("can't start threads: {error}"),
    };
    complain(program, &failure);
    ExitCode::FAILURE
}

#[expect(clippy::print_stderr, reason = "logs may not be up")]
fn complain(program: &str, error: &impl Display) {
    eprintln!("{program}: {error:#}");
}
