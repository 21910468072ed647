//! Files that let the next run of this agent go on from what this one knows: one for each engine.
//!
//! A file that is old, lost or cut short costs knowledge and nothing else, as the core believes none of it before the
//! engine has proved it. So the agent goes on whatever happens to them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use kvpick_agent_core::{
    engine::Revision,
    mirror::Kept,
    node::Node,
    snapshot::{MAX_BYTES, Snapshot},
};
use kvpick_proto::words::{Handle, ReplicaName};
use kvpick_service::drain::Drain;
use tokio::{task::spawn_blocking, time::sleep};

use crate::shared::{Shared, now};

/// Files are written at most this often. With a replay nothing is lost by it, and without one what counts is the file
/// of a shutdown.
const EVERY: Duration = Duration::from_secs(5);

/// What the name of each of our files ends with.
const ENDING: &str = "state";

/// And of one that is not written to its end yet; one that an agent which was killed has left.
const UNFINISHED: &str = "state.tmp";

/// Files of engines that are not configured any more, as of pods that are gone, are removed after so long.
const REMOVE_AFTER: Duration = Duration::from_secs(24 * 3_600);

/// How it stands with one engine's file, for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateFile {
    pub(crate) written: Option<Instant>,
    pub(crate) writes: u64,
    pub(crate) failures: u64,
    /// Why the last write failed, if it did.
    pub(crate) error: Option<String>,
    /// Why the file that was there at the start was not read, if so.
    pub(crate) unreadable: Option<String>,
}

/// How it stands with each engine's file.
pub(crate) type StateFiles = BTreeMap<Handle, StateFile>;

/// Where an engine's file is.
fn path(folder: &Path, name: ReplicaName) -> PathBuf {
    let safe = |it: char| if it.is_ascii_alphanumeric() || matches!(it, '.' | '-') { it } else { '_' };
    let name: String = name.to_string().chars().map(safe).collect();
    folder.join(format!("{name}.{ENDING}"))
}

/// Reads what an earlier run left of each engine, and has the engines go on from it.
pub(crate) async fn restore(folder: &Path, node: &mut Node) -> StateFiles {
    let engines: Vec<_> = node.engines().iter().map(|(handle, it)| (*handle, it.config().name)).collect();
    let ours: Vec<_> = engines.iter().map(|(_, name)| path(folder, *name)).collect();
    let of_others = folder.to_owned();
    // How it went is in the log; nothing depends on it.
    drop(spawn_blocking(move || tidy(&of_others, &ours)).await);
    let mut files = StateFiles::new();
    for (handle, name) in engines {
        let (snapshot, file) = left_of(folder, name).await;
        files.insert(handle, file);
        let (now, unix_ms) = now();
        if let (Some(snapshot), Some(engine)) = (snapshot, node.engine(handle)) {
            engine.restore(snapshot, now, unix_ms);
        }
    }
    files
}

/// What an earlier run left of an engine, and how it stands with the file.
pub(crate) async fn left_of(folder: &Path, name: ReplicaName) -> (Option<Snapshot>, StateFile) {
    let path = path(folder, name);
    let at = path.clone();
    match spawn_blocking(move || read(&at)).await.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(None) => (None, StateFile::default()),
        Ok(Some(snapshot)) => {
            tracing::info!(engine = %name, blocks = snapshot.blocks.len(), last = snapshot.position.last, "an earlier run knew this, which is to be proved");
            (Some(snapshot), StateFile::default())
        }
        Err(reason) => {
            tracing::warn!(engine = %name, file = %path.display(), reason, "what an earlier run left can't be used; it is overwritten later");
            (None, StateFile { unreadable: Some(reason), ..StateFile::default() })
        }
    }
}

/// One file; `None` if there is none.
fn read(path: &Path) -> Result<Option<Snapshot>, String> {
    let metadata = match fs::metadata(path) {
        Ok(it) => it,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if !metadata.is_file() {
        return Err("it is no file".to_owned());
    }
    let mut bytes = Vec::new();
    // One byte more, so that too much is noticed.
    let most = MAX_BYTES as u64 + 1;
    let file = File::open(path).map_err(|it| it.to_string())?;
    file.take(most).read_to_end(&mut bytes).map_err(|it| it.to_string())?;
    Snapshot::decode(&bytes).map(Some).map_err(|it| it.to_string())
}

/// Removes files of engines that are long gone.
fn tidy(folder: &Path, ours: &[PathBuf]) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|it| Some(it.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_of_us = [ENDING, UNFINISHED].iter().any(|it| name.ends_with(&format!(".{it}")));
        if !is_of_us || ours.contains(&path) {
            continue;
        }
        let age = fs::metadata(&path).and_then(|it| it.modified()).map(|it| it.elapsed().unwrap_or_default());
        if age.is_ok_and(|it| it > REMOVE_AFTER) {
            match fs::remove_file(&path) {
                Ok(()) => {
                    tracing::info!(file = %path.display(), "removed: it is of an engine that is not configured any more")
                }
                Err(error) => tracing::warn!(file = %path.display(), %error, "can't be removed"),
            }
        } else {
            tracing::info!(file = %path.display(), "left: it is of an engine that is not configured");
        }
    }
}

/// Writes all files whenever something has changed, and once more when the drain starts.
pub(crate) async fn run(shared: Arc<Shared>, folder: PathBuf, drain: Drain) {
    let mut writer = Writer { folder, written: BTreeMap::new(), room: Vec::new() };
    loop {
        let ends = tokio::select! {
            biased;
            () = drain.started() => true,
            () = sleep(EVERY) => false,
        };
        let engines: Vec<_> = shared.lock().node.engines().keys().copied().collect();
        for handle in &engines {
            writer.write(&shared, *handle).await;
        }
        writer.written.retain(|it, _| engines.contains(it));
        if ends {
            return;
        }
    }
}

struct Writer {
    folder: PathBuf,
    /// As of when each file is.
    written: BTreeMap<Handle, Revision>,
    room: Vec<Kept>,
}

impl Writer {
    async fn write(&mut self, shared: &Shared, handle: Handle) {
        let (name, revision, snapshot) = {
            let state = shared.lock();
            let Some(engine) = state.node.engines().get(&handle) else { return };
            // While nothing is known the old file stays: it is believed by nobody whom it does not concern.
            let Some(revision) = engine.revision() else { return };
            if self.written.get(&handle) == Some(&revision) {
                return;
            }
            (engine.config().name, revision, engine.snapshot(std::mem::take(&mut self.room)))
        };
        let Some(mut snapshot) = snapshot else { return };
        let (path, folder) = (path(&self.folder, name), self.folder.clone());
        let task = spawn_blocking(move || {
            let result = write(&folder, &path, &mut snapshot);
            (result, snapshot)
        });
        let result = match task.await {
            Ok((result, snapshot)) => {
                self.room = snapshot.blocks;
                result
            }
            Err(error) => Err(error.to_string()),
        };
        let mut state = shared.lock();
        let file = state.files.entry(handle).or_default();
        match result {
            Ok(()) => {
                self.written.insert(handle, revision);
                file.writes += 1;
                file.written = Some(Instant::now());
                if file.error.take().is_some() {
                    tracing::info!(engine = %name, "its state is written again");
                }
            }
            Err(reason) => {
                file.failures += 1;
                if file.error.as_ref() != Some(&reason) {
                    tracing::warn!(engine = %name, folder = %self.folder.display(), reason, "its state can't be written: a restart of this agent may cost what it knows; check `state` in its configuration");
                    file.error = Some(reason);
                }
            }
        }
    }
}

/// Whoever reads the file sees all of it, or the one before.
fn write(folder: &Path, path: &Path, snapshot: &mut Snapshot) -> Result<(), String> {
    let bytes = snapshot.encode().map_err(|it| it.to_string())?;
    let beside = path.with_extension(UNFINISHED);
    let write = || {
        fs::create_dir_all(folder)?;
        let mut file = File::create(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error: io::Error| {
        // Half a file would take up room on a full disk.
        drop(fs::remove_file(&beside));
        error.to_string()
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_is_old_and_of_no_engine_is_removed_unfinished_files_too() {
        let folder = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - REMOVE_AFTER - Duration::from_secs(60);
        for name in ["ours.state", "gone.state", "gone.state.tmp", "theirs.tmp", "state"] {
            File::create(folder.path().join(name)).unwrap().set_modified(old).unwrap();
        }
        for name in ["new.state", "new.state.tmp"] {
            File::create(folder.path().join(name)).unwrap();
        }
        tidy(folder.path(), &[folder.path().join("ours.state")]);
        let left = fs::read_dir(folder.path()).unwrap();
        let mut left: Vec<_> = left.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["new.state", "new.state.tmp", "ours.state", "state", "theirs.tmp"]);
    }
}
