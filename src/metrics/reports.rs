//! Metrics of state reports: how often engines answer, and how fast.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use crate::routing::endpoint::ReportOutcome;

/// Handles, resolved once.
pub struct ReportMetrics {
    fresh: IntCounter,
    no_page: IntCounter,
    failed: IntCounter,
    duration: Histogram,
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
                "State reports asked for, by outcome: fresh, no_page, failed",
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
        Ok(Self {
            fresh: rounds.with_label_values(&["fresh"]),
            no_page: rounds.with_label_values(&["no_page"]),
            failed: rounds.with_label_values(&["failed"]),
            duration,
        })
    }

    /// One question came to `outcome` after `took`.
    pub fn observe(&self, outcome: ReportOutcome, took: Duration) {
        match outcome {
            ReportOutcome::Fresh(_) => self.fresh.inc(),
            ReportOutcome::NoPage => self.no_page.inc(),
            ReportOutcome::Failed => self.failed.inc(),
        }
        self.duration.observe(took.as_secs_f64());
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
