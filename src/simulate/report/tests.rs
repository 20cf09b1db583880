//! What the table, the JSON and the page hold for outcomes of all sizes.

mod numbers;
mod page;
mod progress;

use serde_json::Value;

use super::{Part, Setup, json, table};
use crate::simulate::outcome::{HotPrefix, Outcome, Quantiles};

fn setup() -> Setup {
    Setup {
        title: "a load".to_owned(),
        lines: vec![
            ("seed".to_owned(), "7".to_owned()),
            ("workload".to_owned(), "40 req/s".to_owned()),
        ],
        notes: vec!["The engines are modelled.".to_owned()],
    }
}

/// The page of runs that are all there is.
fn html(outcomes: &[Outcome], setup: &Setup) -> String {
    super::html(&[Part {
        name: "alone",
        setup,
        outcomes,
    }])
}

fn outcome(policy: &str, ttft: f64) -> Outcome {
    let times = |p50: f64| Quantiles {
        mean: p50 * 1.5,
        p50,
        p90: p50 * 3.0,
        p99: p50 * 9.0,
        max: p50 * 20.0,
    };
    Outcome {
        policy: policy.to_owned(),
        replicas: 4,
        requests: 100,
        ttft: times(ttft),
        tpot: times(0.03),
        output_tokens_per_second: 12_345.6,
        cached_share: 0.5,
        imbalance: 1.25,
        ttft_curve: vec![(ttft / 2.0, 0.1), (ttft, 0.5), (ttft * 9.0, 1.0)],
        hot_prefixes: vec![HotPrefix {
            prefix: 1,
            per_second: 4.0,
            owners: vec![1, 2, 3],
            ..HotPrefix::default()
        }],
        ..Outcome::default()
    }
}

/// The table's second heading and its rows.
fn rows(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| !line.starts_with("policy"));
    lines.take_while(|line| !line.is_empty()).collect()
}

#[test]
fn figures_of_a_column_end_at_the_same_place_whatever_their_size() {
    let outcomes = [
        outcome("a", 0.1),
        outcome("a-long-name", 0.000_02),
        outcome("ü", 7e13),
    ];
    let text = table(&outcomes, &setup());
    let ends = |row: &str| {
        let row: Vec<char> = row.chars().chain([' ']).collect();
        (0..row.len() - 1)
            .filter(|&at| row[at] != ' ' && row[at] != '*' && " *".contains(row[at + 1]))
            .collect::<Vec<_>>()
    };
    let rows = rows(&text);
    let figures = ends(rows[1]);
    for row in &rows[2..] {
        // Behind the name, everything is a figure; "50.0 %" has a gap of its own that all rows share.
        assert_eq!(ends(row)[1..], figures[1..], "{text}");
    }
}

#[test]
fn the_best_of_a_column_has_a_star_and_what_all_share_has_none() {
    let text = table(&[outcome("slow", 0.4), outcome("quick", 0.1)], &setup());
    let rows = rows(&text);
    assert!(rows[2].contains("150*"), "{text}");
    assert!(!rows[1].contains('*'), "{text}");
    assert!(!rows[2].contains("50.0 %*"), "{text}");
}

#[test]
fn a_policy_that_answered_nobody_is_never_the_best() {
    let nobody = Outcome {
        policy: "nobody".to_owned(),
        replicas: 4,
        failed: 100,
        ..Outcome::default()
    };
    let text = table(&[outcome("some", 0.1), nobody], &setup());
    let rows = rows(&text);
    assert!(rows[1].contains("150*"), "{text}");
    assert!(rows[2].contains('–'), "{text}");
    assert!(!rows[2].contains("0*"), "{text}");
}

#[test]
fn times_of_one_kind_share_a_unit_that_suits_the_greatest() {
    let text = table(&[outcome("quick", 0.1), outcome("slow", 30.0)], &setup());
    assert!(text.contains("TTFT, s"), "{text}");
    assert!(text.contains("TPOT, ms"), "{text}");
    assert!(rows(&text)[1].contains("0.150*"), "{text}");
}

#[test]
fn no_outcome_at_all_is_said_and_written() {
    assert!(table(&[], &setup()).contains("no policy was run"));
    assert!(html(&[], &setup()).contains("No policy was run."));
    let read: Value = serde_json::from_str(&json(&[], &setup())).expect("JSON");
    assert_eq!(read["outcomes"], Value::Array(Vec::new()));
}

#[test]
fn json_holds_every_field_of_every_outcome() {
    let outcomes = [outcome("a", 0.1), outcome("\"b\"\n", 1e300)];
    let read: Value = serde_json::from_str(&json(&outcomes, &setup())).expect("JSON");
    for (place, outcome) in outcomes.iter().enumerate() {
        let expected = serde_json::to_value(outcome).expect("a value");
        assert_eq!(read["outcomes"][place], expected);
    }
    assert_eq!(read["version"], 1);
    assert_eq!(read["setup"][1]["name"], "workload");
    assert_eq!(read["notes"][0], "The engines are modelled.");
}

#[test]
fn what_is_no_number_is_null_in_json_and_a_dash_elsewhere() {
    let mut strange = outcome("strange", f64::NAN);
    strange.imbalance = f64::INFINITY;
    let read: Value = serde_json::from_str(&json(&[strange.clone()], &setup())).expect("JSON");
    assert_eq!(read["outcomes"][0]["ttft"]["mean"], Value::Null);
    assert_eq!(read["outcomes"][0]["imbalance"], Value::Null);
    for text in [
        table(&[strange.clone()], &setup()),
        html(&[strange], &setup()),
    ] {
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}

#[test]
fn names_cannot_break_out_of_the_table() {
    let text = table(&[outcome("a\x1b[2J\nb", 0.1)], &setup());
    assert!(!text.contains('\x1b') && !text.contains("\nb"), "{text}");
}

#[test]
fn a_fleet_that_was_searched_for_is_shown_even_alone_and_none_where_none_was_enough() {
    let mut found = outcome("enough", 0.1);
    found.replicas = 17;
    found.goal_met = Some(true);
    let text = table(&[found.clone()], &Setup::default());
    assert!(text.contains("replicas") && text.contains("17"), "{text}");
    let mut missed = outcome("missed", 9.0);
    missed.replicas = 96;
    missed.goal_met = Some(false);
    let text = table(&[found, missed], &Setup::default());
    assert!(!text.contains("96"), "{text}");
}
