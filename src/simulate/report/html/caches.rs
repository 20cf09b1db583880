//! The plots of cache state: the cached share over the run, and the owners that hot prefixes have.

use super::axis::{Axis, run_axis};
use super::plot::{Curve, Plot, thinned};
use super::{escaped, put};
use crate::simulate::outcome::{HotPrefix, Outcome};
use crate::simulate::report::columns::mean;
use crate::simulate::report::numbers::{percent, significant};

/// More intervals make thirteen curves a tangle.
const MOST_POINTS: usize = 60;
/// Prefixes whose owners are drawn for each policy.
const DRAWN_PREFIXES: usize = 3;

/// The share of prompt tokens found in caches, a curve for each policy.
pub(super) fn push_share(page: &mut String, outcomes: &[Outcome], seconds: f64) {
    let (x, unit) = run_axis(seconds, 6.0);
    let curves: Vec<Curve> = outcomes
        .iter()
        .enumerate()
        .map(|(series, outcome)| {
            let course = &outcome.course;
            let shares = thinned(&course.cached_share, MOST_POINTS);
            let every = course.cached_share.len().div_ceil(MOST_POINTS).max(1);
            let ends = course.seconds.chunks(every).filter_map(|part| part.last());
            Curve {
                series,
                says: format!(
                    "{}: {} over the run",
                    outcome.policy,
                    percent(outcome.cached_share)
                ),
                points: ends.map(|end| end / unit).zip(shares).collect(),
            }
        })
        .collect();
    let plot = Plot {
        x,
        y: Axis::percent("prompt tokens from caches"),
        label: format!(
            "share of prompt tokens found in caches over the run, a curve for each of {} policies",
            outcomes.len()
        ),
        size: "wide",
    };
    page.push_str("<section><h2>Cached share over the run</h2>\n<p class=\"say\">Prompt tokens that engines found in their caches, of those of the requests prefilled in each interval.</p>\n");
    plot.draw(page, &curves, false);
    page.push_str("</section>\n");
}

/// How many replicas served each of the hottest prefixes, against how often it was asked for.
pub(super) fn push_owners(page: &mut String, outcomes: &[Outcome]) {
    let curves: Vec<Curve> = outcomes
        .iter()
        .enumerate()
        .map(|(series, outcome)| {
            let mut points: Vec<(f64, f64)> = outcome
                .hot_prefixes
                .iter()
                .filter_map(|hot| Some((hot.per_second, mean(&hot.owners)?)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve {
                series,
                says: outcome.policy.clone(),
                points,
            }
        })
        .collect();
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let plot = Plot {
        x: Axis::numbers(
            "requests with the prefix, 1/s",
            points().map(|(rate, _)| *rate),
        ),
        y: Axis::linear(
            "owners, mean of intervals",
            points().map(|(_, owners)| *owners).fold(0.0, f64::max) * 1.05,
            5.0,
        ),
        label: format!(
            "owners of the hottest prefixes against their rate, a curve for each of {} policies",
            outcomes.len()
        ),
        size: "wide",
    };
    page.push_str("<section><h2>Owners of a hot prefix against its rate</h2>\n<p class=\"say\">A dot is one of the hottest prefixes: how many replicas served it in an interval, on average. Too few owners make its requests wait; more than its rate needs push other prefixes out. The rate axis is logarithmic.</p>\n");
    plot.draw(page, &curves, true);
    page.push_str("</section>\n");
}

/// The owners of the hottest prefixes over the run, a small plot for each policy.
pub(super) fn push_owners_course(page: &mut String, outcomes: &[Outcome], seconds: f64) {
    let hottest = |outcome: &Outcome| -> Vec<HotPrefix> {
        outcome
            .hot_prefixes
            .iter()
            .take(DRAWN_PREFIXES)
            .cloned()
            .collect()
    };
    let most = outcomes
        .iter()
        .flat_map(hottest)
        .flat_map(|hot| hot.owners)
        .max()
        .unwrap_or(0);
    page.push_str("<section><h2>Owners of the hottest prefixes over the run</h2>\n<p class=\"say\">Replicas that served the prefix in each interval: the hottest in the policy's colour, the next two thinner. All panels have one scale.</p>\n<div class=\"panels\">\n");
    for (series, outcome) in outcomes.iter().enumerate() {
        let (x, unit) = run_axis(seconds, 4.0);
        let curves: Vec<Curve> = hottest(outcome)
            .iter()
            .map(|hot| Curve {
                series,
                says: format!(
                    "{}: prefix {}, {} requests a second",
                    outcome.policy,
                    hot.prefix,
                    significant(hot.per_second)
                ),
                points: steps(&outcome.course.seconds, &hot.owners, unit),
            })
            .collect();
        let plot = Plot {
            x,
            y: Axis::linear("owners", f64::from(most.max(1)) * 1.08, 4.0),
            label: format!(
                "owners of the hottest prefixes over the run, {}",
                outcome.policy
            ),
            size: "small owners",
        };
        put(
            page,
            format_args!(
                "<figure class=\"panel s{series}\"><figcaption><svg class=\"key\" width=\"26\" height=\"10\" aria-hidden=\"true\"><line class=\"c{series}\" x1=\"1\" x2=\"25\" y1=\"5\" y2=\"5\"/></svg>{}</figcaption>\n",
                escaped(&outcome.policy)
            ),
        );
        plot.draw(page, &curves, false);
        page.push_str("</figure>\n");
    }
    page.push_str("</div></section>\n");
}

/// A count holds for its whole interval. Of many intervals, every so many are drawn.
fn steps(ends: &[f64], counts: &[u32], unit: f64) -> Vec<(f64, f64)> {
    let every = ends.len().div_ceil(MOST_POINTS).max(1);
    let mut start = 0.0;
    let mut points = Vec::new();
    for (end, count) in ends.iter().zip(counts).step_by(every) {
        let (end, count) = (end / unit, f64::from(*count));
        points.extend([(start, count), (end, count)]);
        start = end;
    }
    points
}
