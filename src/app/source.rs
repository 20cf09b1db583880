//! Where do the endpoints come from? From a file or from Kubernetes, as the command line says.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cluster;
use crate::args::Discovery;
use crate::feeds::kube::{Kubernetes, LabelSelector, Pace, Target, TargetPorts};
use crate::feeds::pool::Pool;
use crate::feeds::static_file::EndpointsFile;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// A source of endpoints, not yet followed.
pub(super) enum Source {
    /// The file, whose first version is read.
    File(EndpointsFile),
    /// A cluster, which was not asked anything yet.
    Kubernetes(Box<Kubernetes>),
}

impl Source {
    /// The one that the command line names.
    ///
    /// # Errors
    /// When the file is not valid, when a flag of the others means nothing, or when no cluster is known.
    pub(super) async fn open(discovery: &Discovery) -> anyhow::Result<Self> {
        if let Some(file) = &discovery.endpoints_file {
            return Ok(Self::File(EndpointsFile::open(file)?));
        }
        let target = match (&discovery.pool_name, &discovery.endpoint_selector) {
            (Some(name), _) => Target::Pool {
                name: name.clone(),
                group: discovery.pool_group.clone(),
            },
            (None, Some(selector)) => Target::Pods {
                selector: LabelSelector::parse(selector).context("--endpoint-selector")?,
                ports: TargetPorts::new(discovery.endpoint_target_ports.clone())
                    .context("--endpoint-target-ports")?,
            },
            (None, None) => {
                anyhow::bail!("name a --pool-name, an --endpoint-selector or an --endpoints-file")
            }
        };
        let namespace = discovery.pool_namespace.as_deref();
        let client = cluster::client().await?;
        let kubernetes = Kubernetes::new(client, target, namespace, Pace::default())?;
        Ok(Self::Kubernetes(Box::new(kubernetes)))
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::File(file) => format!("file with {} endpoints", file.pool().members().len()),
            Self::Kubernetes(kubernetes) => kubernetes.describe(),
        }
    }

    /// The first version of the pool, if there is one already.
    pub(super) fn first(&self) -> Option<Arc<Pool>> {
        match self {
            Self::File(file) => Some(file.pool()),
            Self::Kubernetes(_) => None,
        }
    }

    /// Follows it until `stop`, and sends each new version of the pool.
    ///
    /// # Errors
    /// When it ends by itself.
    pub(super) async fn watch(
        self,
        pool: watch::Sender<Option<Arc<Pool>>>,
        readiness: Readiness,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.watch(pool, readiness, metrics.pool, stop).await,
            Self::Kubernetes(kubernetes) => {
                kubernetes
                    .watch(pool, readiness, metrics.kube, stop)
                    .await?;
            }
        }
        Ok(())
    }
}
