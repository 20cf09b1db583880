//! Metrics of discovery: how often the pool's source gave a new version.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// Handles, resolved once.
pub struct PoolMetrics {
    accepted: IntCounter,
    refused: IntCounter,
}

impl PoolMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let loads = IntCounterVec::new(
            Opts::new(
                "warmpath_endpoints_file_loads_total",
                "Versions of the endpoints file, by outcome: accepted, refused",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(loads.clone()))?;
        Ok(Self {
            accepted: loads.with_label_values(&["accepted"]),
            refused: loads.with_label_values(&["refused"]),
        })
    }

    /// A version came into force.
    pub fn accepted(&self) {
        self.accepted.inc();
    }

    /// A version was refused.
    pub fn refused(&self) {
        self.refused.inc();
    }
}
