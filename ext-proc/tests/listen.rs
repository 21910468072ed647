//! The sockets of the server: with TLS, with certificates on both sides, in the file system, and for health alone.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use kvpick::{app::App, config::Config};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Longest wait for anything; on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);

fn config(more: &str) -> Config {
    let yaml = format!(
        "feed: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
         replicas:\n  - {{address: 127.0.0.1:8000, models: [m]}}\n{more}"
    );
    let config: Config = kvpick_service::config::parse(&yaml).unwrap();
    assert_eq!(config.mistakes(), Vec::<String>::new());
    config
}

async fn start(more: &str) -> App {
    App::start(config(more), None).await.unwrap()
}

/// Who signs certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key, for that name.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn as_root(&self) -> Certificate {
        Certificate::from_pem(&self.pem)
    }
}

/// The files of a server whose certificate is for the name `kvpick`.
struct Files {
    _folder: TempDir,
    certificate: PathBuf,
    key: PathBuf,
    client_ca: PathBuf,
}

impl Files {
    fn new(authority: &Authority) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let files =
            Self { certificate: at("tls.crt"), key: at("tls.key"), client_ca: at("ca.crt"), _folder: folder };
        let (certificate, key) = authority.sign("kvpick");
        std::fs::write(&files.certificate, certificate).unwrap();
        std::fs::write(&files.key, key).unwrap();
        std::fs::write(&files.client_ca, &authority.pem).unwrap();
        files
    }

    fn yaml(&self, field: &str, ca: bool) -> String {
        let ca = if ca { format!(", client_ca: {}", self.client_ca.display()) } else { String::new() };
        format!("{field}: {{certificate: {}, key: {}{ca}}}\n", self.certificate.display(), self.key.display())
    }
}

/// The answer of the health service, or none where the server does not talk to this client.
async fn health(endpoint: Endpoint) -> Option<i32> {
    let channel = timeout(PATIENCE, endpoint.connect()).await.unwrap().ok()?;
    check(channel).await
}

async fn check(channel: Channel) -> Option<i32> {
    let ask = HealthCheckRequest { service: "liveness".to_owned() };
    let answer = timeout(PATIENCE, HealthClient::new(channel).check(ask)).await.unwrap();
    answer.ok().map(|it| it.into_inner().status)
}

fn tls(address: SocketAddr, tls: ClientTlsConfig) -> Endpoint {
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    endpoint.tls_config(tls.domain_name("kvpick")).unwrap()
}

fn clear(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).unwrap()
}

const SERVING: Option<i32> = Some(1);

#[tokio::test]
async fn a_certificate_of_files_is_shown() {
    let authority = Authority::new();
    let files = Files::new(&authority);
    let app = start(&format!("listen: 127.0.0.1:0\n{}", files.yaml("tls", false))).await;
    let address = app.addresses["ext_proc"];
    let trusting = ClientTlsConfig::new().ca_certificate(authority.as_root());
    assert_eq!(health(tls(address, trusting)).await, SERVING);
    let elsewhere = ClientTlsConfig::new().ca_certificate(Authority::new().as_root());
    assert_eq!(health(tls(address, elsewhere)).await, None, "a client that trusts another");
    assert_eq!(health(clear(address)).await, None, "no TLS where there is TLS");
}

#[tokio::test]
async fn with_a_client_ca_only_its_own_are_let_in() {
    let authority = Authority::new();
    let files = Files::new(&authority);
    let app = start(&format!("listen: 127.0.0.1:0\n{}", files.yaml("tls", true))).await;
    let address = app.addresses["ext_proc"];
    let trusting = || ClientTlsConfig::new().ca_certificate(authority.as_root());
    let (certificate, key) = authority.sign("envoy");
    let ours = trusting().identity(Identity::from_pem(certificate, key));
    assert_eq!(health(tls(address, ours)).await, SERVING);
    let (certificate, key) = Authority::new().sign("envoy");
    let others = trusting().identity(Identity::from_pem(certificate, key));
    assert_eq!(health(tls(address, others)).await, None, "signed by another");
    assert_eq!(health(tls(address, trusting())).await, None, "no certificate");
}

#[tokio::test]
async fn peers_that_say_nothing_do_not_hold_up_others() {
    let authority = Authority::new();
    let files = Files::new(&authority);
    let app = start(&format!("listen: 127.0.0.1:0\n{}", files.yaml("tls", false))).await;
    let address = app.addresses["ext_proc"];
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    let trusting = ClientTlsConfig::new().ca_certificate(authority.as_root());
    assert_eq!(health(tls(address, trusting)).await, SERVING);
}

#[tokio::test]
async fn a_socket_in_the_file_system_serves_as_one_on_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kvpick.sock");
    let app = start(&format!("listen: unix:{}\n", path.display())).await;
    assert!(!app.addresses.contains_key("ext_proc"));
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    assert_eq!(health(endpoint).await, SERVING);
}

#[tokio::test]
async fn health_has_a_socket_of_its_own_in_the_clear() {
    let more = "listen: 127.0.0.1:0\nhealth: 127.0.0.1:0\ntls: {self_signed: true}\n";
    let app = start(more).await;
    assert_eq!(health(clear(app.addresses["health"])).await, SERVING);
    assert_eq!(health(clear(app.addresses["ext_proc"])).await, None);
}

#[tokio::test]
async fn files_that_are_none_are_named() {
    let authority = Authority::new();
    let files = Files::new(&authority);
    let refusal = async |spoilt: &Path, text: &str| {
        let before = std::fs::read(spoilt).unwrap();
        std::fs::write(spoilt, text).unwrap();
        let started =
            App::start(config(&format!("listen: 127.0.0.1:0\n{}", files.yaml("tls", true))), None).await;
        std::fs::write(spoilt, before).unwrap();
        started.unwrap_err().to_string()
    };
    assert!(
        refusal(&files.certificate, "").await.starts_with("tls.certificate: holds no certificate; give ")
    );
    assert!(refusal(&files.client_ca, "x").await.starts_with("tls.client_ca: holds no certificate; give "));
    assert!(refusal(&files.key, "x").await.starts_with("tls.key: "));
    let other = authority.sign("other").1;
    assert!(refusal(&files.key, &other).await.contains("is the key that of the certificate?"));
}
