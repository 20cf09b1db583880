//! How far is a replay from the run?

use std::time::Duration;

use super::{Recorded, Replay, Timing};

/// Errors of a replay over some of the run's requests. All are relative: 0.1 is ten percent too long, -0.1 too short.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Of the median time to the first token.
    pub ttft_p50: f64,
    /// The same, nine in ten.
    pub ttft_p90: f64,
    /// Of the median time from being scheduled to the first token.
    pub prefill_p50: f64,
    /// Of the median time for each token after the first.
    pub tpot_p50: f64,
    /// Of the median time from arrival to the last token.
    pub latency_p50: f64,
    /// Of the time at which the last of them ended.
    pub duration: f64,
    /// Mean distance of the logarithms of three intervals of each request: to the first token, for each further one, to the last one.
    /// What is fitted.
    pub loss: f64,
}

/// A request's intervals in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// From arrival to the first token.
    pub ttft: f64,
    /// From being scheduled to the first token.
    pub prefill: f64,
    /// For each token after the first; `None` for an answer of one token.
    pub tpot: Option<f64>,
    /// From arrival to the last token.
    pub latency: f64,
}

impl Interval {
    /// As recorded.
    pub fn recorded(recorded: &Recorded) -> Self {
        let timing = Timing {
            scheduled: recorded.scheduled,
            first: recorded.first,
            last: recorded.last,
        };
        Self::of(recorded, timing)
    }

    /// As replayed.
    pub fn of(recorded: &Recorded, timing: Timing) -> Self {
        let seconds = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        let further = recorded.request.max_tokens.unwrap_or(1).saturating_sub(1);
        let decode = seconds(timing.first, timing.last);
        Self {
            ttft: seconds(recorded.queued, timing.first),
            prefill: seconds(timing.scheduled, timing.first),
            tpot: (further > 0).then(|| decode / further as f64),
            latency: seconds(recorded.queued, timing.last),
        }
    }
}

impl Errors {
    /// Compares the requests that `part` picks by their place in the run.
    pub fn of(run: &[Recorded], replay: &Replay, part: impl Fn(usize) -> bool) -> Self {
        let pairs: Vec<(Interval, Interval)> = run
            .iter()
            .zip(&replay.timings)
            .enumerate()
            .filter(|(at, _)| part(*at))
            .map(|(_, (recorded, &timing))| {
                (Interval::recorded(recorded), Interval::of(recorded, timing))
            })
            .collect();
        let last = |of: fn(&Recorded, &Timing) -> Duration| {
            let ends = run.iter().zip(&replay.timings).enumerate();
            let ends = ends.filter(|(at, _)| part(*at)).map(|(_, (r, t))| of(r, t));
            ends.max().unwrap_or_default().as_secs_f64()
        };
        let error = |share: f64, of: fn(&Interval) -> Option<f64>| {
            let recorded = quantile(pairs.iter().filter_map(|(recorded, _)| of(recorded)), share);
            let replayed = quantile(pairs.iter().filter_map(|(_, replayed)| of(replayed)), share);
            relative(replayed, recorded)
        };
        Self {
            ttft_p50: error(0.5, |i| Some(i.ttft)),
            ttft_p90: error(0.9, |i| Some(i.ttft)),
            prefill_p50: error(0.5, |i| Some(i.prefill)),
            tpot_p50: error(0.5, |i| i.tpot),
            latency_p50: error(0.5, |i| Some(i.latency)),
            duration: relative(last(|_, timing| timing.last), last(|r, _| r.last)),
            loss: loss(&pairs),
        }
    }
}

fn loss(pairs: &[(Interval, Interval)]) -> f64 {
    let apart = |replayed: f64, recorded: f64| {
        // A nanosecond keeps the logarithm finite.
        ((replayed + 1e-9) / (recorded + 1e-9)).ln().abs()
    };
    let sum: f64 = pairs
        .iter()
        .map(|(recorded, replayed)| {
            let tpot = recorded.tpot.zip(replayed.tpot);
            apart(replayed.ttft, recorded.ttft)
                + tpot.map_or(0.0, |(recorded, replayed)| apart(replayed, recorded))
                + apart(replayed.latency, recorded.latency)
        })
        .sum();
    sum / (3 * pairs.len().max(1)) as f64
}

impl Replay {
    /// Mean distance between the requests running as recorded (seconds from the start, requests) and as replayed, over
    /// the mean of the recorded ones.
    pub fn running_error(&self, recorded: &[(f64, f64)]) -> f64 {
        let at = |second: f64| {
            let steps = &self.running;
            let next = steps.partition_point(|(end, _)| end.as_secs_f64() <= second);
            let before = next.checked_sub(1).and_then(|at| steps.get(at));
            before.map_or(0.0, |&(_, running)| running as f64)
        };
        let apart: f64 = recorded
            .iter()
            .map(|&(t, running)| (at(t) - running).abs())
            .sum();
        let all: f64 = recorded.iter().map(|(_, running)| running).sum();
        apart / all.max(1.0)
    }
}

fn relative(replayed: f64, recorded: f64) -> f64 {
    if recorded > 0.0 {
        replayed / recorded - 1.0
    } else {
        0.0
    }
}

/// The least value that this share of all is not above; 0 of none.
fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = (share * values.len() as f64).ceil() - 1.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in the list: neither negative nor beyond its end"
    )]
    let at = at.max(0.0) as usize;
    values.get(at).copied().unwrap_or_default()
}
