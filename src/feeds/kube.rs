//! The pool from Kubernetes: an InferencePool and the Pods it selects, or Pods alone.
//!
//! ```text
//! InferencePool ─▶ follow ─┐                       spec, Pods
//!                          ├─▶ watch (one task) ─▶ view ─▶ members ─▶ a new version of the pool
//! Pods ──────────▶ follow ─┘        │
//!                              condition ─▶ readiness, metrics, log
//! ```
//!
//! Objects are read one by one and only the fields that are used are kept. Whatever the API server does, what is known
//! stays in force until something else is known. Which annotations of a Pod count, `kube/pod.rs` says.

use std::sync::Arc;

use kube::Config;
use rustls::crypto::aws_lc_rs;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

mod collection;
mod condition;
mod follow;
mod inference_pool;
mod members;
mod object;
mod pod;
mod selector;
mod view;
mod watching;

pub use follow::Pace;
pub use members::{PortsError, TargetPorts};
pub use selector::{LabelSelector, SelectorError};
pub use watching::WatchError;

use super::pool::Pool;
use crate::metrics::kube::KubeMetrics;
use crate::readiness::Readiness;
use selector::is_dns_name;

/// How long a connection to the API server may take to stand.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Which Pods and ports are the endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Those that an InferencePool says.
    Pool {
        /// Its name.
        name: String,
        /// Its API group.
        group: String,
    },
    /// Those that a selector and a list say.
    Pods {
        /// Of the Pods.
        selector: LabelSelector,
        /// Of each Pod.
        ports: TargetPorts,
    },
}

/// Why no watch can be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Neither in a cluster nor with a kubeconfig.
    #[error(
        "no Kubernetes API server is known: there is neither a usable kubeconfig nor a service account of a cluster; \
         without Kubernetes, list the endpoints in an --endpoints-file"
    )]
    NoCluster(#[source] Box<kube::config::InferConfigError>),
    /// What is known of the API server makes no client, e.g. a certificate that cannot be read.
    #[error("cannot set up the client of the Kubernetes API")]
    Client(#[source] Box<kube::Error>),
    /// Something is no name in Kubernetes.
    #[error(
        "{what} `{written}` is no name of Kubernetes: lower-case letters, digits, `-` and `.`, at most 253"
    )]
    Name {
        /// What it should name.
        what: &'static str,
        /// What was written.
        written: String,
    },
}

/// A pool in Kubernetes, not yet watched.
pub struct Kubernetes {
    client: kube::Client,
    target: Target,
    namespace: String,
    pace: Pace,
}

impl Kubernetes {
    /// One in the cluster of the kubeconfig (`KUBECONFIG`, `~/.kube/config`), else in the cluster we run in. Without
    /// `namespace`: the kubeconfig's, the one we run in, or `default`. The API server is not asked anything yet.
    ///
    /// # Errors
    /// When no API server is known, or a name is none.
    pub async fn connect(target: Target, namespace: Option<&str>) -> Result<Self, SetupError> {
        // Two providers are compiled in (the hub's client brings ring), so rustls would not choose; refused if one was
        // chosen already, which is as good.
        aws_lc_rs::default_provider().install_default().ok();
        let config = Config::infer().await;
        let mut config = config.map_err(|error| SetupError::NoCluster(Box::new(error)))?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // Pauses, and what is told between them, are ours.
        config.default_retry = false;
        let client = kube::Client::try_from(config);
        let client = client.map_err(|error| SetupError::Client(Box::new(error)))?;
        Self::new(client, target, namespace, Pace::default())
    }

    /// One that is reached by `client`; without `namespace`: the client's default.
    ///
    /// # Errors
    /// When a name is none.
    pub fn new(
        client: kube::Client,
        target: Target,
        namespace: Option<&str>,
        pace: Pace,
    ) -> Result<Self, SetupError> {
        let namespace = namespace.map(str::trim).filter(|name| !name.is_empty());
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().trim());
        let mut names = vec![("the namespace", namespace)];
        if let Target::Pool { name, group } = &target {
            names.push(("the InferencePool", name));
            names.push(("the API group", group));
        }
        for (what, written) in names {
            if !is_dns_name(written) {
                let written = written.to_owned();
                return Err(SetupError::Name { what, written });
            }
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            client,
            target,
            pace,
        })
    }

    /// What is watched, for people.
    pub fn describe(&self) -> String {
        let namespace = &self.namespace;
        match &self.target {
            Target::Pool { name, .. } => format!("InferencePool {name} in namespace {namespace}"),
            Target::Pods { selector, .. } => format!("Pods {selector} in namespace {namespace}"),
        }
    }

    /// Watches until `stop`, and sends each new version of the pool: `None` once there is none.
    ///
    /// # Errors
    /// When a part of the watch ends by itself, whatever the API server does not make it do.
    pub async fn watch(
        self,
        pool: watch::Sender<Option<Arc<Pool>>>,
        readiness: Readiness,
        metrics: Arc<KubeMetrics>,
        stop: CancellationToken,
    ) -> Result<(), WatchError> {
        watching::run(self, pool, &readiness, &metrics, stop).await
    }
}
