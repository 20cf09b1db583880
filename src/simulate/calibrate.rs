//! Does the engine model take as long as engines do? It is replayed against recorded runs, and its constants are fitted.
//!
//! ```text
//! recorded run ─▶ replay (engine::model in virtual time) ─▶ errors ─▶ fit ─▶ profiles
//! ```
//!
//! What is measured, how well it fits and what the model leaves out: docs/engine-model.md.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::engine::model::{Model, Request, RequestId, Settings, SettingsError, SubmitError};

pub use errors::{Errors, Interval};
pub use fit::{Constants, fit};
pub use profile::{PROFILES, Profile};

mod errors;
mod fit;
mod profile;

/// One request of a recorded run. Times are from the start of the run, in the engine.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What was asked, with the answer that was given.
    pub request: Request,
    /// When it was queued.
    pub queued: Duration,
    /// When it was first scheduled.
    pub scheduled: Duration,
    /// When its first token came.
    pub first: Duration,
    /// When its last one came.
    pub last: Duration,
}

/// When the model did the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// When it was first scheduled.
    pub scheduled: Duration,
    /// When its first token came.
    pub first: Duration,
    /// When its last one came.
    pub last: Duration,
}

/// What the model made of a run.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// For each request, in the order of the run.
    pub timings: Vec<Timing>,
    /// After each step: its end, and the requests running then.
    pub running: Vec<(Duration, usize)>,
    /// Requests that lost their blocks.
    pub preemptions: u64,
}

/// Why a run cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// There is no such engine.
    #[error("the engine cannot work")]
    Settings(#[from] SettingsError),
    /// A request can never be computed.
    #[error("request {at} of the run is refused")]
    Refused {
        /// Its place in the run.
        at: usize,
        /// Why.
        source: SubmitError,
    },
}

/// Runs the model through the recorded requests, which are in order of `queued`.
///
/// # Errors
/// When the engine cannot work or a request can never be computed.
pub fn replay(settings: Settings, run: &[Recorded]) -> Result<Replay, ReplayError> {
    let start = Instant::now();
    let mut model = Model::new(settings)?;
    let mut replay = Replay {
        timings: vec![Timing::default(); run.len()],
        ..Replay::default()
    };
    let mut places: FxHashMap<RequestId, usize> = FxHashMap::default();
    let mut arriving = run.iter().enumerate().peekable();
    let mut now = Duration::ZERO;
    loop {
        while let Some((at, recorded)) = arriving.next_if(|(_, next)| next.queued <= now) {
            let submitted = model.submit(recorded.request.clone(), start + recorded.queued);
            let id = submitted.map_err(|source| ReplayError::Refused { at, source })?;
            places.insert(id, at);
        }
        let Some(step) = model.begin_step(start + now) else {
            match arriving.peek() {
                Some((_, next)) => now = next.queued,
                None => break,
            }
            continue;
        };
        now += step.duration;
        for output in model.end_step(start + now).outputs {
            let at = places.get(&output.request).copied();
            let Some(timing) = at.and_then(|at| replay.timings.get_mut(at)) else {
                continue;
            };
            if let Some(prefilled) = output.prefilled {
                timing.first = now;
                timing.scheduled = now.saturating_sub(prefilled.prefill);
            }
            timing.last = now;
        }
        replay.running.push((now, model.gauges().running));
    }
    replay.preemptions = model.totals().preemptions;
    Ok(replay)
}

#[cfg(test)]
mod tests;
