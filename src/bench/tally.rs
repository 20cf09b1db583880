//! What came of the exchanges? Counts and times while the clock runs, and the figures made of them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use super::exchange::{Failure, Played};

/// Gathers results. The lock is held for some pushes; whoever plays exchanges writes.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Results>);

/// Results of the exchanges that ended while the clock ran.
#[derive(Debug, Default)]
pub(super) struct Results {
    measuring: bool,
    pub(super) picks: Vec<Duration>,
    pub(super) chunks: Vec<Duration>,
    /// How late the generator itself was with each request of an open loop.
    pub(super) lateness: Vec<Duration>,
    pub(super) destinations: BTreeMap<String, u64>,
    pub(super) errors: BTreeMap<String, u64>,
}

impl Tally {
    /// From now on results count.
    pub(super) fn start(&self) {
        self.0.lock().measuring = true;
    }

    /// From now on they do not.
    pub(super) fn stop(&self) -> Results {
        std::mem::take(&mut *self.0.lock())
    }

    pub(super) fn ended(&self, result: Result<Played, Failure>, lateness: Duration) {
        let mut results = self.0.lock();
        if !results.measuring {
            return;
        }
        match result {
            Ok(played) => {
                results.picks.push(played.pick);
                results.chunks.extend(played.chunks);
                results.lateness.push(lateness);
                *results.destinations.entry(played.destination).or_default() += 1;
            }
            Err(failure) => *results.errors.entry(failure.to_string()).or_default() += 1,
        }
    }
}

/// Percentiles, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Spread {
    /// `None` without any values.
    pub(super) fn of(mut values: Vec<Duration>) -> Option<Self> {
        values.sort_unstable();
        // The nearest rank: the least value that so many percent do not exceed.
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).map(|value| value.as_secs_f64() * 1e3)
        };
        Some(Self {
            p50: at(50)?,
            p90: at(90)?,
            p99: at(99)?,
            max: at(100)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let spread = |n: u64| Spread::of((1..=n).rev().map(Duration::from_millis).collect());
        assert_eq!(spread(0), None);
        let of = |p50, p90, p99, max| Some(Spread { p50, p90, p99, max });
        assert_eq!(spread(1), of(1.0, 1.0, 1.0, 1.0));
        assert_eq!(spread(10), of(5.0, 9.0, 10.0, 10.0));
        assert_eq!(spread(1000), of(500.0, 900.0, 990.0, 1000.0));
    }

    #[test]
    fn only_what_ends_while_the_clock_runs_counts() {
        let tally = Tally::default();
        let played = || {
            Ok(Played {
                pick: Duration::from_millis(1),
                chunks: Vec::new(),
                destination: "a".to_owned(),
            })
        };
        tally.ended(played(), Duration::ZERO);
        tally.start();
        tally.ended(played(), Duration::ZERO);
        tally.ended(Err(Failure::Refused(503)), Duration::ZERO);
        let results = tally.stop();
        tally.ended(played(), Duration::ZERO);
        assert_eq!(results.picks.len(), 1);
        assert_eq!(results.destinations["a"], 1);
        assert_eq!(results.errors["refused with 503"], 1);
        assert!(tally.stop().picks.is_empty());
    }
}
