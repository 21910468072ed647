//! Flags that charts and manifests of other endpoint pickers pass, those of the Gateway API Inference Extension and of its
//! successors.
//!
//! What a flag says counts more than the file, which may be left out where the replicas are a pool's; where a flag names a
//! port, its socket takes every address of the machine.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use clap::{ArgAction, Args, ValueEnum};
use kvpick_service::logs::Format;

use crate::{
    config::{Config, KubernetesConfig, TlsConfig},
    listen::Listen,
};

/// The flags.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "As other endpoint pickers have them")]
pub struct Flags {
    /// Port of ext_proc's gRPC server.
    #[arg(long, value_name = "PORT")]
    grpc_port: Option<u16>,
    /// Port of a gRPC health server of its own, in the clear.
    #[arg(long, value_name = "PORT")]
    grpc_health_port: Option<u16>,
    /// Port of the metrics, and of all else that the admin server shows.
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// TLS for ext_proc's gRPC server, with a certificate of kvpick's own unless --cert-path names one.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    secure_serving: Option<bool>,
    /// Folder with tls.crt and tls.key, for --secure-serving.
    #[arg(long, value_name = "FOLDER")]
    cert_path: Option<PathBuf>,
    /// Taken and not needed: certificates are always read again when they change.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_cert_reload: Option<bool>,
    /// Taken and not needed: health is always served on ext_proc's port too.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    health_checking: Option<bool>,
    /// Taken and not needed: every server of kvpick serves, none leads.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ha_enable_leader_election: Option<bool>,
    /// The InferencePool whose pods are the replicas.
    #[arg(long, value_name = "NAME")]
    pool_name: Option<String>,
    /// Its namespace; this pod's own by default.
    #[arg(long, value_name = "NAME")]
    pool_namespace: Option<String>,
    /// Its API group.
    #[arg(long, value_name = "GROUP")]
    pool_group: Option<String>,
    /// In place of a pool: the labels of the replicas' pods.
    #[arg(long, value_name = "SELECTOR", conflicts_with = "pool_name")]
    endpoint_selector: Option<String>,
    /// Ports on which those pods serve, separated by commas.
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    endpoint_target_ports: Vec<u16>,
    /// Form of the log.
    #[arg(long, value_name = "FORM")]
    zap_encoder: Option<Encoder>,
    /// How much is logged: 0 to 2 is `info`, 3 and 4 `debug`, above `trace`.
    #[arg(short = 'v', long = "v", value_name = "N", action = ArgAction::Set)]
    verbosity: Option<u8>,
}

/// A form of the log, by its name elsewhere.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Encoder {
    Json,
    Console,
}

impl Flags {
    /// Puts what the flags say into the configuration.
    pub fn apply(&self, config: &mut Config) {
        let on_all = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
        if let Some(port) = self.grpc_port {
            config.listen = Listen::Tcp(on_all(port));
        }
        if let Some(port) = self.grpc_health_port {
            config.health = Some(on_all(port));
        }
        if let Some(port) = self.metrics_port {
            config.admin = on_all(port);
        }
        match (self.secure_serving, &self.cert_path) {
            (Some(false), _) => config.tls = None,
            (_, Some(folder)) => config.tls = Some(in_folder(folder)),
            (Some(true), None) if config.tls.is_none() => {
                config.tls = Some(TlsConfig { self_signed: true, ..TlsConfig::default() });
            }
            (Some(true) | None, None) => {}
        }
        self.apply_pool(config);
        if let Some(encoder) = self.zap_encoder {
            config.log.format = match encoder {
                Encoder::Json => Format::Json,
                Encoder::Console => Format::Text,
            };
        }
        if let Some(verbosity) = self.verbosity {
            let level = match verbosity {
                0..=2 => "info",
                3..=4 => "debug",
                5.. => "trace",
            };
            // Libraries would drown what is looked for.
            config.log.filter = format!("info,kvpick={level},kvpick_core={level},kvpick_service={level}");
        }
    }
}

impl Flags {
    fn apply_pool(&self, config: &mut Config) {
        let is_said = self.pool_name.is_some() || self.endpoint_selector.is_some();
        if is_said && config.kubernetes.is_none() {
            config.kubernetes = Some(KubernetesConfig::default());
        }
        let Some(kubernetes) = &mut config.kubernetes else { return };
        if is_said {
            kubernetes.pool.clone_from(&self.pool_name);
            kubernetes.selector.clone_from(&self.endpoint_selector);
            kubernetes.ports.clone_from(&self.endpoint_target_ports);
        }
        if self.pool_namespace.is_some() {
            kubernetes.namespace.clone_from(&self.pool_namespace);
        }
        if let Some(group) = &self.pool_group {
            kubernetes.group.clone_from(group);
        }
    }
}

fn in_folder(folder: &Path) -> TlsConfig {
    TlsConfig {
        certificate: Some(folder.join("tls.crt")),
        key: Some(folder.join("tls.key")),
        ..TlsConfig::default()
    }
}

/// The command line, with `run` where the first argument is a flag of it: others have no commands.
pub fn with_command(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<_> = args.into_iter().collect();
    let first = args.get(1).map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
    let is_own = ["--help", "-h", "--version", "-V"].contains(&first.as_str());
    if first.starts_with('-') && !is_own {
        args.insert(1, "run".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: Flags,
    }

    fn config(args: &[&str]) -> Config {
        let mut config: Config = kvpick_service::config::parse("replicas: []").unwrap();
        Alone::try_parse_from([&["kvpick"], args].concat()).unwrap().flags.apply(&mut config);
        config
    }

    #[test]
    fn what_charts_pass_is_taken() {
        let config = config(&[
            "--grpc-port=9012",
            "--grpc-health-port",
            "9013",
            "--metrics-port=9091",
            "--secure-serving",
            "--health-checking=true",
            "--enable-cert-reload",
            "--ha-enable-leader-election=false",
            "--zap-encoder",
            "json",
            "-v",
            "4",
        ]);
        assert_eq!(config.listen.to_string(), "0.0.0.0:9012");
        assert_eq!(config.health.unwrap().to_string(), "0.0.0.0:9013");
        assert_eq!(config.admin.to_string(), "0.0.0.0:9091");
        assert!(config.tls.unwrap().self_signed);
        assert_eq!(config.log.format, Format::Json);
        assert_eq!(config.log.filter, "info,kvpick=debug,kvpick_core=debug,kvpick_service=debug");
    }

    #[test]
    fn certificates_come_from_a_folder_unless_there_is_to_be_no_tls() {
        let tls = config(&["--cert-path", "/certs"]).tls.unwrap();
        assert_eq!(tls.certificate.unwrap(), Path::new("/certs/tls.crt"));
        assert_eq!(tls.key.unwrap(), Path::new("/certs/tls.key"));
        assert_eq!(config(&["--cert-path", "/certs", "--secure-serving=false"]).tls, None);
    }

    #[test]
    fn replicas_may_be_a_pools() {
        let pool = |args: &[&str]| {
            let it = config(args).kubernetes.unwrap();
            (it.pool, it.namespace, it.group, it.selector, it.ports)
        };
        let text = |it: &str| Some(it.to_owned());
        let group = "inference.networking.k8s.io".to_owned();
        let named = pool(&["--pool-name=p", "--pool-namespace=n"]);
        assert_eq!(named, (text("p"), text("n"), group.clone(), None, Vec::new()));
        let old = pool(&["--pool-name", "p", "--pool-group", "inference.networking.x-k8s.io"]);
        assert_eq!(old.2, "inference.networking.x-k8s.io");
        let selected = pool(&["--endpoint-selector=app=vllm", "--endpoint-target-ports=8000,8001"]);
        assert_eq!(selected, (None, None, group, text("app=vllm"), vec![8000, 8001]));
    }

    #[test]
    fn nothing_said_changes_nothing() {
        let before: Config = kvpick_service::config::parse("replicas: []").unwrap();
        assert_eq!(serde_json::to_value(config(&[])).unwrap(), serde_json::to_value(before).unwrap());
    }

    #[test]
    fn a_flag_alone_is_of_run() {
        let of = |args: &[&str]| with_command(args.iter().map(Into::into)).join(" ".as_ref());
        assert_eq!(of(&["kvpick", "--pool-name", "a"]), "kvpick run --pool-name a");
        assert_eq!(of(&["kvpick", "-v=4"]), "kvpick run -v=4");
        for own in ["kvpick", "kvpick --help", "kvpick -V", "kvpick run --config a", "kvpick check-config"] {
            assert_eq!(of(&own.split(' ').collect::<Vec<_>>()), own);
        }
    }
}
