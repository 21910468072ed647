//! Envoy with the configs of `envoy/standalone/`, and other addresses in them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::process::Process;
use super::program::get;
use super::{http, scratch, tools, wait};

/// Which of the configs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Mode {
    /// `envoy.yaml`: kvpick chooses, the body is buffered.
    Buffered,
    /// `full-duplex.yaml`: kvpick chooses, the body is streamed through it.
    FullDuplex,
    /// `round-robin.yaml`: replicas in turn.
    RoundRobin,
}

impl Mode {
    /// The config as it is in the repository.
    pub fn config(self) -> anyhow::Result<Value> {
        let (name, text) = match self {
            Self::Buffered => ("envoy.yaml", include_str!("../../../envoy/standalone/envoy.yaml")),
            Self::FullDuplex => {
                ("full-duplex.yaml", include_str!("../../../envoy/standalone/full-duplex.yaml"))
            }
            Self::RoundRobin => {
                ("round-robin.yaml", include_str!("../../../envoy/standalone/round-robin.yaml"))
            }
        };
        serde_saphyr::from_str(text).with_context(|| format!("envoy/standalone/{name}"))
    }

    /// Whether kvpick takes part.
    #[must_use]
    pub fn has_picker(self) -> bool {
        self != Self::RoundRobin
    }
}

/// The addresses that go into a config. Port 0 lets the system choose, for the first two.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Where clients come.
    pub listener: SocketAddr,
    /// Envoy's admin page.
    pub admin: SocketAddr,
    /// kvpick; not used with [`Mode::RoundRobin`].
    pub picker: SocketAddr,
    /// The replicas.
    pub engines: Vec<SocketAddr>,
    /// Waits long for kvpick. For tests of what it says on a machine that may be busy with other things; how long it
    /// takes is not what they test.
    pub patient: bool,
    /// Shows kvpick the bodies of answers in this mode; `None` leaves it as the config has it.
    pub response_body_mode: Option<&'static str>,
}

/// In place of the config's own time for an answer of kvpick's, and for its health.
const PATIENCE: &str = "20s";

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    /// The first of its listeners.
    listener: SocketAddr,
    listeners: BTreeMap<String, SocketAddr>,
    admin: SocketAddr,
    access_log: PathBuf,
    http: reqwest::Client,
}

impl Envoy {
    /// Starts Envoy with the config of `mode`, and waits until it takes requests. `name` is the start of its
    /// files' names in `folder`.
    pub async fn start(name: &str, folder: &Path, mode: Mode, addresses: &Addresses) -> anyhow::Result<Self> {
        let access_log = folder.join(format!("{name}.access.log"));
        let config = with_addresses(mode.config()?, addresses, &access_log)?;
        Self::start_config(&tools::envoy()?, name, folder, &config, access_log).await
    }

    /// Starts the Envoy at `binary` with any config that has an admin page and a listener.
    pub async fn start_config(
        binary: &Path,
        name: &str,
        folder: &Path,
        config: &Value,
        access_log: PathBuf,
    ) -> anyhow::Result<Self> {
        let file = folder.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(config).context("the config")?;
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let admin_file = folder.join(format!("{name}.admin"));
        let _absent_at_first = std::fs::remove_file(&admin_file);

        let mut command = Command::new(binary);
        command.arg("-c").arg(&file).arg("--admin-address-path").arg(&admin_file);
        // Several at a time: no shared memory between them.
        command.arg("--disable-hot-restart");
        command.args(["--concurrency", "2", "--file-flush-interval-msec", "50", "--log-level", "warning"]);
        let mut process = Process::start(name, folder, &mut command)?;

        let http = http()?;
        let admin = admin_address(&mut process, &admin_file).await?;
        let look = async || get(&http, &format!("http://{admin}/ready")).await.map_err(|e| format!("{e:#}"));
        wait::until("Envoy to be ready", wait::LONG, look)
            .await
            .with_context(|| format!("{name}'s log ends with\n{}", scratch::tail(process.log())))?;
        let listeners = get(&http, &format!("http://{admin}/listeners?format=json")).await?;
        let (listener, listeners) = listener_addresses(&listeners)
            .with_context(|| format!("Envoy's listeners, which are {}", listeners.trim()))?;
        Ok(Self { process, listener, listeners, admin, access_log, http })
    }

    /// Where clients come, by the names of the listeners.
    #[must_use]
    pub fn listeners(&self) -> &BTreeMap<String, SocketAddr> {
        &self.listeners
    }

    /// Where clients come.
    #[must_use]
    pub fn listener(&self) -> SocketAddr {
        self.listener
    }

    /// The admin page.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Envoy's counter or gauge of this full name; 0 for one that it does not have (yet).
    pub async fn stat(&self, name: &str) -> anyhow::Result<u64> {
        let pattern = format!("^{}$", name.replace('.', "\\."));
        let mut url =
            reqwest::Url::parse(&format!("http://{}/stats", self.admin)).context("the stats page")?;
        url.query_pairs_mut().append_pair("format", "json").append_pair("filter", &pattern);
        let page = get(&self.http, url.as_str()).await?;
        let stats: Value = serde_json::from_str(&page).context("Envoy's stats")?;
        let found = stats["stats"].as_array().into_iter().flatten().find(|stat| stat["name"] == name);
        Ok(found.and_then(|stat| stat["value"].as_u64()).unwrap_or(0))
    }

    /// A counter of the picker's filter, such as `failure_mode_allowed`.
    pub async fn picker_stat(&self, name: &str) -> anyhow::Result<u64> {
        self.stat(&format!("http.openai.ext_proc.picker.{name}")).await
    }

    /// The access log so far: one value for each finished request, a few milliseconds after its end.
    pub fn access_log(&self) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.access_log)
            .with_context(|| format!("cannot read {}", self.access_log.display()))?;
        // What follows the last line feed is still being written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }
}

/// `config` with other addresses and another access log.
fn with_addresses(mut config: Value, addresses: &Addresses, access_log: &Path) -> anyhow::Result<Value> {
    let log = access_log.to_str().context("the folder's path is not UTF-8")?;
    set(&mut config, "/admin/address", socket_address(addresses.admin))?;
    let listener = "/static_resources/listeners/0";
    set(&mut config, &format!("{listener}/address"), socket_address(addresses.listener))?;
    let manager = format!("{listener}/filter_chains/0/filters/0/typed_config");
    set(&mut config, &format!("{manager}/access_log/0/typed_config/path"), json!(log))?;

    let filters = config.pointer_mut(&format!("{manager}/http_filters")).and_then(Value::as_array_mut);
    if let Some(picker) = filters.into_iter().flatten().find(|it| it["name"] == "picker") {
        if addresses.patient
            && let Some(timeout) = picker.pointer_mut("/typed_config/message_timeout")
        {
            *timeout = json!(PATIENCE);
        }
        if let Some(mode) = addresses.response_body_mode {
            set(picker, "/typed_config/processing_mode/response_body_mode", json!(mode))?;
        }
    }
    let clusters = config.pointer_mut("/static_resources/clusters").and_then(Value::as_array_mut);
    for cluster in clusters.context("the config has no clusters")? {
        let hosts = match cluster["name"].as_str() {
            Some("picker") => vec![addresses.picker],
            Some("engines") => addresses.engines.clone(),
            other => bail!("the config has a cluster {other:?}, whose addresses nobody knows"),
        };
        let hosts = hosts.into_iter().map(|host| json!({"endpoint": {"address": socket_address(host)}}));
        set(cluster, "/load_assignment/endpoints/0/lb_endpoints", hosts.collect())?;
        if addresses.patient
            && let Some(timeout) = cluster.pointer_mut("/health_checks/0/timeout")
        {
            *timeout = json!(PATIENCE);
        }
    }
    Ok(config)
}

fn set(config: &mut Value, pointer: &str, value: Value) -> anyhow::Result<()> {
    *config.pointer_mut(pointer).with_context(|| format!("the config has no {pointer}"))? = value;
    Ok(())
}

fn socket_address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// Envoy writes the address of its admin page into a file when it is bound.
async fn admin_address(process: &mut Process, file: &Path) -> anyhow::Result<SocketAddr> {
    let look = async || match std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()) {
        Some(address) => Ok(Some(address)),
        None => match process.ended() {
            Some(_) => Ok(None),
            None => Err("no admin address yet".to_owned()),
        },
    };
    let found = wait::until("Envoy's admin page", wait::LONG, look).await?;
    found.with_context(|| format!("Envoy ended at once; its log ends with\n{}", scratch::tail(process.log())))
}

fn listener_addresses(page: &str) -> anyhow::Result<(SocketAddr, BTreeMap<String, SocketAddr>)> {
    let page: Value = serde_json::from_str(page)?;
    let mut addresses = Vec::new();
    for status in page["listener_statuses"].as_array().context("no listeners")? {
        let address = &status["local_address"]["socket_address"];
        let ip = address["address"].as_str().context("no address")?;
        let port = address["port_value"].as_u64().context("no port")?;
        let name = status["name"].as_str().context("no name")?.to_owned();
        addresses.push((name, SocketAddr::new(ip.parse()?, u16::try_from(port)?)));
    }
    let first = addresses.first().context("no listener")?.1;
    Ok((first, addresses.into_iter().collect()))
}

#[cfg(test)]
mod tests;
