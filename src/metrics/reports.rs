//! Metrics of state reports: how often engines answer, how fast, and what they say to have finished.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use crate::routing::endpoint::{EndpointName, ReportOutcome};

/// Handles, resolved once.
pub struct ReportMetrics {
    fresh: IntCounter,
    no_page: IntCounter,
    refused: IntCounter,
    failed: IntCounter,
    duration: Histogram,
    finished: IntCounterVec,
    unpicked: IntCounterVec,
    /// How many lives of each name are watched; two overlap while one follows the other. Written when lives begin
    /// and end.
    watched: Mutex<HashMap<EndpointName, usize>>,
}

/// The series that carry one endpoint's name. They are made with the first figure, and go with the last of the lives
/// that have that name.
pub struct Watched {
    metrics: Arc<ReportMetrics>,
    name: EndpointName,
    counters: Option<[IntCounter; 2]>,
}

impl Watched {
    /// The engine finished so many requests since the last report; none of our picks can have led to `unpicked` of them.
    pub fn finished(&mut self, finished: u64, unpicked: u64) {
        let metrics = &self.metrics;
        let make = || {
            [&metrics.finished, &metrics.unpicked]
                .map(|vec| vec.with_label_values(&[self.name.as_str()]))
        };
        let [of_finished, of_unpicked] = self.counters.get_or_insert_with(make);
        of_finished.inc_by(finished);
        of_unpicked.inc_by(unpicked);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut watched = self.metrics.watched.lock();
        let Some(lives) = watched.get_mut(&self.name) else {
            return;
        };
        *lives = lives.saturating_sub(1);
        if *lives > 0 {
            return;
        }
        watched.remove(&self.name);
        for vec in [&self.metrics.finished, &self.metrics.unpicked] {
            // Absent series are as good as removed ones.
            drop(vec.remove_label_values(&[self.name.as_str()]));
        }
    }
}

impl ReportMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let rounds = IntCounterVec::new(
            Opts::new(
                "warmpath_reports_total",
                "State reports asked for, by outcome: fresh, no_page, refused, failed",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(rounds.clone()))?;
        let duration = Histogram::with_opts(
            HistogramOpts::new(
                "warmpath_report_duration_seconds",
                "Time from asking for a state report to its answer or deadline",
            )
            // A filtered page takes an idle engine 0.8 ms, a whole one under load 13 ms.
            .buckets(vec![
                0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
            ]),
        )?;
        registry.register(Box::new(duration.clone()))?;
        let by_endpoint = |name: &str, help: &str| {
            let vec = IntCounterVec::new(Opts::new(name, help), &["endpoint"])?;
            registry.register(Box::new(vec.clone()))?;
            prometheus::Result::Ok(vec)
        };
        Ok(Self {
            finished: by_endpoint(
                "warmpath_engine_finished_requests_total",
                "Requests that the engine has finished by its own count while watched, whoever sent them.",
            )?,
            unpicked: by_endpoint(
                "warmpath_unpicked_requests_total",
                "Requests that the engine finished while this picker had none there.",
            )?,
            watched: Mutex::default(),
            fresh: rounds.with_label_values(&["fresh"]),
            no_page: rounds.with_label_values(&["no_page"]),
            refused: rounds.with_label_values(&["refused"]),
            failed: rounds.with_label_values(&["failed"]),
            duration,
        })
    }

    /// One question came to `outcome` after `took`.
    pub fn observe(&self, outcome: ReportOutcome, took: Duration) {
        match outcome {
            ReportOutcome::Fresh(_) => self.fresh.inc(),
            ReportOutcome::NoPage => self.no_page.inc(),
            ReportOutcome::Refused => self.refused.inc(),
            ReportOutcome::Failed => self.failed.inc(),
        }
        self.duration.observe(took.as_secs_f64());
    }

    /// A life of an endpoint begins to be watched, until the value is dropped.
    pub fn watch(self: &Arc<Self>, name: &EndpointName) -> Watched {
        *self.watched.lock().entry(name.clone()).or_default() += 1;
        Watched {
            metrics: Arc::clone(self),
            name: name.clone(),
            counters: None,
        }
    }

    /// How often a question was answered with a report.
    pub fn fresh(&self) -> u64 {
        self.fresh.get()
    }

    /// How often there was no page.
    pub fn no_page(&self) -> u64 {
        self.no_page.get()
    }

    /// How often there was no usable answer.
    pub fn failed(&self) -> u64 {
        self.failed.get()
    }
}
