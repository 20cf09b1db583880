//! Every metric, by subject: name, unit, help, labels from closed sets only.

use std::sync::Arc;

use prometheus::Registry;

use crate::routing::router::Router;

pub mod wire;

pub mod picks;

pub mod token_sources;

pub mod kube;
pub mod pool;

pub mod events;
pub mod reports;

pub mod access;
pub mod fleet;
pub mod process;

/// The handles of every subject, and the registry that a scrape reads.
#[derive(Clone)]
pub struct Metrics {
    /// What a scrape reads.
    pub registry: Registry,
    /// The gateway's side.
    pub wire: Arc<wire::WireMetrics>,
    /// Decisions.
    pub picks: Arc<picks::PickMetrics>,
    /// Token ids.
    pub tokens: Arc<token_sources::TokenMetrics>,
    /// Discovery.
    pub pool: Arc<pool::PoolMetrics>,
    /// Watches of the Kubernetes API.
    pub kube: Arc<kube::KubeMetrics>,
    /// KV events.
    pub events: Arc<events::EventMetrics>,
    /// State reports.
    pub reports: Arc<reports::ReportMetrics>,
    /// Protection of the pages.
    pub access: Arc<access::AccessMetrics>,
}

impl Metrics {
    /// Registers every metric of the process once.
    ///
    /// # Errors
    /// When two metrics have one name.
    pub fn register() -> prometheus::Result<Self> {
        let registry = Registry::new();
        process::register(&registry)?;
        Ok(Self {
            wire: Arc::new(wire::WireMetrics::register(&registry)?),
            picks: Arc::new(picks::PickMetrics::register(&registry)?),
            tokens: Arc::new(token_sources::TokenMetrics::register(&registry)?),
            pool: Arc::new(pool::PoolMetrics::register(&registry)?),
            kube: Arc::new(kube::KubeMetrics::register(&registry)?),
            events: Arc::new(events::EventMetrics::register(&registry)?),
            reports: Arc::new(reports::ReportMetrics::register(&registry)?),
            access: Arc::new(access::AccessMetrics::register(&registry)?),
            registry,
        })
    }

    /// Adds the gauges of the endpoints, read from `router` at each scrape.
    ///
    /// # Errors
    /// When they are registered already.
    pub fn register_fleet(&self, router: Arc<Router>) -> prometheus::Result<()> {
        self.registry
            .register(Box::new(fleet::FleetCollector::new(router)?))
    }
}
