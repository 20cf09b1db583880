//! Metrics of picks.

use prometheus::Registry;

/// Handles, resolved once.
pub struct PickMetrics {}

impl PickMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(_registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {})
    }
}
