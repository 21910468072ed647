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
        "no Kubernetes API server is known; run in a pod with a service account, or set KUBECONFIG to a file that names one"
    )]
    Unknown(#[from] kube::config::InferConfigError),
    /// A URL that is none.
    #[error("{0} is no URL of a Kubernetes API server")]
    Url(String),
    /// What they say is of no use.
    #[error("the Kubernetes API server can't be asked")]
    Useless(#[from] kube::Error),
}

/// A client of the API server at that URL, with that default namespace and no proof of who asks: for tests.
///
/// # Errors
/// A URL that is none.
pub fn client_of(url: &str, namespace: &str) -> Result<Client, ClientError> {
    let url = url.parse().map_err(|_| ClientError::Url(url.to_owned()))?;
    let mut config = Config::new(url);
    config.default_namespace = namespace.to_owned();
    of(config)
}

/// A client of the cluster: the one that `KUBECONFIG` names, else the one whose pod this is. Its default namespace is the
/// pod's own.
///
/// # Errors
/// When none is known. Nothing is asked yet.
pub async fn client() -> Result<Client, ClientError> {
    of(Config::infer().await?)
}

fn of(mut config: Config) -> Result<Client, ClientError> {
    config.connect_timeout = Some(CONNECT);
    // Whoever follows tries again, and says so meanwhile.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
