//! TLS towards servers.

use std::path::Path;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::config::TlsEntry;

/// What a connection to a server that `servers` names by that host needs. The files are read anew, so that new certificates
/// are used from the next connection on.
///
/// # Errors
///
/// A file that can't be read.
pub(crate) async fn client(config: &TlsEntry, host: &str) -> Result<ClientTlsConfig, String> {
    let (ca, certificate, key) = (
        read("ca", &config.ca).await?,
        read("certificate", &config.certificate).await?,
        read("key", &config.key).await?,
    );
    let name = config.server_name.as_deref().unwrap_or_else(|| host.trim_matches(['[', ']']));
    Ok(ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .identity(Identity::from_pem(certificate, key))
        .domain_name(name))
}

async fn read(name: &str, file: &str) -> Result<Vec<u8>, String> {
    tokio::fs::read(Path::new(file)).await.map_err(|error| format!("tls.{name}: can't read {file}: {error}"))
}
