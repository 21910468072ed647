//! The addresses that a program really bound.
//!
//! Whoever starts a program with port 0 reads them from a file (`--addresses-file`): JSON, from the name of
//! what listens to `ip:port`. The file appears whole and after everything is bound, so waiting for it is
//! waiting for the program.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

/// Writes `addresses` to `path`; a reader sees all of it or the old file.
pub fn write(path: &Path, addresses: &BTreeMap<String, SocketAddr>) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(addresses)?;
    text.push('\n');
    // In the same folder, as a rename is atomic only within a file system.
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, path)
}

/// Reads what [`write()`] wrote. `NotFound` means that the program is not up yet.
pub fn read(path: &Path) -> io::Result<BTreeMap<String, SocketAddr>> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses.json");
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);

        let mut addresses = BTreeMap::from([("feed".to_owned(), "127.0.0.1:9004".parse().unwrap())]);
        write(&path, &addresses).unwrap();
        assert_eq!(read(&path).unwrap(), addresses);

        addresses.insert("admin".to_owned(), "[::1]:9090".parse().unwrap());
        write(&path, &addresses).unwrap();
        assert_eq!(read(&path).unwrap(), addresses);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
