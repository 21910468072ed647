//! TLS of a socket.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A socket's TLS: either files, or a certificate of one's own.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Makes a certificate at each start, for gateways that want TLS and check no certificate. It keeps out eavesdroppers,
    /// not impostors.
    pub self_signed: bool,
    /// The certificate, PEM, with the chain behind it. Read again when it changes, as are the others.
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// Who signs the certificates that peers must show, PEM; without it everybody is let in.
    pub client_ca: Option<PathBuf>,
}

impl TlsConfig {
    /// What is wrong with it; `at` is its name in the file.
    pub(super) fn mistakes(&self, at: &str, found: &mut Vec<String>) {
        let files = [("certificate", &self.certificate), ("key", &self.key)];
        if self.self_signed {
            for (name, _) in files.iter().filter(|(_, it)| it.is_some()) {
                found.push(format!("{at}.{name}: is not used with self_signed: true; keep one"));
            }
            if self.client_ca.is_some() {
                found.push(format!(
                    "{at}.client_ca: a certificate of one's own can't be checked by whom it checks; give certificate and key"
                ));
            }
            return;
        }
        for (name, _) in files.iter().filter(|(_, it)| it.is_none()) {
            found.push(format!("{at}.{name}: missing; give a PEM file, or set self_signed: true"));
        }
    }

    /// Files that are wanted and can't be read.
    pub(super) fn missing_files(&self, at: &str, found: &mut Vec<String>) {
        let files = [("certificate", &self.certificate), ("key", &self.key), ("client_ca", &self.client_ca)];
        let named = files.iter().filter_map(|(name, file)| Some((name, file.as_deref()?)));
        for (name, file) in named.filter(|(_, file)| !Path::is_file(file)) {
            found.push(format!("{at}.{name}: there is no {}; give a PEM file", file.display()));
        }
    }
}
