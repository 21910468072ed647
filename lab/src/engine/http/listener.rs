//! Connections that can be refused and reset on command.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{extract::connect_info::Connected, serve::IncomingStream};
use futures::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

use super::faulty::Faulty;

/// Listens on one address, but for the times when connections are to be refused.
pub(super) struct Listener {
    address: SocketAddr,
    /// None while connections are refused.
    inner: Option<TcpListener>,
    faulty: Arc<Faulty>,
}

impl Listener {
    pub(super) const fn new(address: SocketAddr, inner: TcpListener, faulty: Arc<Faulty>) -> Self {
        Self { address, inner: Some(inner), faulty }
    }
}

impl axum::serve::Listener for Listener {
    type Io = Io;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Io, SocketAddr) {
        loop {
            if let Some(until) = self.faulty.refuses_until() {
                self.inner = None;
                tokio::time::sleep_until(until).await;
                self.faulty.refused();
                continue;
            }
            let Some(inner) = &self.inner else {
                match TcpListener::bind(self.address).await {
                    Ok(inner) => self.inner = Some(inner),
                    Err(error) => {
                        tracing::warn!(%error, address = %self.address, "the port is taken; trying again");
                        tokio::time::sleep(BETWEEN_ATTEMPTS).await;
                    }
                }
                continue;
            };
            let accepted = tokio::select! {
                () = self.faulty.refusal() => continue,
                accepted = inner.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // Tokens leave as they come, one small write each.
                    let _ = stream.set_nodelay(true);
                    let connection = Connection::default();
                    self.faulty.remember(&connection);
                    return (Io { stream, connection }, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection is lost");
                    tokio::time::sleep(BETWEEN_ATTEMPTS).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// A handle to a client's connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection(pub(super) Arc<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    is_reset: AtomicBool,
    task: AtomicWaker,
}

impl Connection {
    /// Cuts the connection with a TCP reset.
    pub(super) fn reset(&self) {
        self.0.is_reset.store(true, Ordering::Release);
        self.0.task.wake();
    }

    fn is_reset(&self) -> bool {
        self.0.is_reset.load(Ordering::Acquire)
    }
}

impl Connected<IncomingStream<'_, Listener>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        stream.io().connection.clone()
    }
}

/// The connection's bytes.
pub(super) struct Io {
    stream: TcpStream,
    connection: Connection,
}

impl Io {
    /// An error once the connection is reset; until then the task is woken when it is.
    fn check(&self, context: &Context<'_>) -> io::Result<()> {
        self.connection.0.task.register(context.waker());
        if self.connection.is_reset() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if self.connection.is_reset() {
            // Closing then sends a reset, and drops what was not sent.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // An orderly end before the reset would look like one.
        self.check(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Pause after the system refused something.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);
