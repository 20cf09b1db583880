//! How are the figures told? As a few lines, or as one JSON object a run.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::picker_process::Used;
use super::tally::{Results, Spread};

/// One run's figures.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) load: String,
    pub(super) seconds: f64,
    pub(super) requests: usize,
    pub(super) requests_per_second: f64,
    /// From the first message sent to the destination received.
    pub(super) pick_ms: Option<Spread>,
    /// From an event of the answer sent to its echo.
    pub(super) chunk_ms: Option<Spread>,
    /// How late the generator was with a request; where this is large, so are the others for its own reasons.
    pub(super) lateness_ms: Option<Spread>,
    pub(super) errors: std::collections::BTreeMap<String, u64>,
    /// Endpoints that got a request, and the most and fewest that one got.
    pub(super) endpoints: usize,
    pub(super) most_a_endpoint: u64,
    pub(super) fewest_a_endpoint: u64,
    pub(super) picker: Option<Picker>,
    pub(super) generator_cores: f64,
    /// Runnable processes of the machine over the last minute.
    pub(super) load_average: Option<f64>,
}

/// What the picker used.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Picker {
    pub(super) cores: f64,
    /// `None` without any requests.
    pub(super) cpu_ms_per_request: Option<f64>,
    pub(super) resident_mib: f64,
}

impl Report {
    /// Makes figures of what was gathered in `seconds`.
    pub(super) fn new(load: String, seconds: f64, results: Results) -> Self {
        let requests = results.picks.len();
        let counts = results.destinations.values().copied();
        Self {
            load,
            seconds,
            requests,
            requests_per_second: requests as f64 / seconds,
            endpoints: results.destinations.len(),
            most_a_endpoint: counts.clone().max().unwrap_or(0),
            fewest_a_endpoint: counts.min().unwrap_or(0),
            pick_ms: Spread::of(results.picks),
            chunk_ms: Spread::of(results.chunks),
            lateness_ms: Spread::of(results.lateness),
            errors: results.errors,
            picker: None,
            generator_cores: 0.0,
            load_average: load_average(),
        }
    }

    /// Adds what the picker used from `before` to `after`.
    pub(super) fn with_picker(mut self, before: Used, after: Used) -> Self {
        let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
        self.picker = Some(Picker {
            cores: cpu_seconds / self.seconds,
            cpu_ms_per_request: (self.requests > 0)
                .then(|| cpu_seconds * 1e3 / self.requests as f64),
            resident_mib: after.resident_bytes / f64::from(1 << 20),
        });
        self
    }
}

fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} requests in {:.1} s ({}): {:.0} a second to {} endpoints ({} to {} each)",
            self.requests,
            self.seconds,
            self.load,
            self.requests_per_second,
            self.endpoints,
            self.fewest_a_endpoint,
            self.most_a_endpoint
        )?;
        for (name, spread) in [
            ("pick", self.pick_ms),
            ("answer event", self.chunk_ms),
            ("generator late", self.lateness_ms),
        ] {
            if let Some(Spread { p50, p90, p99, max }) = spread {
                writeln!(
                    f,
                    "{name:<15} p50 {p50:.2} ms, p90 {p90:.2} ms, p99 {p99:.2} ms, max {max:.2} ms"
                )?;
            }
        }
        if let Some(picker) = self.picker {
            write!(f, "picker          ")?;
            if let Some(each) = picker.cpu_ms_per_request {
                write!(f, "{each:.3} CPU-ms a request, ")?;
            }
            writeln!(
                f,
                "{:.3} cores, {:.0} MiB resident",
                picker.cores, picker.resident_mib
            )?;
        }
        let load = self.load_average.unwrap_or_default();
        writeln!(
            f,
            "generator       {:.3} cores; load average {load:.1}",
            self.generator_cores
        )?;
        if self.errors.is_empty() {
            writeln!(f, "errors          none")?;
        }
        for (kind, count) in &self.errors {
            writeln!(f, "errors          {count} x {kind}")?;
        }
        Ok(())
    }
}
