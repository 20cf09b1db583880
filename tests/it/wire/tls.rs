//! TLS: the certificate made at start, the one from files, and its exchange.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use warmpath::extproc::server::Security;

use super::gateway::{Exchange, get};
use super::{Behaviour, Harness, PATIENCE, settings};

/// Takes any certificate, like a gateway with `insecureSkipVerify`; signatures are still checked.
#[derive(Debug)]
struct SkipVerification(CryptoProvider);

impl ServerCertVerifier for SkipVerification {
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
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The certificate a server shows; it must speak HTTP/2.
async fn shown(address: SocketAddr) -> CertificateDer<'static> {
    let provider = aws_lc_rs::default_provider();
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(SkipVerification(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("warmpath").unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
        .unwrap();
    let connection = stream.get_ref().1;
    assert_eq!(connection.alpn_protocol(), Some(&b"h2"[..]));
    connection.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

/// A channel that trusts nothing but this certificate.
async fn connect_trusting(address: SocketAddr, pem: String) -> Channel {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(pem))
        .domain_name("warmpath");
    Endpoint::from_shared(format!("https://{address}"))
        .unwrap()
        .tls_config(tls)
        .unwrap()
        .connect()
        .await
        .unwrap()
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    use std::fmt::Write as _;

    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for (at, group) in certificate.chunks(3).enumerate() {
        let padded = [
            group[0],
            *group.get(1).unwrap_or(&0),
            *group.get(2).unwrap_or(&0),
        ];
        let bits = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for place in 0..4 {
            let sextet = ALPHABET[(bits >> (18 - 6 * place) & 63) as usize] as char;
            text.push(if place > group.len() { '=' } else { sextet });
        }
        if at % 16 == 15 {
            writeln!(text).unwrap();
        }
    }
    text.push_str("\n-----END CERTIFICATE-----\n");
    text
}

/// Writes a new pair and returns its certificate.
fn write_pair(directory: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["warmpath".to_owned()]).unwrap();
    std::fs::write(directory.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(directory.join("tls.crt"), made.cert.pem()).unwrap();
    made.cert.der().clone()
}

async fn pass_one_exchange(channel: &Channel) {
    let mut exchange = Exchange::open(channel).await;
    exchange.send(get()).await;
    exchange.request_headers().await;
    exchange.close().await;
}

#[tokio::test]
async fn a_self_signed_server_speaks_ext_proc() {
    let harness = Harness::with(Behaviour::Choose, settings(), Security::SelfSigned).await;
    let certificate = shown(harness.address).await;
    let channel = connect_trusting(harness.address, pem(&certificate)).await;
    pass_one_exchange(&channel).await;
}

#[tokio::test]
async fn a_silent_client_holds_up_nobodys_handshake() {
    let harness = Harness::with(Behaviour::Choose, settings(), Security::SelfSigned).await;
    let _silent = TcpStream::connect(harness.address).await.unwrap();
    // Half of the time that the server leaves to one.
    let in_time = std::time::Duration::from_secs(5);
    timeout(in_time, shown(harness.address)).await.unwrap();
}

#[tokio::test]
async fn plain_text_on_a_tls_port_is_counted_and_does_no_harm() {
    let harness = Harness::with(Behaviour::Choose, settings(), Security::SelfSigned).await;
    let plain = TcpStream::connect(harness.address).await.unwrap();
    plain.writable().await.unwrap();
    plain
        .try_write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    harness
        .await_metric("warmpath_tls_handshake_failures_total", None, 1.0)
        .await;
    shown(harness.address).await;
}

#[tokio::test]
async fn changed_files_are_taken_while_serving_and_broken_ones_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = write_pair(directory.path());
    let security = Security::Files(directory.path().to_owned());
    let harness = Harness::with(Behaviour::Choose, settings(), security).await;
    assert_eq!(shown(harness.address).await, first);
    let channel = connect_trusting(harness.address, pem(&first)).await;
    pass_one_exchange(&channel).await;

    let reloads = "warmpath_certificate_reloads_total";
    std::fs::write(directory.path().join("tls.crt"), "no certificate").unwrap();
    harness.await_metric(reloads, Some("refused"), 1.0).await;
    assert_eq!(shown(harness.address).await, first);

    let second = write_pair(directory.path());
    harness.await_metric(reloads, Some("taken"), 1.0).await;
    assert_eq!(shown(harness.address).await, second);
    // A connection from before goes on.
    pass_one_exchange(&channel).await;
}

#[tokio::test]
async fn a_server_without_its_files_does_not_start_and_says_which() {
    let directory = tempfile::tempdir().unwrap();
    let security = Security::Files(directory.path().to_owned());
    let mut harness = Harness::with(Behaviour::Choose, settings(), security).await;
    let ended = timeout(PATIENCE, harness.tasks.join_next()).await.unwrap();
    let error = ended.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("tls.crt"), "{error}");
}
