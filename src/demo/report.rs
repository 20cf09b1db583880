//! What came of it? The two policies side by side, in numbers, as JSON and in words.

use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};

use super::operator::Predictions;
use super::phase::Seen;
use super::table::cached_share;

/// A gain below this is none.
const NOTABLE: f64 = 0.1;
/// With fewer answers a single queue that forms or does not decides the median: 20 of them on one engine, where both
/// policies are the same, gave medians of 200 and 400 ms.
const FEW: usize = 100;

/// One policy's result.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// What clients saw.
    pub(super) seen: Seen,
    /// Engines that hold the whole hot prefix at the end.
    pub(super) owners: usize,
    /// How the picker's predictions turned out, where it was asked.
    pub(super) predictions: Option<Predictions>,
}

/// Both.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    /// Envoy chose.
    pub(super) round_robin: Outcome,
    /// The picker chose.
    pub(super) least_prefill: Outcome,
}

impl Outcome {
    fn requests(&self) -> usize {
        self.seen.first_data.len()
    }

    fn cached_share(&self) -> Option<f64> {
        cached_share(&self.seen.engines)
    }

    /// Prompt tokens that engines had to compute.
    fn computed(&self) -> u64 {
        let engines = self.seen.engines.iter();
        engines
            .map(|engine| engine.prompt_tokens.saturating_sub(engine.cached_tokens))
            .sum()
    }

    fn first_data(&self, permille: usize) -> Option<Duration> {
        let mut sorted = self.seen.first_data.clone();
        sorted.sort_unstable();
        quantile(&sorted, permille)
    }

    fn mean_first_data(&self) -> Option<Duration> {
        let total: Duration = self.seen.first_data.iter().sum();
        total.checked_div(u32::try_from(self.requests()).ok()?)
    }

    fn json(&self) -> Value {
        let ms = |duration: Option<Duration>| duration.map(|d| d.as_secs_f64() * 1e3);
        let by_engine = self.seen.engines.iter().map(|engine| engine.requests);
        json!({
            "requests": self.requests(),
            "errors": self.seen.errors,
            "first_error": self.seen.first_error,
            "requests_by_engine": by_engine.collect::<Vec<_>>(),
            "time_to_first_token_ms": {
                "p50": ms(self.first_data(500)),
                "p90": ms(self.first_data(900)),
                "p99": ms(self.first_data(990)),
                "mean": ms(self.mean_first_data()),
            },
            "cached_share": self.cached_share(),
            "prefill_tokens_computed": self.computed(),
            "owners_of_hot_prefix": self.owners,
            "predictions": self.predictions.map(|predictions| json!({
                "equal": predictions.equal,
                "different": predictions.different,
                "not_compared": predictions.not_compared,
            })),
        })
    }
}

impl Comparison {
    /// Refuses a comparison that means nothing.
    ///
    /// # Errors
    /// When requests failed or none was answered.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (policy, outcome) in [
            ("round robin", &self.round_robin),
            ("least prefill", &self.least_prefill),
        ] {
            let errors = outcome.seen.errors;
            if let Some(first) = &outcome.seen.first_error {
                bail!("{errors} requests failed under {policy}, the first with: {first}");
            }
            if outcome.requests() == 0 {
                bail!("no request was answered under {policy}");
            }
        }
        Ok(())
    }

    /// The result for machines.
    pub(super) fn json(&self) -> Value {
        json!({
            "round_robin": self.round_robin.json(),
            "least_prefill": self.least_prefill.json(),
        })
    }

    /// The result side by side.
    pub(super) fn table(&self) -> Vec<String> {
        let both = |name: &str, of: &dyn Fn(&Outcome) -> String| {
            let (left, right) = (of(&self.round_robin), of(&self.least_prefill));
            format!("{name:<36}{left:>14}{right:>16}")
        };
        let time = |permille: usize| {
            move |outcome: &Outcome| {
                outcome
                    .first_data(permille)
                    .map_or_else(unknown, milliseconds)
            }
        };
        let predictions = |outcome: &Outcome| {
            let Some(predictions) = outcome.predictions else {
                return unknown();
            };
            let share = predictions.equal as f64 / predictions.total() as f64;
            percent((predictions.total() > 0).then_some(share))
        };
        vec![
            format!("{:<36}{:>14}{:>16}", "", "round robin", "least prefill"),
            both("requests answered", &|o| o.requests().to_string()),
            both("requests failed", &|o| o.seen.errors.to_string()),
            both("time to first token, median", &time(500)),
            both("                     p90", &time(900)),
            both("                     p99", &time(990)),
            both("                     mean", &|o| {
                o.mean_first_data().map_or_else(unknown, milliseconds)
            }),
            both("prompt tokens found in caches", &|o| {
                percent(o.cached_share())
            }),
            both("prompt tokens computed (prefill)", &|o| {
                thousands(o.computed())
            }),
            both("engines with the whole hot prefix", &|o| {
                format!("{} of {}", o.owners, o.seen.engines.len())
            }),
            both("cached tokens as the picker foresaw", &predictions),
        ]
    }

    /// What it means.
    pub(super) fn words(&self) -> Vec<String> {
        let (before, after) = (&self.round_robin, &self.least_prefill);
        let saved = 1.0 - after.computed() as f64 / before.computed().max(1) as f64;
        let medians = (before.first_data(500), after.first_data(500));
        let (Some(slow), Some(fast)) = medians else {
            return vec!["Nothing was answered, so there is nothing to compare.".to_owned()];
        };
        let sooner = 1.0 - fast.as_secs_f64() / slow.as_secs_f64().max(1e-9);
        let work = if saved >= NOTABLE {
            format!(
                "For the same requests the engines computed {} fewer prompt tokens",
                percent(Some(saved))
            )
        } else if saved > -NOTABLE {
            "Both made the engines compute about the same number of prompt tokens".to_owned()
        } else {
            format!(
                "Least prefill made the engines compute {} more prompt tokens",
                percent(Some(-saved))
            )
        };
        let times = if sooner.abs() < NOTABLE {
            format!(
                "the median first token came after {}, which is no different.",
                milliseconds(fast)
            )
        } else {
            format!(
                "the median first token came after {} instead of {}.",
                milliseconds(fast),
                milliseconds(slow)
            )
        };
        let mut words = vec![format!("{work},"), format!("and {times}")];
        if saved < NOTABLE && sooner < NOTABLE {
            words.push(
                "Here affinity buys little: each cache holds what is asked for, or the engines are idle.".to_owned(),
            );
        }
        if before.requests().min(after.requests()) < FEW {
            words.push(format!(
                "With fewer than {FEW} answers each the times are partly chance: a longer --duration says more."
            ));
        }
        words
    }
}

fn unknown() -> String {
    "-".to_owned()
}

/// The middle of times that are not sorted.
pub(super) fn median(times: &[Duration]) -> Option<Duration> {
    let mut sorted = times.to_owned();
    sorted.sort_unstable();
    quantile(&sorted, 500)
}

/// The least of the sorted times that so many thousandths of them do not exceed.
fn quantile(sorted: &[Duration], permille: usize) -> Option<Duration> {
    let rank = (sorted.len() * permille).div_ceil(1_000);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// `48 %`, or `-`.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(unknown, |share| format!("{:.1} %", share * 100.0))
}

/// `48 ms`.
pub(super) fn milliseconds(duration: Duration) -> String {
    format!("{:.0} ms", duration.as_secs_f64() * 1e3)
}

/// `1,234,567`.
pub(super) fn thousands(number: u64) -> String {
    crate::simulate::report::grouped(&number.to_string())
}

#[cfg(test)]
mod tests;
