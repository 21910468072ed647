//! The sockets that gRPC is served on: TCP or a Unix socket, bare or with TLS.

mod authority;
mod io;
mod tls;

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use kvpick_service::drain::Drain;
use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, TcpStream, UnixListener},
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;

pub use io::{Io, Peer};
pub use tls::Tls;

/// How long a peer may take for its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Most handshakes at a time; beyond, peers wait to be accepted.
const MOST_HANDSHAKES: usize = 256;

/// Connections that are accepted and not served yet.
const ACCEPTED: usize = 64;

/// How long nothing is accepted after the system refused to, as when there are no file descriptors left.
const BREATH: Duration = Duration::from_millis(100);

/// Where to listen: `ip:port`, or `unix:/path`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    /// Port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(format!("{text:?} has no absolute path; write unix:/path/to/socket")),
            None => {
                let address = text.parse();
                address
                    .map(Self::Tcp)
                    .map_err(|_| format!("{text:?}; write ip:port, or unix:/path/to/socket"))
            }
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a socket can't be bound; `field` is the configuration's name of it.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A port.
    #[error("{field}: can't bind {address}: {source}; is another program there?")]
    Port {
        /// The socket.
        field: &'static str,
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file.
    #[error("{field}: can't bind {}: {source}; is its folder there and writable?", path.display())]
    File {
        /// The socket.
        field: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something else has that name.
    #[error("{field}: {} is there and is no socket; remove it, or choose another path", path.display())]
    NoSocket {
        /// The socket.
        field: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// It is in use.
    #[error("{field}: another program listens on {}; stop it, or choose another path", path.display())]
    Taken {
        /// The socket.
        field: &'static str,
        /// Where.
        path: PathBuf,
    },
}

/// A socket that is bound.
#[derive(Debug)]
pub enum Bound {
    /// To a port.
    Tcp(TcpListener),
    /// To a file.
    Unix(UnixListener),
}

impl Bound {
    /// Binds; `field` is the configuration's name of the socket. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// An address that is taken or can't be had.
    pub async fn bind(field: &'static str, listen: &Listen) -> Result<Self, BindError> {
        match listen {
            Listen::Tcp(address) => {
                let bound = TcpListener::bind(address).await;
                bound.map(Self::Tcp).map_err(|source| BindError::Port { field, address: *address, source })
            }
            Listen::Unix(path) => {
                remove_left_behind(field, path)?;
                let bound = UnixListener::bind(path);
                bound.map(Self::Unix).map_err(|source| BindError::File { field, path: path.clone(), source })
            }
        }
    }

    /// The port that it is bound to, if it is.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    async fn accept(&self) -> std::io::Result<Io> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(Io::tcp(ready(stream)?, peer))
            }
            Self::Unix(listener) => Ok(Io::unix(listener.accept().await?.0)),
        }
    }

    /// The connections, each once its TLS handshake is done where there is one, until the drain starts.
    #[must_use]
    pub fn incoming(self, tls: Option<Tls>, drain: &Drain) -> ReceiverStream<std::io::Result<Io>> {
        let (accepted, stream) = mpsc::channel(ACCEPTED);
        let stop = drain.clone();
        let task = drain.clone();
        drain.spawn("accepting", async move {
            let handshakes = Arc::new(Semaphore::new(MOST_HANDSHAKES));
            loop {
                let io = tokio::select! {
                    io = self.accept() => io,
                    () = stop.started() => return,
                };
                let io = match io {
                    Ok(io) => io,
                    Err(error) => {
                        // Of one connection, or of all: neither ends the server.
                        tracing::warn!(%error, "a connection can't be accepted");
                        tokio::time::sleep(BREATH).await;
                        continue;
                    }
                };
                let Some(tls) = &tls else {
                    if accepted.send(Ok(io.mended())).await.is_err() {
                        return;
                    }
                    continue;
                };
                let (handshake, accepted) = (tls.accept(io), accepted.clone());
                let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else { return };
                let stop = stop.clone();
                task.spawn("handshake", async move {
                    let done = tokio::select! {
                        done = timeout(HANDSHAKE, handshake) => done,
                        () = stop.started() => return,
                    };
                    match done {
                        Ok(Ok(io)) => drop(accepted.send(Ok(io.mended())).await),
                        // Health checks of load balancers connect and say nothing.
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    }
                    drop(permit);
                });
            }
        });
        ReceiverStream::new(stream)
    }
}

/// Without it every exchange takes 40 ms.
fn ready(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A run that was killed leaves its socket file behind, and nothing can be bound there until it is gone.
fn remove_left_behind(field: &'static str, path: &Path) -> Result<(), BindError> {
    use std::os::unix::fs::FileTypeExt as _;
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let path = path.to_owned();
    if !found.file_type().is_socket() {
        return Err(BindError::NoSocket { field, path });
    }
    if std::os::unix::net::UnixStream::connect(&path).is_ok() {
        return Err(BindError::Taken { field, path });
    }
    std::fs::remove_file(&path).map_err(|source| BindError::File { field, path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["127.0.0.1:9002", "[::1]:0", "unix:/run/kvpick.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for text in ["", "9002", "localhost:9002", "unix:", "unix:kvpick.sock", "/run/kvpick.sock"] {
            let error = text.parse::<Listen>().unwrap_err();
            assert!(error.contains("write ") && error.contains("unix:/path/to/socket"), "{error}");
        }
    }

    #[tokio::test]
    async fn accepted_connections_do_not_wait_for_full_packets() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        assert!(ready(stream).unwrap().nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_socket_file_is_replaced_once_nobody_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listen = Listen::Unix(path.clone());
        let bound = Bound::bind("listen", &listen).await.unwrap();
        let error = Bound::bind("listen", &listen).await.unwrap_err().to_string();
        assert!(error.starts_with("listen: another program listens on "), "{error}");
        drop(bound);
        drop(Bound::bind("listen", &listen).await.unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let error = Bound::bind("listen", &listen).await.unwrap_err().to_string();
        assert!(error.contains("is there and is no socket"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
