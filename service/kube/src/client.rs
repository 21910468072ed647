//! Who is asked.

use std::time::Duration;

use kube::{Client, Config};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// There is no way to ask.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither a service account's files nor a kubeconfig.
    #[error(
        "no Kubernetes API server is known: {0}; run in a pod with a service account, or set KUBECONFIG to a file that names one"
    )]
    Unknown(#[from] kube::config::InferConfigError),
    /// What they say is of no use.
    #[error("the Kubernetes API server can't be asked: {0}")]
    Useless(#[from] kube::Error),
}

/// A client of the cluster: the one that `KUBECONFIG` names, else the one whose pod this is. Its default namespace is the
/// pod's own.
///
/// # Errors
/// When none is known. Nothing is asked yet.
pub async fn client() -> Result<Client, ClientError> {
    let mut config = Config::infer().await?;
    config.connect_timeout = Some(CONNECT);
    Ok(Client::try_from(config)?)
}
