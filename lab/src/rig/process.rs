//! A child process whose output goes to a file and that ends with its owner.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::wait;

/// A running child. Dropping it kills the child, so that a test that fails leaves nothing behind.
///
/// The child stays in the process group of its parent: what ends the group (a test runner's timeout, Ctrl-C)
/// ends it too.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    leave: bool,
}

impl Process {
    /// Starts `command`; what it prints is added to `<folder>/<name>.log`.
    pub fn start(name: &str, folder: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let out = open().with_context(|| format!("cannot write {}", log.display()))?;
        let err = out.try_clone().with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { name: name.to_owned(), child, log, leave: false })
    }

    /// The name that it was started with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The file with everything that it printed.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Ends it without a chance to say goodbye (SIGKILL), and waits until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    /// Asks it to end (SIGTERM) and waits at most `timeout` for it.
    ///
    /// An error names what it still did not do; it is killed then.
    pub async fn terminate(mut self, timeout: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let what = format!("the end of {} (pid {}) after SIGTERM", self.name, self.pid());
        wait::until(&what, timeout, async || self.ended().ok_or_else(|| "it runs".to_owned())).await
    }

    /// Freezes it (SIGSTOP): its sockets stay open and nothing answers.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`Self::stop`] (SIGCONT).
    pub fn cont(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Gives it up: it goes on running when its owner has ended.
    pub fn leave(&mut self) {
        self.leave = true;
    }

    fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        // A child that was waited for has given its id back, and another process may have it.
        if let Some(status) = self.ended() {
            bail!("{} has ended already ({status})", self.name);
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {} (pid {})", self.name, self.pid()))
    }

    fn end(&mut self) {
        // Both fail only when it has ended already.
        let _ended = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.leave {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &Path, script: &str) -> Process {
        Process::start("shell", folder, Command::new("sh").args(["-c", script])).unwrap()
    }

    async fn logged(process: &Process, line: &str) {
        let look = async || {
            let text = std::fs::read_to_string(process.log()).unwrap_or_default();
            if text.contains(line) { Ok(()) } else { Err(text) }
        };
        wait::until(line, wait::LONG, look).await.unwrap();
    }

    /// `T` while stopped, `S` while asleep, and so on; `None` when there is no such process.
    fn state(pid: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    }

    #[tokio::test]
    async fn a_child_ends_when_asked_and_its_output_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let process =
            shell(folder.path(), "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done");
        logged(&process, "up").await;
        let log = process.log().to_owned();
        let status = process.terminate(wait::LONG).await.unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(std::fs::read_to_string(log).unwrap(), "up\nbye\n");
    }

    #[tokio::test]
    async fn a_child_that_does_not_end_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let process = shell(folder.path(), "trap '' TERM; echo up; while :; do sleep 0.01; done");
        logged(&process, "up").await;
        let pid = process.pid();
        let error = process.terminate(Duration::from_millis(50)).await.unwrap_err().to_string();
        assert!(error.contains("shell"), "{error}");
        assert_eq!(state(pid), None);
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_child_can_be_frozen_and_ends_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell(folder.path(), "echo up; exec sleep 1000");
        logged(&process, "up").await;
        let pid = process.pid();
        let is = async |wanted: &[char]| {
            let look = async || match state(pid) {
                Some(now) if wanted.contains(&now) => Ok(()),
                other => Err(format!("{other:?}")),
            };
            wait::until("its state", wait::LONG, look).await.unwrap();
        };
        process.stop().unwrap();
        is(&['T']).await;
        process.cont().unwrap();
        is(&['S', 'R']).await;
        drop(process);
        assert_eq!(state(pid), None);
    }
}
