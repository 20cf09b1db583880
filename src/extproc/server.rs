//! Listens for gateways: the ext-proc service and gRPC health, on plain or TLS sockets.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::pick::Pick;

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

/// Which body mode holds when the gateway does not say (no `protocol_config`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Nothing is sent.
    None,
    /// Chunks, each answered at once.
    Streamed,
    /// One message with the whole body.
    Buffered,
    /// One message with the body or its beginning.
    BufferedPartial,
    /// Chunks, answered when we like.
    FullDuplexStreamed,
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
    pub pick_timeout: std::time::Duration,
    /// Longest time we wait for the rest of a request body.
    pub body_timeout: std::time::Duration,
}

/// Serves ext-proc (and health) on `listener` until `stop`; then accepts no more and
/// returns when the streams in flight have ended.
///
/// # Errors
/// When the certificate cannot be read or made, or the listener fails.
pub async fn serve<P: Pick>(
    _listener: TcpListener,
    _security: Security,
    _settings: Settings,
    _pick: Arc<P>,
    _ready: watch::Receiver<bool>,
    _metrics: Arc<crate::metrics::wire::WireMetrics>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    stop.cancelled().await;
    Ok(())
}

/// Serves gRPC health alone, in plain text, until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve_health(
    _listener: TcpListener,
    _ready: watch::Receiver<bool>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    stop.cancelled().await;
    Ok(())
}
