//! How is a plot drawn so that it fills any width while its text keeps its size?
//!
//! Places are per cents of an SVG without a view box; curves are in an inner one that is stretched, with strokes that
//! are not. Labels stand in the padding around.

use super::axis::Axis;
use super::{escaped, put};

/// Side of the inner view box: fine enough that rounding to whole numbers is not seen.
pub(super) const SIDE: f64 = 10_000.0;
/// No screen shows more points on a curve.
const MOST_POINTS: usize = 240;

/// A plot with its axes.
pub(super) struct Plot {
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// What it shows, for whoever cannot see it.
    pub(super) label: String,
    /// "wide" or "small" (page.css has their heights).
    pub(super) size: &'static str,
}

/// A line in a plot.
pub(super) struct Curve {
    /// Which policy's.
    pub(super) series: usize,
    /// What is told when one points at it.
    pub(super) says: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Plot {
    /// Draws it all; `marked` curves have a dot at every point.
    pub(super) fn draw(&self, page: &mut String, curves: &[Curve], marked: bool) {
        self.open(page);
        put(
            page,
            format_args!(
                "<svg class=\"curves\" viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" width=\"100%\" height=\"100%\">\n"
            ),
        );
        for curve in curves {
            let class = curve.series;
            put(
                page,
                format_args!(
                    "<path class=\"curve s{class} c{class}\" d=\"{}\"><title>{}</title></path>\n",
                    self.path(&curve.points),
                    escaped(&curve.says)
                ),
            );
        }
        page.push_str("</svg>\n");
        if marked {
            page.push_str("<g class=\"curves\">");
            for curve in curves {
                let class = curve.series;
                put(page, format_args!("<g class=\"dots s{class} c{class}\">"));
                for &(x, y) in &curve.points {
                    put(
                        page,
                        format_args!(
                            "<circle cx=\"{:.2}%\" cy=\"{:.2}%\" r=\"3.5\"/>",
                            self.left(x),
                            self.top(y)
                        ),
                    );
                }
                page.push_str("</g>");
            }
            page.push_str("</g>");
        }
        page.push_str("</svg></div>\n");
    }

    /// The frame: grid, labels, titles of the axes.
    fn open(&self, page: &mut String) {
        put(
            page,
            format_args!(
                "<div class=\"plot {}\"><svg role=\"img\" aria-label=\"{}\" width=\"100%\" height=\"100%\">\n<g class=\"grid\">",
                self.size,
                escaped(&self.label)
            ),
        );
        push_lines_down(page, &self.x);
        for &value in self
            .y
            .minor
            .iter()
            .chain(self.y.ticks.iter().map(|(value, _)| value))
        {
            let y = self.top(value);
            put(
                page,
                format_args!("<line y1=\"{y:.2}%\" y2=\"{y:.2}%\" x1=\"0\" x2=\"100%\"/>"),
            );
        }
        page.push_str("</g>\n<g class=\"ticks\">");
        push_labels_below(page, &self.x);
        for (value, text) in &self.y.ticks {
            put(
                page,
                format_args!(
                    "<text class=\"y\" x=\"-7\" y=\"{:.2}%\" dy=\"4\">{}</text>",
                    self.top(*value),
                    escaped(text)
                ),
            );
        }
        put(
            page,
            format_args!(
                "</g>\n<text class=\"title\" x=\"100%\" y=\"100%\" dy=\"34\">{}</text><text class=\"title y\" x=\"-7\" y=\"0\" dy=\"-11\" dx=\"-38\">{}</text>\n",
                escaped(&self.x.title),
                escaped(&self.y.title)
            ),
        );
    }

    fn left(&self, value: f64) -> f64 {
        self.x.place(value) * 100.0
    }

    fn top(&self, value: f64) -> f64 {
        100.0 - self.y.place(value) * 100.0
    }

    /// The path through the points, the fewest that look the same.
    fn path(&self, points: &[(f64, f64)]) -> String {
        let every = points.len().div_ceil(MOST_POINTS).max(1);
        let last = points.len().saturating_sub(1);
        let mut path = String::new();
        let mut mark = 'M';
        for (place, &(x, y)) in points.iter().enumerate() {
            if place % every != 0 && place != last {
                continue;
            }
            let (x, y) = (self.x.place(x) * SIDE, (1.0 - self.y.place(y)) * SIDE);
            put(&mut path, format_args!("{mark}{x:.0} {y:.0}"));
            mark = 'L';
        }
        path
    }
}

/// A line for each tick of a horizontal axis, minor ones too.
pub(super) fn push_lines_down(page: &mut String, axis: &Axis) {
    let labelled = axis.ticks.iter().map(|(value, _)| value);
    for value in axis.minor.iter().chain(labelled) {
        let x = axis.place(*value) * 100.0;
        put(
            page,
            format_args!("<line x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"100%\"/>"),
        );
    }
}

/// The labels of a horizontal axis.
pub(super) fn push_labels_below(page: &mut String, axis: &Axis) {
    for (value, text) in &axis.ticks {
        let x = axis.place(*value) * 100.0;
        put(
            page,
            format_args!(
                "<text x=\"{x:.2}%\" y=\"100%\" dy=\"16\">{}</text>",
                escaped(text)
            ),
        );
    }
}

/// Means of so many parts of a list in order, so that no plot holds more than can be seen.
pub(super) fn thinned(values: &[f32], most: usize) -> Vec<f64> {
    let every = values.len().div_ceil(most.max(1)).max(1);
    values
        .chunks(every)
        .map(|part| part.iter().map(|&value| f64::from(value)).sum::<f64>() / part.len() as f64)
        .collect()
}
