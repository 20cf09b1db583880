//! What has the engine counted? The state that its metrics page shows, taken at the end of each step.

use std::time::Duration;

use super::model::{Gauges, Output, StepPlan, Totals};

/// A histogram with fixed upper bounds.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    pub(super) bounds: &'static [f64],
    /// Observations at or below each bound but above the one before; a last one for the rest.
    pub(super) counts: Vec<u64>,
    pub(super) sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    fn observe(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum += value;
    }
}

/// vLLM's own bounds for times to the first token.
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// And for parts of a request's time.
const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const STEP_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];

/// As of the last step's end (vLLM's gauges change at no other time, but for that of its sleep).
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) gauges: Gauges,
    pub(super) totals: Totals,
    /// The level of the engine's sleep.
    pub(super) asleep: Option<u8>,
    pub(super) first_token: Histogram,
    pub(super) queue: Histogram,
    pub(super) prefill: Histogram,
    pub(super) step_tokens: Histogram,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            gauges: Gauges::default(),
            totals: Totals::default(),
            asleep: None,
            first_token: Histogram::new(FIRST_TOKEN_SECONDS),
            queue: Histogram::new(REQUEST_SECONDS),
            prefill: Histogram::new(REQUEST_SECONDS),
            step_tokens: Histogram::new(STEP_TOKENS),
        }
    }
}

impl Observed {
    /// Takes in a step that has ended.
    pub(super) fn step(&mut self, plan: &StepPlan, outputs: &[Output]) {
        let tokens = u32::try_from(plan.prefill_tokens + plan.decodes).unwrap_or(u32::MAX);
        self.step_tokens.observe(tokens.into());
        for prefilled in outputs.iter().filter_map(|output| output.prefilled) {
            let seconds = |duration: Duration| duration.as_secs_f64();
            self.first_token
                .observe(seconds(prefilled.queued + prefilled.prefill));
            self.queue.observe(seconds(prefilled.queued));
            self.prefill.observe(seconds(prefilled.prefill));
        }
    }
}
