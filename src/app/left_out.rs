//! Which endpoints are left out of picks, and why? One log line a change, and a word in `/readyz` while none is left.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::readiness::Readiness;
use crate::routing::endpoint::EndpointId;
use crate::routing::router::{EndpointView, Exclusion, Router};

/// A state that comes and goes within this time is for the metrics alone.
const LOOK: Duration = Duration::from_secs(1);

/// Looks once a second until `stop`.
pub(super) async fn watch(router: Arc<Router>, readiness: Readiness, stop: CancellationToken) {
    let mut told = Told::default();
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let endpoints = router.endpoints(Instant::now());
        for change in told.changes(&endpoints) {
            change.log();
        }
        readiness.set_degraded("endpoints", nobody(&endpoints));
    }
}

/// What was said of each endpoint.
#[derive(Default)]
struct Told(HashMap<EndpointId, Exclusion>);

/// News of one endpoint.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    endpoint: String,
    /// Why it was left out until now.
    before: Option<Exclusion>,
    /// Why it is from now on.
    now: Option<Exclusion>,
}

impl Change {
    fn log(&self) {
        let endpoint = &self.endpoint;
        let before = self.before.map(Exclusion::as_str);
        match self.now.map(Exclusion::as_str) {
            Some(why) => warn!(endpoint, why, before, "endpoint is left out of picks"),
            None => info!(endpoint, before, "endpoint is picked again"),
        }
    }
}

impl Told {
    fn changes(&mut self, endpoints: &[EndpointView]) -> Vec<Change> {
        let mut seen = HashMap::new();
        let mut changes = Vec::new();
        for view in endpoints {
            // That it is not ready is discovery's news, and told there.
            let now = view.excluded.filter(|why| *why != Exclusion::NotReady);
            let before = self.0.get(&view.id).copied();
            if let Some(why) = now {
                seen.insert(view.id, why);
            }
            if before != now {
                changes.push(Change {
                    endpoint: view.endpoint.name.to_string(),
                    before,
                    now,
                });
            }
        }
        self.0 = seen;
        changes
    }
}

/// What there is to say where ready endpoints are all left out.
fn nobody(endpoints: &[EndpointView]) -> Option<String> {
    let mut reasons: Vec<&str> = Vec::new();
    for view in endpoints.iter().filter(|view| view.ready) {
        reasons.push(view.excluded?.as_str());
    }
    reasons.sort_unstable();
    reasons.dedup();
    (!reasons.is_empty())
        .then(|| format!("all ready endpoints are left out: {}", reasons.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::cost::Tiers;
    use crate::routing::endpoint::{Endpoint, EndpointName, ReportOutcome};
    use crate::routing::router::{Policy, Settings};

    fn router() -> (Arc<Router>, [EndpointId; 2]) {
        let router = Router::new(Settings {
            policy: Policy::LeastPrefill,
            tiers: Tiers::default(),
            kv_usage_limit: 0.95,
            report_age_limit: Duration::from_secs(600),
            idle_report_age_limit: Duration::from_secs(600),
        });
        let ids = [1, 2].map(|n| {
            let id = router.join(Endpoint {
                name: EndpointName::new("ns", &format!("e{n}")),
                address: ([10, 0, 0, n], 8000).into(),
                labels: std::collections::BTreeMap::new(),
                incarnation: String::new(),
                rank: None,
            });
            router.set_ready(id, true);
            id
        });
        (router, ids)
    }

    #[test]
    fn each_change_is_told_once_and_an_endpoint_that_left_is_forgotten() {
        let (router, ids) = router();
        let mut told = Told::default();
        let mut changes = || told.changes(&router.endpoints(Instant::now()));
        assert_eq!(changes(), []);
        router.report(ids[0], ReportOutcome::Refused, Instant::now());
        let left_out = Change {
            endpoint: "ns/e1".to_owned(),
            before: None,
            now: Some(Exclusion::Unreachable),
        };
        assert_eq!(changes(), [left_out]);
        assert_eq!(changes(), []);
        router.report(ids[0], ReportOutcome::NoPage, Instant::now());
        assert_eq!(changes()[0].now, None);
        router.report(ids[1], ReportOutcome::Refused, Instant::now());
        assert_eq!(changes().len(), 1);
        router.leave(ids[1]);
        assert_eq!(changes(), []);
    }

    #[test]
    fn nobody_left_is_said_with_the_reasons() {
        let (router, ids) = router();
        let said = || nobody(&router.endpoints(Instant::now()));
        router.report(ids[0], ReportOutcome::Refused, Instant::now());
        assert_eq!(said(), None);
        router.report(ids[1], ReportOutcome::Refused, Instant::now());
        let all = "all ready endpoints are left out: unreachable";
        assert_eq!(said().as_deref(), Some(all));
        router.leave_all(&ids);
        assert_eq!(said(), None, "a pool without endpoints is another matter");
    }
}
