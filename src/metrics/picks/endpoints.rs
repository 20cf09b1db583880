//! The series that carry an endpoint's name: made when it joins, taken away when it leaves.

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
    doubts: IntCounter,
}

impl EndpointSeries {
    /// A prediction could be compared: both figures count.
    pub fn compared(&self, predicted: u64, reported: u64) {
        self.predicted.inc_by(predicted);
        self.reported.inc_by(reported);
    }

    /// What its events tell is no longer believed.
    pub fn doubted(&self) {
        self.doubts.inc();
    }
}

/// All of them.
pub(super) struct Endpoints {
    picks: IntCounterVec,
    predicted: IntCounterVec,
    reported: IntCounterVec,
    doubts: IntCounterVec,
    /// Read at each pick; written when endpoints join and leave.
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
            doubts: names.counters(
                "warmpath_endpoint_doubts_total",
                "Times that an endpoint's answers or missing events made its KV events doubted.",
                "endpoint",
            )?,
            series: RwLock::default(),
        })
    }

    /// Makes an endpoint's series; lives of one name have the same.
    pub(super) fn meet(&self, id: EndpointId, name: &EndpointName) {
        let mut series = self.series.write();
        let of = |vec: &IntCounterVec| vec.with_label_values(&[name.as_str()]);
        let made = EndpointSeries {
            name: name.clone(),
            picks: of(&self.picks),
            predicted: of(&self.predicted),
            reported: of(&self.reported),
            doubts: of(&self.doubts),
        };
        series.insert(id, Arc::new(made));
    }

    /// Counts a pick; `None` for one of an endpoint that left in that moment, whose series would come back for ever.
    pub(super) fn picked(&self, id: EndpointId) -> Option<Arc<EndpointSeries>> {
        let series = self.series.read().get(&id).map(Arc::clone)?;
        series.picks.inc();
        Some(series)
    }

    /// Takes an endpoint's series away, unless a newer life of the same name has joined already.
    pub(super) fn forget(&self, id: EndpointId) {
        let mut series = self.series.write();
        let Some(gone) = series.remove(&id) else {
            return;
        };
        if series.values().any(|other| other.name == gone.name) {
            return;
        }
        for vec in [&self.picks, &self.predicted, &self.reported, &self.doubts] {
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
        endpoints.meet(id(0, 0), &a);
        endpoints.meet(id(1, 0), &b);
        // The pod restarts: its new life joins before the old one is forgotten.
        endpoints.meet(id(2, 0), &a);
        endpoints.forget(id(0, 0));
        assert!(endpoints.picked(id(2, 0)).is_some());
        assert_eq!(names(&registry), ["ns/a", "ns/b"]);
        endpoints.forget(id(2, 0));
        assert_eq!(names(&registry), ["ns/b"]);
        endpoints.forget(id(7, 7));
        assert_eq!(names(&registry), ["ns/b"]);
    }

    #[test]
    fn a_pick_counted_after_its_endpoint_left_makes_no_series() {
        let registry = Registry::new();
        let endpoints = Endpoints::register(&Names(&registry)).unwrap();
        let a = EndpointName::new("ns", "a");
        endpoints.meet(id(0, 0), &a);
        endpoints.forget(id(0, 0));
        assert!(endpoints.picked(id(0, 0)).is_none());
        assert_eq!(names(&registry), Vec::<String>::new());
    }
}
