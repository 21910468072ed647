//! Certificates of two authorities.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// A certificate's file and its key's.
type Pair = (PathBuf, PathBuf);

/// The files.
pub(crate) struct Keys {
    pub(crate) ca: PathBuf,
    pub(crate) other_ca: PathBuf,
    /// kvpick's.
    pub(crate) server: Pair,
    /// Envoy's.
    pub(crate) client: Pair,
    /// Signed by the other authority.
    pub(crate) stranger: Pair,
}

/// Writes them into `folder`.
pub(crate) fn make(folder: &Path) -> Keys {
    let (ca, issuer) = authority(folder, "ca");
    let (other_ca, other) = authority(folder, "other-ca");
    Keys {
        ca,
        other_ca,
        server: sign(folder, "server", "kvpick", &issuer),
        client: sign(folder, "client", "gateway", &issuer),
        stranger: sign(folder, "stranger", "gateway", &other),
    }
}

fn authority(folder: &Path, name: &str) -> (PathBuf, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let file = folder.join(format!("{name}.crt"));
    std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
    (file, Issuer::new(params, key))
}

fn sign(folder: &Path, file: &str, name: &str, issuer: &Issuer<'_, KeyPair>) -> Pair {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let (certificate, key_file) = (folder.join(format!("{file}.crt")), folder.join(format!("{file}.key")));
    std::fs::write(&certificate, params.signed_by(&key, issuer).unwrap().pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    (certificate, key_file)
}
