//! How is a picker reached? HTTP/2 connections, plain or in TLS, as the workers of a gateway keep them.
//!
//! Straight on `h2`, without a gRPC client: what the load costs is missing where the picker is measured beside it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Tls;

/// What Envoy's documentation recommends and Istio sets for such connections; large enough not to be measured.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Why a picker cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// Nobody listens, or TLS failed.
    #[error("cannot connect to {target}")]
    Socket { target: String, source: io::Error },
    /// It answers plain text with an alert of TLS.
    #[error("{target} speaks TLS: --tls")]
    SpeaksTls { target: String },
    /// It does not speak HTTP/2.
    #[error("{target} does not speak HTTP/2")]
    Http { target: String, source: h2::Error },
    /// The TLS library refuses our settings.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Some connections, taken in turn. Dropping it closes them.
pub(super) struct Connections {
    senders: Vec<SendRequest<Bytes>>,
    next: AtomicUsize,
    /// Drives the connections.
    _drivers: JoinSet<()>,
}

impl Connections {
    pub(super) async fn open(target: &str, tls: Tls, count: usize) -> Result<Self, ConnectError> {
        let connector = match tls {
            Tls::Off if speaks_tls(target).await => {
                let target = target.to_owned();
                return Err(ConnectError::SpeaksTls { target });
            }
            Tls::Off => None,
            Tls::Insecure => Some(TlsConnector::from(Arc::new(client_config()?))),
        };
        let mut senders = Vec::new();
        let mut drivers = JoinSet::new();
        for _ in 0..count.max(1) {
            let refused = |source| ConnectError::Socket {
                target: target.to_owned(),
                source,
            };
            let socket = TcpStream::connect(target).await.map_err(refused)?;
            socket.set_nodelay(true).map_err(refused)?;
            let sender = match &connector {
                None => handshake(socket, target, &mut drivers).await?,
                Some(tls) => {
                    // Not verified, so any name does.
                    let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
                    let stream = tls.connect(name, socket).await.map_err(refused)?;
                    handshake(stream, target, &mut drivers).await?
                }
            };
            senders.push(sender);
        }
        Ok(Self {
            senders,
            next: AtomicUsize::new(0),
            _drivers: drivers,
        })
    }

    /// The connection whose turn it is, once it takes another stream.
    pub(super) async fn next(&self) -> Result<SendRequest<Bytes>, h2::Error> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.senders.len();
        match self.senders.get(turn) {
            Some(sender) => sender.clone().ready().await,
            None => Err(h2::Reason::INTERNAL_ERROR.into()),
        }
    }
}

/// What a client of plain HTTP/2 says first: the preface, and settings that change nothing.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The first byte of an alert of TLS. HTTP/2 answers with a frame, whose first byte is that of a length, 0.
const ALERT: u8 = 21;
/// An answer that takes longer will show what it is by itself.
const GREETING_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether plain text is answered with an alert of TLS. Without this every request would fail by a broken stream,
/// which tells nobody why.
async fn speaks_tls(target: &str) -> bool {
    let asking = async {
        let mut socket = TcpStream::connect(target).await?;
        socket.write_all(GREETING).await?;
        socket.read_u8().await
    };
    // Whatever else goes wrong is told by the connections themselves.
    matches!(timeout(GREETING_TIMEOUT, asking).await, Ok(Ok(ALERT)))
}

async fn handshake(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    target: &str,
    drivers: &mut JoinSet<()>,
) -> Result<SendRequest<Bytes>, ConnectError> {
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .handshake(io)
        .await
        .map_err(|source| ConnectError::Http {
            target: target.to_owned(),
            source,
        })?;
    drivers.spawn(async move {
        // Its streams see the error as well, and are counted there.
        connection.await.ok();
    });
    Ok(sender)
}

fn client_config() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TakesAny(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Takes any certificate, as gateways do with pickers that make their own; the handshake itself is verified.
#[derive(Debug)]
struct TakesAny(Arc<CryptoProvider>);

impl ServerCertVerifier for TakesAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
