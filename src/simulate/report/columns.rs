//! Which figures does a table show of each policy, how are they written, and which is the best of its column?

use super::numbers::{NONE, TimeUnit, grouped, percent, significant};
use crate::simulate::outcome::Outcome;

/// A table, written but not yet laid out.
pub(super) struct Grid {
    pub(super) headings: Vec<Heading>,
    pub(super) rows: Vec<Row>,
}

/// The head of a column.
pub(super) struct Heading {
    /// What several columns have in common, with their unit: "TTFT, ms".
    pub(super) group: String,
    /// The rest: "p90". Empty where the group says all.
    pub(super) name: &'static str,
    /// A sentence for whoever does not know the words.
    pub(super) hint: &'static str,
}

/// The figures of one policy.
pub(super) struct Row {
    pub(super) policy: String,
    pub(super) cells: Vec<Cell>,
}

/// One figure.
pub(super) struct Cell {
    pub(super) text: String,
    /// Whether no other policy did better.
    pub(super) best: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Time,
    Number,
    Count,
    Share,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
    /// Neither end is good by itself: fewer owners save memory, more of them take more load.
    Neither,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Always,
    /// Only where it tells rows apart, or was searched for.
    IfSearched,
    /// Only where it happened at all.
    IfAny,
}

struct Column {
    group: &'static str,
    name: &'static str,
    hint: &'static str,
    kind: Kind,
    better: Better,
    shown: Shown,
    value: fn(&Outcome) -> Option<f64>,
}

const TTFT: &str = "time from a request's arrival to its first token";

const COLUMNS: &[Column] = &[
    Column {
        shown: Shown::IfSearched,
        ..column(
            "replicas",
            "",
            "replicas of the fleet; none where no fleet met the goal",
            Kind::Count,
            Better::Less,
            |o| (o.goal_met != Some(false)).then_some(o.replicas as f64),
        )
    },
    column("TTFT", "mean", TTFT, Kind::Time, Better::Less, |o| {
        answered(o, o.ttft.mean)
    }),
    column("TTFT", "p50", TTFT, Kind::Time, Better::Less, |o| {
        answered(o, o.ttft.p50)
    }),
    column("TTFT", "p90", TTFT, Kind::Time, Better::Less, |o| {
        answered(o, o.ttft.p90)
    }),
    column("TTFT", "p99", TTFT, Kind::Time, Better::Less, |o| {
        answered(o, o.ttft.p99)
    }),
    column(
        "TPOT",
        "mean",
        "time for each output token after the first",
        Kind::Time,
        Better::Less,
        |o| answered(o, o.tpot.mean),
    ),
    column(
        "tokens/s",
        "",
        "output tokens a second",
        Kind::Number,
        Better::More,
        |o| answered(o, o.output_tokens_per_second),
    ),
    column(
        "cached",
        "",
        "share of prompt tokens taken from caches",
        Kind::Share,
        Better::More,
        |o| answered(o, o.cached_share),
    ),
    column(
        "imbalance",
        "",
        "the busiest replica's computed prompt tokens over the mean of all",
        Kind::Number,
        Better::Less,
        |o| answered(o, o.imbalance),
    ),
    column(
        "owners",
        "mean",
        HOTTEST,
        Kind::Number,
        Better::Neither,
        mean_owners,
    ),
    column(
        "owners",
        "last",
        HOTTEST,
        Kind::Count,
        Better::Neither,
        last_owners,
    ),
    column(
        "preempted",
        "",
        "requests that lost their blocks to others and were computed again",
        Kind::Count,
        Better::Less,
        |o| Some(o.preemptions as f64),
    ),
    Column {
        shown: Shown::IfAny,
        ..column(
            "repeated",
            "",
            "requests that were sent again because their replica died",
            Kind::Count,
            Better::Less,
            |o| Some(o.repeated as f64),
        )
    },
    column(
        "failed",
        "",
        "requests that were not answered",
        Kind::Count,
        Better::Less,
        |o| Some(o.failed as f64),
    ),
];

const HOTTEST: &str =
    "replicas that served the hottest prefix in an interval: mean of the run, and its last";

const fn column(
    group: &'static str,
    name: &'static str,
    hint: &'static str,
    kind: Kind,
    better: Better,
    value: fn(&Outcome) -> Option<f64>,
) -> Column {
    Column {
        group,
        name,
        hint,
        kind,
        better,
        shown: Shown::Always,
        value,
    }
}

/// A figure that exists only where somebody was answered.
fn answered(outcome: &Outcome, value: f64) -> Option<f64> {
    (outcome.requests > 0 && value.is_finite()).then_some(value)
}

/// Replicas that served the hottest prefix, the mean of the intervals.
pub(super) fn mean_owners(outcome: &Outcome) -> Option<f64> {
    mean(&outcome.hot_prefixes.first()?.owners)
}

/// The mean of counts, if there are any.
pub(super) fn mean(counts: &[u32]) -> Option<f64> {
    let sum: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    (!counts.is_empty()).then(|| sum / counts.len() as f64)
}

fn last_owners(outcome: &Outcome) -> Option<f64> {
    outcome
        .hot_prefixes
        .first()?
        .owners
        .last()
        .map(|&owners| f64::from(owners))
}

/// Writes the figures of all outcomes.
pub(super) fn grid(outcomes: &[Outcome]) -> Grid {
    let mut grid = Grid {
        headings: Vec::new(),
        rows: outcomes
            .iter()
            .map(|outcome| Row {
                policy: outcome.policy.clone(),
                cells: Vec::new(),
            })
            .collect(),
    };
    for column in COLUMNS {
        let values: Vec<Option<f64>> = outcomes.iter().map(column.value).collect();
        if !is_shown(column.shown, &values, outcomes) {
            continue;
        }
        let unit = unit_of_group(column, outcomes);
        let texts: Vec<String> = values
            .iter()
            .map(|value| write(column.kind, unit, *value))
            .collect();
        let best = best_text(column.better, &values, &texts);
        for (row, text) in grid.rows.iter_mut().zip(&texts) {
            row.cells.push(Cell {
                best: best.as_ref() == Some(text),
                text: text.clone(),
            });
        }
        grid.headings.push(Heading {
            group: match column.kind {
                Kind::Time => format!("{}, {}", column.group, unit.name()),
                _ => column.group.to_owned(),
            },
            name: column.name,
            hint: column.hint,
        });
    }
    grid
}

fn is_shown(shown: Shown, values: &[Option<f64>], outcomes: &[Outcome]) -> bool {
    match shown {
        Shown::Always => true,
        Shown::IfSearched => {
            outcomes.iter().any(|outcome| outcome.goal_met.is_some())
                || values.windows(2).any(|pair| pair.first() != pair.last())
        }
        Shown::IfAny => values.iter().flatten().any(|&value| value > 0.0),
    }
}

/// Columns of one group are read against each other, so they have one unit.
fn unit_of_group(column: &Column, outcomes: &[Outcome]) -> TimeUnit {
    let group = COLUMNS.iter().filter(|other| other.group == column.group);
    TimeUnit::of(group.flat_map(|column| outcomes.iter().filter_map(column.value)))
}

fn write(kind: Kind, unit: TimeUnit, value: Option<f64>) -> String {
    let Some(value) = value else {
        return NONE.to_owned();
    };
    match kind {
        Kind::Time => unit.write(value),
        Kind::Number => significant(value),
        Kind::Count => grouped(&format!("{value:.0}")),
        Kind::Share => percent(value),
    }
}

/// The best figure as it is written: what looks equal is equally good. None where it would mark more than half
/// of the policies, since then it tells nothing.
fn best_text(better: Better, values: &[Option<f64>], texts: &[String]) -> Option<String> {
    let signed = |value: f64| {
        if better == Better::More {
            -value
        } else {
            value
        }
    };
    let (_, best) = values
        .iter()
        .zip(texts)
        .filter_map(|(value, text)| Some((signed((*value)?), text)))
        .min_by(|a, b| a.0.total_cmp(&b.0))?;
    let holders = texts.iter().filter(|text| *text == best).count();
    (better != Better::Neither && holders * 2 <= texts.len()).then(|| best.clone())
}
