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

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn mistakes(yaml: &str) -> Vec<String> {
        let yaml = format!("replicas: [{{address: 127.0.0.1:1, models: [m]}}]\n{yaml}");
        kvpick_service::config::parse::<Config>(&yaml).unwrap().mistakes()
    }

    #[test]
    fn what_can_not_be_meant_is_named_with_a_remedy() {
        assert_eq!(mistakes("tls: {self_signed: true}"), Vec::<String>::new());
        for (yaml, fields) in [
            ("tls: {}", &["tls.certificate: missing; give", "tls.key: missing; give"][..]),
            (
                "tls: {certificate: /no.crt}",
                &["tls.key: missing; give", "tls.certificate: there is no /no.crt; give"],
            ),
            (
                "tls: {self_signed: true, key: /no.key}",
                &["tls.key: is not used", "tls.key: there is no /no.key"],
            ),
            (
                "tls: {self_signed: true, client_ca: /no.ca}",
                &["tls.client_ca: a certificate of one's own", "tls.client_ca: there is no /no.ca"],
            ),
            ("feed_tls: {self_signed: true}", &["feed_tls.self_signed: an agent could not tell"]),
            ("health: 127.0.0.1:9002", &["health: 127.0.0.1:9002 is that of listen; give each"]),
            ("feed: 0.0.0.0:9004", &["feed: 0.0.0.0:9004 is not loopback"]),
        ] {
            let found = mistakes(yaml);
            assert_eq!(found.len(), fields.len(), "{yaml}: {found:?}");
            for (found, field) in found.iter().zip(fields) {
                assert!(found.starts_with(field), "{yaml}: {found}");
            }
        }
        let found = mistakes("feed_tls: {certificate: /no.crt, key: /no.key}");
        assert!(found[0].starts_with("feed_tls.client_ca: missing; give"), "{found:?}");
        let proved = mistakes("feed: 0.0.0.0:9004\nfeed_tls: {certificate: /a, key: /b, client_ca: /c}");
        assert!(!proved.iter().any(|it| it.starts_with("feed:")), "{proved:?}");
    }
}
