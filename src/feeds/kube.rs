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

/// Something is no name in Kubernetes.
#[derive(Debug, thiserror::Error)]
#[error(
    "{what} `{written}` is no name of Kubernetes: lower-case letters, digits, `-` and `.`, at most 253"
)]
pub struct NameError {
    /// What it should name.
    what: &'static str,
    /// What was written.
    written: String,
}

/// A pool in Kubernetes, not yet watched.
pub struct Kubernetes {
    client: kube::Client,
    target: Target,
    namespace: String,
    pace: Pace,
}

impl Kubernetes {
    /// One that is reached by `client`; without `namespace`: the client's default, which is the
    /// kubeconfig's, the one we run in, or `default`. The API server is not asked anything yet.
    ///
    /// # Errors
    /// When a name is none.
    pub fn new(
        client: kube::Client,
        target: Target,
        namespace: Option<&str>,
        pace: Pace,
    ) -> Result<Self, NameError> {
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
                return Err(NameError { what, written });
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
