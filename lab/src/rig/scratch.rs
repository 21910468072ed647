//! A folder for the files of a test's processes.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::tools;

/// How many lines of each log a failing test shows.
const TAIL: usize = 25;

/// A folder below `target/tmp/` that goes when it is dropped, but stays when the test fails: the end of each
/// log in it is then printed, and where the rest is.
///
/// Make it before the processes that write into it, so that it is dropped after them.
#[derive(Debug)]
pub struct Scratch {
    folder: Option<tempfile::TempDir>,
    path: PathBuf,
}

impl Scratch {
    /// An empty folder whose name starts with `name`.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let above = tools::profile_folder()?.parent().unwrap_or_else(|| Path::new(".")).join("tmp");
        std::fs::create_dir_all(&above).with_context(|| format!("cannot create {}", above.display()))?;
        let folder = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir_in(&above)
            .with_context(|| format!("cannot create a folder in {}", above.display()))?;
        let path = folder.path().to_owned();
        Ok(Self { folder: Some(folder), path })
    }

    /// The folder, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    #[expect(clippy::print_stderr, reason = "read by a person whose test has failed")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Some(folder) = self.folder.take() else { return };
        for (name, tail) in tails(&folder.keep()) {
            eprintln!("--- the end of {name}\n{tail}");
        }
        eprintln!("--- all files of this test are in {}", self.path.display());
    }
}

/// The last lines of each log in `folder`, by name.
#[must_use]
pub fn tails(folder: &Path) -> Vec<(String, String)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let logs = entries.flatten().map(|entry| entry.path());
    let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let mut tails: Vec<_> =
        logs.map(|path| (path.file_name().unwrap_or_default().display().to_string(), tail(&path))).collect();
    tails.sort();
    tails
}

/// The last lines of the file at `path`; empty when there is none.
#[must_use]
pub fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_goes_when_all_is_well_and_stays_when_not() {
        let scratch = Scratch::new("well").unwrap();
        let path = scratch.path().to_owned();
        assert!(path.is_dir());
        drop(scratch);
        assert!(!path.exists());

        let scratch = Scratch::new("ill").unwrap();
        let path = scratch.path().to_owned();
        let failed = std::thread::spawn(move || {
            let _scratch = scratch;
            panic!("on purpose");
        });
        assert!(failed.join().is_err());
        assert!(path.is_dir());
        std::fs::remove_dir(path).unwrap();
    }

    #[test]
    fn a_tail_is_the_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..100).map(|line| format!("line {line}\n")).collect();
        std::fs::write(folder.path().join("kvpick.log"), text).unwrap();
        std::fs::write(folder.path().join("kvpick.yaml"), "listen: 1").unwrap();
        let tails = tails(folder.path());
        assert_eq!(tails.len(), 1);
        assert_eq!(tails[0].0, "kvpick.log");
        assert_eq!(tails[0].1.lines().count(), TAIL);
        assert!(tails[0].1.ends_with("line 99"));
    }
}
