//! Metrics of events.

use prometheus::Registry;

/// Handles, resolved once.
pub struct EventMetrics {}

impl EventMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(_registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {})
    }
}
