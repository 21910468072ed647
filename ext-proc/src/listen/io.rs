//! One connection, and who is at its other end.

use std::{
    fmt,
    io::{IoSlice, Result},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tonic::transport::server::Connected;

use super::authority::Mended;

/// Who is at the other end of a connection; found in the extensions of its requests.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Peer {
    /// Its address, where it has one.
    pub address: Option<SocketAddr>,
    /// The names that its certificate proves: DNS names and URIs. Empty without a certificate.
    pub names: Arc<[String]>,
}

impl Peer {
    /// Whether its certificate proves that it is that node's: by a DNS name, or by the last part of a URI's path.
    #[must_use]
    pub fn is_of(&self, node: &str) -> bool {
        let last = |name: &str| name.split_once("://").map(|(_, it)| it.rsplit('/').next() == Some(node));
        !node.is_empty() && self.names.iter().any(|name| name == node || last(name) == Some(true))
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// A connection.
pub struct Io {
    inner: Pin<Box<dyn Duplex>>,
    peer: Peer,
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Io {
    pub(super) fn tcp(stream: TcpStream, peer: SocketAddr) -> Self {
        Self { inner: Box::pin(stream), peer: Peer { address: Some(peer), ..Peer::default() } }
    }

    pub(super) fn unix(stream: UnixStream) -> Self {
        Self { inner: Box::pin(stream), peer: Peer::default() }
    }

    /// What `wrap` makes of a connection, such as a TLS session in it; its other end then has those names.
    pub(super) fn wrapped(inner: impl AsyncRead + AsyncWrite + Send + 'static, peer: Peer) -> Self {
        Self { inner: Box::pin(inner), peer }
    }

    /// The same, with an authority that is one in each request.
    pub(super) fn mended(self) -> Self {
        let peer = self.peer.clone();
        Self::wrapped(Mended::new(self), peer)
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Connected for Io {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        self.inner.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        self.inner.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.inner.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.inner.as_mut().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.inner.as_mut().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_for_the_nodes_that_it_names() {
        let of =
            |names: &[&str]| Peer { address: None, names: names.iter().map(ToString::to_string).collect() };
        let peer = of(&["node-a", "spiffe://cluster/agents/node-b"]);
        for (node, is) in
            [("node-a", true), ("node-b", true), ("node", false), ("agents", false), ("", false)]
        {
            assert_eq!(peer.is_of(node), is, "{node}");
        }
        assert!(!of(&["spiffe://cluster/", "*.a"]).is_of(""));
        assert!(!of(&["*.cluster"]).is_of("node.cluster"), "a name, not a pattern");
        assert!(!of(&[]).is_of("node-a"));
    }
}
