//! Metrics of the watches of the Kubernetes API: whether they stand, how often they failed, what could not be read.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// What is watched: a closed set, because these are labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// The InferencePool.
    InferencePools,
    /// The Pods.
    Pods,
}

impl Resource {
    /// The label, which is the resource's name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InferencePools => "inferencepools",
            Self::Pods => "pods",
        }
    }
}

/// The metrics, whose series begin when a resource is watched: without Kubernetes there are none.
pub struct KubeMetrics {
    connected: IntGaugeVec,
    errors: IntCounterVec,
    refused: IntCounterVec,
}

/// The handles of one resource.
#[derive(Clone)]
pub struct WatchMetrics {
    /// 1 while its list is complete and its watch open, else 0.
    pub connected: IntGauge,
    /// Lists and watches that failed.
    pub errors: IntCounter,
    /// Versions of objects that could not be read.
    pub refused: IntCounter,
}

impl KubeMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name: &str, help: &str| {
            let vec = IntCounterVec::new(Opts::new(name, help), &["resource"])?;
            registry.register(Box::new(vec.clone()))?;
            prometheus::Result::Ok(vec)
        };
        let errors = counters(
            "warmpath_kubernetes_watch_errors_total",
            "Lists and watches of the Kubernetes API that failed or broke off.",
        )?;
        let refused = counters(
            "warmpath_kubernetes_objects_refused_total",
            "Versions of objects of the Kubernetes API that could not be read and were skipped.",
        )?;
        let connected = IntGaugeVec::new(
            Opts::new(
                "warmpath_kubernetes_watch_connected",
                "Whether what is known of the Kubernetes API is kept up to date by a watch.",
            ),
            &["resource"],
        )?;
        registry.register(Box::new(connected.clone()))?;
        Ok(Self {
            connected,
            errors,
            refused,
        })
    }

    /// The handles of a resource that is watched from now on.
    pub fn watched(&self, resource: Resource) -> WatchMetrics {
        let label = [resource.as_str()];
        WatchMetrics {
            connected: self.connected.with_label_values(&label),
            errors: self.errors.with_label_values(&label),
            refused: self.refused.with_label_values(&label),
        }
    }

    /// A resource is no longer watched on purpose, which is no reason for an alarm: its gauge goes, its counters stay.
    pub fn forget(&self, resource: Resource) {
        // An error says that there is none, which is as good.
        self.connected
            .remove_label_values(&[resource.as_str()])
            .ok();
    }
}
