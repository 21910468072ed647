//! Engines on nodes, an agent for each node, a server, and Envoy before it all.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Map, Value};

use super::envoy::{Addresses, Envoy, Mode};
use super::program::{AgentConfig, EngineConfig, ModelConfig, Program, ReplicaConfig, ServerConfig};
use super::{ports, tools, wait};

/// Who binds the socket that events go through.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Direction {
    /// The agent, and the engine connects to it: on loopback only.
    #[default]
    AgentListens,
    /// The engine, and the agent subscribes. Through a Unix socket: as engines bind TCP, they do so on all interfaces.
    EngineBinds,
    /// The engine, at TCP ports that the system chooses; the agent asks it for them. The one for several ranks.
    Discovered,
}

impl Direction {
    /// Those whose endpoints are known before the engine runs.
    pub const ALL: [Self; 2] = [Self::AgentListens, Self::EngineBinds];
}

/// One engine of a [`Plan`].
#[derive(Clone, Debug)]
pub struct EnginePlan {
    /// The number of its node, from 0.
    pub node: usize,
    /// The model that it serves.
    pub model: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks that it has, block 0 included, which holds nothing.
    pub num_blocks: u32,
    /// How many times faster than a real engine it works.
    pub speed: f64,
    /// For what it generates.
    pub seed: u64,
    /// How its events reach the agent.
    pub direction: Direction,
    /// Data-parallel ranks behind its address.
    pub ranks: u32,
}

/// What a [`Fleet`] consists of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The engines.
    pub engines: Vec<EnginePlan>,
    /// Envoy's config, or no Envoy.
    pub envoy: Option<Mode>,
    /// See [`Addresses::patient`].
    pub patient: bool,
    /// See [`Addresses::response_body_mode`].
    pub response_body_mode: Option<&'static str>,
    /// Whether responses say what kvpick expected.
    pub evidence_header: bool,
    /// More fields for kvpick's configuration.
    pub server: Map<String, Value>,
    /// More fields for each model there.
    pub models: Map<String, Value>,
    /// More fields for each agent's configuration.
    pub agent: Map<String, Value>,
}

impl Plan {
    /// `engines` alike, spread over `nodes` in turn, with a buffering Envoy.
    #[must_use]
    pub fn even(engines: usize, nodes: usize) -> Self {
        let engine = |number: usize| EnginePlan {
            node: number % nodes.max(1),
            model: "qwen3".to_owned(),
            block_size: 16,
            num_blocks: 2048,
            speed: 10.0,
            seed: 1 + number as u64,
            direction: Direction::default(),
            ranks: 1,
        };
        Self {
            engines: (0..engines).map(engine).collect(),
            envoy: Some(Mode::Buffered),
            patient: true,
            response_body_mode: None,
            evidence_header: true,
            server: Map::new(),
            models: Map::new(),
            agent: Map::new(),
        }
    }
}

/// A running fleet. Each part can be killed and started again on its ports; all ends with this value.
#[derive(Debug)]
pub struct Fleet {
    // In the order in which they end.
    envoy: Option<Envoy>,
    /// The server.
    pub server: Program,
    /// The agents, by the number of their node.
    pub agents: Vec<Program>,
    /// The engines, in the order of the plan.
    pub engines: Vec<Program>,
    envoy_addresses: Addresses,
    engine_addresses: Vec<SocketAddr>,
    folder: PathBuf,
    sockets: tempfile::TempDir,
}

impl Fleet {
    /// Writes all configurations into `folder`, starts everything, and waits until it is ready.
    pub async fn start(plan: &Plan, folder: &Path) -> anyhow::Result<Self> {
        let mut fleet = Self::prepare(plan, folder)?;
        // All at a time: most of a start is the reading of tokenizers.
        for program in fleet.programs() {
            program.spawn()?;
        }
        for program in fleet.programs() {
            program.listens().await?;
        }
        fleet.server.ready().await?;
        fleet.replicas_are_in().await?;
        if let Some(mode) = plan.envoy {
            fleet.start_envoy(mode).await?;
        }
        Ok(fleet)
    }

    /// Writes all configurations into `folder` and starts nothing.
    pub fn prepare(plan: &Plan, folder: &Path) -> anyhow::Result<Self> {
        let tokenizer = tools::tokenizer()?;
        let port = || ports::free().context("no free port");
        let (ext_proc, feed) = (port()?, port()?);
        // Not in `folder`, whose path may be longer than the 107 bytes that a socket's may have.
        let sockets = tempfile::Builder::new().prefix("kvpick-").tempdir().context("a folder for sockets")?;

        let mut engines = Vec::new();
        let mut engine_addresses = Vec::new();
        let mut replicas = Vec::new();
        let mut nodes: BTreeMap<usize, Vec<EngineConfig>> = BTreeMap::new();
        for (number, engine) in plan.engines.iter().enumerate() {
            let (address, events, replay) = (port()?, port()?, port()?);
            let answers = format!("tcp://{replay}");
            let (published, subscribe, listen) = match engine.direction {
                Direction::AgentListens => {
                    let events = format!("tcp://{events}");
                    (events.clone(), None, Some(events))
                }
                Direction::EngineBinds => {
                    let file = sockets.path().join(format!("{number}.events"));
                    let events = format!("ipc://{}", file.display());
                    (events.clone(), Some(events), None)
                }
                Direction::Discovered => (ANY_PORT.to_owned(), Some("discover".to_owned()), None),
            };
            let is_discovered = engine.direction == Direction::Discovered;
            let answers = if is_discovered { ANY_PORT.to_owned() } else { answers };
            let replay = (!is_discovered).then(|| answers.clone());
            engines.push(engine_program(number, folder, engine, &tokenizer, address, &published, &answers)?);
            engine_addresses.push(address);
            for rank in 0..engine.ranks {
                replicas.push(ReplicaConfig {
                    address,
                    rank,
                    node: node_name(engine.node),
                    models: vec![engine.model.clone()],
                });
                nodes.entry(engine.node).or_default().push(EngineConfig {
                    address,
                    rank,
                    events: "on".to_owned(),
                    subscribe: subscribe.clone(),
                    listen: listen.clone(),
                    replay: replay.clone(),
                });
            }
        }

        let names: BTreeSet<&String> = plan.engines.iter().map(|engine| &engine.model).collect();
        let models = names.into_iter().map(|name| ModelConfig {
            name: name.clone(),
            aliases: Vec::new(),
            path: tokenizer.clone(),
            keeps_developer_role: false,
            more: plan.models.clone(),
        });
        let config = ServerConfig {
            listen: ext_proc,
            feed,
            admin: port()?,
            models: models.collect(),
            replicas,
            evidence_header: plan.evidence_header,
            more: plan.server.clone(),
        };
        let server = Program::server("kvpick", folder, &config)?;

        let mut agents = Vec::new();
        for (node, engines) in nodes {
            let config = AgentConfig {
                node: node_name(node),
                servers: vec![feed.to_string()],
                admin: port()?,
                engines,
                more: plan.agent.clone(),
            };
            agents.push(Program::agent(&format!("agent-{node}"), folder, &config)?);
        }

        let envoy_addresses = Addresses {
            listener: port()?,
            admin: port()?,
            picker: ext_proc,
            engines: engine_addresses.clone(),
            patient: plan.patient,
            response_body_mode: plan.response_body_mode,
        };
        let folder = folder.to_owned();
        Ok(Self { envoy: None, server, agents, engines, envoy_addresses, engine_addresses, folder, sockets })
    }

    /// Starts Envoy in `mode`, in place of the one that runs.
    pub async fn start_envoy(&mut self, mode: Mode) -> anyhow::Result<()> {
        self.envoy = None;
        let envoy = Envoy::start("envoy", &self.folder, mode, &self.envoy_addresses).await?;
        self.envoy = Some(envoy);
        Ok(())
    }

    /// Ends Envoy.
    pub fn kill_envoy(&mut self) {
        self.envoy = None;
    }

    /// The running Envoy.
    pub fn envoy(&self) -> anyhow::Result<&Envoy> {
        self.envoy.as_ref().context("Envoy does not run")
    }

    /// Where clients send requests: `http://ip:port`, through Envoy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.envoy_addresses.listener)
    }

    /// The serving addresses of the engines, in the order of the plan.
    #[must_use]
    pub fn engine_addresses(&self) -> &[SocketAddr] {
        &self.engine_addresses
    }

    /// Waits until the server may pick any of its replicas. An agent that was quicker than its engines has called them
    /// down.
    async fn replicas_are_in(&self) -> anyhow::Result<()> {
        let look = async || {
            let status = self.server.status().await.map_err(|error| format!("{error:#}"))?;
            let replicas = status["replicas"].as_array().map_or(&[][..], Vec::as_slice);
            let settled = |it: &Value| it["health"]["state"] == "in" && it["state"] == "live";
            if replicas.iter().all(settled) { Ok(()) } else { Err(status["replicas"].to_string()) }
        };
        wait::until("all replicas to be in", wait::LONG, look).await
    }

    /// Waits until the server has applied everything up to engine sequence `sequence` of the replica.
    pub async fn applied(&self, address: SocketAddr, rank: u32, sequence: u64) -> anyhow::Result<()> {
        let what = format!("sequence {sequence} of {address} rank {rank} to be applied");
        let look = async || {
            let status = self.server.status().await.map_err(|error| format!("{error:#}"))?;
            let replica = replica(&status, address, rank).ok_or_else(|| status.to_string())?;
            match replica["applied"].as_u64() {
                Some(applied) if sequence <= applied => Ok(()),
                _ => Err(replica.to_string()),
            }
        };
        wait::until(&what, wait::LONG, look).await
    }

    /// Leaves everything running when this program ends; returns what runs where.
    pub fn leave(mut self) -> Vec<(String, SocketAddr)> {
        self.sockets.disable_cleanup(true);
        let mut running = Vec::new();
        if let Some(envoy) = self.envoy.as_mut() {
            envoy.process().leave();
            running.push(("envoy".to_owned(), envoy.listener()));
            running.push(("envoy admin".to_owned(), envoy.admin()));
        }
        for program in self.programs() {
            let Ok(process) = program.process() else { continue };
            process.leave();
            let addresses = program.addresses().iter();
            running.extend(addresses.map(|(what, at)| (format!("{} {what}", program.name()), *at)));
        }
        running
    }

    /// Ends everything in order, giving each program at most `timeout` to do so by itself.
    pub async fn finish(mut self, timeout: Duration) -> anyhow::Result<()> {
        self.envoy = None;
        for program in self.programs() {
            if program.is_running() {
                program.terminate(timeout).await?;
            }
        }
        Ok(())
    }

    /// All but Envoy, the server first.
    fn programs(&mut self) -> impl Iterator<Item = &mut Program> {
        std::iter::once(&mut self.server).chain(&mut self.agents).chain(&mut self.engines)
    }
}

/// The entry of a replica in kvpick's `/status`.
#[must_use]
pub fn replica(status: &Value, address: SocketAddr, rank: u32) -> Option<&Value> {
    let address = address.to_string();
    let replicas = status["replicas"].as_array()?;
    replicas.iter().find(|replica| replica["address"] == address.as_str() && replica["rank"] == rank)
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}

/// A port of the engine's own loopback that the system chooses.
const ANY_PORT: &str = "tcp://127.0.0.1:*";

fn engine_program(
    number: usize,
    folder: &Path,
    plan: &EnginePlan,
    tokenizer: &Path,
    address: SocketAddr,
    events: &str,
    replay: &str,
) -> anyhow::Result<Program> {
    let tokenizer = tokenizer.to_str().context("the tokenizer's path is not UTF-8")?;
    let flags = [
        ("--model", plan.model.clone()),
        ("--tokenizer", tokenizer.to_owned()),
        ("--listen", address.to_string()),
        ("--events", events.to_owned()),
        ("--replay", replay.to_owned()),
        ("--block-size", plan.block_size.to_string()),
        ("--num-blocks", plan.num_blocks.to_string()),
        ("--speed", plan.speed.to_string()),
        ("--seed", plan.seed.to_string()),
        ("--data-parallel-size", plan.ranks.to_string()),
    ];
    let mut args: Vec<&OsStr> = vec!["engine".as_ref()];
    for (flag, value) in &flags {
        args.push(flag.as_ref());
        args.push(value.as_ref());
    }
    Program::new(&format!("engine-{number}"), folder, "kvpick-lab", &args)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn engines_are_spread_over_nodes() {
        let plan = Plan::even(4, 2);
        let nodes: Vec<usize> = plan.engines.iter().map(|engine| engine.node).collect();
        assert_eq!(nodes, [0, 1, 0, 1]);
    }

    #[test]
    fn a_replica_is_found_by_address_and_rank() {
        let status = json!({"replicas": [
            {"address": "127.0.0.1:1", "rank": 0, "applied": 7},
            {"address": "127.0.0.1:1", "rank": 1, "applied": null},
        ]});
        let address = "127.0.0.1:1".parse().unwrap();
        assert_eq!(replica(&status, address, 0).unwrap()["applied"], 7);
        assert!(replica(&status, address, 1).unwrap()["applied"].is_null());
        assert!(replica(&status, address, 2).is_none());
    }
}
