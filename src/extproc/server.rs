//! Listens for gateways: the ext-proc service and gRPC health, on plain or TLS sockets.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::transport::Server;
use tonic_health::pb::health_server::HealthServer;

use super::exchange::{BodyMode, TestHeaders};
use super::health::HealthService;
use super::pick::Pick;
use super::proto::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use super::service::Service;
use super::{accept, tls};

/// How the gateway's connection is secured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// Plain HTTP/2.
    Plain,
    /// TLS with a certificate made at start-up.
    SelfSigned,
    /// TLS with `tls.crt` and `tls.key` of this directory, read again when they change.
    Files(PathBuf),
}

/// Limits of the wire.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of one request body; more is answered with 413.
    pub max_body_bytes: usize,
    /// Exchanges at once; more are answered with 429.
    pub max_exchanges: usize,
    /// Bytes of request bodies held at once over all exchanges; more is answered with 429.
    pub max_buffered_bytes: usize,
    /// Mode in force when the gateway does not say.
    pub default_body_mode: BodyMode,
    /// Longest time one pick may take before the request is routed on load alone.
    pub pick_timeout: Duration,
    /// Longest time we wait for the rest of a request body.
    pub body_timeout: Duration,
    /// The headers of the gateway conformance suite.
    pub test_headers: TestHeaders,
}

/// gRPC messages are larger than the bodies in them: room for headers and metadata. It also leaves room for a body that
/// is somewhat over the cap, so that it is answered with 413 in the usual way.
const MESSAGE_HEADROOM_BYTES: usize = 1024 * 1024;
/// Envoy sends body messages of up to 1 MiB of either direction, whatever the cap on request bodies is.
const MIN_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// One Envoy worker sends all its exchanges over one connection, in messages of up to 1 MiB. The stream window takes
/// one such message without waiting for us; the connection window sixteen.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Streams beyond the limit of exchanges must still get through to be told so (429).
const REFUSED_STREAMS: u32 = 256;
/// A gateway that vanished without a word is noticed after interval + timeout, and its exchanges are dropped.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves ext-proc (and health) on `listener` until `stop`; then accepts no more and
/// returns when the streams in flight have ended. Dropping the future does not end them.
///
/// # Errors
/// When the certificate cannot be read or made, or the listener fails.
pub async fn serve<P: Pick>(
    listener: TcpListener,
    security: Security,
    settings: Settings,
    pick: Arc<P>,
    ready: watch::Receiver<bool>,
    metrics: Arc<crate::metrics::wire::WireMetrics>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let max_message_bytes = settings
        .max_body_bytes
        .saturating_add(MESSAGE_HEADROOM_BYTES)
        .max(MIN_MESSAGE_BYTES);
    let max_streams = u32::try_from(settings.max_exchanges)
        .unwrap_or(u32::MAX)
        .saturating_add(REFUSED_STREAMS);
    let (shown, files) = match security {
        Security::Plain => (None, None),
        Security::SelfSigned => (Some(tls::self_signed()?), None),
        Security::Files(directory) => {
            let files = tls::Files::open(&directory).await?;
            (Some(files.shown()), Some(files))
        }
    };
    let acceptor = match shown {
        Some(shown) => Some(TlsAcceptor::from(Arc::new(tls::server_config(shown)?))),
        None => None,
    };
    let connections = accept::connections(listener, acceptor, Some(Arc::clone(&metrics)));
    let exchanges =
        ExternalProcessorServer::new(Service::new(pick, settings, Arc::clone(&metrics)))
            .max_decoding_message_size(max_message_bytes);
    let health = HealthServer::new(HealthService::new(ready, stop.clone()));
    let serving = builder()
        .max_concurrent_streams(max_streams)
        .serve_with_incoming_shutdown(
            Paths { exchanges, health },
            connections,
            stop.cancelled_owned(),
        );
    let following = async {
        match files {
            Some(files) => files.follow(&metrics).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = serving => served?,
        () = following => {}
    }
    Ok(())
}

/// Serves gRPC health alone, in plain text, until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve_health(
    listener: TcpListener,
    ready: watch::Receiver<bool>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let health = HealthServer::new(HealthService::new(ready, stop.clone()));
    let connections = accept::connections(listener, None, None);
    builder()
        .serve_with_incoming_shutdown(health, connections, stop.cancelled_owned())
        .await?;
    Ok(())
}

fn builder() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

/// Two services on one port, told apart by path. What neither knows, the first answers as unimplemented.
struct Paths<P: Pick> {
    exchanges: ExternalProcessorServer<Service<P>>,
    health: HealthServer<HealthService>,
}

impl<P: Pick> Clone for Paths<P> {
    fn clone(&self) -> Self {
        Self {
            exchanges: self.exchanges.clone(),
            health: self.health.clone(),
        }
    }
}

impl<P: Pick> tonic::codegen::Service<http::Request<Body>> for Paths<P> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // Both are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path().starts_with("/grpc.health.v1.Health/") {
            self.health.call(request)
        } else {
            self.exchanges.call(request)
        }
    }
}
