//! TLS for a socket: its certificate, and whom it lets in.

use std::{io, path::Path, sync::Arc, time::Duration};

use kvpick_service::drain::Drain;
use tokio::sync::watch;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};

use super::io::{Io, Peer};
use crate::config::TlsConfig;

/// How often it is looked whether files have changed. Kubernetes replaces those of a secret within a minute or so.
const LOOK: Duration = Duration::from_secs(10);

/// Names in a certificate of one's own. Nobody can check them; gateways are set not to.
const OWN_NAMES: [&str; 2] = ["kvpick", "localhost"];

/// A socket's TLS, with the certificate that is in force.
#[derive(Clone, Debug)]
pub struct Tls {
    current: watch::Receiver<Arc<ServerConfig>>,
}

/// What files hold.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Material {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Tls {
    /// Reads what the configuration names, and follows its changes until the drain starts. `field` is the
    /// configuration's name of it.
    ///
    /// # Errors
    /// A file that can't be read or does not hold what it should, with field and remedy.
    pub fn start(field: &'static str, config: &TlsConfig, drain: &Drain) -> Result<Self, String> {
        if config.self_signed {
            let made = self_signed().map_err(|error| format!("{field}.self_signed: {error}"))?;
            return Ok(Self { current: watch::channel(Arc::new(made)).1 });
        }
        let material = Material::read(field, config)?;
        let (sender, current) = watch::channel(Arc::new(material.config(field)?));
        let (config, stop) = (config.clone(), drain.clone());
        drain.spawn("certificates", async move {
            let mut last = Ok(material);
            loop {
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => (),
                    () = stop.started() => return,
                }
                last = follow(field, &config, last, &sender);
            }
        });
        Ok(Self { current })
    }

    /// The connection inside `io`, once the peer has proved what it must.
    pub(super) fn accept(&self, io: Io) -> impl Future<Output = io::Result<Io>> + use<> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.current.borrow()));
        async move {
            let address = io.peer().address;
            let stream = acceptor.accept(io).await?;
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let names = certificate.map_or_else(Vec::new, names);
            Ok(Io::wrapped(stream, Peer { address, names: names.into() }))
        }
    }
}

/// Puts what the files hold now into force, if it is new and good. What was wrong is told once.
fn follow(
    field: &'static str,
    config: &TlsConfig,
    last: Result<Material, String>,
    sender: &watch::Sender<Arc<ServerConfig>>,
) -> Result<Material, String> {
    let read = Material::read(field, config);
    if read == last {
        return last;
    }
    match read.as_ref().map_err(Clone::clone).and_then(|it| it.config(field)) {
        Ok(config) => {
            sender.send_replace(Arc::new(config));
            tracing::info!(field, "certificates were read again");
        }
        Err(problem) => tracing::error!(problem, "the certificates from before stay in force"),
    }
    read
}

impl Material {
    fn read(field: &str, config: &TlsConfig) -> Result<Self, String> {
        let read = |name: &str, path: &Path| {
            std::fs::read(path).map_err(|error| {
                format!("{field}.{name}: can't read {}: {error}; give a PEM file", path.display())
            })
        };
        let missing =
            |name: &str| format!("{field}.{name}: missing; give a PEM file, or set self_signed: true");
        let certificate = config.certificate.as_deref().ok_or_else(|| missing("certificate"))?;
        let key = config.key.as_deref().ok_or_else(|| missing("key"))?;
        Ok(Self {
            certificate: read("certificate", certificate)?,
            key: read("key", key)?,
            client_ca: config.client_ca.as_deref().map(|it| read("client_ca", it)).transpose()?,
        })
    }

    fn config(&self, field: &str) -> Result<ServerConfig, String> {
        let chain = certificates(&self.certificate).map_err(|it| {
            format!("{field}.certificate: {it}; give the chain as PEM, its own certificate first")
        })?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|it| format!("{field}.key: {it}; give the private key as PEM, with no passphrase"))?;
        let roots = self.client_ca.as_deref().map(|pem| {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem)? {
                roots.add(certificate).map_err(|it| it.to_string())?;
            }
            Ok::<_, String>(roots)
        });
        let roots = roots.transpose().map_err(|it| format!("{field}.client_ca: {it}; give CAs as PEM"))?;
        server_config(chain, key, roots)
            .map_err(|it| format!("{field}: {it}; is the key that of the certificate?"))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("holds no certificate".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(error.to_string()),
    }
}

/// `roots`: who signs the certificates that peers have to show; `None` lets everybody in.
fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Option<RootCertStore>,
) -> Result<ServerConfig, String> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|it| it.to_string())?;
    let builder = match roots {
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|it| it.to_string())?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|it| it.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// A certificate that proves nothing, for gateways that want TLS and check nothing.
fn self_signed() -> Result<ServerConfig, String> {
    let names = OWN_NAMES.map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).map_err(|it| it.to_string())?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    server_config(vec![made.cert.der().clone()], key.into(), None)
}

/// The names that a certificate is for.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    // Its chain was verified by now, so it is well-formed.
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    certificate.valid_dns_names().chain(certificate.valid_uri_names()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};
    use tempfile::TempDir;

    use super::*;

    fn files() -> (TempDir, TlsConfig) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Some(folder.path().join(name));
        let config = TlsConfig { certificate: at("crt"), key: at("key"), ..TlsConfig::default() };
        replace(&config);
        (folder, config)
    }

    /// Puts a new certificate and its key into the files.
    fn replace(config: &TlsConfig) {
        let made = rcgen::generate_simple_self_signed(["kvpick".to_owned()]).unwrap();
        std::fs::write(config.certificate.as_ref().unwrap(), made.cert.pem()).unwrap();
        std::fs::write(config.key.as_ref().unwrap(), made.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn new_files_are_put_into_force_and_bad_ones_are_not() {
        let (_folder, config) = files();
        let mut last = Material::read("tls", &config);
        let (sender, current) = watch::channel(Arc::new(last.as_ref().unwrap().config("tls").unwrap()));
        let mut look = |is_new: bool| {
            let before = Arc::clone(&current.borrow());
            last = follow("tls", &config, last.clone(), &sender);
            assert_ne!(Arc::ptr_eq(&before, &current.borrow()), is_new);
        };
        look(false);
        replace(&config);
        look(true);
        look(false);
        // Half of a change: a key that is not that of the certificate, then a file that is not there.
        let key = config.key.as_ref().unwrap();
        std::fs::write(key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        look(false);
        std::fs::remove_file(key).unwrap();
        look(false);
        replace(&config);
        look(true);
    }

    #[test]
    fn a_certificate_is_for_its_dns_names_and_uris() {
        let mut params = CertificateParams::new(["node-a".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://cluster/agents/node-b".try_into().unwrap()));
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(names(made.der()), ["node-a", "spiffe://cluster/agents/node-b"]);
        let none =
            CertificateParams::new(Vec::new()).unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(names(none.der()), Vec::<String>::new());
    }
}
