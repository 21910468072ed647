//! Where a model's prompts are made.

use std::path::{Path, PathBuf};

use kvpick_core::{prompts::LoadError, request::Api};
use reqwest::Url;
use serde::{Deserialize, Serialize};

use super::ModelConfig;

/// Who makes a model's prompts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceConfig {
    /// This server, from files in the model's folder.
    #[default]
    Local,
    /// Another server, for each request.
    Remote,
    /// This server, and another one for what it can't make or has been seen to make wrong.
    LocalThenRemote,
}

impl SourceConfig {
    /// Label in status and logs; as in the file.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
            Self::LocalThenRemote => "local-then-remote",
        }
    }

    /// Whether the model's files are read.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Local | Self::LocalThenRemote)
    }

    /// Whether another server is asked.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::Remote | Self::LocalThenRemote)
    }
}

/// A server that makes prompts: `vllm launch render`, or any vLLM server of the model.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteConfig {
    /// Base URLs, `http://` alone; asked in turn.
    pub urls: Vec<String>,
    /// Asks replicas that serve the model, in place of `urls`.
    pub from: Option<RemoteFrom>,
    /// File with the key that the server wants (vLLM's `--api-key`), read at the start.
    pub api_key_file: Option<PathBuf>,
    /// How long an answer may take, in milliseconds; never longer than what is left of the decision's budget.
    pub timeout_ms: u64,
    /// Most requests that one server is asked at a time.
    pub max_in_flight: usize,
}

/// Which servers are asked that are known by another part of the file.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteFrom {
    /// Replicas that serve the model and are not out.
    Replicas,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self { urls: Vec::new(), from: None, api_key_file: None, timeout_ms: 250, max_in_flight: 64 }
    }
}

impl ModelConfig {
    /// What is wrong with the source of this model's prompts; `at` is the model's place in the file.
    pub(super) fn source_mistakes(&self, at: &str, found: &mut Vec<String>) {
        if self.source.is_local() && self.path.as_os_str().is_empty() {
            found.push(format!(
                "{at}.path: missing; give the folder with the model's tokenizer.json, or set source: remote"
            ));
        }
        match &self.remote {
            Some(remote) if self.source.is_remote() => remote.mistakes(&format!("{at}.remote"), found),
            Some(_) => found.push(format!(
                "{at}.remote: is not asked with source: local; remove it, or set source: local-then-remote"
            )),
            None if self.source.is_remote() => found.push(format!(
                "{at}.remote: missing; name urls of servers that render, as of `vllm launch render`, or set \
                 from: replicas"
            )),
            None => {}
        }
    }

    /// Files that are wanted and not there.
    pub(super) fn missing_files(&self, at: &str, found: &mut Vec<String>) {
        let file = self.path.join("tokenizer.json");
        if self.source.is_local() && !self.path.as_os_str().is_empty() && !file.is_file() {
            let listed = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
            let names: Vec<_> = listed.filter_map(|it| it.file_name().into_string().ok()).collect();
            found.push(match LoadError::without_tokenizer_json(&names) {
                LoadError::NoTokenizer => {
                    let file = file.display();
                    format!("{at}.path: there is no {file}; give the folder with the model's tokenizer.json")
                }
                other => format!("{at}.path: {}: {other}", self.path.display()),
            });
        }
        let key = self.remote.as_ref().and_then(|it| it.api_key_file.as_ref());
        if let Some(Err(problem)) = key.map(|file| read_key(file)) {
            found.push(format!("{at}.remote.api_key_file: {problem}"));
        }
    }
}

impl RemoteConfig {
    fn mistakes(&self, at: &str, found: &mut Vec<String>) {
        match (self.urls.is_empty(), self.from) {
            (true, None) => {
                found.push(format!("{at}.urls: the list is empty; name a server, or set from: replicas"))
            }
            (false, Some(_)) => found.push(format!("{at}.from: is given beside urls; keep one")),
            (true, Some(_)) | (false, None) => {}
        }
        for (i, url) in self.urls.iter().enumerate() {
            if let Err(problem) = base_url(url) {
                found.push(format!("{at}.urls[{i}]: {url:?}: {problem}"));
            }
        }
        let ranges =
            [("timeout_ms", self.timeout_ms, 60_000), ("max_in_flight", self.max_in_flight as u64, 65_536)];
        for (field, value, most) in ranges {
            if !(1..=most).contains(&value) {
                found.push(format!("{at}.{field}: {value} is out of range; use 1 to {most}"));
            }
        }
    }
}

/// A base URL as paths are put behind it.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn base_url(text: &str) -> Result<String, String> {
    let url = Url::parse(text).map_err(|error| format!("{error}; write http://host:port"))?;
    let problem = match url.scheme() {
        "http" if url.host().is_none() => "has no host; write http://host:port",
        "http" if !url.username().is_empty() || url.password().is_some() => {
            "holds a password; use api_key_file"
        }
        "http" if url.query().is_some() || url.fragment().is_some() => {
            "goes on behind the path; write http://host:port"
        }
        "http" if Api::ALL.iter().any(|it| url.path().trim_end_matches('/').ends_with(it.path())) => {
            "is the URL of a route; write http://host:port"
        }
        "http" => return Ok(url.as_str().trim_end_matches('/').to_owned()),
        "https" => {
            "TLS is not spoken here; write http://, and let a proxy beside this server speak TLS if it must"
        }
        _ => "is no http:// URL; write http://host:port",
    };
    Err(problem.to_owned())
}

/// The key in that file.
///
/// # Errors
/// A file that can't be read, or holds nothing that a header can.
pub fn read_key(file: &Path) -> Result<String, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("can't read {name}: {error}; give a file that can be read"))?;
    let key = text.trim();
    let is_plain = !key.is_empty() && key.bytes().all(|it| it.is_ascii_graphic());
    if is_plain {
        Ok(key.to_owned())
    } else {
        Err(format!("{name} holds no key; write the key alone, on one line"))
    }
}
