//! The plots of the time to the first token: a glance at each policy, the whole distribution, its course.

use super::axis::{Axis, GREATEST_SHARE, LEAST_SHARE, run_axis};
use super::plot::{Curve, Plot, push_labels_below, push_lines_down};
use super::{escaped, put};
use crate::simulate::outcome::Outcome;
use crate::simulate::report::numbers::time;

/// Height of a policy's row in the glance, pixels.
const ROW: usize = 27;
/// More intervals make thirteen curves a tangle.
const MOST_POINTS: usize = 60;

/// A row for each policy, the best p90 on top: from the median over p90 to p99.
pub(super) fn push_glance(page: &mut String, outcomes: &[Outcome]) {
    let mut answered: Vec<(usize, &Outcome)> = outcomes
        .iter()
        .enumerate()
        .filter(|(_, outcome)| outcome.requests > 0)
        .collect();
    answered.sort_by(|a, b| a.1.ttft.p90.total_cmp(&b.1.ttft.p90));
    if answered.is_empty() {
        return;
    }
    let quantiles = answered
        .iter()
        .flat_map(|(_, o)| [o.ttft.p50, o.ttft.p90, o.ttft.p99]);
    let axis = Axis::times("TTFT", quantiles);
    let height = answered.len() * ROW;
    page.push_str("<section><h2>Time to the first token, at a glance</h2>\n<p class=\"say\">Left end: half of the requests wait no longer. Dot: nine in ten. Right end: 99 in 100. Best p90 on top; the time axis is logarithmic.</p>\n");
    put(
        page,
        format_args!(
            "<div class=\"plot glance\" style=\"height:{height}px\"><svg role=\"img\" aria-label=\"p50, p90 and p99 of the time to the first token, a row for each of {} policies\" width=\"100%\" height=\"100%\">\n<g class=\"grid\">",
            answered.len()
        ),
    );
    push_lines_down(page, &axis);
    page.push_str("</g>\n<g class=\"ticks\">");
    push_labels_below(page, &axis);
    page.push_str("</g>\n<text class=\"title\" x=\"100%\" y=\"100%\" dy=\"34\">TTFT</text>\n");
    for (row, (series, outcome)) in answered.iter().enumerate() {
        push_row(page, &axis, row, *series, outcome);
    }
    page.push_str("</svg></div></section>\n");
}

fn push_row(page: &mut String, axis: &Axis, row: usize, series: usize, outcome: &Outcome) {
    let y = row * ROW + ROW / 2;
    let [p50, p90, p99] = [outcome.ttft.p50, outcome.ttft.p90, outcome.ttft.p99]
        .map(|value| axis.place(value) * 100.0);
    put(
        page,
        format_args!(
            "<g class=\"row s{series} c{series}\"><title>{}</title><text class=\"name\" y=\"{y}\" x=\"-10\" dy=\"4\">{}</text><line x1=\"{p50:.2}%\" x2=\"{p99:.2}%\" y1=\"{y}\" y2=\"{y}\"/><line class=\"end\" x1=\"{p50:.2}%\" x2=\"{p50:.2}%\" y1=\"{}\" y2=\"{}\"/><line class=\"end\" x1=\"{p99:.2}%\" x2=\"{p99:.2}%\" y1=\"{}\" y2=\"{}\"/><circle cx=\"{p90:.2}%\" cy=\"{y}\" r=\"5\"/></g>\n",
            escaped(&says(outcome)),
            escaped(&outcome.policy),
            y - 4,
            y + 4,
            y - 4,
            y + 4
        ),
    );
}

fn says(outcome: &Outcome) -> String {
    let Outcome { policy, ttft, .. } = outcome;
    format!(
        "{policy}: p50 {}, p90 {}, p99 {}, greatest {}",
        time(ttft.p50),
        time(ttft.p90),
        time(ttft.p99),
        time(ttft.max)
    )
}

/// The share of requests below each time, a curve for each policy.
pub(super) fn push_distribution(page: &mut String, outcomes: &[Outcome]) {
    let curves: Vec<Curve> = outcomes
        .iter()
        .enumerate()
        .map(|(series, outcome)| Curve {
            series,
            says: says(outcome),
            points: visible(&outcome.ttft_curve),
        })
        .collect();
    let times = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|(seconds, _)| *seconds));
    let plot = Plot {
        x: Axis::times("TTFT", times),
        y: Axis::odds("requests with a shorter TTFT"),
        label: format!(
            "distribution of the time to the first token, a curve for each of {} policies",
            outcomes.len()
        ),
        size: "wide",
    };
    page.push_str("<section><h2>Distribution of the time to the first token</h2>\n<p class=\"say\">Further left is better. The share is stretched toward its ends (log of the odds), so that p99 can be read as well as the median; the time axis is logarithmic.</p>\n");
    plot.draw(page, &curves, false);
    page.push_str("</section>\n");
}

/// The part of a curve that the share axis shows, so that what is beyond does not widen the time axis.
fn visible(curve: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let start = curve
        .iter()
        .rposition(|&(_, share)| share <= LEAST_SHARE)
        .unwrap_or(0);
    let end = curve
        .iter()
        .position(|&(_, share)| share >= GREATEST_SHARE)
        .unwrap_or(curve.len());
    curve
        .iter()
        .take(end + 1)
        .skip(start)
        .copied()
        .filter(|&(seconds, _)| seconds > 0.0)
        .collect()
}

/// The mean over time, a curve for each policy.
pub(super) fn push_course(page: &mut String, outcomes: &[Outcome], seconds: f64) {
    let (x, unit) = run_axis(seconds, 6.0);
    let curves: Vec<Curve> = outcomes
        .iter()
        .enumerate()
        .map(|(series, Outcome { policy, course, .. })| {
            let points = means(&course.seconds, &course.ttft)
                .map(|(at, ttft)| (at / unit, ttft))
                .collect();
            Curve {
                series,
                says: policy.clone(),
                points,
            }
        })
        .collect();
    let times = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|(_, ttft)| *ttft));
    let plot = Plot {
        x,
        y: Axis::times("mean TTFT of an interval", times),
        label: format!(
            "mean time to the first token over the run, a curve for each of {} policies",
            outcomes.len()
        ),
        size: "wide",
    };
    page.push_str("<section><h2>Time to the first token over the run</h2>\n<p class=\"say\">A curve that keeps rising is a fleet that is too small under that policy: its figures above depend on how long the run was.</p>\n");
    plot.draw(page, &curves, false);
    page.push_str("</section>\n");
}

/// The end of each of at most so many spans, and the mean of its intervals. Zero says that no first token came.
fn means(ends: &[f64], ttft: &[f32]) -> impl Iterator<Item = (f64, f64)> {
    let every = ends.len().div_ceil(MOST_POINTS).max(1);
    let spans = ends.chunks(every).zip(ttft.chunks(every));
    spans.filter_map(|(ends, ttft)| {
        let came: Vec<f64> = ttft
            .iter()
            .filter(|ttft| **ttft > 0.0)
            .map(|ttft| f64::from(*ttft))
            .collect();
        let mean = came.iter().sum::<f64>() / came.len() as f64;
        (!came.is_empty()).then(|| Some((*ends.last()?, mean)))?
    })
}
