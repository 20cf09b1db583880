//! Claims about the result, by example.

use super::super::phase::EngineSeen;
use super::*;

fn outcome(first_data_ms: &[u64], prompt_tokens: u64, cached_tokens: u64) -> Outcome {
    Outcome {
        seen: Seen {
            engines: vec![EngineSeen {
                address: ([127, 0, 0, 1], 1).into(),
                requests: first_data_ms.len(),
                in_flight: 0,
                prompt_tokens,
                cached_tokens,
            }],
            first_data: first_data_ms
                .iter()
                .copied()
                .map(Duration::from_millis)
                .collect(),
            errors: 0,
            first_error: None,
        },
        owners: 1,
        predictions: None,
    }
}

fn comparison(round_robin: Outcome, least_prefill: Outcome) -> Comparison {
    Comparison {
        round_robin,
        least_prefill,
    }
}

#[test]
fn quantiles_are_times_that_were_measured() {
    let times: Vec<Duration> = (1..=10).map(Duration::from_millis).collect();
    let at = |permille| quantile(&times, permille).unwrap().as_millis();
    assert_eq!(
        [at(1), at(500), at(900), at(990), at(1_000)],
        [1, 5, 9, 10, 10]
    );
    assert_eq!(quantile(&[], 500), None);
}

#[test]
fn numbers_are_written_for_people() {
    let written = [0, 999, 1_000, 1_234_567].map(thousands);
    assert_eq!(written, ["0", "999", "1,000", "1,234,567"]);
    assert_eq!(percent(Some(0.875)), "87.5 %");
    assert_eq!(milliseconds(Duration::from_micros(1_600)), "2 ms");
}

#[test]
fn a_gain_is_told_and_a_small_one_is_not_made_up() {
    let gain = comparison(outcome(&[100], 1_000, 200), outcome(&[20], 1_000, 900));
    let words = gain.words().join(" ");
    assert!(words.contains("87.5 % fewer prompt tokens"), "{words}");
    assert!(words.contains("after 20 ms instead of 100 ms"), "{words}");

    let none = comparison(outcome(&[100], 1_000, 900), outcome(&[99], 1_000, 905));
    let words = none.words().join(" ");
    assert!(words.contains("about the same number"), "{words}");
    assert!(words.contains("no different"), "{words}");
    assert!(words.contains("buys little"), "{words}");

    let loss = comparison(outcome(&[100], 1_000, 900), outcome(&[200], 1_000, 800));
    let words = loss.words().join(" ");
    assert!(words.contains("100.0 % more prompt tokens"), "{words}");
    assert!(words.contains("after 200 ms instead of 100 ms"), "{words}");
}

#[test]
fn few_answers_are_called_few() {
    let few = comparison(outcome(&[100; 99], 9, 1), outcome(&[20; 100], 9, 8));
    let enough = comparison(outcome(&[100; 100], 9, 1), outcome(&[20; 100], 9, 8));
    let told = |comparison: &Comparison| comparison.words().join(" ").contains("partly chance");
    assert_eq!([told(&few), told(&enough)], [true, false]);
}

#[test]
fn failed_or_missing_answers_make_no_comparison() {
    let good = || outcome(&[1], 10, 5);
    comparison(good(), good()).check().unwrap();
    let mut failed = good();
    failed.seen.errors = 2;
    failed.seen.first_error = Some("status 503: no".to_owned());
    let told = comparison(good(), failed).check().unwrap_err().to_string();
    assert_eq!(
        told,
        "2 requests failed under least prefill, the first with: status 503: no"
    );
    let told = comparison(outcome(&[], 0, 0), good()).check().unwrap_err();
    assert!(
        told.to_string()
            .contains("no request was answered under round robin")
    );
}
