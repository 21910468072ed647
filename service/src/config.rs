//! One YAML file into one type.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Why a configuration file could not be used.
///
/// The text is meant for the person who wrote the file: it starts with the file's name.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there, or may not be read.
    #[error("{}: cannot read the configuration: {source}", path.display())]
    Read {
        /// The file that was asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not YAML, or a field is unknown, missing or of a wrong type. The message holds line,
    /// column and the lines around the mistake.
    #[error("{}: {message}", path.display())]
    Parse {
        /// The file that was read.
        path: PathBuf,
        /// Where and what, several lines long.
        message: String,
    },
    /// Fields have values that do not fit, or not together. All of them, a line each.
    #[error("{}:\n  {}", path.display(), mistakes.join("\n  "))]
    Mistakes {
        /// The file that was read.
        path: PathBuf,
        /// Field, what is wrong, and the remedy.
        mistakes: Vec<String>,
    },
}

/// Reads the YAML file at `path` into `T`.
///
/// Let `T` and its parts carry `#[serde(deny_unknown_fields)]`, so that a misspelt field is an error and not
/// a silent default. What goes beyond types (ranges, references between fields) is the caller's to check.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse(&text).map_err(|message| ConfigError::Parse { path: path.to_owned(), message })
}

/// Reads the YAML file at `path`, and has `check` look at what types do not tell. It reports all mistakes.
pub fn load_checked<T, C, M>(
    path: &Path,
    check: impl FnOnce(T) -> Result<C, Vec<M>>,
) -> Result<C, ConfigError>
where
    T: DeserializeOwned,
    M: ToString,
{
    check(load(path)?).map_err(|mistakes| ConfigError::Mistakes {
        path: path.to_owned(),
        mistakes: mistakes.iter().map(M::to_string).collect(),
    })
}

/// Reads YAML text into `T`; the error is the message of [`ConfigError::Parse`].
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_saphyr::from_str(text).map_err(|error| error.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Eq, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        listen: std::net::SocketAddr,
        #[serde(default)]
        replicas: Vec<Replica>,
    }

    #[derive(Debug, Eq, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Replica {
        name: String,
        rank: u32,
    }

    fn mistake(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.yaml");
        std::fs::write(&path, text).unwrap();
        let message = load::<Sample>(&path).unwrap_err().to_string();
        assert!(message.starts_with(path.to_str().unwrap()), "{message}");
        message
    }

    #[test]
    fn mistakes_are_listed_under_the_files_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.yaml");
        std::fs::write(&path, "listen: 127.0.0.1:9002").unwrap();
        let check = |_: Sample| Err::<(), _>(vec!["replicas: none; name one", "listen: taken; use another"]);
        let message = load_checked(&path, check).unwrap_err().to_string();
        let want = format!("{}:\n  replicas: none; name one\n  listen: taken; use another", path.display());
        assert_eq!(message, want);
    }

    #[test]
    fn a_right_file_is_read() {
        let text = "listen: 127.0.0.1:9002\nreplicas:\n  - {name: a, rank: 1}\n";
        let sample: Sample = parse(text).unwrap();
        assert_eq!(sample.listen, "127.0.0.1:9002".parse().unwrap());
        assert_eq!(sample.replicas, [Replica { name: "a".to_owned(), rank: 1 }]);
    }

    #[test]
    fn a_misspelt_field_is_named_with_its_line() {
        let message = mistake("listen: 127.0.0.1:9002\nreplica: []\n");
        assert!(message.contains("replica"), "{message}");
        assert!(message.contains("line 2"), "{message}");
    }

    #[test]
    fn a_wrong_type_shows_the_field_and_its_line() {
        let message = mistake("listen: 127.0.0.1:9002\nreplicas:\n  - name: a\n    rank: first\n");
        assert!(message.contains("rank: first"), "{message}");
        assert!(message.contains("line 4"), "{message}");
    }

    #[test]
    fn a_missing_field_is_named() {
        let message = mistake("replicas: []\n");
        assert!(message.contains("listen"), "{message}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let message = load::<Sample>(Path::new("/nonexistent/kvpick.yaml")).unwrap_err().to_string();
        assert!(message.contains("/nonexistent/kvpick.yaml"), "{message}");
    }
}
