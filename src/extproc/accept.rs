//! Who connects? Accepts sockets and makes TLS of them, without one slow handshake holding up the others.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::metrics::wire::WireMetrics;

/// A gateway in the same cluster needs milliseconds.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes at once; beyond it sockets wait in the kernel's queue. A gateway opens a few connections a worker.
const MAX_HANDSHAKES: usize = 256;
/// Pause after an error that more accepting would only repeat, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A gateway's connection.
#[derive(Debug)]
pub(super) enum Connection {
    /// Plain HTTP/2.
    Plain(TcpStream),
    /// HTTP/2 in TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connections ready for HTTP/2, for ever; dropping it closes the listener and ends unfinished handshakes.
pub(super) fn connections(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    metrics: Option<Arc<WireMetrics>>,
) -> impl Stream<Item = io::Result<Connection>> {
    let gate = Gate {
        listener,
        tls,
        metrics,
        handshakes: JoinSet::new(),
        failing: false,
    };
    stream::unfold(gate, |mut gate| async move {
        let connection = gate.next().await;
        Some((Ok(connection), gate))
    })
}

struct Gate {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    metrics: Option<Arc<WireMetrics>>,
    handshakes: JoinSet<io::Result<Connection>>,
    /// The last accept failed: it is logged once, not ten times a second.
    failing: bool,
}

impl Gate {
    async fn next(&mut self) -> Connection {
        loop {
            let room = self.handshakes.len() < MAX_HANDSHAKES;
            tokio::select! {
                accepted = self.listener.accept(), if room => match accepted {
                    Ok((socket, _)) => if let Some(connection) = self.admit(socket) {
                        return connection;
                    },
                    Err(error) if is_of_one_socket(&error) => {}
                    Err(error) => {
                        if !std::mem::replace(&mut self.failing, true) {
                            tracing::warn!(%error, "cannot accept connections");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(ended) = self.handshakes.join_next() => match ended {
                    Ok(Ok(connection)) => return connection,
                    Ok(Err(error)) => self.failed(&error),
                    Err(error) => self.failed(&error),
                },
            }
        }
    }

    /// A plain socket is ready at once; for TLS the handshake begins.
    fn admit(&mut self, socket: TcpStream) -> Option<Connection> {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "connection lost before it was used");
            return None;
        }
        let Some(tls) = &self.tls else {
            return Some(Connection::Plain(socket));
        };
        let handshake = tls.accept(socket);
        self.handshakes.spawn(async move {
            match timeout(HANDSHAKE_TIMEOUT, handshake).await {
                Ok(stream) => Ok(Connection::Tls(Box::new(stream?))),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        });
        None
    }

    fn failed(&self, error: &dyn std::error::Error) {
        if let Some(metrics) = &self.metrics {
            metrics.handshake_failed();
        }
        tracing::debug!(%error, "TLS handshake failed");
    }
}

/// The peer left between its SYN and our accept.
fn is_of_one_socket(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
