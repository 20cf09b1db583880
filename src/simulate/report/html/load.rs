//! The load of each replica over time: a heat map for each policy, a row for each replica.
//!
//! Cells of one level are one path and neighbours in a row are one rectangle: 13 maps of 20 replicas and 60 intervals
//! take about 100 KB instead of a megabyte.

use super::axis::run_axis;
use super::plot::{push_labels_below, thinned};
use super::{escaped, put};
use crate::simulate::outcome::Outcome;
use crate::simulate::report::numbers::short;

/// Colours above "none"; page.css has as many.
const LEVELS: usize = 7;
/// Intervals of a map: a panel is some 300 pixels wide.
const MOST_COLUMNS: usize = 60;
/// Rows of a map; of a larger fleet, a row shows the fullest of several replicas.
const MOST_ROWS: usize = 40;

/// The lowest value of each level.
struct Levels(Vec<f64>);

impl Levels {
    /// Even steps of the logarithm from the tenth percentile of what is not zero to the greatest, in two digits: a
    /// policy that lets one replica run away does not make all others look empty.
    fn of(maps: &[Vec<Vec<f64>>]) -> Self {
        let mut values: Vec<f64> = maps
            .iter()
            .flatten()
            .flatten()
            .copied()
            .filter(|value| *value > 0.0 && value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) = (values.get(values.len() / 10), values.last()) else {
            return Self(Vec::new());
        };
        let ratio = (high / low).powf(1.0 / LEVELS as f64);
        let mut borders: Vec<f64> = (0..LEVELS)
            .map(|level| two_digits(low * ratio.powf(level as f64)))
            .collect();
        borders.dedup();
        Self(borders)
    }

    /// 0 for nothing, else 1 up to the number of levels. What is below the lowest is of the lowest.
    fn of_value(&self, value: f64) -> usize {
        if value > 0.0 {
            self.0.partition_point(|border| *border <= value).max(1)
        } else {
            0
        }
    }
}

fn two_digits(value: f64) -> f64 {
    let unit = 10.0_f64.powf(value.log10().floor() - 1.0);
    (value / unit).floor() * unit
}

/// One quantity of all policies. `name` is one word for the page's own use.
pub(super) fn push_maps(
    page: &mut String,
    outcomes: &[Outcome],
    name: &str,
    title: &str,
    of: fn(&Outcome) -> &[Vec<f32>],
) {
    let maps: Vec<Vec<Vec<f64>>> = outcomes.iter().map(|outcome| shrunk(of(outcome))).collect();
    let levels = Levels::of(&maps);
    put(
        page,
        format_args!(
            "<div class=\"maps {name}\">\n<p class=\"ramp\">{title}: <span><i class=\"h0\"></i>none</span>"
        ),
    );
    for (level, border) in levels.0.iter().enumerate() {
        let from = if level == 0 {
            "up to".to_owned()
        } else {
            "from".to_owned()
        };
        let border = if level == 0 {
            levels.0.get(1).unwrap_or(border)
        } else {
            border
        };
        put(
            page,
            format_args!(
                "<span><i class=\"h{}\"></i>{from} {}</span>",
                level + 1,
                short(*border)
            ),
        );
    }
    page.push_str("</p>\n");
    let most = outcomes.iter().map(|outcome| of(outcome).len()).max();
    if let Some(most) = most.filter(|most| *most > MOST_ROWS) {
        put(
            page,
            format_args!(
                "<p class=\"say\">A row shows the fullest of {} neighbouring replicas.</p>\n",
                most.div_ceil(MOST_ROWS)
            ),
        );
    }
    page.push_str("<div class=\"panels\">\n");
    for (series, (outcome, map)) in outcomes.iter().zip(&maps).enumerate() {
        push_map(page, series, outcome, map, &levels, title);
    }
    page.push_str("</div></div>\n");
}

fn push_map(
    page: &mut String,
    series: usize,
    outcome: &Outcome,
    map: &[Vec<f64>],
    levels: &Levels,
    title: &str,
) {
    let columns = map.iter().map(Vec::len).max().unwrap_or(0);
    put(
        page,
        format_args!(
            "<figure class=\"panel s{series}\"><figcaption><svg class=\"key\" width=\"26\" height=\"10\" aria-hidden=\"true\"><line class=\"c{series}\" x1=\"1\" x2=\"25\" y1=\"5\" y2=\"5\"/></svg>{}</figcaption>\n",
            escaped(&outcome.policy)
        ),
    );
    if columns == 0 {
        page.push_str("<p class=\"say\">Nothing was recorded.</p></figure>\n");
        return;
    }
    let (axis, unit) = run_axis(outcome.course.seconds.last().copied().unwrap_or(0.0), 4.0);
    put(
        page,
        format_args!(
            "<div class=\"plot map\"><svg role=\"img\" aria-label=\"{title} of each of {} replicas over the run, {}\" width=\"100%\" height=\"100%\">\n<svg viewBox=\"0 0 {columns} {}\" preserveAspectRatio=\"none\" width=\"100%\" height=\"100%\" shape-rendering=\"crispEdges\">\n",
            outcome.replicas,
            escaped(&outcome.policy),
            map.len()
        ),
    );
    for level in 0..=LEVELS {
        let path = path_of(map, levels, level);
        if !path.is_empty() {
            put(
                page,
                format_args!("<path class=\"h{level}\" d=\"{path}\"/>"),
            );
        }
    }
    page.push_str("</svg>\n<g class=\"ticks\">");
    push_labels_below(page, &axis);
    put(
        page,
        format_args!(
            "<text class=\"y\" x=\"-6\" y=\"0\" dy=\"10\">1</text><text class=\"y\" x=\"-6\" y=\"100%\" dy=\"-1\">{}</text></g>\n<text class=\"title\" x=\"100%\" y=\"100%\" dy=\"30\">{}</text>\n<text class=\"title turned\" x=\"-14\" y=\"50%\">replica</text></svg></div></figure>\n",
            outcome.replicas,
            if unit >= 3600.0 {
                "h"
            } else if unit >= 60.0 {
                "min"
            } else {
                "s"
            }
        ),
    );
}

/// Rectangles of all cells of a level.
fn path_of(map: &[Vec<f64>], levels: &Levels, level: usize) -> String {
    let mut path = String::new();
    for (row, cells) in map.iter().enumerate() {
        let mut column = 0;
        for run in cells.chunk_by(|a, b| levels.of_value(*a) == levels.of_value(*b)) {
            if run
                .first()
                .is_some_and(|cell| levels.of_value(*cell) == level)
            {
                put(
                    &mut path,
                    format_args!("M{column} {row}h{}v1h-{}z", run.len(), run.len()),
                );
            }
            column += run.len();
        }
    }
    path
}

/// At most so many rows and columns: means over time, the fullest of neighbouring replicas.
fn shrunk(replicas: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let every = replicas.len().div_ceil(MOST_ROWS).max(1);
    replicas
        .chunks(every)
        .map(|group| {
            let rows = group.iter().map(|replica| thinned(replica, MOST_COLUMNS));
            rows.reduce(|mut fullest, row| {
                for (most, value) in fullest.iter_mut().zip(row) {
                    *most = most.max(value);
                }
                fullest
            })
            .unwrap_or_default()
        })
        .collect()
}
