//! The series that carry an endpoint's name: made at its first pick, taken away when it leaves.

use std::sync::Arc;

use parking_lot::RwLock;
use prometheus::{IntCounter, IntCounterVec};
use rustc_hash::FxHashMap;

use super::Names;
use crate::routing::endpoint::{EndpointId, EndpointName};

/// One endpoint's counters.
#[derive(Clone, Debug)]
pub struct EndpointSeries {
    name: EndpointName,
    picks: IntCounter,
    predicted: IntCounter,
    reported: IntCounter,
}

impl EndpointSeries {
    /// A prediction could be compared: both figures count.
    pub fn compared(&self, predicted: u64, reported: u64) {
        self.predicted.inc_by(predicted);
        self.reported.inc_by(reported);
    }
}

/// All of them.
pub(super) struct Endpoints {
    picks: IntCounterVec,
    predicted: IntCounterVec,
    reported: IntCounterVec,
    /// Read at each pick; written when an endpoint is first picked or leaves.
    series: RwLock<FxHashMap<EndpointId, Arc<EndpointSeries>>>,
}

impl Endpoints {
    pub(super) fn register(names: &Names<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            picks: names.counters("warmpath_picks_total", "Picks by endpoint.", "endpoint")?,
            predicted: names.counters(
                "warmpath_predicted_cached_tokens_total",
                "Prompt tokens foreseen to be cached, of requests whose engine reported its figure.",
                "endpoint",
            )?,
            reported: names.counters(
                "warmpath_reported_cached_tokens_total",
                "Prompt tokens the engines reported as cached, of the same requests.",
                "endpoint",
            )?,
            series: RwLock::default(),
        })
    }

    /// Counts a pick.
    pub(super) fn picked(&self, id: EndpointId, name: &EndpointName) -> Arc<EndpointSeries> {
        let known = self.series.read().get(&id).map(Arc::clone);
        let series = known.unwrap_or_else(|| {
            let of = |vec: &IntCounterVec| vec.with_label_values(&[name.as_str()]);
            let make = || {
                Arc::new(EndpointSeries {
                    name: name.clone(),
                    picks: of(&self.picks),
                    predicted: of(&self.predicted),
                    reported: of(&self.reported),
                })
            };
            Arc::clone(self.series.write().entry(id).or_insert_with(make))
        });
        series.picks.inc();
        series
    }

    /// Takes an endpoint's series away, unless a newer life of the same name has been picked already.
    pub(super) fn forget(&self, id: EndpointId) {
        let mut series = self.series.write();
        let Some(gone) = series.remove(&id) else {
            return;
        };
        if series.values().any(|other| other.name == gone.name) {
            return;
        }
        for vec in [&self.picks, &self.predicted, &self.reported] {
            // Absent series are as good as removed ones.
            drop(vec.remove_label_values(&[gone.name.as_str()]));
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    fn id(slot: u32, generation: u32) -> EndpointId {
        EndpointId { slot, generation }
    }

    fn names(registry: &Registry) -> Vec<String> {
        let families = registry.gather();
        let picks = families
            .iter()
            .find(|family| family.name() == "warmpath_picks_total");
        picks.map_or_else(Vec::new, |family| {
            let label =
                |metric: &prometheus::proto::Metric| metric.get_label()[0].value().to_owned();
            family.get_metric().iter().map(label).collect()
        })
    }

    #[test]
    fn series_of_an_endpoint_go_with_its_last_life() {
        let registry = Registry::new();
        let endpoints = Endpoints::register(&Names(&registry)).unwrap();
        let (a, b) = (EndpointName::new("ns", "a"), EndpointName::new("ns", "b"));
        endpoints.picked(id(0, 0), &a);
        endpoints.picked(id(1, 0), &b);
        // The pod restarts: its new life is picked before the old one is forgotten.
        endpoints.picked(id(2, 0), &a);
        endpoints.forget(id(0, 0));
        assert_eq!(names(&registry), ["ns/a", "ns/b"]);
        endpoints.forget(id(2, 0));
        assert_eq!(names(&registry), ["ns/b"]);
        endpoints.forget(id(7, 7));
        assert_eq!(names(&registry), ["ns/b"]);
    }
}
