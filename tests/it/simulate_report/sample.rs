//! Outcomes as thirteen policies might have them: made by formulas, of the size of a real run.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures of a sample are small and not negative"
)]

use warmpath::simulate::outcome::{Course, HotPrefix, Outcome, Quantiles};
use warmpath::simulate::report::Setup;

/// A policy's character: median TTFT in seconds, how far its tail reaches, its cached share, how uneven it is, and
/// owners of a prefix for each request a second.
const POLICIES: [(&str, f64, f64, f64, f64, f64); 13] = [
    ("least-prefill", 0.21, 0.42, 0.71, 0.08, 0.6),
    ("round-robin", 0.74, 0.75, 0.22, 0.15, 9.0),
    ("random", 0.81, 0.85, 0.21, 0.35, 9.0),
    ("least-requests", 0.69, 0.70, 0.23, 0.10, 9.0),
    ("least-queued", 0.64, 0.62, 0.22, 0.06, 9.0),
    ("power-of-two", 0.70, 0.71, 0.22, 0.12, 9.0),
    ("consistent-hash", 0.30, 1.60, 0.74, 1.40, 0.0),
    ("consistent-hash-bounded", 0.29, 0.80, 0.66, 0.30, 0.5),
    ("session-affinity", 0.45, 1.20, 0.52, 0.70, 2.0),
    ("sticky-until-saturated", 0.27, 0.95, 0.69, 0.50, 0.3),
    ("weighted-blend", 0.28, 0.60, 0.64, 0.20, 1.2),
    ("dynamo", 0.24, 0.48, 0.68, 0.12, 0.8),
    ("lmetric", 0.23, 0.50, 0.69, 0.14, 0.7),
];

const REPLICAS: usize = 22;
const INTERVALS: usize = 120;
const SECONDS: f64 = 1800.0;

/// What a command would say of such a run.
pub(super) fn setup() -> Setup {
    let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Setup {
        title: "Reference load: 40 requests a second, 200 prefixes with Zipf skew 1.1".to_owned(),
        lines: vec![
            line(
                "workload",
                "generated, Poisson, 8,000-token prompts sharing 6,000, 300 output tokens",
            ),
            line("loop", "open: by timestamp"),
            line(
                "fleet",
                "22 replicas, 558,124-token pools, 16,384 tokens a step",
            ),
            line("delays", "events 5 ms, reports 200 ms"),
            line("seed", "7"),
            line("warmpath", "0.1.0"),
        ],
        notes: vec![
            "Engines are modelled: docs/policies.md has the model's error against measured runs."
                .to_owned(),
        ],
    }
}

pub(super) fn outcomes() -> Vec<Outcome> {
    let mut rng = fastrand::Rng::with_seed(7);
    POLICIES
        .iter()
        .map(|policy| outcome(policy, &mut rng))
        .collect()
}

fn outcome(
    &(name, median, spread, cached, unevenness, owners): &(&str, f64, f64, f64, f64, f64),
    rng: &mut fastrand::Rng,
) -> Outcome {
    let quantile = |z: f64| median * (spread * z).exp();
    let runs_away = unevenness > 1.0;
    Outcome {
        goal_met: None,
        given_up: false,
        policy: name.to_owned(),
        replicas: REPLICAS,
        seconds: SECONDS,
        requests: 72_000,
        failed: if runs_away { 12 } else { 0 },
        too_long: 0,
        ttft: Quantiles {
            mean: median * (spread * spread / 2.0).exp(),
            p50: median,
            p90: quantile(1.2816),
            p99: quantile(2.3263),
            max: quantile(4.0),
        },
        tpot: Quantiles {
            mean: 0.031 + unevenness * 0.004,
            p50: 0.031,
            p90: 0.035,
            p99: 0.04,
            max: 0.1,
        },
        latency: Quantiles {
            mean: 10.0,
            p50: 9.8,
            p90: 12.0,
            p99: 15.0,
            max: 40.0,
        },
        requests_per_second: 40.0,
        output_tokens_per_second: 11_980.0 - unevenness * 120.0,
        cached_share: cached,
        foreseen_share: 0.97,
        imbalance: 1.0 + unevenness,
        preemptions: if runs_away { 1_204 } else { 0 },
        repeated: 0,
        ttft_curve: curve(median, spread),
        course: course(median, cached, unevenness, rng),
        hot_prefixes: (0..12u32)
            .map(|rank| {
                let rate = 8.0 / f64::from(rank + 1).powf(1.1);
                let mean = (owners * rate).clamp(1.0, REPLICAS as f64);
                HotPrefix {
                    prefix: u64::from(rank) + 100,
                    per_second: rate,
                    owners: (0..INTERVALS)
                        .map(|_| whole(mean + rng.f64() * 1.6 - 0.8).clamp(1, REPLICAS as u32))
                        .collect(),
                    ttft_mean: median,
                    ttft_p90: quantile(1.2816),
                }
            })
            .collect(),
    }
}

/// A logistic curve over the logarithm of time, close to log-normal.
fn curve(median: f64, spread: f64) -> Vec<(f64, f64)> {
    (0..300)
        .map(|step| {
            let seconds = 0.01 * 1.04_f64.powi(step);
            let z = (seconds / median).ln() / spread;
            (seconds, 1.0 / (1.0 + (-1.702 * z).exp()))
        })
        .collect()
}

fn course(median: f64, cached: f64, unevenness: f64, rng: &mut fastrand::Rng) -> Course {
    let mut course = Course::default();
    for interval in 0..INTERVALS {
        let passed = interval as f64 / INTERVALS as f64;
        course
            .seconds
            .push((passed + 1.0 / INTERVALS as f64) * SECONDS);
        course
            .cached_share
            .push((cached * (1.0 - (-passed * 20.0).exp()) + rng.f64() * 0.03) as f32);
        let growth = if unevenness > 1.0 {
            1.0 + passed * 12.0
        } else {
            1.0
        };
        course
            .ttft
            .push((median * growth * (1.0 + rng.f64() * 0.3)) as f32);
    }
    for replica in 0..REPLICAS {
        let hot = if replica == 7 { unevenness } else { 0.0 };
        let load = |passed: f64, rng: &mut fastrand::Rng| {
            (18.0
                * (1.0
                    + hot * 10.0 * passed
                    + (rng.f64() - 0.5) * (0.2 + unevenness.min(0.8) * 1.6)))
                .max(0.0)
        };
        let in_flight: Vec<f32> = (0..INTERVALS)
            .map(|at| load(at as f64 / INTERVALS as f64, rng).round() as f32)
            .collect();
        let queued = in_flight
            .iter()
            .map(|requests| (requests - 17.0).max(0.0) * 2_000.0)
            .collect();
        course.in_flight.push(in_flight);
        course.queued_tokens.push(queued);
    }
    course
}

fn whole(value: f64) -> u32 {
    value.round() as u32
}
