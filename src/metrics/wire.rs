//! Metrics of wire.

use prometheus::Registry;

/// Handles, resolved once.
pub struct WireMetrics {}

impl WireMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(_registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {})
    }
}
