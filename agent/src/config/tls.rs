//! TLS towards servers.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Mistakes;

/// By what servers and this agent prove to each other who they are. PEM files, read at each connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsEntry {
    /// Who signs the servers' certificates.
    pub ca: String,
    /// This agent's certificate, whose DNS name (or end of a URI) is this node's name, with the chain behind it.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The name in the servers' certificates. By default the host that `servers` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

impl TlsEntry {
    pub(super) fn check(&self, mistakes: &mut Mistakes) {
        for (name, file) in [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)] {
            if !Path::new(file).is_absolute() {
                mistakes
                    .add(&format!("tls.{name}"), format!("`{file}` is not the absolute path of a PEM file"));
            }
        }
        if self.server_name.as_deref() == Some("") {
            mistakes.add("tls.server_name", "is empty; leave it out for the host that `servers` names");
        }
    }
}
