//! Which certificate do we show? One made at start, or one from files that is exchanged while serving.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::metrics::wire::WireMetrics;

/// How often files are read again. Kubernetes exchanges a mounted Secret through a symbolic link, which file watches
/// miss easily and a look at the content does not; two small files a second cost nothing.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A file is no PEM, or holds not what it should.
    #[error("{} holds no usable {what}", path.display())]
    Pem {
        path: PathBuf,
        what: &'static str,
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not go together, or the key is of a kind we cannot use.
    #[error("certificate and key do not make a pair")]
    Pair(#[source] rustls::Error),
    /// No certificate could be made.
    #[error("cannot make a self-signed certificate")]
    Make(#[from] rcgen::Error),
}

/// The certificate shown now. Written by the reloader about never, read for each handshake.
#[derive(Debug)]
pub(super) struct Shown(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

/// What a rustls server needs: HTTP/2 alone is spoken, and gRPC clients insist on seeing it in ALPN.
///
/// # Errors
/// When the provider knows none of the protocol versions we ask for.
pub(super) fn server_config(shown: Arc<Shown>) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(shown);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Makes a certificate that nobody can verify: gateways that are told to use TLS skip verification.
pub(super) fn self_signed() -> Result<Arc<Shown>, CertificateError> {
    let made = rcgen::generate_simple_self_signed(vec!["warmpath".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let pair = CertifiedKey::from_der(vec![made.cert.der().clone()], key.into(), &provider())
        .map_err(CertificateError::Pair)?;
    Ok(Arc::new(Shown(RwLock::new(Arc::new(pair)))))
}

/// A certificate and its key in files, exchanged when their content changes.
pub(super) struct Files {
    certificate: PathBuf,
    key: PathBuf,
    /// The content looked at last, taken or refused.
    seen: Content,
    shown: Arc<Shown>,
}

#[derive(PartialEq, Eq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    /// Reads `tls.crt` and `tls.key` of a directory.
    ///
    /// # Errors
    /// When they cannot be read, or are no pair.
    pub(super) async fn open(directory: &Path) -> Result<Self, CertificateError> {
        let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
        let seen = Content::read(&certificate, &key).await?;
        let pair = seen.pair(&certificate, &key)?;
        Ok(Self {
            certificate,
            key,
            seen,
            shown: Arc::new(Shown(RwLock::new(Arc::new(pair)))),
        })
    }

    /// The certificate shown now.
    pub(super) fn shown(&self) -> Arc<Shown> {
        Arc::clone(&self.shown)
    }

    /// Follows the files for ever. What cannot be read or is no pair is refused, and the old pair stays.
    pub(super) async fn follow(mut self, metrics: &WireMetrics) {
        let mut unreadable = false;
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let content = match Content::read(&self.certificate, &self.key).await {
                Ok(content) => content,
                Err(error) => {
                    if !std::mem::replace(&mut unreadable, true) {
                        metrics.certificate_changed(false);
                        tracing::warn!(error = %chain(&error), "certificate unreadable, the old one stays");
                    }
                    continue;
                }
            };
            unreadable = false;
            if content == self.seen {
                continue;
            }
            match content.pair(&self.certificate, &self.key) {
                Ok(pair) => {
                    *self.shown.0.write() = Arc::new(pair);
                    metrics.certificate_changed(true);
                    tracing::info!("certificate exchanged");
                }
                Err(error) => {
                    metrics.certificate_changed(false);
                    tracing::warn!(error = %chain(&error), "certificate refused, the old one stays");
                }
            }
            self.seen = content;
        }
    }
}

impl Content {
    async fn read(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        Ok(Self {
            certificate: read(certificate).await?,
            key: read(key).await?,
        })
    }

    fn pair(&self, certificate: &Path, key: &Path) -> Result<CertifiedKey, CertificateError> {
        let pem = |path: &Path, what| {
            let path = path.to_owned();
            move |source| CertificateError::Pem { path, what, source }
        };
        let chain = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<Vec<_>, _>>()
            .and_then(|chain| match chain.is_empty() {
                true => Err(rustls::pki_types::pem::Error::NoItemsFound),
                false => Ok(chain),
            })
            .map_err(pem(certificate, "certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(pem(key, "private key"))?;
        CertifiedKey::from_der(chain, key, &provider()).map_err(CertificateError::Pair)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| CertificateError::Read {
            path: path.to_owned(),
            source,
        })
}

fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// An error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
