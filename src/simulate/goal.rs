//! What must a fleet achieve? `p90 ttft < 1s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::fleet::GiveUp;
use super::outcome::{Outcome, Quantiles};
use super::search::Verdict;
use crate::config::units::Span;

/// Which figure of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Mean,
    P50,
    P90,
    P99,
    Max,
}

/// Which distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Ttft,
    Tpot,
    Latency,
}

/// A limit on one figure of a run. A run in which a request failed meets no goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    figure: Figure,
    measure: Measure,
    limit: Duration,
}

impl Goal {
    /// A limit on the time to first token that nine in ten requests stay below.
    pub const fn p90_ttft(limit: Duration) -> Self {
        Self {
            figure: Figure::P90,
            measure: Measure::Ttft,
            limit,
        }
    }

    /// The figure it limits, in seconds.
    pub const fn figure(&self, outcome: &Outcome) -> f64 {
        let Quantiles {
            mean,
            p50,
            p90,
            p99,
            max,
        } = match self.measure {
            Measure::Ttft => outcome.ttft,
            Measure::Tpot => outcome.tpot,
            Measure::Latency => outcome.latency,
        };
        match self.figure {
            Figure::Mean => mean,
            Figure::P50 => p50,
            Figure::P90 => p90,
            Figure::P99 => p99,
            Figure::Max => max,
        }
    }

    /// From when on a run of at most so many requests cannot achieve it any more; `None` where that shows only at the
    /// end, as with a mean.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of the requests"
    )]
    pub fn out_of_reach(&self, requests: u64) -> Option<GiveUp> {
        let may_be_late = match (self.measure, self.figure) {
            (Measure::Ttft, Figure::P50) => 0.5,
            (Measure::Ttft, Figure::P90) => 0.1,
            (Measure::Ttft, Figure::P99) => 0.01,
            (Measure::Ttft, Figure::Max) => 0.0,
            _ => return None,
        };
        Some(GiveUp {
            ttft: self.limit,
            // One more, so that no rounding decides.
            requests: (requests as f64 * may_be_late).ceil() as u64 + 1,
        })
    }

    /// What a run says of fleets of other sizes.
    pub fn verdict(&self, outcome: &Outcome) -> Verdict {
        if self.is_met(outcome) {
            Verdict::Enough
        } else if outcome.too_long > 0 {
            Verdict::Never
        } else {
            Verdict::TooSmall
        }
    }

    /// Whether a run achieved it.
    pub fn is_met(&self, outcome: &Outcome) -> bool {
        outcome.failed == 0
            && !outcome.given_up
            && outcome.requests > 0
            && self.figure(outcome) < self.limit.as_secs_f64()
    }
}

/// Text that is no goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no goal: write it as \"p90 ttft < 1s\" (mean, p50, p90, p99 or max; ttft, tpot or latency; a time such \
     as 800ms)"
)]
pub struct GoalError(String);

impl FromStr for Goal {
    type Err = GoalError;

    fn from_str(text: &str) -> Result<Self, GoalError> {
        parse(text).ok_or_else(|| GoalError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Goal> {
    let (what, limit) = text.split_once('<')?;
    let limit: Span = limit.trim().parse().ok()?;
    let mut words = what.split_whitespace();
    let figure = match words.next()?.to_ascii_lowercase().as_str() {
        "mean" => Figure::Mean,
        "p50" => Figure::P50,
        "p90" => Figure::P90,
        "p99" => Figure::P99,
        "max" => Figure::Max,
        _ => return None,
    };
    let measure = match words.next()?.to_ascii_lowercase().as_str() {
        "ttft" => Measure::Ttft,
        "tpot" => Measure::Tpot,
        "latency" => Measure::Latency,
        _ => return None,
    };
    words.next().is_none().then_some(Goal {
        figure,
        measure,
        limit: limit.0,
    })
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = match self.figure {
            Figure::Mean => "mean",
            Figure::P50 => "p50",
            Figure::P90 => "p90",
            Figure::P99 => "p99",
            Figure::Max => "max",
        };
        let measure = match self.measure {
            Measure::Ttft => "ttft",
            Measure::Tpot => "tpot",
            Measure::Latency => "latency",
        };
        write!(f, "{figure} {measure} < {:?}", self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read_as_people_write_them() {
        for (text, shown) in [
            ("p90 ttft < 1s", "p90 ttft < 1s"),
            (" P99  TPOT<50ms", "p99 tpot < 50ms"),
            ("mean latency < 30s", "mean latency < 30s"),
        ] {
            let goal: Goal = text.parse().unwrap();
            assert_eq!(goal.to_string(), shown);
            assert_eq!(shown.parse(), Ok(goal));
        }
        for text in [
            "",
            "p90 ttft",
            "p95 ttft < 1s",
            "p90 ttft < fast",
            "p90 ttft extra < 1s",
            "ttft < 1s",
            "p90 ttft < 0s",
        ] {
            assert_eq!(
                text.parse::<Goal>(),
                Err(GoalError(text.to_owned())),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_run_with_failures_or_without_requests_meets_nothing() {
        let goal = Goal::p90_ttft(Duration::from_secs(1));
        let good = Outcome {
            requests: 1,
            ..Outcome::default()
        };
        assert!(goal.is_met(&good));
        assert!(!goal.is_met(&Outcome::default()));
        assert!(!goal.is_met(&Outcome {
            failed: 1,
            ..good.clone()
        }));
        assert!(!goal.is_met(&Outcome {
            given_up: true,
            ..good.clone()
        }));
        assert_eq!(goal.verdict(&good), Verdict::Enough);
        let failed = |too_long| Outcome {
            failed: 2,
            too_long,
            ..good.clone()
        };
        assert_eq!(goal.verdict(&failed(0)), Verdict::TooSmall);
        assert_eq!(goal.verdict(&failed(1)), Verdict::Never);
        let mut late = good;
        late.ttft.p90 = 1.0;
        assert!(!goal.is_met(&late), "the limit itself is too late");
    }
}
