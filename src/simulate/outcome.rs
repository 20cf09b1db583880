//! What came of a run: the figures that tables, JSON and plots show.

use serde::Serialize;

/// One run: a workload, a fleet, a policy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// The policy's name.
    pub policy: String,
    /// Replicas of the fleet.
    pub replicas: usize,
    /// Whether this fleet met the goal that was searched for; `None` where none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal_met: Option<bool>,
    /// The run was ended early, since it could not meet the goal any more: its figures are those of a part.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
    /// Virtual seconds from the first request to the end of the last one.
    pub seconds: f64,
    /// Requests that were answered, after the warm-up.
    pub requests: u64,
    /// Requests that nobody answered, those of the warm-up included: no replica was ready for as long as their patience
    /// lasted, or they are longer than an engine can hold.
    pub failed: u64,
    /// Those of them that are longer, prompt and answer together, than a replica accepts: no other fleet of such
    /// replicas answers them either.
    pub too_long: u64,
    /// Requests that were sent again because their replica died.
    pub repeated: u64,
    /// Time to the first token, seconds.
    pub ttft: Quantiles,
    /// Time for each output token after the first, seconds.
    pub tpot: Quantiles,
    /// Time from a request's arrival to its last token, seconds.
    pub latency: Quantiles,
    /// Requests ended a second.
    pub requests_per_second: f64,
    /// Output tokens a second.
    pub output_tokens_per_second: f64,
    /// Share of prompt tokens that engines took from their caches, 0 to 1.
    pub cached_share: f64,
    /// Share of requests whose cached tokens were foreseen exactly.
    pub foreseen_share: f64,
    /// The busiest replica's computed prompt tokens over the mean of all.
    pub imbalance: f64,
    /// Requests that lost their blocks to others and were computed again.
    pub preemptions: u64,
    /// Share of TTFTs below each bound, for the curve: (seconds, share), both growing.
    pub ttft_curve: Vec<(f64, f64)>,
    /// The course of the run, at equal intervals.
    pub course: Course,
    /// The hottest prefixes, most asked for first.
    pub hot_prefixes: Vec<HotPrefix>,
}

/// A distribution in few figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half are not above.
    pub p50: f64,
    /// Nine in ten are not above.
    pub p90: f64,
    /// 99 in 100 are not above.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

/// Figures over time. All lists of a replica or a share are as long as `seconds`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Course {
    /// The end of each interval, seconds from the start.
    pub seconds: Vec<f64>,
    /// For each replica: requests running and waiting at that time.
    pub in_flight: Vec<Vec<f32>>,
    /// For each replica: prompt tokens waiting to be computed.
    pub queued_tokens: Vec<Vec<f32>>,
    /// Share of prompt tokens found in caches, of the requests prefilled in the interval.
    pub cached_share: Vec<f32>,
    /// Mean TTFT of the requests whose first token came in the interval, seconds; 0 where none did.
    pub ttft: Vec<f32>,
}

/// One of the hottest prefixes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HotPrefix {
    /// Its name.
    pub prefix: u64,
    /// Requests with it, a second, over the run.
    pub per_second: f64,
    /// Replicas that served it in each interval of the course.
    pub owners: Vec<u32>,
    /// Mean TTFT of its requests, seconds.
    pub ttft_mean: f64,
    /// The same, nine in ten.
    pub ttft_p90: f64,
}
