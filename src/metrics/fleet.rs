//! Gauges of the endpoints, read from the router at scrape time: nothing to update, nothing to remove.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::routing::cache::FeedState;
use crate::routing::router::{EndpointView, Exclusion, Router};

/// One family: its name, help and labels after `endpoint`, and its samples of one endpoint.
struct Family {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    samples: fn(&EndpointView) -> Vec<Sample>,
}

/// Values of the labels after `endpoint`, and the gauge's value.
type Sample = (Vec<String>, f64);

#[expect(
    clippy::cast_precision_loss,
    reason = "gauges are floating point; counts of tokens and blocks stay below 2^53"
)]
const fn gauge(number: u64) -> f64 {
    number as f64
}

fn plain(value: f64) -> Vec<Sample> {
    vec![(Vec::new(), value)]
}

fn flag(is_set: bool) -> Vec<Sample> {
    plain(f64::from(u8::from(is_set)))
}

const FAMILIES: [Family; 14] = [
    Family {
        name: "warmpath_endpoint_ready",
        help: "Whether the endpoint may take requests (1) or not (0)",
        labels: &[],
        samples: |view| flag(view.ready),
    },
    Family {
        name: "warmpath_endpoint_queued_tokens",
        help: "Prompt tokens booked on the endpoint and not yet prefilled",
        labels: &[],
        samples: |view| plain(gauge(view.queued.get())),
    },
    Family {
        name: "warmpath_endpoint_in_flight",
        help: "Requests of this picker in flight on the endpoint",
        labels: &[],
        samples: |view| plain(f64::from(view.in_flight)),
    },
    Family {
        name: "warmpath_endpoint_cached_blocks",
        help: "Blocks known to be cached on the endpoint",
        labels: &[],
        samples: |view| plain(gauge(view.blocks)),
    },
    Family {
        name: "warmpath_endpoint_orphan_blocks",
        help: "Blocks kept aside until their parent comes",
        labels: &[],
        samples: |view| plain(gauge(view.orphans)),
    },
    Family {
        name: "warmpath_endpoint_kv_usage_ratio",
        help: "Share of the endpoint's KV pool in use by its last report, 0 to 1",
        labels: &[],
        samples: |view| of_report(view, |report, _| report.kv_usage),
    },
    Family {
        name: "warmpath_endpoint_running_requests",
        help: "Requests the endpoint computes by its last report, whoever sent them",
        labels: &[],
        samples: |view| of_report(view, |report, _| gauge(report.running)),
    },
    Family {
        name: "warmpath_endpoint_waiting_requests",
        help: "Requests waiting on the endpoint by its last report, whoever sent them",
        labels: &[],
        samples: |view| of_report(view, |report, _| gauge(report.waiting)),
    },
    Family {
        name: "warmpath_endpoint_report_age_seconds",
        help: "Time since the endpoint's last report",
        labels: &[],
        samples: |view| of_report(view, |_, age| age.as_secs_f64()),
    },
    Family {
        name: "warmpath_endpoint_excluded",
        help: "Whether the guard leaves the endpoint out now (1): unreachable, refusing, stalled, kv_usage, report_age",
        labels: &["guard"],
        samples: excluded,
    },
    Family {
        name: "warmpath_endpoint_asleep",
        help: "Whether the endpoint sleeps by its last report (1): it is not picked, whoever else is there",
        labels: &[],
        samples: |view| of_report(view, |report, _| f64::from(u8::from(report.asleep))),
    },
    Family {
        name: "warmpath_endpoint_feed_state",
        help: "State of each KV event source, 1 for the one that holds: live, suspect, incomplete, absent",
        labels: &["rank", "state"],
        samples: feed_states,
    },
    Family {
        name: "warmpath_endpoint_approximate",
        help: "Whether the approximate index serves the endpoint (1), for want of events",
        labels: &[],
        samples: |view| flag(view.approximate),
    },
    Family {
        name: "warmpath_endpoint_prefill_seconds_per_token",
        help: "Learnt prefill time of one token",
        labels: &[],
        samples: |view| {
            let learnt = view.prefill_us_per_token.map(|us| us / 1e6);
            learnt.map_or_else(Vec::new, plain)
        },
    },
];

fn of_report(
    view: &EndpointView,
    value: fn(&crate::routing::endpoint::Report, std::time::Duration) -> f64,
) -> Vec<Sample> {
    match &view.report {
        Some((report, age)) => plain(value(report, *age)),
        None => Vec::new(),
    }
}

fn excluded(view: &EndpointView) -> Vec<Sample> {
    let sample = |guard: Exclusion| {
        let holds = view.excluded == Some(guard);
        (vec![guard.as_str().to_owned()], f64::from(u8::from(holds)))
    };
    Exclusion::GUARDS.map(sample).into()
}

/// The word for a feed's state in labels and pages.
pub const fn feed_word(state: &FeedState) -> &'static str {
    match state {
        FeedState::Live => "live",
        FeedState::Suspect => "suspect",
        FeedState::Incomplete(_) => "incomplete",
        FeedState::Absent(_) => "absent",
    }
}

fn feed_states(view: &EndpointView) -> Vec<Sample> {
    let states = ["live", "suspect", "incomplete", "absent"];
    let of_rank = |(rank, state): &(u32, FeedState)| {
        let word = feed_word(state);
        states.map(|name| {
            let holds = f64::from(u8::from(name == word));
            (vec![rank.to_string(), name.to_owned()], holds)
        })
    };
    view.feeds.iter().flat_map(of_rank).collect()
}

/// Reads the router when a scrape comes.
pub struct FleetCollector {
    router: Arc<Router>,
    descs: Vec<Desc>,
}

impl FleetCollector {
    /// A collector of `router`'s endpoints.
    ///
    /// # Errors
    /// When a name or label is not a valid one.
    pub fn new(router: Arc<Router>) -> prometheus::Result<Self> {
        let desc = |family: &Family| {
            let labels = ["endpoint"].iter().chain(family.labels);
            Desc::new(
                family.name.to_owned(),
                family.help.to_owned(),
                labels.map(|label| (*label).to_owned()).collect(),
                HashMap::new(),
            )
        };
        let descs = FAMILIES.iter().map(desc).collect::<Result<_, _>>()?;
        Ok(Self { router, descs })
    }
}

impl Collector for FleetCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        families_of(&self.router.endpoints(Instant::now()))
    }
}

/// The families of some endpoints; those without samples are left out.
fn families_of(views: &[EndpointView]) -> Vec<MetricFamily> {
    let mut families = Vec::with_capacity(FAMILIES.len());
    for family in &FAMILIES {
        let mut metrics = Vec::new();
        for view in views {
            for (values, value) in (family.samples)(view) {
                metrics.push(metric(family, view, values, value));
            }
        }
        if metrics.is_empty() {
            continue;
        }
        let mut proto = MetricFamily::default();
        proto.set_name(family.name.to_owned());
        proto.set_help(family.help.to_owned());
        proto.set_field_type(MetricType::GAUGE);
        proto.set_metric(metrics);
        families.push(proto);
    }
    families
}

fn metric(family: &Family, view: &EndpointView, values: Vec<String>, value: f64) -> Metric {
    let pair = |name: &str, value: String| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    };
    let mut labels = vec![pair("endpoint", view.endpoint.name.to_string())];
    labels.extend(
        family
            .labels
            .iter()
            .zip(values)
            .map(|(name, value)| pair(name, value)),
    );
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = Metric::default();
    metric.set_label(labels);
    metric.set_gauge(gauge);
    metric
}

#[cfg(test)]
mod tests;
