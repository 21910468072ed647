//! One of our programs as a process: its configuration, and what it says of itself.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde_json::{Map, Value};

use super::metrics::Metrics;
use super::process::Process;
use super::{http, scratch, tools, wait};

/// kvpick's configuration file.
#[derive(Clone, Debug, Serialize)]
pub struct ServerConfig {
    /// Where Envoy reaches it.
    pub listen: SocketAddr,
    /// Where agents reach it.
    pub feed: SocketAddr,
    /// Its admin page.
    pub admin: SocketAddr,
    /// The models whose requests it reads.
    pub models: Vec<ModelConfig>,
    /// The replicas that it chooses from.
    pub replicas: Vec<ReplicaConfig>,
    /// Whether responses carry what was expected of the cache.
    pub evidence_header: bool,
    /// Any other field, or another value for one of these.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A model of [`ServerConfig`].
#[derive(Clone, Debug, Serialize)]
pub struct ModelConfig {
    /// As requests name it.
    pub name: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// The folder of its tokenizer.
    pub path: PathBuf,
    /// Whether its engine is so old that it leaves developer messages alone.
    pub keeps_developer_role: bool,
    /// Any other field.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A replica of [`ServerConfig`].
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaConfig {
    /// Where it serves, as Envoy knows it.
    pub address: SocketAddr,
    /// Its data-parallel rank.
    pub rank: u32,
    /// The node whose agent may speak of it.
    pub node: String,
    /// The models that it serves.
    pub models: Vec<String>,
}

/// An agent's configuration file.
#[derive(Clone, Debug, Serialize)]
pub struct AgentConfig {
    /// Its node's name.
    pub node: String,
    /// `host:port` of each server's feed.
    pub servers: Vec<String>,
    /// Its admin page.
    pub admin: SocketAddr,
    /// The engines of its node.
    pub engines: Vec<EngineConfig>,
    /// Any other field.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An engine of [`AgentConfig`].
#[derive(Clone, Debug, Serialize)]
pub struct EngineConfig {
    /// Where it serves, as Envoy knows it.
    pub address: SocketAddr,
    /// Its data-parallel rank.
    pub rank: u32,
    /// `on` or `off`.
    pub events: String,
    /// The endpoint that it publishes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscribe: Option<String>,
    /// The endpoint that it connects to, instead of [`Self::subscribe`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Its replay endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
}

/// A program of ours: started, killed, and started again with the same arguments.
#[derive(Debug)]
pub struct Program {
    name: String,
    binary: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    folder: PathBuf,
    http: reqwest::Client,
    addresses: BTreeMap<String, SocketAddr>,
    process: Option<Process>,
}

impl Program {
    /// `kvpick run` with `config`, not started yet. Its addresses: `ext_proc`, `feed`, `admin`.
    pub fn server(name: &str, folder: &Path, config: &ServerConfig) -> anyhow::Result<Self> {
        let file = write_config(name, folder, config)?;
        Self::new(name, folder, "kvpick", &["run".as_ref(), "--config".as_ref(), file.as_os_str()])
    }

    /// `kvpick-agent run` with `config`, not started yet. Its addresses: `admin`, and `listen-<engine>` for
    /// each socket that an engine connects to.
    pub fn agent(name: &str, folder: &Path, config: &AgentConfig) -> anyhow::Result<Self> {
        let file = write_config(name, folder, config)?;
        Self::new(name, folder, "kvpick-agent", &["run".as_ref(), "--config".as_ref(), file.as_os_str()])
    }

    /// Any of our programs, not started yet; `--addresses-file` is added to `args`.
    pub fn new(name: &str, folder: &Path, binary: &str, args: &[&OsStr]) -> anyhow::Result<Self> {
        Self::of_binary(name, folder, tools::program(binary)?, args)
    }

    fn of_binary(name: &str, folder: &Path, binary: PathBuf, args: &[&OsStr]) -> anyhow::Result<Self> {
        let mut args: Vec<OsString> = args.iter().map(|&arg| arg.to_owned()).collect();
        args.push("--addresses-file".into());
        args.push(addresses_file(name, folder).into());
        Ok(Self {
            name: name.to_owned(),
            binary,
            args,
            env: Vec::new(),
            folder: folder.to_owned(),
            http: http()?,
            addresses: BTreeMap::new(),
            process: None,
        })
    }

    /// The same with a variable in its environment.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The name that it was made with; its files in the folder start with it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts it and waits until it listens.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        self.spawn()?;
        self.listens().await
    }

    /// Starts it without waiting, so that several can start at a time; [`Self::listens`] waits.
    pub fn spawn(&mut self) -> anyhow::Result<()> {
        if self.is_running() {
            bail!("{} runs already", self.name);
        }
        let file = addresses_file(&self.name, &self.folder);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", file.display()));
            }
            Ok(()) | Err(_) => (),
        }
        let mut command = Command::new(&self.binary);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        self.process = Some(Process::start(&self.name, &self.folder, &mut command)?);
        Ok(())
    }

    /// Waits until it has bound its addresses. An error shows the end of its log.
    pub async fn listens(&mut self) -> anyhow::Result<()> {
        let file = addresses_file(&self.name, &self.folder);
        let process = self.process.as_mut().with_context(|| format!("{} was not started", self.name))?;
        let look = async || match kvpick_service::addresses::read(&file) {
            Ok(addresses) => Ok(Ok(addresses)),
            // An end is seen before the file only if the file never comes.
            Err(error) => match process.ended() {
                Some(status) => Ok(Err(status)),
                None => Err(error.to_string()),
            },
        };
        let log = self.folder.join(format!("{}.log", self.name));
        let outcome = wait::until("its addresses", wait::LONG, look).await;
        match outcome
            .with_context(|| format!("{}, whose log ends with\n{}", self.name, scratch::tail(&log)))?
        {
            Ok(addresses) => self.addresses = addresses,
            Err(status) => {
                bail!("{} ended at once ({status}); its log ends with\n{}", self.name, scratch::tail(&log))
            }
        }
        Ok(())
    }

    /// Whether it runs now.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.ended().is_none())
    }

    /// The address of `what`, as the program itself tells.
    pub fn address(&self, what: &str) -> anyhow::Result<SocketAddr> {
        let known = || self.addresses.keys().cloned().collect::<Vec<_>>().join(", ");
        let address = self.addresses.get(what).copied();
        address.with_context(|| format!("{} has no address `{what}`, only: {}", self.name, known()))
    }

    /// All its addresses, by name.
    #[must_use]
    pub fn addresses(&self) -> &BTreeMap<String, SocketAddr> {
        &self.addresses
    }

    /// The running process.
    pub fn process(&mut self) -> anyhow::Result<&mut Process> {
        self.process.as_mut().with_context(|| format!("{} does not run", self.name))
    }

    /// Ends it by SIGKILL; [`Self::start`] brings it back, on the same ports if those were given.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Ends it by SIGTERM, waiting at most `timeout`.
    pub async fn terminate(&mut self, timeout: Duration) -> anyhow::Result<ExitStatus> {
        let process = self.process.take().with_context(|| format!("{} does not run", self.name))?;
        process.terminate(timeout).await
    }

    /// Its `/status`.
    pub async fn status(&self) -> anyhow::Result<Value> {
        let page = self.page("admin", "/status").await?;
        serde_json::from_str(&page).with_context(|| format!("{}: /status is not JSON: {page}", self.name))
    }

    /// The metrics of its admin page.
    pub async fn metrics(&self) -> anyhow::Result<Metrics> {
        Ok(Metrics::parse(&self.page("admin", "/metrics").await?))
    }

    /// A page of the address `what`; an answer other than 200 is an error that shows it.
    pub async fn page(&self, what: &str, path: &str) -> anyhow::Result<String> {
        let url = format!("http://{}{path}", self.address(what)?);
        get(&self.http, &url).await.with_context(|| self.name.clone())
    }

    /// Waits until `/readyz` says so.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let look = async || self.page("admin", "/readyz").await.map_err(|error| format!("{error:#}"));
        wait::until(&format!("{} to be ready", self.name), wait::LONG, look).await.map(drop)
    }

    /// Everything that it has printed, over all its lives.
    #[must_use]
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.join(format!("{}.log", self.name))).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

/// The body of a page; an answer other than 200 is an error that shows it.
pub async fn get(http: &reqwest::Client, url: &str) -> anyhow::Result<String> {
    let answer = http.get(url).send().await.with_context(|| format!("no answer from {url}"))?;
    let status = answer.status();
    let text = answer.text().await.with_context(|| format!("{url}: the answer broke off"))?;
    if !status.is_success() {
        bail!("{url}: {status}: {}", text.trim());
    }
    Ok(text)
}

fn addresses_file(name: &str, folder: &Path) -> PathBuf {
    folder.join(format!("{name}.addresses.json"))
}

fn write_config(name: &str, folder: &Path, config: &impl Serialize) -> anyhow::Result<PathBuf> {
    let file = folder.join(format!("{name}.yaml"));
    // By way of a map: of two fields of one name, the one of `more` counts.
    let config = serde_json::to_value(config).with_context(|| format!("{name}: the configuration"))?;
    let text = serde_saphyr::to_string(&config).with_context(|| format!("{name}: the configuration"))?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvpick_service::{admin, drain::Drain, ready::Ready};
    use serde_json::json;

    use super::*;

    /// A shell script in the place of a program of ours; `$2` is its addresses file.
    fn script(folder: &Path, script: &str) -> Program {
        let args: [&OsStr; 3] = ["-c".as_ref(), script.as_ref(), "script".as_ref()];
        Program::of_binary("script", folder, "sh".into(), &args).unwrap()
    }

    #[tokio::test]
    async fn a_program_is_killed_and_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let text =
            r#"echo started; echo '{"feed":"127.0.0.1:9004"}' >"$2".new; mv "$2".new "$2"; exec sleep 1000"#;
        let mut program = script(folder.path(), text);
        program.start().await.unwrap();
        let first = program.process().unwrap().pid();
        assert_eq!(program.address("feed").unwrap(), "127.0.0.1:9004".parse().unwrap());
        assert!(program.address("ext_proc").unwrap_err().to_string().contains("feed"));
        assert!(program.start().await.is_err(), "it runs already");

        program.kill();
        assert!(!program.is_running());
        program.start().await.unwrap();
        assert!(program.is_running());
        assert_ne!(program.process().unwrap().pid(), first);
        assert_eq!(program.log(), "started\nstarted\n");
        program.terminate(wait::LONG).await.unwrap();
        assert!(program.process().is_err());
    }

    #[tokio::test]
    async fn a_program_that_ends_at_once_shows_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut program = script(folder.path(), "echo 'kvpick.yaml: no field `listen`' >&2; exit 2");
        let error = format!("{:#}", program.start().await.unwrap_err());
        assert!(error.contains("no field `listen`") && error.contains("status: 2"), "{error}");
    }

    #[tokio::test]
    async fn its_admin_page_is_read() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let drain = Drain::new();
        let ready = Ready::default();
        let hold = ready.hold("the copy of node-a");
        let registry = prometheus::Registry::new();
        let picks = prometheus::IntCounter::new("picks_total", "Picks.").unwrap();
        registry.register(Box::new(picks.clone())).unwrap();
        let status = Arc::new(|| json!({"replicas": []}));
        let page = admin::Admin {
            registry,
            ready,
            status,
            config: Arc::new(|| Value::Null),
            logs: None,
            routes: Default::default(),
        };
        drain.spawn("admin", admin::serve(listener, page, drain.clone()));

        let folder = tempfile::tempdir().unwrap();
        let text =
            format!("echo '{{\"admin\":\"{address}\"}}' >\"$2\".new; mv \"$2\".new \"$2\"; exec sleep 1000");
        let mut program = script(folder.path(), &text);
        program.start().await.unwrap();
        picks.inc_by(2);
        assert_eq!(program.metrics().await.unwrap().sum("picks_total", &[]), 2.0);
        assert_eq!(program.status().await.unwrap(), json!({"replicas": []}));
        let error = format!("{:#}", program.page("admin", "/readyz").await.unwrap_err());
        assert!(error.contains("503") && error.contains("node-a"), "{error}");
        drop(hold);
        program.ready().await.unwrap();
    }

    #[test]
    fn configurations_are_yaml_with_the_extra_fields_beside_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let address: SocketAddr = "127.0.0.1:9005".parse().unwrap();
        let listens = EngineConfig {
            address,
            rank: 0,
            events: "on".to_owned(),
            subscribe: None,
            listen: Some("tcp://127.0.0.1:5557".to_owned()),
            replay: None,
        };
        let config = AgentConfig {
            node: "node-0".to_owned(),
            servers: vec!["127.0.0.1:9004".to_owned()],
            admin: address,
            engines: vec![listens],
            more: Map::from_iter([("flush_ms".to_owned(), json!(250))]),
        };
        let file = write_config("agent", folder.path(), &config).unwrap();
        let read: Value = kvpick_service::config::load(&file).unwrap();
        assert_eq!(read["flush_ms"], 250);
        assert_eq!(read["admin"], "127.0.0.1:9005");
        assert_eq!(read["engines"][0]["events"], "on");
        assert_eq!(read["engines"][0]["listen"], "tcp://127.0.0.1:5557");
        assert!(read["engines"][0].get("subscribe").is_none());
    }
}
