//! How is the API server of Kubernetes reached? Nothing is asked of it here.

use std::error::Error as _;
use std::time::Duration;

use kube::Config;
use kube::config::InferConfigError;
use rustls::crypto::aws_lc_rs;

/// How long a connection to the API server may take to stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterError {
    /// Neither in a cluster nor with a kubeconfig.
    #[error(
        "no Kubernetes API server is known: {kubeconfig}, and there is no usable service account of a Pod either; \
         without Kubernetes, list the endpoints in an --endpoints-file"
    )]
    Unknown {
        /// What is wrong with the kubeconfig; it has its own cause in it.
        kubeconfig: String,
    },
    /// What is known of the API server makes no client, e.g. a certificate that cannot be read.
    #[error("cannot set up the client of the Kubernetes API")]
    Client(#[source] Box<kube::Error>),
}

/// A client of the cluster of the kubeconfig (`KUBECONFIG`, `~/.kube/config`), else of the cluster we run in. There it
/// reads the service account's token and the cluster's CA again each minute, since both are rotated.
///
/// # Errors
/// When no API server is known.
pub(super) async fn client() -> Result<kube::Client, ClusterError> {
    // Two providers are compiled in (the hub's client brings ring), so rustls would not choose; refused if one was
    // chosen already, which is as good.
    aws_lc_rs::default_provider().install_default().ok();
    let config = Config::infer().await;
    let mut config = config.map_err(unknown)?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // Pauses, and what is told between them, are those of whoever asks.
    config.default_retry = false;
    kube::Client::try_from(config).map_err(|error| ClusterError::Client(Box::new(error)))
}

fn unknown(error: InferConfigError) -> ClusterError {
    let kubeconfig = match error.source() {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    };
    ClusterError::Unknown { kubeconfig }
}
